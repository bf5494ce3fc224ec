// SPDX-License-Identifier: MPL-2.0

package plugin

import (
	"fmt"
	"net"
	"net/http"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promhttp"

	"github.com/nomad-gpu/nomad-gpu/autoscaler/demand"
	"github.com/nomad-gpu/nomad-gpu/autoscaler/plan"
)

// configMetrics is the setting with the address that metrics are served on:
// none where it is not set, this machine's own where it names no host.
const configMetrics = "metrics_listen"

// instruments are the Prometheus metrics of what a plugin reads and decides.
type instruments struct {
	registry              *prometheus.Registry
	reading               prometheus.Histogram
	failures              prometheus.Counter
	queue                 *prometheus.GaugeVec // by figure of the whole cluster
	nodes, wanted, needed *prometheus.GaugeVec // by pool
	resting               *prometheus.GaugeVec
	expected              *prometheus.GaugeVec // by model of GPU
}

func newInstruments() *instruments {
	gauge := func(name, help string, labels ...string) *prometheus.GaugeVec {
		return prometheus.NewGaugeVec(prometheus.GaugeOpts{Namespace: "nomad_gpu_autoscaler", Name: name, Help: help}, labels)
	}
	m := &instruments{
		registry: prometheus.NewRegistry(),
		reading: prometheus.NewHistogram(prometheus.HistogramOpts{Namespace: "nomad_gpu_autoscaler", Name: "reading_seconds", Help: "Time to read the cluster from Nomad.",
			Buckets: []float64{0.01, 0.03, 0.1, 0.3, 1, 3, 10, 30}}),
		failures: prometheus.NewCounter(prometheus.CounterOpts{Namespace: "nomad_gpu_autoscaler", Name: "reading_failures_total", Help: "Readings that failed."}),
		queue:    gauge("cluster", "Figures of the whole cluster, named as in the queries of the APM gpu-queue.", "figure"),
		nodes:    gauge("pool_nodes", "Nodes that a pool has, those on their way included.", "pool"),
		wanted:   gauge("pool_wanted_nodes", "Nodes that a pool shall have.", "pool"),
		needed:   gauge("pool_needed_nodes", "Nodes that are bought for what waits.", "pool"),
		resting:  gauge("pool_resting", "1 while nothing can be bought in a pool.", "pool"),
		expected: gauge("expected_gpus", "GPUs that are expected to be asked for soon, by what recurs; only with a forecast.", "model"),
	}
	m.registry.MustRegister(m.reading, m.failures, m.queue, m.nodes, m.wanted, m.needed, m.resting, m.expected)
	return m
}

// observe notes one reading; nil instruments note nothing.
func (m *instruments) observe(took time.Duration, err error) {
	if m == nil {
		return
	}
	m.reading.Observe(took.Seconds())
	if err != nil {
		m.failures.Inc()
	}
}

// decide notes one plan.
func (m *instruments) decide(r demand.Reading, o plan.Output, resting map[string]string) {
	if m == nil {
		return
	}
	for name, figure := range metrics {
		m.queue.WithLabelValues(name).Set(figure(r, o, ""))
	}
	for _, a := range o.Ahead {
		m.expected.WithLabelValues(a.Model).Set(float64(a.GPUs))
	}
	for _, d := range o.Decisions {
		m.nodes.WithLabelValues(d.Pool).Set(float64(d.Now))
		m.wanted.WithLabelValues(d.Pool).Set(float64(d.Want))
		m.needed.WithLabelValues(d.Pool).Set(float64(d.Needed))
		rests := 0.0
		if resting[d.Pool] != "" {
			rests = 1
		}
		m.resting.WithLabelValues(d.Pool).Set(rests)
	}
}

// serve answers on an address until the returned function is called.
func (m *instruments) serve(address string) (stop func() error, at net.Addr, err error) {
	host, port, err := net.SplitHostPort(address)
	if err != nil {
		return nil, nil, fmt.Errorf("%s: %q; allowed is host:port, or :port for this machine alone", configMetrics, address)
	}
	if host == "" {
		host = "127.0.0.1"
	}
	l, err := net.Listen("tcp", net.JoinHostPort(host, port))
	if err != nil {
		return nil, nil, fmt.Errorf("%s: %q: %w", configMetrics, address, err)
	}
	mux := http.NewServeMux()
	mux.Handle("GET /metrics", promhttp.HandlerFor(m.registry, promhttp.HandlerOpts{}))
	s := &http.Server{Handler: mux, ReadHeaderTimeout: 5 * time.Second}
	go s.Serve(l)
	return s.Close, l.Addr(), nil
}
