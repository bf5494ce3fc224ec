// SPDX-License-Identifier: MPL-2.0

package plan

import (
	"fmt"
	"testing"
	"time"

	"github.com/shoenig/test/must"
)

// fellBack is a gang of some members with leave that runs on nodes of a pool, od-1 and on, since some time ago.
func fellBack(size, gpus int, ran time.Duration, pool string) ([]Node, Work) {
	w := gang(size, size)
	w.Move, w.Began, w.Request.GPUs = true, now.Add(-ran), gpus
	for i := range size {
		w.PlacedOn = append(w.PlacedOn, fmt.Sprint(pool, "-", i+1))
	}
	var nodes []Node
	for _, name := range w.PlacedOn {
		nodes = append(nodes, running(node(pool, name), w, true))
	}
	return nodes, w
}

// returning is a gang of two on on-demand nodes that have cost too much for long enough.
func returning() Input {
	in := Input{Now: now, Pools: pools()}
	in.Nodes, _ = fellBack(2, 8, 20*time.Minute, "on-demand")
	in.Pools[1].Min = 0
	return in
}

// each changes what all members of the gang on the first nodes say.
func each(in *Input, change func(*Tenant)) {
	for i := range in.Nodes {
		for j := range in.Nodes[i].Tenants {
			change(&in.Nodes[i].Tenants[j])
		}
	}
}

func drained(in Input, pool string) []string {
	d, _ := Make(in).Of(pool)
	return d.Drain
}

func TestAGangThatFellBackReturnsWholeOnceAllItsPlacesAreReady(t *testing.T) {
	in := returning()
	out := want(t, in, 2, 2)
	d, _ := out.Of("spot")
	must.StrContains(t, d.Reason, "2 nodes are bought for what runs on on-demand-1, on-demand-2 and may move: an hour costs 10.00 there each and 30.00 here")
	must.SliceEmpty(t, drained(in, "on-demand"))
	in.Nodes = append(in.Nodes, node("spot", "s1"), starting("s2"))
	want(t, in, 2, 2)
	must.SliceEmpty(t, drained(in, "on-demand"), must.Sprint("one place is not ready"))
	in.Nodes[3].Starting = false
	out = want(t, in, 2, 2)
	d, _ = out.Of("on-demand")
	must.Eq(t, []string{"on-demand-1", "on-demand-2"}, d.Drain)
	must.StrContains(t, d.Reason, "on-demand-1, on-demand-2 are drained together: all that runs there may move and fits on s1, s2, where an hour costs 40.00 less")
	for i := range 2 { // on their way out: their places are kept
		in.Nodes[i].Closed = true
	}
	in.Nodes[2].IdleSince, in.Nodes[3].IdleSince = now.Add(-time.Hour), now.Add(-time.Hour)
	must.SliceEmpty(t, ofSpot(t, in).Release)
}

func TestAGangMovesOnlyWithLeaveWholeAndWhereAllOfItFits(t *testing.T) {
	for name, change := range map[string]func(*Input){
		"without leave":                       func(in *Input) { each(in, func(t *Tenant) { t.Movable = false }) },
		"a member lacks":                      func(in *Input) { each(in, func(t *Tenant) { t.Work.Count = 3 }) },
		"a member is on no node that is seen": func(in *Input) { each(in, func(t *Tenant) { t.Work.Count, t.Work.Placed = 3, 3 }) },
		"one node has other work that stays":  func(in *Input) { in.Nodes[1] = running(in.Nodes[1], Work{Job: "stays"}, false) },
		"one node is on its way out already":  func(in *Input) { in.Nodes[0].Closed = true },
		"spot has room for a part":            func(in *Input) { in.Pools[0].Max = 1 },
		"spot refused lately":                 func(in *Input) { in.Pools[0].Refused, in.Pools[0].Retry = now.Add(-time.Minute), time.Hour },
		"the budget holds a part":             func(in *Input) { in.Budget.PerHour = 75 },
		"it may not run on spot":              func(in *Input) { each(in, func(t *Tenant) { t.Work.Spot = Never }) },
		"its pool is at its minimum":          func(in *Input) { in.Pools[1].Min = 1 },
		"no price is told":                    func(in *Input) { in.Pools[0].Price, in.Pools[1].Price = 0, 0 },
		"interruptions make spot look dearer": func(in *Input) { in.Pools[0].Interrupted, in.Pools[0].Penalty = 30, 0.1 },
		"its deadline leaves no time": func(in *Input) {
			each(in, func(t *Tenant) { t.Work.Deadline, t.Work.Length = now.Add(105*time.Minute), 2*time.Hour })
		},
		"its deadline says no more":     func(in *Input) { each(in, func(t *Tenant) { t.Work.Deadline = now.Add(time.Hour) }) },
		"it is nearly done":             func(in *Input) { each(in, func(t *Tenant) { t.Work.Length = 40 * time.Minute }) },
		"it began a moment ago":         func(in *Input) { each(in, func(t *Tenant) { t.Work.Began = now.Add(-19 * time.Minute) }) },
		"it is not known when it began": func(in *Input) { each(in, func(t *Tenant) { t.Work.Began = time.Time{} }) },
		"a restart takes long":          func(in *Input) { each(in, func(t *Tenant) { t.Work.Restart = time.Hour }) },
	} {
		t.Run(name, func(t *testing.T) {
			in := returning()
			must.Eq(t, 2, ofSpot(t, in).Needed)
			change(&in)
			must.Eq(t, 0, ofSpot(t, in).Needed)
			for i := range min(2, in.Pools[0].Max) {
				in.Nodes = append(in.Nodes, node("spot", fmt.Sprint("s", i)))
			}
			if in.Pools[0].Refused.IsZero() && in.Pools[0].Interrupted == 0 && in.Budget.PerHour == 0 { // these are about what is bought
				must.SliceEmpty(t, drained(in, "on-demand"))
			}
		})
	}
	in := returning()
	each(&in, func(t *Tenant) { t.Work.Deadline, t.Work.Length = now.Add(115*time.Minute), 2*time.Hour })
	must.Eq(t, 2, ofSpot(t, in).Needed, must.Sprint("100 minutes are left to run, and 10 to start again"))
}

