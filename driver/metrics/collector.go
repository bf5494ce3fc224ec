// SPDX-License-Identifier: MPL-2.0

package metrics

import (
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/nomad-gpu/nomad-gpu/driver/gang"
	"github.com/nomad-gpu/nomad-gpu/driver/member"
)

// bounds are those of the histogram of times to form, in seconds.
var bounds = []float64{1, 2, 5, 10, 20, 30, 60, 120, 300, 600, 1800, 3600, 14400}

// ends are the causes that end a generation and not the gang.
var ends = []gang.Cause{gang.CauseFailure, gang.CauseLost, gang.CauseLeave, gang.CauseNotice, gang.CauseSlow, gang.CauseGrow, gang.CauseUnknown}

// formation is a histogram of times to form.
type formation struct {
	count  uint64
	sum    float64
	within [13]uint64 // cumulative, one for each bound
}

func (f *formation) add(seconds float64) {
	f.count, f.sum = f.count+1, f.sum+seconds
	for i, b := range bounds {
		if seconds <= b {
			f.within[i]++
		}
	}
}

func (f *formation) buckets() map[float64]uint64 {
	m := make(map[float64]uint64, len(bounds))
	for i, b := range bounds {
		m[b] = f.within[i]
	}
	return m
}

var (
	gangLabels = []string{"namespace", "job", "group"}

	gangsDesc = prometheus.NewDesc("nccl_gangs", "Gangs with a member on this node, by the gang's state.",
		append(gangLabels, "state"), nil)
	membersDesc = prometheus.NewDesc("nccl_members", "Members of gangs on this node, by what they do: form, prepare, run, stop.",
		append(gangLabels, "stage"), nil)
	generationDesc = prometheus.NewDesc("nccl_gang_generation", "The gang's newest generation that this node has seen.", gangLabels, nil)
	formDesc       = prometheus.NewDesc("nccl_gang_form_seconds", "From a member's join, or the end of its last run, until its gang runs.", gangLabels, nil)
	restartsDesc   = prometheus.NewDesc("nccl_gang_restarts_total", "Generations that ended before their work was done, by why: failure, lost, leave, notice, slow, grow, unknown. Each node counts those it takes part in.",
		append(gangLabels, "reason"), nil)
	stageDesc = prometheus.NewDesc("nccl_member_stage_seconds_total", "Time that members on this node spent in each stage.",
		append(gangLabels, "stage"), nil)
	ratioDesc  = prometheus.NewDesc("nccl_effective_training_time_ratio", "Of the time since the members on this node joined, the part in which their gang ran.", gangLabels, nil)
	consulDesc = prometheus.NewDesc("nccl_consul_trouble_seconds_total", "Time in which a member on this node did not reach Consul.", nil, nil)
)

// Collector offers a ledger to Prometheus.
type Collector struct {
	Ledger *Ledger
	Now    func() time.Time
}

var _ prometheus.Collector = Collector{}

// Describe sends nothing: which series there are follows from the gangs.
func (Collector) Describe(chan<- *prometheus.Desc) {}

// Collect reads the ledger.
func (c Collector) Collect(out chan<- prometheus.Metric) {
	now, l := c.Now(), c.Ledger
	l.mu.Lock()
	defer l.mu.Unlock()
	l.forget(now)
	trouble := l.trouble
	if len(l.troubled) > 0 {
		trouble += now.Sub(l.since)
	}
	out <- prometheus.MustNewConstMetric(consulDesc, prometheus.CounterValue, trouble.Seconds())
	for n, a := range l.gangs {
		gauge := func(d *prometheus.Desc, v float64, labels ...string) {
			out <- prometheus.MustNewConstMetric(d, prometheus.GaugeValue, v, append([]string{n.namespace, n.job, n.group}, labels...)...)
		}
		counter := func(d *prometheus.Desc, v float64, label string) {
			out <- prometheus.MustNewConstMetric(d, prometheus.CounterValue, v, n.namespace, n.job, n.group, label)
		}
		stages := map[member.Stage]int{}
		var since, ran time.Duration
		for _, m := range a.members {
			a.pass(m, now)
			stages[m.stage]++
			since, ran = since+now.Sub(m.joined), ran+m.ran
		}
		for _, s := range member.Stages {
			gauge(membersDesc, float64(stages[s]), string(s))
			counter(stageDesc, a.spent[s].Seconds(), string(s))
		}
		for _, r := range ends {
			counter(restartsDesc, float64(a.restarts[r]), string(r))
		}
		out <- prometheus.MustNewConstHistogram(formDesc, a.forms.count, a.forms.sum, a.forms.buckets(), n.namespace, n.job, n.group)
		if len(a.members) == 0 {
			continue
		}
		if a.head.State != "" {
			gauge(gangsDesc, 1, string(a.head.State))
		}
		gauge(generationDesc, float64(a.head.Generation))
		if since > 0 {
			gauge(ratioDesc, ran.Seconds()/since.Seconds())
		}
	}
}
