// SPDX-License-Identifier: MPL-2.0

package plan

import (
	"testing"
	"time"

	"github.com/shoenig/test/must"
)

func single(gpus int) Work {
	return Work{Namespace: "a", Job: "j", Group: "g", Count: 1, Request: Shape{GPUs: gpus}, Spot: Prefer, Allowed: anywhere}
}

// running puts a movable allocation on a node.
func running(n Node, w Work, movable bool) Node {
	n.Busy = true
	take(w.Request, &n.Free)
	n.Tenants = append(n.Tenants, Tenant{Work: w, Movable: movable})
	return n
}

func want(t *testing.T, in Input, spot, onDemand int) Output {
	t.Helper()
	out := Make(in)
	s, _ := out.Of("spot")
	d, _ := out.Of("on-demand")
	must.Eq(t, []int{spot, onDemand}, []int{s.Want, d.Want}, must.Sprint(out))
	return out
}

func TestAPoolThatRefusedIsTriedLastUntilItsRetry(t *testing.T) {
	in := Input{Now: now, Pools: pools(), Work: []Work{single(8)}}
	in.Pools[1].Min = 0
	in.Pools[0].Refused, in.Pools[0].Retry = now.Add(-time.Minute), 10*time.Minute
	want(t, in, 0, 1)
	in.Now = now.Add(9 * time.Minute)
	want(t, in, 1, 0)
}

func TestInterruptionsMakeAPoolLookDearer(t *testing.T) {
	in := Input{Now: now, Pools: pools(), Work: []Work{single(8)}}
	in.Pools[1].Min = 0
	in.Pools[0].Penalty, in.Pools[0].Interrupted = 0.5, 3
	want(t, in, 1, 0) // 10 looks like 25, under 30
	in.Pools[0].Interrupted = 5
	want(t, in, 0, 1)
}

func TestBudgets(t *testing.T) {
	in := Input{Now: now, Pools: pools(), Work: []Work{single(8), single(8)}, Budget: Budget{PerHour: 40}}
	in.Work[0].Job, in.Work[1].Job = "j1", "j2"
	out := want(t, in, 1, 1) // 10, and 30 for the node that the minimum lacks
	must.StrContains(t, out.Waiting[1].Reason, "1 of pool on-demand")
	in.Work = append(in.Work, single(8))
	in.Work[2].Job = "j3"
	out = want(t, in, 1, 1)
	must.StrContains(t, out.Waiting[2].Reason, "are needed than the budget leaves now")
	in.Work = in.Work[:2]
	in.Budget = Budget{Namespaces: map[string]float64{"a": 10}}
	want(t, in, 1, 1)
	in.Nodes = []Node{running(node("spot", "s1"), single(8), false)}
	want(t, in, 1, 1) // what runs there is all of it
	in.Work[0].Namespace = "b"
	want(t, in, 2, 1)
	g := gang(3, 0)
	in = Input{Now: now, Pools: pools(), Work: []Work{g}, Budget: Budget{PerHour: 45}}
	want(t, in, 0, 1) // two nodes of a gang of three are none
}

func TestHeadroomIsBoughtAndKept(t *testing.T) {
	in := Input{Now: now, Pools: pools(), Nodes: []Node{busy(node("spot", "s1")), busy(node("spot", "s2"))}}
	in.Pools[0].Headroom = 0.1
	out := want(t, in, 3, 1)
	d, _ := out.Of("spot")
	must.StrContains(t, d.Reason, "to keep 10 % of 2 busy ones free")
	idle := node("spot", "s3")
	idle.IdleSince = now.Add(-time.Hour)
	in.Nodes = append(in.Nodes, idle)
	want(t, in, 3, 1)
	in.Pools[0].Headroom = 0
	want(t, in, 2, 1)
}

func TestAnIdleNodeStaysWhileItIsPaidFor(t *testing.T) {
	n := node("spot", "s1")
	n.IdleSince, n.Bought = now.Add(-10*time.Minute), now.Add(-30*time.Minute)
	in := Input{Now: now, Pools: pools(), Nodes: []Node{n}}
	in.Pools[0].Increment, in.Pools[0].Margin = time.Hour, 2*time.Minute
	want(t, in, 1, 1)
	in.Now = now.Add(29 * time.Minute)
	want(t, in, 0, 1)
}

