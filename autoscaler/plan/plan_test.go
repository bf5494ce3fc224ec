// SPDX-License-Identifier: MPL-2.0

package plan

import (
	"fmt"
	"testing"
	"time"

	"github.com/shoenig/test/must"
	"pgregory.net/rapid"
)

var (
	now  = time.Unix(1_000_000, 0)
	h100 = Shape{GPUs: 8, Model: "H100", CPU: 64000, Memory: 1 << 20}
)

func anywhere(Where) bool { return true }

func pools() []Pool {
	return []Pool{
		{Name: "spot", Lifecycle: Spot, Price: 10, Max: 8, Where: Where{NodePool: "gpu", Class: "spot"}, Shape: h100, IdleTime: time.Minute},
		{Name: "on-demand", Lifecycle: OnDemand, Price: 30, Min: 1, Max: 2, Where: Where{NodePool: "gpu", Class: "on-demand"}, Shape: h100, IdleTime: time.Minute},
	}
}

func node(pool, name string) Node {
	return Node{Name: name, Pool: pool, Where: Where{NodePool: "gpu", Class: pool}, Free: h100, IdleSince: now}
}

func gang(nodes, placed int) Work {
	return Work{Job: "train", Group: "gang", Priority: 50, Gang: true, Distinct: true, Count: nodes, Placed: placed,
		Request: Shape{GPUs: 8}, Spot: Prefer, Allowed: anywhere}
}

func busy(n Node) Node { n.Busy, n.Free = true, Shape{Model: n.Free.Model}; return n }

func TestPlans(t *testing.T) {
	od := node("on-demand", "od-1")
	placed := gang(4, 1)
	placed.PlacedOn = []string{"od-1"}
	with := func(w Work, change func(*Work)) Work { change(&w); return w }
	cases := map[string]struct {
		work  []Work
		nodes []Node
		// want is the count of spot and on-demand; reason is a part of the first waiting's.
		spot, onDemand int
		reason         string
		never          bool
	}{
		"nothing waits":                                {nil, []Node{od}, 0, 1, "", false},
		"a gang gets what it lacks, spot first":        {[]Work{placed}, []Node{busy(od)}, 3, 1, "1 of 4 placed; nodes are bought: 3 of pool spot", false},
		"free nodes are used before new ones":          {[]Work{gang(4, 0)}, []Node{od}, 3, 1, "nodes are bought: 3 of pool spot", false},
		"nodes on their way count":                     {[]Work{placed}, []Node{busy(od), starting("s1"), starting("s2"), starting("s3")}, 3, 1, "nodes are on their way: 3 of pool spot", false},
		"a gang over both pools":                       {[]Work{gang(10, 0)}, []Node{od}, 8, 2, "8 of pool spot, 1 of pool on-demand", false},
		"a gang larger than all pools buys nothing":    {[]Work{gang(11, 0)}, []Node{od}, 0, 1, "all pools at their maximum hold 10", true},
		"a gang that must wait its turn buys nothing":  {[]Work{gang(10, 0)}, []Node{busy(od), busy(node("spot", "s1"))}, 1, 1, "nodes for 2 more allocations are needed than the pools' maximum leaves now", false},
		"never on spot":                                {[]Work{with(gang(2, 0), func(w *Work) { w.Spot = Never })}, nil, 0, 2, "2 of pool on-demand", false},
		"only on spot":                                 {[]Work{with(gang(9, 0), func(w *Work) { w.Spot = Only })}, nil, 0, 1, "hold 8", true},
		"another model":                                {[]Work{with(gang(1, 0), func(w *Work) { w.Request.Model = "B200" })}, []Node{od}, 0, 1, "no pool has nodes for it: 1 allocations of 8 GPUs B200", true},
		"too much memory":                              {[]Work{with(gang(1, 0), func(w *Work) { w.Request.Memory = 2 << 20 })}, []Node{od}, 0, 1, "no pool has nodes for it", true},
		"constraints":                                  {[]Work{with(gang(1, 0), func(w *Work) { w.Allowed = func(x Where) bool { return x.Class == "gold" } })}, []Node{od}, 0, 1, "no pool has nodes for it", true},
		"single GPUs share a node":                     {[]Work{{Job: "j", Group: "g", Count: 9, Request: Shape{GPUs: 1}, Allowed: anywhere}}, nil, 2, 1, "2 of pool spot", false},
		"what is left of a bought node is used":        {[]Work{{Job: "a", Group: "g", Count: 1, Request: Shape{GPUs: 4}, Allowed: anywhere}, {Job: "b", Group: "g", Count: 1, Request: Shape{GPUs: 4}, Allowed: anywhere}}, nil, 1, 1, "1 of pool spot", false},
		"the minimum is kept":                          {nil, nil, 0, 1, "", false},
		"a closed node is no place and does not count": {[]Work{gang(1, 0)}, []Node{{Name: "x", Pool: "spot", Where: Where{NodePool: "gpu", Class: "spot"}, Free: h100, Closed: true}}, 1, 1, "1 of pool spot", false},
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			out := Make(Input{Now: now, Work: c.work, Nodes: c.nodes, Pools: pools()})
			s, _ := out.Of("spot")
			d, _ := out.Of("on-demand")
			must.Eq(t, c.spot, s.Want, must.Sprint(out))
			must.Eq(t, c.onDemand, d.Want, must.Sprint(out))
			if c.reason != "" {
				must.StrContains(t, out.Waiting[0].Reason, c.reason)
				must.Eq(t, c.never, out.Waiting[0].Unsatisfiable)
			}
			must.StrNotContains(t, s.Reason+d.Reason, "%!")
		})
	}
}

