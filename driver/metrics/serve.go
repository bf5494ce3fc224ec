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

// Validate checks metrics.listen; empty: nothing is served. The address must
// be an IP literal, so that one beyond loopback is meant.
func Validate(listen string) error {
	if listen == "" {
		return nil
	}
	if at, err := netip.ParseAddrPort(listen); err != nil || at.Port() == 0 {
		return fmt.Errorf(`metrics.listen: %q; allowed are an IP literal and a port such as "127.0.0.1:9501", or "0.0.0.0:9501" for everybody`, listen)
	}
	return nil
}

// Serve answers GET /metrics on the listener until ctx ends, and closes it.
func Serve(ctx context.Context, l net.Listener, c prometheus.Collector) error {
	registry := prometheus.NewRegistry()
	if err := registry.Register(c); err != nil {
		return err
	}
	mux := http.NewServeMux()
	mux.Handle("GET /metrics", promhttp.HandlerFor(registry, promhttp.HandlerOpts{MaxRequestsInFlight: 4, Timeout: 10 * time.Second}))
	s := &http.Server{Handler: mux, ReadHeaderTimeout: 5 * time.Second, ReadTimeout: 10 * time.Second, WriteTimeout: 30 * time.Second, IdleTimeout: time.Minute}
	defer context.AfterFunc(ctx, func() { s.Close() })()
	if err := s.Serve(l); ctx.Err() == nil {
		return fmt.Errorf("serve metrics: %w", err)
	}
	return nil
}
