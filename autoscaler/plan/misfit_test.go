// SPDX-License-Identifier: MPL-2.0

package plan

import (
	"testing"
	"time"

	"github.com/shoenig/test/must"
)

// real is a node of a pool as Nomad tells of it.
func real(pool, name string, whole Shape) Node {
	n := node(pool, name)
	if whole.Devices == nil {
		whole.Devices = []Devices{{Type: GPU, Model: whole.Model, Count: whole.GPUs}}
	}
	n.Free, n.Whole = whole, whole
	return n
}

func TestNothingIsBoughtForWorkThatThePoolsNodesAreSeenNotToServe(t *testing.T) {
	with := func(change func(*Shape)) Shape { s := h100; change(&s); return s }
	big := Shape{GPUs: 8, Memory: 600_000}
	for name, c := range map[string]struct {
		nodes []Node
		ask   Shape
		spot  int
		why   string
	}{
		"less memory than the shape says": {[]Node{real("spot", "a", with(func(s *Shape) { s.Memory = 500_000 }))}, big, 1, "500000 MiB of memory and it asks for 600000"},
		"less CPU":                        {[]Node{real("spot", "a", with(func(s *Shape) { s.CPU = 9 }))}, Shape{GPUs: 8, CPU: 10}, 1, "9 MHz and it asks for 10"},
		"fewer cores":                     {[]Node{real("spot", "a", with(func(s *Shape) { s.Host = &Host{Cores: 4, Disk: 9} }))}, Shape{GPUs: 8, Host: &Host{Cores: 5}}, 1, "4 cores to reserve and it asks for 5"},
		"less disk":                       {[]Node{real("spot", "a", with(func(s *Shape) { s.Host = &Host{Disk: 9} }))}, Shape{GPUs: 8, Host: &Host{Disk: 10}}, 1, "9 MiB of disk and it asks for 10"},
		"another model":                   {[]Node{real("spot", "a", with(func(s *Shape) { s.Model = "NVIDIA H100" }))}, Shape{GPUs: 8, Model: "H100"}, 1, "8 GPUs NVIDIA H100 and it asks for 8 GPUs H100"},
		"one with fewer GPUs has a fault": {[]Node{real("spot", "a", with(func(s *Shape) { s.GPUs = 7 }))}, Shape{GPUs: 8}, 2, ""},
		"two with fewer GPUs": {[]Node{real("spot", "a", with(func(s *Shape) { s.GPUs = 7 })), real("spot", "b", with(func(s *Shape) { s.GPUs = 7 }))}, Shape{GPUs: 8}, 2,
			"7 GPUs H100 and it asks for 8 GPUs"},
		"one of them is as the shape says": {[]Node{real("spot", "a", with(func(s *Shape) { s.Memory = 500_000 })), busy(real("spot", "b", h100))}, big, 3, ""},
	} {
		in := Input{Now: now, Pools: pools()[:1], Nodes: c.nodes, Work: []Work{{Job: "j", Count: 1, Request: c.ask, Allowed: anywhere}}}
		out := Make(in)
		d, _ := out.Of("spot")
		must.Eq(t, c.spot, d.Want, must.Sprint(name, out))
		must.Eq(t, c.why != "", out.Waiting[0].Unsatisfiable, must.Sprint(name))
		if c.why != "" {
			must.StrContains(t, out.Waiting[0].Reason, "pool spot: its nodes have "+c.why, must.Sprint(name))
			must.Eq(t, map[string]string{"spot": "its nodes have " + c.why}, out.Waiting[0].Misfits)
		}
	}
}