func starting(name string) Node {
	n := node("spot", name)
	n.Starting = true
	return n
}

func TestIdleNodesGoAfterTheirTimeAndNotBefore(t *testing.T) {
	s1, s2, s3 := node("spot", "s1"), node("spot", "s2"), busy(node("spot", "s3"))
	s1.IdleSince, s2.IdleSince = now.Add(-2*time.Minute), now.Add(-10*time.Second)
	d, _ := Make(Input{Now: now, Nodes: []Node{s1, s2, s3}, Pools: pools()}).Of("spot")
	must.Eq(t, []string{"s1"}, d.Release)
	must.Eq(t, 2, d.Want)
	must.StrContains(t, d.Reason, "s1 had no work for 1m0s")
	// What waits takes the idle node back.
	d, _ = Make(Input{Now: now, Nodes: []Node{s1, s2, s3}, Pools: pools(), Work: []Work{gang(2, 0)}}).Of("spot")
	must.Eq(t, 3, d.Want)
}

func TestTheReasonNamesTheQueueDepth(t *testing.T) {
	d, _ := Make(Input{Now: now, Work: []Work{gang(4, 1)}, Pools: pools()}).Of("spot")
	must.StrContains(t, d.Reason, "gang train/gang queues 32 GPUs (1 of 4 placed) and 3 more nodes are bought for it")
}

func TestAGangThatNeverFitsIsSaidToHoldWhatItHolds(t *testing.T) {
	reason := func(w Work, nodes ...Node) string {
		out := Make(Input{Now: now, Work: []Work{w}, Nodes: nodes, Pools: pools()})
		must.True(t, out.Waiting[0].Unsatisfiable)
		return out.Waiting[0].Reason
	}
	must.StrHasSuffix(t, "hold 10; Nomad can still place a part of it on nodes bought for others: stop it, or let it ask for less", reason(gang(11, 0)))
	part := gang(11, 1)
	part.PlacedOn = []string{"s1"}
	must.StrHasSuffix(t, "; 1 of it are placed and hold what others could use: stop it, or let it ask for less", reason(part, busy(node("spot", "s1"))))
	other := gang(1, 0)
	other.Request.Model = "B200"
	must.StrNotContains(t, reason(other), "Nomad can still", must.Sprint("no node takes any of it"))
}

