// SPDX-License-Identifier: MPL-2.0

package plan

import (
	"fmt"
	"math"
	"slices"
	"testing"
	"time"

	"github.com/shoenig/test/must"
	"pgregory.net/rapid"
)

// anything draws an input with every setting in play. The budget covers what is
// there and the minima, as a configuration that is checked does.
func anything(t *rapid.T) Input {
	in := Input{Now: now, Pools: pools()}
	// In half of them little but gangs runs, and nothing is in their way: else few are moved.
	calm := rapid.Bool().Draw(t, "calm")
	cost := 0.0
	for i := range in.Pools {
		p := &in.Pools[i]
		p.Headroom = rapid.SampledFrom([]float64{0, 0.05, 0.1, 1}).Draw(t, "headroom")
		p.Increment, p.Margin = rapid.SampledFrom([]time.Duration{0, time.Hour}).Draw(t, "increment"), time.Minute
		p.Interrupted, p.Penalty = rapid.IntRange(0, 40).Draw(t, "interrupted"), 0.1
		p.Retry = time.Minute
		p.Refused = now.Add(-time.Duration(rapid.IntRange(0, 120).Draw(t, "refused")) * time.Second)
		if p.Min = 0; !calm {
			p.Min = rapid.IntRange(0, 2).Draw(t, "min")
		}
		p.Minimum = rapid.SampledFrom([]time.Duration{0, time.Hour}).Draw(t, "minimum")
		p.NoDrain = !calm && rapid.IntRange(0, 4).Draw(t, "no drain") == 0
		p.Shape = grouping(t, p.Shape)
		if rapid.Bool().Draw(t, "window") {
			p.Maintenance = &Maintenance{Since: now.Add(-time.Hour), AtOnce: rapid.IntRange(1, 3).Draw(t, "at once")}
		}
	}
	counts := map[string]int{}
	gangs := members(t)
	for i := range rapid.IntRange(0, 12).Draw(t, "nodes") {
		n := node(rapid.SampledFrom([]string{"spot", "on-demand"}).Draw(t, "pool"), fmt.Sprint("n", i))
		n.Free = grouping(t, n.Free)
		if rapid.Bool().Draw(t, "known") {
			n.Whole = n.Free
		}
		n.Bought = now.Add(-time.Duration(rapid.IntRange(0, 120).Draw(t, "age")) * time.Minute)
		n.IdleSince = n.Bought
		n.Starting = rapid.IntRange(0, 3).Draw(t, "starting") == 0
		if !calm && !n.Starting && rapid.IntRange(0, 2).Draw(t, "old") == 0 {
			n.Replace, n.AtRisk = "old", rapid.IntRange(0, 3).Draw(t, "risk") == 0
		}
		n.Closed = !calm && !n.Starting && rapid.IntRange(0, 3).Draw(t, "closed") == 0
		n.Doomed = n.Closed && rapid.Bool().Draw(t, "doomed")
		for range rapid.IntRange(0, 3).Draw(t, "tenants") {
			if calm {
				break
			}
			w := single(rapid.IntRange(1, 4).Draw(t, "tenant"))
			w.Request = blocks(t, w.Request)
			if !n.Starting && fits(w.Request, n.Free) {
				n = running(n, w, rapid.IntRange(0, 5).Draw(t, "movable") > 0)
			}
		}
		for g := range gangs {
			if w := &gangs[g]; !n.Starting && w.Placed < w.Count && fits(w.Request, n.Free) && rapid.Bool().Draw(t, "member") {
				w.Placed++
				w.PlacedOn = append(w.PlacedOn, n.Name)
				n = running(n, *w, true)
			}
		}
		if n.Closed {
			cost += in.Pools[slices.IndexFunc(in.Pools, func(p Pool) bool { return p.Name == n.Pool })].Price
		} else {
			counts[n.Pool]++
		}
		in.Nodes = append(in.Nodes, n)
	}
	for i := range in.Nodes { // what a member tells of its gang is known once all are placed
		for j := range in.Nodes[i].Tenants {
			if tenant := &in.Nodes[i].Tenants[j]; tenant.Work.Gang {
				tenant.Work = gangs[slices.IndexFunc(gangs, func(w Work) bool { return w.Job == tenant.Work.Job })]
				tenant.Movable = tenant.Work.Move
			}
		}
	}
	for i := range rapid.IntRange(0, 8).Draw(t, "work") {
		w := gang(rapid.IntRange(1, 12).Draw(t, "count"), 0)
		w.Job, w.Namespace = fmt.Sprint("j", i), rapid.SampledFrom([]string{"a", "b"}).Draw(t, "namespace")
		w.Gang = rapid.Bool().Draw(t, "whole")
		w.Distinct = w.Gang || rapid.Bool().Draw(t, "distinct")
		w.Request.GPUs = rapid.IntRange(1, 9).Draw(t, "gpus")
		w.Request = blocks(t, w.Request)
		w.Spot = rapid.SampledFrom([]string{Prefer, Never, Only}).Draw(t, "spot")
		if rapid.Bool().Draw(t, "due") {
			w.Deadline, w.Length = now.Add(time.Duration(rapid.IntRange(-1, 9).Draw(t, "deadline"))*time.Hour), time.Hour
		}
		in.Work = append(in.Work, w)
	}
	if rapid.Bool().Draw(t, "curve") {
		in.Curve = []Rate{{now, 1}, {now.Add(2 * time.Hour), rapid.Float64Range(0, 2).Draw(t, "factor")}}
	}
	for _, model := range []string{"H100", "L40S"} {
		in.Ahead = append(in.Ahead, Ahead{Model: model, GPUs: rapid.IntRange(0, 100).Draw(t, "ahead")})
	}
	for _, p := range in.Pools {
		cost += p.Price * float64(max(counts[p.Name], p.Min))
	}
	if rapid.Bool().Draw(t, "limited") {
		in.Budget = Budget{PerHour: max(cost, 1) + float64(rapid.IntRange(0, 100).Draw(t, "budget")), Namespaces: map[string]float64{"b": rapid.Float64Range(0, 200).Draw(t, "of b")}}
	}
	return in
}

