// SPDX-License-Identifier: MPL-2.0

package plugin

import (
	"cmp"
	"maps"
	"slices"
	"strings"
	"sync"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/nomad-gpu/nomad-gpu/autoscaler/demand"
	"github.com/nomad-gpu/nomad-gpu/autoscaler/plan"
	"github.com/nomad-gpu/nomad-gpu/autoscaler/pool"
)

// gauge is one metric's help and labels.
type gauge struct {
	help   string
	labels []string
}

func (g gauge) desc(name string) *prometheus.Desc {
	return prometheus.NewDesc(prometheus.BuildFQName(metricsNamespace, "", name), g.help, g.labels, nil)
}

var ofQueue = []string{"namespace", "model", "priority", "cause"}

var gauges = map[string]gauge{
	"cluster":                   {"Figures of the whole cluster, named as in the queries of the APM gpu-queue.", []string{"figure"}},
	"queue_groups":              {"Task groups that wait.", ofQueue},
	"queue_gpus":                {"GPUs that they ask for and that are of no use yet.", ofQueue},
	"queue_slices":              {"The same of slices of GPUs.", ofQueue},
	"queue_oldest_seconds":      {"How long the first of them waits.", ofQueue},
	"queue_pool_gpus":           {"GPUs that wait and that a pool's nodes could serve; pools overlap.", []string{"pool"}},
	"pool_nodes":                {"Nodes that a pool has, those on their way included.", []string{"pool"}},
	"pool_wanted_nodes":         {"Nodes that a pool shall have.", []string{"pool"}},
	"pool_needed_nodes":         {"Nodes that are bought for what waits.", []string{"pool"}},
	"pool_resting":              {"1 while nothing can be bought in a pool.", []string{"pool"}},
	"pool_gpus":                 {"GPUs of a pool's nodes that are ready.", []string{"pool"}},
	"pool_used_gpus":            {"GPUs of a pool that jobs hold.", []string{"pool"}},
	"pool_interruptions":        {"Nodes of a pool that were taken away in the last 6 hours.", []string{"pool"}},
	"cost_per_hour":             {"What a pool's nodes cost for an hour, by the namespace that uses them; (idle): by nobody.", []string{"pool", "namespace"}},
	"budget_per_hour":           {"The most that nodes may cost for an hour, by namespace; *: all pools.", []string{"namespace"}},
	"budget_used_per_hour":      {"What they cost of it by the pools' prices.", []string{"namespace"}},
	"expected_gpus":             {"GPUs that are expected to be asked for soon, by what recurs; only with a forecast.", []string{"model"}},
	"reading_timestamp_seconds": {"When the cluster was last read.", nil},
}

// figure is one value of a gauge.
type figure struct {
	name   string
	value  float64
	labels []string
}

// scene is all that the figures are of.
type scene struct {
	reading demand.Reading
	in      plan.Input
	out     plan.Output
	resting map[string]string
	samples []demand.Sample
	pools   []pool.Definition
	tariff  pool.Tariff
}

// figures is pure but for the labels that are known already.
func (s scene) figures(names *labels) (all []figure) {
	add := func(name string, value float64, labels ...string) { all = append(all, figure{name, value, labels}) }
	add("reading_timestamp_seconds", float64(s.reading.At.UnixMilli())/1000)
	for name, of := range metrics {
		add("cluster", of(s.reading, s.out, ""), name)
	}
	for _, a := range s.out.Ahead {
		// A model of the pools file's: it is not bounded.
		add("expected_gpus", float64(a.GPUs), a.Model)
	}
	for _, d := range s.out.Decisions {
		add("pool_nodes", float64(d.Now), d.Pool)
		add("pool_wanted_nodes", float64(d.Want), d.Pool)
		add("pool_needed_nodes", float64(d.Needed), d.Pool)
		rests := 0.0
		if s.resting[d.Pool] != "" {
			rests = 1
		}
		add("pool_resting", rests, d.Pool)
	}
	for _, p := range s.in.Pools {
		add("pool_interruptions", float64(p.Interrupted), p.Name)
		could := 0.0
		for _, w := range s.out.Waiting {
			if !w.Unsatisfiable && w.Work.RunsOn(p) {
				could += w.Work.QueuedOn(p.Shape)
			}
		}
		add("queue_pool_gpus", could, p.Name)
	}
	for _, sample := range s.samples {
		used := 0.0
		for _, h := range sample.Used {
			used += h.All()
		}
		add("pool_gpus", float64(sample.GPUs), sample.Pool)
		add("pool_used_gpus", used, sample.Pool)
		for namespace, cost := range s.cost(sample, used, names) {
			add("cost_per_hour", cost, sample.Pool, namespace)
		}
	}
	for _, b := range s.budgets() {
		// A budget's namespace is the configuration's own: it is not bounded.
		add("budget_per_hour", b.limit, b.namespace)
		add("budget_used_per_hour", b.used, b.namespace)
	}
	return append(all, s.queue(names)...)
}

// idleNamespace is the label of what nobody uses; no namespace has such a name.
const idleNamespace = "(idle)"