func TestWhatIsRememberedOfAPoolHoldsUntilItsNodesSayOtherwise(t *testing.T) {
	w := Work{Job: "j", Count: 1, Request: Shape{GPUs: 8}, Allowed: anywhere, Misfits: map[string]Misfit{"spot": {Why: "its nodes had no network"}}}
	in := Input{Now: now, Pools: pools()[:1], Work: []Work{w}}
	out := Make(in)
	must.True(t, out.Waiting[0].Unsatisfiable)
	must.StrContains(t, out.Waiting[0].Reason, "pool spot: its nodes had no network")
	in.Nodes = []Node{busy(real("spot", "a", h100))}
	must.Eq(t, map[string]int{"spot": 1}, Make(in).Waiting[0].Buys)
}

func TestNodesThatNomadLeftUnusedByAWorkAreNotHeldForIt(t *testing.T) {
	w := Work{Job: "j", Count: 1, Request: Shape{GPUs: 8}, Spot: Prefer, Allowed: anywhere}
	in := Input{Now: now, Pools: pools(), Work: []Work{w}, Nodes: []Node{real("spot", "a", h100)}}
	in.Pools[1].Min = 0
	must.Eq(t, []string{"spot"}, Make(in).Waiting[0].Ready)
	in.Work[0].Misfits = map[string]Misfit{"spot": {Why: "Nomad left them unused", Shunned: true}}
	out := Make(in)
	must.Eq(t, map[string]int{"on-demand": 1}, out.Waiting[0].Buys)
	must.SliceEmpty(t, out.Waiting[0].Ready)
	in.Pools = in.Pools[:1]
	out = Make(in)
	must.True(t, out.Waiting[0].Unsatisfiable)
	must.StrContains(t, out.Waiting[0].Reason, "pool spot: Nomad left them unused")
}

func TestWorkThatMayNotRunOnSpotDoesNotWaitForAnIdleSpotNode(t *testing.T) {
	in := Input{Now: now, Pools: pools(), Work: []Work{gang(2, 0)}, Nodes: []Node{node("spot", "a"), node("spot", "b")}}
	in.Work[0].Spot = Never
	must.Eq(t, map[string]int{"on-demand": 2}, Make(in).Waiting[0].Buys)
	in.Work[0].Spot, in.Nodes = Only, []Node{node("on-demand", "a"), node("on-demand", "b")}
	must.Eq(t, map[string]int{"spot": 2}, Make(in).Waiting[0].Buys)
}

func TestAMemberGoesToNoNodeThatHasOne(t *testing.T) {
	w := gang(3, 1)
	w.Request.GPUs, w.PlacedOn = 4, []string{"a"}
	half := node("spot", "a")
	half.Busy, half.Free.GPUs = true, 4
	out := Make(Input{Now: now, Pools: pools()[:1], Work: []Work{w}, Nodes: []Node{half}})
	must.Eq(t, map[string]int{"spot": 2}, out.Waiting[0].Buys)
}

func TestWorkThatCostsMoreThanABudgetIsToldSo(t *testing.T) {
	in := Input{Now: now, Pools: pools()[:1], Work: []Work{gang(5, 0)}, Budget: Budget{PerHour: 40}}
	out := Make(in)
	must.True(t, out.Waiting[0].Unsatisfiable)
	must.StrContains(t, out.Waiting[0].Reason, "its nodes cost 50.00 an hour at least; budget.per_hour is 40.00")
	in.Work[0].Namespace, in.Budget = "a", Budget{Namespaces: map[string]float64{"a": 45}}
	must.StrContains(t, Make(in).Waiting[0].Reason, `budget.namespaces["a"] is 45.00`)
	in.Work = []Work{gang(4, 0), gang(4, 0)}
	in.Budget = Budget{PerHour: 40}
	out = Make(in)
	must.False(t, out.Waiting[1].Unsatisfiable, must.Sprint("the first one ends"))
}

func TestADeadlineThatHasPassedHurriesNobody(t *testing.T) {
	in := Input{Now: now, Pools: pools(), Work: []Work{single(8)}}
	in.Pools[1].Min = 0
	in.Work[0].Deadline = now.Add(time.Minute)
	want(t, in, 0, 1)
	in.Now = now.Add(2 * time.Minute)
	want(t, in, 1, 0)
}