// grouping draws the groups that a node's devices are in: none that is known, one,
// islands, slices, or some of each.
func grouping(t *rapid.T, s Shape) Shape {
	gpus := func(count int) Devices { return Devices{Type: GPU, Model: s.Model, Count: count} }
	parts := Devices{Type: Slice, Model: s.Model, Count: 4, Of: 2}
	s.Devices = rapid.SampledFrom([][]Devices{nil, {gpus(8)}, {gpus(4), gpus(4)}, {parts, parts}, {gpus(6), parts}}).Draw(t, "groups")
	if s.Devices != nil {
		s.GPUs = 0
		for _, d := range s.Devices {
			if d.Type == GPU {
				s.GPUs += d.Count
			}
		}
	}
	return s
}

// blocks draws how a request's devices are asked for.
func blocks(t *rapid.T, s Shape) Shape {
	switch rapid.IntRange(0, 3).Draw(t, "blocks") {
	case 1:
		s.Asks = []Ask{{Type: GPU, Count: s.GPUs}}
	case 2:
		s.Asks, s.GPUs = []Ask{{Type: Slice, Count: s.GPUs}}, 0
	case 3:
		s.Asks, s.GPUs = []Ask{{Type: GPU, Count: s.GPUs}, {Type: GPU, Count: 1}, {Type: Slice, Count: 1}}, s.GPUs+1
	}
	return s
}

func TestWhatHoldsForEveryPlanWithEverySetting(t *testing.T) {
	rapid.Check(t, holds)
}

func FuzzPlan(f *testing.F) { f.Fuzz(rapid.MakeFuzz(holds)) }

