// SPDX-License-Identifier: MPL-2.0

package plugin

import (
	"errors"
	"fmt"
	"net"
	"net/http"
	"sync"
	"syscall"
	"time"

	"github.com/hashicorp/nomad-autoscaler/sdk"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promhttp"

	"github.com/nomad-gpu/nomad-gpu/autoscaler/pool"
)

// configMetrics is the setting with the address that metrics are served on:
// none where it is not set, this machine's own where it names no host.
const configMetrics = "metrics_listen"

const metricsNamespace = "nomad_gpu_autoscaler"

// instruments are the Prometheus metrics of what a plugin reads and decides.
// Gauges are those of the last plan, all at once: what is gone is not there.
type instruments struct {
	registry           *prometheus.Registry
	reading            prometheus.Histogram
	failures           prometheus.Counter
	paid, used         *prometheus.CounterVec
	refusals, decision *prometheus.CounterVec
	names              *labels

	mu      sync.Mutex
	last    time.Time            // of the last reading that was counted
	refused map[string]time.Time // by pool, as last seen
	now     []prometheus.Metric
}

func newInstruments() *instruments {
	counter := func(name, help string, labels ...string) *prometheus.CounterVec {
		return prometheus.NewCounterVec(prometheus.CounterOpts{Namespace: metricsNamespace, Name: name, Help: help}, labels)
	}
	m := &instruments{
		registry: prometheus.NewRegistry(),
		reading: prometheus.NewHistogram(prometheus.HistogramOpts{Namespace: metricsNamespace, Name: "reading_seconds", Help: "Time to read the cluster from Nomad.",
			Buckets: []float64{0.01, 0.03, 0.1, 0.3, 1, 3, 10, 30}}),
		failures: prometheus.NewCounter(prometheus.CounterOpts{Namespace: metricsNamespace, Name: "reading_failures_total", Help: "Readings that failed."}),
		paid:     counter("paid_gpu_seconds_total", "GPU seconds of a pool's nodes.", "pool"),
		used:     counter("used_gpu_seconds_total", "GPU seconds that a namespace's jobs held of a pool.", "pool", "namespace"),
		refusals: counter("pool_refusals_total", "Purchases that a pool refused, and nodes of it that did not come up.", "pool"),
		decision: counter("decisions_total", "Decisions of the strategy: buy, release, drain and keep.", "pool", "kind"),
		names:    newLabels(),
		refused:  map[string]time.Time{},
	}
	m.registry.MustRegister(m.reading, m.failures, m.paid, m.used, m.refusals, m.decision, m)
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

// decide notes one plan, and its reading once.
func (m *instruments) decide(s scene) {
	if m == nil {
		return
	}
	figures := s.figures(m.names)
	m.mu.Lock()
	defer m.mu.Unlock()
	m.now = nil
	for _, f := range figures {
		m.now = append(m.now, prometheus.MustNewConstMetric(gauges[f.name].desc(f.name), prometheus.GaugeValue, f.value, f.labels...))
	}
	for _, p := range s.in.Pools {
		if before, known := m.refused[p.Name]; known && p.Refused.After(before) {
			m.refusals.WithLabelValues(p.Name).Inc()
		} else {
			m.refusals.WithLabelValues(p.Name).Add(0)
		}
		m.refused[p.Name] = p.Refused
	}
	// Where nobody looked for long nothing is counted, as in the record.
	elapsed := min(s.reading.At.Sub(m.last), RecordGap).Seconds()
	if first := m.last.IsZero(); first || elapsed <= 0 {
		elapsed = 0
	}
	m.last = s.reading.At
	for _, sample := range s.samples {
		m.paid.WithLabelValues(sample.Pool).Add(elapsed * float64(sample.GPUs))
		for _, h := range sample.Used {
			m.used.WithLabelValues(sample.Pool, m.names.namespace(h.Namespace)).Add(elapsed * h.All())
		}
	}
}

// decided counts what the strategy told the autoscaler to do.
func (m *instruments) decided(pool string, a *sdk.ScalingAction) {
	if m == nil {
		return
	}
	kind := "keep"
	switch drain, _ := a.Meta[drainMeta].(string); {
	case a.Direction == sdk.ScaleDirectionUp:
		kind = "buy"
	case a.Direction == sdk.ScaleDirectionDown && drain != "":
		kind = "drain"
	case a.Direction == sdk.ScaleDirectionDown:
		kind = "release"
	}
	m.decision.WithLabelValues(pool, kind).Inc()
}

// prepare has each pool's counters there from the start, so that a rate sees their first step.
func (m *instruments) prepare(file *pool.File) {
	for i := range file.Pools {
		name := file.Pools[i].Name
		m.paid.WithLabelValues(name)
		m.refusals.WithLabelValues(name)
		for _, kind := range []string{"buy", "release", "drain", "keep"} {
			m.decision.WithLabelValues(name, kind)
		}
	}
}

// Describe tells of the gauges; with Collect it makes m a prometheus.Collector.
func (m *instruments) Describe(to chan<- *prometheus.Desc) {
	for name, g := range gauges {
		to <- g.desc(name)
	}
}

// Collect gives the gauges of the last plan.
func (m *instruments) Collect(to chan<- prometheus.Metric) {
	m.mu.Lock()
	defer m.mu.Unlock()
	for _, metric := range m.now {
		to <- metric
	}
}

// heirPatience is how long an address may still be in use: the plugin of an
// autoscaler that was killed has it until it ends, a moment later.
const heirPatience = 5 * time.Second

// serve answers on an address until the returned function is called. One that is
// in use is waited for.
func (m *instruments) serve(address string, patience time.Duration) (stop func() error, at net.Addr, err error) {
	host, port, err := net.SplitHostPort(address)
	if err != nil {
		return nil, nil, fmt.Errorf("%s: %q; allowed is host:port, or :port for this machine alone", configMetrics, address)
	}
	if host == "" {
		host = "127.0.0.1"
	}
	l, err := net.Listen("tcp", net.JoinHostPort(host, port))
	for end := time.Now().Add(patience); errors.Is(err, syscall.EADDRINUSE) && time.Now().Before(end); {
		time.Sleep(patience / 50)
		l, err = net.Listen("tcp", net.JoinHostPort(host, port))
	}
	if err != nil {
		return nil, nil, fmt.Errorf("%s: %q: %w", configMetrics, address, err)
	}
	mux := http.NewServeMux()
	mux.Handle("GET /metrics", promhttp.HandlerFor(m.registry, promhttp.HandlerOpts{}))
	s := &http.Server{Handler: mux, ReadHeaderTimeout: 5 * time.Second}
	go s.Serve(l)
	return s.Close, l.Addr(), nil
}