func TestWhatHoldsForEveryPlan(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		in := Input{Now: now, Pools: pools()}
		for i := range rapid.IntRange(0, 12).Draw(t, "nodes") {
			n := node(rapid.SampledFrom([]string{"spot", "on-demand"}).Draw(t, "pool"), fmt.Sprint("n", i))
			n.IdleSince = now.Add(-time.Duration(rapid.IntRange(0, 120).Draw(t, "idle")) * time.Second)
			n.Starting = rapid.Bool().Draw(t, "starting")
			n.Closed = !n.Starting && rapid.Bool().Draw(t, "closed")
			if !n.Starting && rapid.Bool().Draw(t, "busy") {
				n.Busy = true
				n.Free.GPUs = rapid.IntRange(0, 7).Draw(t, "free")
			}
			in.Nodes = append(in.Nodes, n)
		}
		for i := range rapid.IntRange(0, 8).Draw(t, "work") {
			w := gang(rapid.IntRange(1, 12).Draw(t, "count"), 0)
			w.Job = fmt.Sprint("j", i)
			w.Gang = rapid.Bool().Draw(t, "gang")
			w.Distinct = w.Gang || rapid.Bool().Draw(t, "distinct")
			w.Priority = rapid.IntRange(1, 100).Draw(t, "priority")
			w.Request.GPUs = rapid.IntRange(1, 9).Draw(t, "gpus")
			w.Spot = rapid.SampledFrom([]string{Prefer, Never, Only}).Draw(t, "spot")
			in.Work = append(in.Work, w)
		}
		out := Make(in)
		must.Eq(t, fmt.Sprint(strip(out)), fmt.Sprint(strip(Make(in))), must.Sprint("the same input gives the same plan"))
		bought := map[string]int{}
		for _, w := range out.Waiting {
			others := bought["spot"] + bought["on-demand"] // what is left on their nodes may be used
			total := 0
			for pool, n := range w.Buys {
				bought[pool] += n
				total += n
			}
			if w.Unsatisfiable {
				must.Zero(t, total, must.Sprint("a node is bought for what can never run"))
			}
			if w.Work.Gang {
				free := 0
				for _, n := range in.Nodes {
					if !n.Closed && fits(w.Work.Request, n.Free) {
						free++
					}
				}
				must.True(t, total == 0 || total+free+others >= w.Work.Count, must.Sprint("a node is bought for a part of a gang"))
			}
		}
		for i, d := range out.Decisions {
			pool := in.Pools[i]
			must.LessEq(t, max(pool.Max, d.Now), d.Want)
			must.GreaterEq(t, pool.Min, d.Want)
			must.Eq(t, bought[d.Pool], d.Needed)
			for _, name := range d.Release {
				for _, n := range in.Nodes {
					must.False(t, n.Name == name && (n.Busy || n.Starting || n.Closed), must.Sprint("a node with work is let go"))
				}
			}
		}
	})
}

func BenchmarkPlan(b *testing.B) {
	for _, gangs := range []int{100, 1000, 10000} {
		b.Run(fmt.Sprint(gangs, " gangs"), func(b *testing.B) {
			in := Input{Now: now, Pools: []Pool{{Name: "spot", Lifecycle: Spot, Max: 2000, Shape: h100}}}
			for i := range gangs {
				w := gang(1+i%16, 0)
				w.Job = fmt.Sprint("j", i)
				in.Work = append(in.Work, w)
			}
			for b.Loop() {
				Make(in)
			}
		})
	}
}

// strip takes out what cannot be compared.
func strip(o Output) Output {
	for i := range o.Waiting {
		o.Waiting[i].Work.Allowed = nil
	}
	return o
}