func holds(t *rapid.T) {
	in := anything(t)
	out := Make(in)
	must.Eq(t, strip(out), strip(Make(in)))
	cost := 0.0
	for _, n := range in.Nodes {
		if n.Closed {
			cost += in.Pools[slices.IndexFunc(in.Pools, func(p Pool) bool { return p.Name == n.Pool })].Price
		}
	}
	for i, d := range out.Decisions {
		pool := in.Pools[i]
		must.LessEq(t, max(pool.Max, d.Now), d.Want, must.Sprint("over the maximum"))
		must.GreaterEq(t, pool.Min, d.Want, must.Sprint("under the minimum"))
		must.GreaterEq(t, min(pool.Min, d.Now), d.Now-len(d.Drain)-len(d.Release), must.Sprint("under the minimum once drained"))
		must.NotEq(t, "", d.Reason)
		cost += pool.Price * float64(d.Want)
		must.GreaterEq(t, pool.Min, d.Want-len(d.Drain), must.Sprint("under the minimum once drained"))
		going := 0 // of those that are replaced in the window
		for _, n := range in.Nodes {
			drained, released := slices.Contains(d.Drain, n.Name), slices.Contains(d.Release, n.Name)
			must.False(t, drained && released)
			must.False(t, drained && pool.NoDrain)
			// A node that idled for its time, or was moved off for its price, is none of the maintenance's.
			if n.Pool == pool.Name && n.Replace != "" && !n.AtRisk && (n.Closed || drained && pool.Maintenance != nil && gangs(n)) {
				going++
			}
			if released {
				must.False(t, n.Busy || n.Starting || n.Closed, must.Sprint("a node with work is let go"))
			}
			for _, tenant := range n.Tenants {
				must.False(t, drained && !tenant.Movable, must.Sprint("work is moved without leave"))
				if w := tenant.Work; drained && w.Gang && !(n.AtRisk || n.Replace != "" && pool.Maintenance != nil) {
					must.Eq(t, w.Count, w.Placed, must.Sprint("a gang is moved that is not whole"))
					for _, o := range in.Nodes {
						must.False(t, o.Pool == pool.Name && hosts(o, w) && !slices.Contains(d.Drain, o.Name), must.Sprint("a part of a gang is moved"))
						must.False(t, o.Closed && hosts(o, w), must.Sprint("a gang is moved that moves already"))
					}
					for _, other := range out.Decisions {
						must.False(t, other.Pool != pool.Name && slices.ContainsFunc(in.Nodes, func(o Node) bool { return hosts(o, w) && slices.Contains(other.Drain, o.Name) }),
							must.Sprint("a gang is moved in two steps"))
					}
					must.False(t, w.Began.IsZero() || in.Now.Sub(w.Began) < w.Restart/2, must.Sprint("a gang swings"))
				}
			}
		}
		closed := 0
		for _, n := range in.Nodes {
			if n.Pool == pool.Name && n.Replace != "" && !n.AtRisk && n.Closed {
				closed++
			}
		}
		if m := pool.Maintenance; m != nil {
			must.LessEq(t, max(m.AtOnce, closed), going, must.Sprint("more are replaced at once than allowed"))
		}
	}
	if b := in.Budget.PerHour; b > 0 {
		must.LessEq(t, b+1e-6, cost, must.Sprint("over the budget"))
	}
	ours := map[string]float64{}
	for _, w := range out.Waiting {
		total, places := 0, 0
		for _, gpus := range w.Places {
			places += gpus
		}
		must.LessEq(t, (w.Work.Count-w.Work.Placed)*w.Work.Request.GPUs, places, must.Sprint("more places than it lacks"))
		for name, n := range w.Buys {
			pool := in.Pools[slices.IndexFunc(in.Pools, func(p Pool) bool { return p.Name == name })]
			ours[w.Work.Namespace] += pool.Price * float64(n)
			total += n
		}
		if w.Work.Gang && total > 0 {
			// All that it lacks: each member has a node that is there, or one that this plan buys.
			free := 0
			for _, n := range in.Nodes {
				if !n.Closed && fits(w.Work.Request, n.Free) {
					free++
				}
			}
			others := 0
			for _, o := range out.Waiting {
				for _, n := range o.Buys {
					others += n
				}
			}
			must.GreaterEq(t, w.Work.Count, free+others, must.Sprint("nodes are bought for a part of a gang"))
		}
	}
	if b, ok := in.Budget.Namespaces["b"]; ok && ours["b"] > 0 {
		for _, n := range in.Nodes {
			for _, tenant := range n.Tenants {
				if tenant.Work.Namespace == "b" {
					pool := in.Pools[slices.IndexFunc(in.Pools, func(p Pool) bool { return p.Name == n.Pool })]
					ours["b"] += pool.Price * pool.Shape.Worth(tenant.Work.Request) / pool.Shape.Size()
				}
			}
		}
		must.LessEq(t, math.Max(b, 0)+1e-6, ours["b"], must.Sprint("over the namespace's budget"))
	}
}

// members draws gangs to be placed, some of them known to have run for a while.
func members(t *rapid.T) []Work {
	var all []Work
	for i := range rapid.IntRange(0, 3).Draw(t, "gangs") {
		w := gang(rapid.IntRange(1, 3).Draw(t, "members"), 0)
		w.Job, w.Request.GPUs = fmt.Sprint("g", i), rapid.SampledFrom([]int{2, 4, 8}).Draw(t, "each")
		w.Move, w.Restart = rapid.IntRange(0, 5).Draw(t, "leave") > 0, time.Minute
		if rapid.IntRange(0, 5).Draw(t, "known") > 0 {
			w.Began = now.Add(-time.Duration(rapid.IntRange(0, 10).Draw(t, "ran")) * time.Minute)
		}
		all = append(all, w)
	}
	return all
}

// hosts reports whether a member of a gang runs on a node.
func hosts(n Node, w Work) bool {
	return slices.ContainsFunc(n.Tenants, func(t Tenant) bool { return t.Work.group() == w.group() })
}

// gangs reports whether a gang runs on a node.
func gangs(n Node) bool {
	return slices.ContainsFunc(n.Tenants, func(t Tenant) bool { return t.Work.Gang })
}
