// SPDX-License-Identifier: MPL-2.0

package demand

import (
	"iter"
	"maps"
	"slices"
	"time"

	"github.com/hashicorp/nomad/api"
)

// Running is what one job holds on one node.
type Running struct {
	Node, Namespace, Job string
	// GPUs are whole ones and MIG instances, Shared its parts of others.
	GPUs   int
	Shared float64
}

// Sample is what one pool had and what was used of it at a moment: a line of
// the record that a plugin keeps.
type Sample struct {
	At    time.Time `json:"at"`
	Pool  string    `json:"pool"`
	Nodes int       `json:"nodes"`
	GPUs  int       `json:"gpus"`
	Used  []Held    `json:"used,omitempty"`
	// Queued is how many GPUs wait that the pool's nodes could take; other pools'
	// too, so that they do not add up.
	Queued int `json:"queued,omitempty"`
	// QueuedShared is the same of slices, in GPUs.
	QueuedShared float64 `json:"queued_shared,omitempty"`
	// Coming is how many GPUs wait that are to be on the pool's nodes: those with
	// room, on their way, or being bought. They add up over the pools.
	Coming int `json:"coming,omitempty"`
}

// Held is what one job holds of a pool.
type Held struct {
	Namespace string `json:"namespace"`
	Job       string `json:"job"`
	GPUs      int    `json:"gpus"`
	// Shared is what it has of GPUs that it shares, in GPUs.
	Shared float64 `json:"shared,omitempty"`
}

// All is what is held, in GPUs.
func (h Held) All() float64 { return float64(h.GPUs) + h.Shared }

// Share is a job's part of a pool.
type Share struct{ Pool, Namespace, Job string }

// Usage is what was paid for and what was used of it, in hours.
type Usage struct {
	// Nodes and Paid are the pools' node hours and GPU hours; Peak their most nodes at once.
	Nodes, Paid map[string]float64
	Peak        map[string]int
	Used        map[Share]float64 // GPU hours
}

func newUsage() Usage {
	return Usage{Nodes: map[string]float64{}, Paid: map[string]float64{}, Peak: map[string]int{}, Used: map[Share]float64{}}
}

// Spans gives each sample with the hours that it stands between two moments.
// Samples of a pool are in order of time; one stands until the next, but no
// longer than gap: where nobody looked, nothing is counted.
func Spans(samples []Sample, from, to time.Time, gap time.Duration) iter.Seq2[Sample, float64] {
	return func(yield func(Sample, float64) bool) {
		last := map[string]Sample{}
		give := func(s Sample, until time.Time) bool {
			hours := overlap(s.At, earlier(until, s.At.Add(gap)), from, to).Hours()
			return hours == 0 || yield(s, hours)
		}
		for _, s := range samples {
			if before, ok := last[s.Pool]; ok && !give(before, s.At) {
				return
			}
			last[s.Pool] = s
		}
		for _, pool := range slices.Sorted(maps.Keys(last)) {
			if !give(last[pool], to) {
				return
			}
		}
	}
}

// UsageOf sums samples between two moments, as far as Spans counts them.
func UsageOf(samples []Sample, from, to time.Time, gap time.Duration) Usage {
	u := newUsage()
	for s, hours := range Spans(samples, from, to, gap) {
		u.Nodes[s.Pool] += hours * float64(s.Nodes)
		u.Paid[s.Pool] += hours * float64(s.GPUs)
		u.Peak[s.Pool] = max(u.Peak[s.Pool], s.Nodes)
		for _, h := range s.Used {
			u.Used[Share{s.Pool, h.Namespace, h.Job}] += hours * h.All()
		}
	}
	return u
}

// UsageOfAllocs sums what Nomad's allocations used between two moments, as far
// back as Nomad keeps them. Of what was paid it knows nothing.
func UsageOfAllocs(allocs []*api.AllocationListStub, poolOf func(node string) string, from, to time.Time) Usage {
	u := newUsage()
	for _, a := range allocs {
		if a == nil {
			continue
		}
		h := heldBy(a)
		if h == (held{}) {
			continue
		}
		var begun, ended time.Time
		running := false
		for _, s := range a.TaskStates {
			if s == nil || s.StartedAt.IsZero() {
				continue
			}
			if begun.IsZero() || s.StartedAt.Before(begun) {
				begun = s.StartedAt
			}
			running = running || s.FinishedAt.IsZero()
			if s.FinishedAt.After(ended) {
				ended = s.FinishedAt
			}
		}
		if begun.IsZero() {
			continue
		}
		if running && !terminal(a) {
			ended = to
		}
		if hours := overlap(begun, ended, from, to).Hours(); hours > 0 {
			u.Used[Share{poolOf(a.NodeName), a.Namespace, a.JobID}] += hours * (float64(h.gpus) + h.shared)
		}
	}
	return u
}

// overlap is how much of a span lies between two moments.
func overlap(begin, end, from, to time.Time) time.Duration {
	if begin.Before(from) {
		begin = from
	}
	return max(earlier(end, to).Sub(begin), 0)
}

func earlier(a, b time.Time) time.Time {
	if a.Before(b) {
		return a
	}
	return b
}