// cost is what a pool's nodes cost for an hour, by namespace.
func (s scene) cost(sample demand.Sample, used float64, names *labels) map[string]float64 {
	i := slices.IndexFunc(s.pools, func(d pool.Definition) bool { return d.Name == sample.Pool })
	if i < 0 {
		return nil
	}
	each, idle := s.pools[i].Hour(sample.Nodes, sample.GPUs, used, s.tariff)
	costs := map[string]float64{idleNamespace: idle.Total()}
	for _, h := range sample.Used {
		costs[names.namespace(h.Namespace)] += h.All() * each.Total()
	}
	return costs
}

// spending is one budget.
type spending struct {
	namespace   string
	limit, used float64
}

// budgets are those of the pools file, with what nodes and GPUs in use cost by
// their pools' prices, as the planner counts it.
func (s scene) budgets() (all []spending) {
	price, perGPU := map[string]float64{}, map[string]float64{}
	for _, p := range s.in.Pools {
		price[p.Name], perGPU[p.Name] = p.Price, p.Price/max(p.Shape.Size(), 1)
	}
	if limit := s.in.Budget.PerHour; limit > 0 {
		b := spending{namespace: "*", limit: limit}
		for _, n := range s.in.Nodes {
			b.used += price[n.Pool]
		}
		all = append(all, b)
	}
	for _, name := range slices.Sorted(maps.Keys(s.in.Budget.Namespaces)) {
		if name == "*" {
			continue // no namespace has such a name, and its label is taken
		}
		b := spending{namespace: name, limit: s.in.Budget.Namespaces[name]}
		for _, sample := range s.samples {
			for _, h := range sample.Used {
				if h.Namespace == name {
					b.used += h.All() * perGPU[sample.Pool]
				}
			}
		}
		all = append(all, b)
	}
	return all
}

// maxQueue is how many sets of labels the queue's gauges have; what exceeds it
// is told by priority and cause alone.
const maxQueue = 500

// queue are the figures of what waits, for nodes or not.
func (s scene) queue(names *labels) (all []figure) {
	type sums struct{ groups, gpus, slices, oldest float64 }
	by := map[[4]string]sums{}
	waiting := slices.Concat(s.out.Waiting, s.reading.NotForNodes())
	add := func(key [4]string, a sums) {
		b := by[key]
		by[key] = sums{b.groups + a.groups, b.gpus + a.gpus, b.slices + a.slices, max(b.oldest, a.oldest)}
	}
	for _, w := range waiting {
		key := [4]string{names.namespace(w.Work.Namespace), names.model(strings.Join(w.Work.Request.Models(), ",")), band(w.Work.Priority), string(w.Cause)}
		add(key, sums{1, float64(w.Work.QueuedGPUs()), float64(w.Work.QueuedSlices()), max(s.reading.At.Sub(w.Work.Since), 0).Seconds()})
	}
	keys := slices.SortedFunc(maps.Keys(by), func(a, b [4]string) int {
		return cmp.Or(cmp.Compare(by[b].gpus, by[a].gpus), cmp.Compare(by[b].slices, by[a].slices), slices.Compare(a[:], b[:]))
	})
	for _, key := range keys[min(len(keys), maxQueue):] {
		small := by[key]
		delete(by, key)
		add([4]string{others, others, key[2], key[3]}, small)
	}
	for key, a := range by {
		for name, value := range map[string]float64{"queue_groups": a.groups, "queue_gpus": a.gpus, "queue_slices": a.slices, "queue_oldest_seconds": a.oldest} {
			all = append(all, figure{name, value, key[:]})
		}
	}
	return all
}

// band is a priority's quarter: Nomad knows a hundred and more.
func band(priority int) string {
	switch {
	case priority < 25:
		return "0-24"
	case priority < 50:
		return "25-49"
	case priority < 75:
		return "50-74"
	}
	return "75-"
}

// Bounds of what others name: namespaces and models get a label of their own in
// the order in which they are first seen, so that a counter's never changes.
const (
	maxNamespaces = 50
	maxModels     = 20
	maxLabel      = 128 // bytes
	others        = "(other)"
)

type labels struct {
	mu                 sync.Mutex
	namespaces, models map[string]bool
}

func newLabels() *labels {
	return &labels{namespaces: map[string]bool{}, models: map[string]bool{}}
}

func (l *labels) namespace(name string) string {
	return l.known(l.namespaces, maxNamespaces, cmp.Or(name, "default"))
}

// model is empty where any will do.
func (l *labels) model(name string) string {
	if name == "" {
		return ""
	}
	return l.known(l.models, maxModels, name)
}

func (l *labels) known(all map[string]bool, most int, name string) string {
	l.mu.Lock()
	defer l.mu.Unlock()
	if !all[name] {
		if len(all) >= most || len(name) > maxLabel {
			return others
		}
		all[name] = true
	}
	return name
}

// noteMetrics hands a plan to the metrics.
func (l *Lookout) noteMetrics(in plan.Input, out plan.Output, resting map[string]string, all []demand.Sample) {
	if l.metrics == nil {
		return
	}
	s := scene{reading: l.reading, in: in, out: out, resting: resting, samples: all, pools: l.File.Pools, tariff: pool.Tariff{Price: 1}}
	at, err := l.File.Curve.Tariffs()
	if err == nil { // that it cannot be read is said by the plan's own reading of it
		s.tariff = at(l.reading.At)
	}
	l.metrics.decide(s)
}
