// SPDX-License-Identifier: MPL-2.0

package plugin

import (
	"maps"
	"time"

	"github.com/nomad-gpu/nomad-gpu/device/gpu"
	"github.com/nomad-gpu/nomad-gpu/device/health"
)

// Monitor follows the health of a machine's GPUs from reading to reading.
type Monitor struct {
	rules  []health.Rule
	judges map[string]*health.Judge // by UUID
	links  map[string]uint          // the most NVLinks each GPU has had up
	// recalled is what a former process knew, by UUID; each judge takes its own.
	recalled map[string]health.Memory
	xids     map[string]map[uint64]uint64 // how many of each, by UUID
}

// NewMonitor makes a monitor with these rules.
func NewMonitor(rules []health.Rule) *Monitor {
	return &Monitor{rules: rules, judges: make(map[string]*health.Judge), links: make(map[string]uint), xids: make(map[string]map[uint64]uint64)}
}

// Recall gives the monitor what a former process knew.
func (mon *Monitor) Recall(gpus map[string]health.Memory) { mon.recalled = gpus }

// Memories are what a later process cannot read from the GPUs, by UUID.
func (mon *Monitor) Memories() map[string]health.Memory {
	all := make(map[string]health.Memory)
	maps.Copy(all, mon.recalled) // GPUs that have not answered yet
	for uuid, judge := range mon.judges {
		delete(all, uuid)
		if known := judge.Memory(); !known.Empty() {
			all[uuid] = known
		}
	}
	return all
}

// Xids are how many of each Xid came since the plugin was started, by UUID.
func (mon *Monitor) Xids() map[string]map[uint64]uint64 {
	all := make(map[string]map[uint64]uint64, len(mon.xids))
	for uuid, counts := range mon.xids {
		all[uuid] = maps.Clone(counts)
	}
	return all
}

// maxXids bounds the numbers that are counted of a GPU.
const maxXids = 256

func (mon *Monitor) count(uuid string, xids []uint64) {
	for _, number := range xids {
		if mon.xids[uuid] == nil {
			mon.xids[uuid] = make(map[uint64]uint64)
		}
		if _, known := mon.xids[uuid][number]; known || len(mon.xids[uuid]) < maxXids {
			mon.xids[uuid][number]++
		}
	}
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
			if before, ok := mon.recalled[g.UUID]; ok {
				judge.Recall(before)
				delete(mon.recalled, g.UUID)
			}
		}
		o := observations[g.UUID]
		o.At, o.Fault = at, g.Fault
		o.NVLinksUp, o.NVLinksExpected = g.NVLinks, expected[i]
		o.FabricFault = health.FabricFault(m, g)
		if g.UUID != "" {
			mon.judges[g.UUID], mon.links[g.UUID] = judge, expected[i]
			mon.count(g.UUID, o.Xids)
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