func TestAGangOverTwoPoolsGivesTheDearOneBackAndKeepsTheOther(t *testing.T) {
	in := returning()
	each(&in, func(t *Tenant) { t.Work.Count, t.Work.Placed, t.Work.PlacedOn = 3, 3, append(t.Work.PlacedOn, "s1") })
	in.Nodes = append(in.Nodes, running(node("spot", "s1"), in.Nodes[0].Tenants[0].Work, true), node("spot", "s2"), node("spot", "s3"))
	out := Make(in)
	s, _ := out.Of("spot")
	must.SliceEmpty(t, s.Drain)
	must.Eq(t, []string{"on-demand-1", "on-demand-2"}, drained(in, "on-demand"))
}

func TestGangsThatShareNodesMoveTogether(t *testing.T) {
	in := Input{Now: now, Pools: pools()}
	in.Pools[1].Min = 0
	nodes, _ := fellBack(2, 4, time.Hour, "on-demand")
	_, other := fellBack(2, 4, time.Hour, "on-demand")
	other.Job = "other"
	for i := range nodes {
		nodes[i] = running(nodes[i], other, true)
	}
	in.Nodes = nodes
	must.Eq(t, 2, ofSpot(t, in).Needed, must.Sprint("both fit on two nodes"))
	in.Nodes = append(nodes, node("spot", "s1"), node("spot", "s2"))
	must.Eq(t, []string{"on-demand-1", "on-demand-2"}, drained(in, "on-demand"))
	each(&in, func(t *Tenant) { t.Movable = t.Work.Job == "other" })
	must.SliceEmpty(t, drained(in, "on-demand"))
}

func TestGangsThatLeaveNodesHalfUsedComeTogether(t *testing.T) {
	in := Input{Now: now, Pools: pools()}
	in.Nodes, _ = fellBack(2, 4, time.Hour, "spot")
	for _, name := range []string{"s8", "s9"} {
		in.Nodes = append(in.Nodes, running(node("spot", name), single(4), false))
	}
	must.Eq(t, []string{"spot-1", "spot-2"}, drained(in, "spot"))
	in.Nodes = in.Nodes[:3]
	must.SliceEmpty(t, drained(in, "spot"), must.Sprint("two members of a gang never share a node"))
}

func TestWorkThatIsHurriedIsNotMovedOffTheNodesThatItHurriedTo(t *testing.T) {
	w := single(8)
	w.Deadline, w.Length = now.Add(3*time.Hour), time.Hour
	in := Input{Now: now, Pools: pools(), Nodes: []Node{running(node("on-demand", "od-1"), w, true)}}
	in.Pools[1].Min = 0
	must.Eq(t, 1, ofSpot(t, in).Needed)
	in.Now = now.Add(2 * time.Hour)
	must.Eq(t, 0, ofSpot(t, in).Needed)
}

func BenchmarkMoves(b *testing.B) {
	in := Input{Now: now, Pools: pools()}
	in.Pools[0].Max, in.Pools[1].Max = 4000, 4000
	for g := range 250 {
		nodes, _ := fellBack(8, 8, time.Hour, "on-demand")
		for i := range nodes {
			n := &nodes[i]
			n.Name = fmt.Sprint("g", g, "-", i)
			n.Tenants[0].Work.Job, n.Tenants[0].Work.PlacedOn = fmt.Sprint("g", g), nil
			in.Nodes = append(in.Nodes, *n)
		}
	}
	for b.Loop() {
		Make(in)
	}
}
