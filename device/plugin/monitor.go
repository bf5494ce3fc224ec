// SPDX-License-Identifier: MPL-2.0

package plugin

import (
	"time"

	"github.com/nomad-gpu/nomad-gpu/device/gpu"
	"github.com/nomad-gpu/nomad-gpu/device/health"
)

// Monitor follows the health of a machine's GPUs from reading to reading.
type Monitor struct {
	rules  []health.Rule
	judges map[string]*health.Judge // by UUID
	links  map[string]uint          // the most NVLinks each GPU has had up
}

// NewMonitor makes a monitor with these rules.
func NewMonitor(rules []health.Rule) *Monitor {
	return &Monitor{rules: rules, judges: make(map[string]*health.Judge), links: make(map[string]uint)}
}

// Judge gives the verdict on each GPU of a reading, by position. GPUs without a
// UUID cannot be followed and are judged by their fault alone.
func (mon *Monitor) Judge(m *gpu.Machine, observations map[string]health.Observation, at time.Time) []health.Verdict {
	verdicts := make([]health.Verdict, len(m.GPUs))
	expected := health.ExpectedLinks(m, mon.links)
	for i := range m.GPUs {
		g := &m.GPUs[i]
		judge, known := mon.judges[g.UUID]
		if !known {
			judge = health.NewJudge(mon.rules)
		}
		o := observations[g.UUID]
		o.At, o.Fault = at, g.Fault
		o.NVLinksUp, o.NVLinksExpected = g.NVLinks, expected[i]
		o.FabricFault = health.FabricFault(m, g)
		if g.UUID != "" {
			mon.judges[g.UUID], mon.links[g.UUID] = judge, expected[i]
		}
		verdicts[i] = judge.Observe(o)
	}
	return verdicts
}

// withVerdicts is the machine with its GPUs' verdicts as faults and warnings
// for Nomad. The machine itself is not changed.
func withVerdicts(m *gpu.Machine, verdicts []health.Verdict) *gpu.Machine {
	judged := *m
	judged.GPUs = make([]gpu.GPU, len(m.GPUs))
	copy(judged.GPUs, m.GPUs)
	for i, verdict := range verdicts {
		g := &judged.GPUs[i]
		g.Fault, g.Degraded = "", ""
		switch verdict.State {
		case health.Unhealthy:
			g.Fault = verdict.String()
		case health.Degraded:
			g.Degraded = verdict.String()
		}
	}
	return &judged
}
