// SPDX-License-Identifier: MPL-2.0

package story

import (
	"fmt"
	"testing"

	"github.com/shoenig/test/must"
)

// good is what is observed where everything went right.
func good() Observed {
	o := Observed{Nodes: 2, GPUs: 2, QueuedGPUs: 4, SpotNodes: []string{"spot-1"}, KilledAtStep: 25, JobStatus: "dead"}
	for rank := range 2 {
		m := Member{Alloc: fmt.Sprint("alloc-", rank), Node: fmt.Sprint("node-", rank), Status: "complete"}
		for generation := 1; generation <= 2; generation++ {
			m.Events = append(m.Events,
				Event{Event: "start", Rank: rank, Generation: generation, World: 2, Master: fmt.Sprint("127.0.0.1:", generation),
					GPUs: []string{fmt.Sprint("GPU-", 2*rank), fmt.Sprint("GPU-", 2*rank+1)}},
				Event{Event: "allreduce", Rank: rank, Generation: generation, OK: true})
		}
		m.Events = append(m.Events,
			Event{Event: "resume", Rank: rank, Generation: 2, Step: 20},
			Event{Event: "result", Rank: rank, Generation: 2, FirstLoss: 1, LastLoss: 0.1, Digest: "d", OK: true})
		o.Members = append(o.Members, m)
	}
	// Nomad lists allocations in no order that means anything.
	o.Members[0], o.Members[1] = o.Members[1], o.Members[0]
	return o
}

func TestNothingFailsWhereTheStoryWentWell(t *testing.T) {
	must.Eq(t, []Finding{}, Failed(Check(good())))
}

func TestEachFigureThatIsWrongIsFound(t *testing.T) {
	event := func(o *Observed, member int, kind string, generation int) *Event {
		for i, e := range o.Members[member].Events {
			if e.Event == kind && e.Generation == generation {
				return &o.Members[member].Events[i]
			}
		}
		t.Fatalf("no event %s of generation %d", kind, generation)
		return nil
	}
	cases := map[string]struct {
		spoil func(*Observed)
		what  string
	}{
		"queue depth":        {func(o *Observed) { o.QueuedGPUs = 2 }, "GPUs queued before the pool grew"},
		"too many nodes":     {func(o *Observed) { o.SpotNodes = append(o.SpotNodes, "spot-2") }, "spot nodes bought"},
		"rescheduled":        {func(o *Observed) { o.Members = append(o.Members, Member{Status: "failed"}) }, "allocations in all, none rescheduled"},
		"rank twice":         {func(o *Observed) { event(o, 0, "start", 1).Rank = 0 }, "generation 1: ranks started"},
		"world of nodes":     {func(o *Observed) { event(o, 0, "start", 2).World = 16 }, "generation 2: world size on each rank"},
		"two masters":        {func(o *Observed) { event(o, 1, "start", 2).Master = "10.0.0.9:1" }, "generation 2: one master for all"},
		"wrong sum":          {func(o *Observed) { event(o, 1, "allreduce", 1).OK = false }, "generation 1: all-reduce right on each rank"},
		"a GPU on two ranks": {func(o *Observed) { event(o, 1, "start", 2).GPUs[0] = "GPU-3" }, "GPUs in use, none on two ranks"},
		"from scratch":       {func(o *Observed) { event(o, 0, "resume", 2).Step = 0; event(o, 1, "resume", 2).Step = 0 }, "step that generation 2 resumed at"},
		"loss does not fall": {func(o *Observed) { event(o, 0, "result", 2).LastLoss = 2; event(o, 1, "result", 2).LastLoss = 2 }, "loss at the end"},
		"no result":          {func(o *Observed) { event(o, 0, "result", 2).Event = "step" }, "ranks with a result"},
		"other parameters":   {func(o *Observed) { event(o, 0, "result", 2).Digest = "e" }, "different parameters at the end"},
		"failed allocation":  {func(o *Observed) { o.Members[0].Status = "failed" }, "allocations by status"},
		"job still runs":     {func(o *Observed) { o.JobStatus = "running" }, "job status"},
		"node left":          {func(o *Observed) { o.SpotNodesLeft = 1 }, "spot nodes left"},
		"key left":           {func(o *Observed) { o.KeysLeft = 1 }, "keys and sessions left in Consul"},
		"a third generation": {func(o *Observed) {
			o.Members[0].Events = append(o.Members[0].Events, Event{Event: "step", Generation: 3})
		}, "newest generation"},
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			o := good()
			c.spoil(&o)
			var whats []string
			for _, f := range Failed(Check(o)) {
				whats = append(whats, f.What)
			}
			must.SliceContains(t, whats, c.what)
		})
	}
}

func TestLinesThatAreNoEventsAreLeftOut(t *testing.T) {
	got := ParseEvents([]byte("/usr/lib/python3: warning\n{\"event\":\"step\",\"step\":5}\n[1]\n{}\n{\"event\":\"st"))
	must.Eq(t, []Event{{Event: "step", Step: 5}}, got)
}
