// SPDX-License-Identifier: MPL-2.0

package metrics

import (
	"context"
	"fmt"
	"net"
	"net/http"
	"net/netip"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promhttp"
)

// CheckListen checks an address to listen on. It has to name the interface: one
// that others reach must be meant.
func CheckListen(address string) error {
	at, err := netip.ParseAddrPort(address)
	if err != nil || at.Port() == 0 {
		return fmt.Errorf("metrics.listen %q: it must be an IP address and a port such as \"127.0.0.1:9500\"; \"0.0.0.0:9500\" listens on all", address)
	}
	return nil
}

// Serve answers at /metrics until the context ends; an error is why it cannot.
func Serve(ctx context.Context, address string, c prometheus.Collector) error {
	registry := prometheus.NewRegistry()
	if err := registry.Register(c); err != nil {
		return err
	}
	listener, err := (&net.ListenConfig{}).Listen(ctx, "tcp", address)
	if err != nil {
		return fmt.Errorf("metrics.listen: %w", err)
	}
	mux := http.NewServeMux()
	mux.Handle("GET /metrics", promhttp.HandlerFor(registry, promhttp.HandlerOpts{MaxRequestsInFlight: 4}))
	server := &http.Server{Handler: mux, ReadHeaderTimeout: 5 * time.Second, ReadTimeout: 10 * time.Second, WriteTimeout: 30 * time.Second, IdleTimeout: time.Minute}
	stop := context.AfterFunc(ctx, func() { server.Close() })
	defer stop()
	if err := server.Serve(listener); ctx.Err() == nil {
		return fmt.Errorf("metrics.listen: %w", err)
	}
	return nil
}
