// SPDX-License-Identifier: MPL-2.0

package plan

import (
	"testing"
	"time"

	"github.com/shoenig/test/must"
)

func TestEachReasonToWaitHasItsCauseAndSaysWhatLetsTheWorkRun(t *testing.T) {
	in := func(change func(*Input)) Input {
		i := Input{Now: now, Pools: pools(), Work: []Work{single(8)}}
		change(&i)
		return i
	}
	for name, c := range map[string]struct {
		in             Input
		cause          Cause
		next           string
		coming, buying map[string]int
	}{
		"bought for": {in(func(*Input) {}), Buying, "nothing to do: it runs once its nodes are ready", nil, map[string]int{"spot": 1}},
		"a node of two starts": {in(func(i *Input) {
			i.Work[0].Count = 2
			i.Nodes = []Node{{Name: "n", Pool: "spot", Free: pools()[0].Shape, Starting: true}}
		}), Buying, "nothing to do", map[string]int{"spot": 1}, map[string]int{"spot": 1}},
		"on their way": {in(func(i *Input) {
			i.Nodes = []Node{{Name: "n", Pool: "spot", Free: pools()[0].Shape, Starting: true}}
		}), Starting, "nothing to do", map[string]int{"spot": 1}, nil},
		"ready": {in(func(i *Input) {
			i.Nodes = []Node{{Name: "n", Pool: "spot", Free: pools()[0].Shape}}
		}), Placing, "nomad job status -namespace=a j tells which", nil, nil},
		"a cheaper hour": {in(func(i *Input) {
			i.Work[0].Deadline, i.Work[0].Length = now.Add(24*time.Hour), time.Hour
			i.Curve = []Rate{{now.Add(-time.Hour), 1}, {now.Add(2 * time.Hour), 0.5}}
		}), Deferred, "without gpu.deadline in the job's meta it runs now", nil, nil},
		"it failed and is tried again": {in(func(i *Input) {
			i.Work[0].Later, i.Work[0].Until = 1, now.Add(time.Hour)
		}), Retrying, "a shorter delay in the group's reschedule block", nil, nil},
		"the pools are full": {in(func(i *Input) {
			i.Work[0].Spot = Only
			i.Pools[0].Max = 1
			i.Nodes = []Node{{Name: "n", Pool: "spot", Busy: true}}
		}), Full, "other work that ends, a higher priority, or a greater max of spot", nil, nil},
		"the budget is spent": {in(func(i *Input) {
			i.Budget.PerHour, i.Nodes, i.Pools = 15, []Node{{Name: "n", Pool: "spot", Busy: true}}, i.Pools[:1]
		}), Broke, "other work that ends, or a greater budget (per_hour, namespaces) in the pools file", nil, nil},
		"the budget is too small": {in(func(i *Input) { i.Budget.Namespaces = map[string]float64{"a": 1} }), Broke, "a greater budget (per_hour, namespaces) in the pools file, or a job", nil, nil},
		"more at once than there can be": {in(func(i *Input) {
			i.Work[0].Gang, i.Work[0].Count, i.Work[0].Distinct = true, 99, true
		}), Unsatisfiable, "fewer allocations at once, or a greater max of on-demand, spot", nil, nil},
		"no such node": {in(func(i *Input) { i.Work[0].Request.GPUs = 64 }), Unsatisfiable, "a pool whose select and shape (gpus, model, cpu, memory) admit it", nil, nil},
	} {
		out := Make(c.in)
		must.Len(t, 1, out.Waiting, must.Sprint(name))
		w := out.Waiting[0]
		must.Eq(t, c.cause, w.Cause, must.Sprint(name, w))
		must.Eq(t, c.cause == Unsatisfiable || name == "the budget is too small", w.Unsatisfiable, must.Sprint(name))
		must.StrContains(t, w.Next(c.in.Pools), c.next, must.Sprint(name))
		for where, pair := range map[string][2]map[string]int{"coming": {c.coming, w.Coming}, "buying": {c.buying, w.Buys}} {
			must.MapLen(t, len(pair[0]), pair[1], must.Sprint(name, where))
			for pool, n := range pair[0] {
				must.Eq(t, n, pair[1][pool], must.Sprint(name, where))
			}
		}
	}
	for _, c := range Causes {
		must.NotEq(t, "", Waiting{Cause: c}.Next(nil), must.Sprint(c))
	}
	must.StrContains(t, Waiting{Cause: Unsatisfiable, Work: Work{Misfits: map[string]Misfit{"spot": {Why: "x"}}}}.Next(pools()), "nodes that have what the reason says they lack")
	resting := Waiting{Cause: Resting, Work: Work{Spot: Only}}
	must.StrContains(t, resting.Next(nil), `gpu.spot = "prefer" takes on-demand nodes`)
	must.StrContains(t, Waiting{Cause: Drained}.Next(nil), "run the job again with another priority in its file: nomad job run;")
}

func TestAPoolThatCannotServeWhatWaitsForItSaysSo(t *testing.T) {
	busyNode := busy(node("spot", "s-1"))
	for name, c := range map[string]struct {
		most   int
		budget float64
		nodes  int // that the work needs at once
		want   string
	}{
		"full":              {1, 0, 1, "a/j/g waits for it: it has all nodes that it may have, 1"},
		"too few are left":  {3, 0, 3, "a/j/g waits for it: its maximum, 3, leaves 2 nodes, which are too few"},
		"a budget is spent": {3, 45, 1, "a/j/g waits for it: a budget leaves it too little"},
		"it is bought for":  {3, 0, 1, "1 more nodes are bought for it"},
	} {
		in := Input{Now: now, Pools: pools(), Nodes: []Node{busyNode}, Work: []Work{single(8)}, Budget: Budget{PerHour: c.budget}}
		in.Pools[0].Max = c.most
		in.Work[0].Spot, in.Work[0].Gang, in.Work[0].Distinct, in.Work[0].Count = Only, true, true, c.nodes
		d, _ := Make(in).Of("spot")
		must.StrContains(t, d.Reason, c.want, must.Sprint(name))
	}
}