func TestADeadlineWaitsForSpotAndTakesOnDemandInTime(t *testing.T) {
	w := single(8)
	w.Deadline, w.Length = now.Add(3*time.Hour), time.Hour
	in := Input{Now: now, Pools: pools(), Work: []Work{w}}
	in.Pools[0].Max, in.Pools[1].Min = 0, 0
	in.Pools[0].Retry = 10 * time.Minute
	want(t, in, 0, 0)
	in.Now = now.Add(110 * time.Minute)
	want(t, in, 0, 1)
	in.Pools[0].Max = 4
	want(t, in, 0, 1) // no time is left for an interruption
}

func TestWorkWithADeadlineWaitsForTheCheapHour(t *testing.T) {
	w := single(8)
	w.Deadline, w.Length = now.Add(6*time.Hour), time.Hour
	in := Input{Now: now, Pools: pools(), Work: []Work{w}, Curve: []Rate{{now.Add(-time.Hour), 1}, {now.Add(3 * time.Hour), 0.5}, {now.Add(5*time.Hour + time.Minute), 0.1}}}
	out := want(t, in, 0, 1)
	must.StrContains(t, out.Waiting[0].Reason, "costs 0.50 of now's")
	in.Now = now.Add(3 * time.Hour)
	want(t, in, 1, 1)
}

func TestWorkOverItsCostBuysNothingThere(t *testing.T) {
	w := single(8)
	w.Length, w.MaxCost = 2*time.Hour, 30
	in := Input{Now: now, Pools: pools(), Work: []Work{w}}
	in.Pools[1].Min = 0
	want(t, in, 1, 0)
	in.Pools[0].Max = 0
	want(t, in, 0, 0)
}

func TestMovableWorkGoesToACheaperPoolAndItsNodeIsDrainedWhenThatIsReady(t *testing.T) {
	in := Input{Now: now, Pools: pools(), Nodes: []Node{running(node("on-demand", "od-1"), single(8), true)}}
	in.Pools[1].Min = 0
	out := want(t, in, 1, 1)
	s, _ := out.Of("spot")
	must.StrContains(t, s.Reason, "for what runs on od-1 and may move")
	in.Nodes = append(in.Nodes, starting("s1"))
	out = want(t, in, 1, 1)
	d, _ := out.Of("on-demand")
	must.Len(t, 0, d.Drain)
	in.Nodes[1].Starting = false
	out = want(t, in, 1, 1)
	d, _ = out.Of("on-demand")
	must.Eq(t, []string{"od-1"}, d.Drain)
	must.StrContains(t, d.Reason, "od-1 is drained: all that runs on it may move and fits on s1")
	in.Nodes[0].Tenants[0].Movable = false
	out = want(t, in, 1, 1)
	d, _ = out.Of("on-demand")
	must.Len(t, 0, d.Drain)
}

func TestTwoHalfNodesBecomeOne(t *testing.T) {
	in := Input{Now: now, Pools: pools(), Nodes: []Node{running(node("spot", "s1"), single(4), true), running(node("spot", "s2"), single(4), true)}}
	out := Make(in)
	d, _ := out.Of("spot")
	must.Eq(t, []string{"s1"}, d.Drain)
	in.Nodes[0].Tenants[0].Work.Gang, in.Nodes[1].Tenants[0].Work.Gang = true, true
	out = Make(in)
	d, _ = out.Of("spot")
	must.Len(t, 0, d.Drain, must.Sprint("a gang is not broken"))
}

func TestAMoveLeavesThePoolItsMinimum(t *testing.T) {
	in := Input{Now: now, Pools: pools(), Nodes: []Node{running(node("on-demand", "od-1"), single(8), true), node("spot", "s1")}}
	d, _ := Make(in).Of("on-demand")
	must.Len(t, 0, d.Drain)
	in.Pools[1].Min = 0
	d, _ = Make(in).Of("on-demand")
	must.Len(t, 1, d.Drain)
}
