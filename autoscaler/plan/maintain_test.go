// SPDX-License-Identifier: MPL-2.0

package plan

import (
	"testing"
	"time"

	"github.com/shoenig/test/must"
)

// old is a node of the spot pool with an old image.
func old(name string) Node {
	n := node("spot", name)
	n.Replace, n.Bought = `meta.image is "1", wanted is "2"`, now.Add(-24*time.Hour)
	return n
}

// inWindow is an input whose spot pool has a window open.
func inWindow(nodes ...Node) Input {
	in := Input{Now: now, Pools: pools(), Nodes: nodes}
	in.Pools[0].Maintenance = &Maintenance{Since: now.Add(-time.Hour), AtOnce: 1}
	in.Pools[1].Min = 0
	return in
}

func ofSpot(t *testing.T, in Input) Decision {
	t.Helper()
	d, ok := Make(in).Of("spot")
	must.True(t, ok)
	return d
}

func TestAnOldNodeIsReplacedOneAtATimeAndNeverUnderTheMinimum(t *testing.T) {
	in := inWindow(old("s1"), old("s2"), old("s3"))
	in.Pools[0].Min, in.Pools[0].IdleTime = 3, time.Hour
	d := ofSpot(t, in)
	must.Eq(t, 4, d.Want)
	must.StrContains(t, d.Reason, `1 node is bought in place of s1: meta.image is "1", wanted is "2"`)
	in.Nodes = append(in.Nodes, starting("s4"))
	d = ofSpot(t, in)
	must.Eq(t, 4, d.Want, must.Sprint("until it is ready"))
	must.SliceEmpty(t, d.Release)
	in.Nodes[3] = node("spot", "s4")
	in.Nodes[3].Bought = now
	d = ofSpot(t, in)
	must.Eq(t, []string{"s1"}, d.Release)
	must.Eq(t, 3, d.Want)
	in.Nodes[0].Closed = true // it is on its way out
	d = ofSpot(t, in)
	must.Eq(t, 3, d.Want, must.Sprint("one at a time"))
	must.StrContains(t, d.Reason, "old nodes wait for s1, which must go first (at_once = 1)")
	must.SliceEmpty(t, d.Release)
	in.Pools[0].Maintenance.AtOnce = 2
	must.Eq(t, 4, ofSpot(t, in).Want)
}

func TestOutsideOfItsWindowAnOldNodeStays(t *testing.T) {
	in := inWindow(old("s1"))
	in.Pools[0].IdleTime = time.Hour
	must.Eq(t, []string{"s1"}, ofSpot(t, in).Release)
	in.Pools[0].Maintenance = nil
	must.SliceEmpty(t, ofSpot(t, in).Release)
	in.Nodes[0].AtRisk = true
	must.Eq(t, []string{"s1"}, ofSpot(t, in).Release, must.Sprint("a risk does not wait for a window"))
}

func TestAnOldNodeWithWorkIsDrainedOnlyWithLeaveAndOnceItsPlaceIsReady(t *testing.T) {
	in := inWindow(running(old("s1"), single(8), true))
	d := ofSpot(t, in)
	must.Eq(t, 2, d.Want)
	must.SliceEmpty(t, d.Drain)
	in.Nodes = append(in.Nodes, starting("s2"))
	d = ofSpot(t, in)
	must.Eq(t, 2, d.Want)
	must.SliceEmpty(t, d.Drain)
	in.Nodes[1] = node("spot", "s2")
	d = ofSpot(t, in)
	must.Eq(t, []string{"s1"}, d.Drain)
	must.Eq(t, 2, d.Want, must.Sprint("it is counted until it is on its way out"))
	must.StrContains(t, d.Reason, "what runs on it may move to s2")
	in.Pools[0].NoDrain = true
	must.SliceEmpty(t, ofSpot(t, in).Drain)
}

func TestThePlaceOfWorkThatIsDrainedIsKeptForIt(t *testing.T) {
	out := running(old("s1"), single(8), true)
	out.Closed = true
	in := inWindow(out, node("spot", "s2"), node("spot", "s3"))
	for i := range in.Nodes {
		in.Nodes[i].IdleSince = now.Add(-time.Hour)
	}
	d := ofSpot(t, in)
	must.Eq(t, []string{"s3"}, d.Release)
	in.Nodes[0].Tenants[0].Movable = false
	must.Eq(t, []string{"s2", "s3"}, ofSpot(t, in).Release)
}

func TestAGangWithoutLeaveKeepsItsOldNode(t *testing.T) {
	member := gang(2, 2)
	member.PlacedOn = []string{"s1", "s2"}
	in := inWindow(running(old("s1"), member, false), running(old("s2"), member, false), node("spot", "s3"))
	d := ofSpot(t, in)
	must.SliceEmpty(t, d.Drain)
	must.Eq(t, 0, d.Needed)
	must.StrContains(t, d.Reason, `s1 shall be replaced (meta.image is "1", wanted is "2") and stays for now: train/gang may not be moved`)
	for i := range 2 {
		in.Nodes[i].Tenants[0].Movable = true
	}
	must.Eq(t, []string{"s1"}, ofSpot(t, in).Drain)
	in.Nodes[2] = running(node("spot", "s2b"), single(4), false)
	in.Nodes[1].Free.GPUs = 8 // room on the node of another member is none
	d = ofSpot(t, in)
	must.SliceEmpty(t, d.Drain)
	must.Eq(t, 1, d.Needed)
}

func TestNodesThatAreBoughtOldEndTheMaintenance(t *testing.T) {
	in := inWindow(old("s1"), old("s2"))
	in.Pools[0].IdleTime = time.Hour
	in.Nodes[1].Bought = now.Add(-time.Minute)
	d := ofSpot(t, in)
	must.SliceEmpty(t, d.Release)
	must.StrContains(t, d.Reason, "s2 was bought in this window and is old too")
	in.Nodes[1].Bought = now.Add(-2 * time.Hour)
	must.Len(t, 1, ofSpot(t, in).Release)
}

func TestANodeAtRiskTakesNoNewWorkAndIsReplacedBeforeItGoes(t *testing.T) {
	n := node("spot", "s1")
	n.Replace, n.AtRisk = "its maker expects to take it away", true
	in := Input{Now: now, Pools: pools(), Nodes: []Node{n}, Work: []Work{single(8)}}
	in.Pools[0].Min = 1
	d := ofSpot(t, in)
	must.Eq(t, 2, d.Want)
	must.StrContains(t, d.Reason, "1 more nodes are bought for it")
	in.Work = nil
	in.Nodes[0] = running(n, single(8), true)
	must.Eq(t, 2, ofSpot(t, in).Want)
	in.Nodes = append(in.Nodes, node("spot", "s2"))
	must.Eq(t, []string{"s1"}, ofSpot(t, in).Drain)
}

func TestAnIdleNodeStaysForTheLeastThatIsBilled(t *testing.T) {
	n := node("spot", "s1")
	n.IdleSince, n.Bought = now.Add(-10*time.Minute), now.Add(-30*time.Minute)
	in := Input{Now: now, Pools: pools(), Nodes: []Node{n}}
	in.Pools[0].Minimum, in.Pools[0].Margin = time.Hour, 2*time.Minute
	must.Eq(t, 1, ofSpot(t, in).Want)
	in.Now = now.Add(28 * time.Minute)
	must.Eq(t, 0, ofSpot(t, in).Want)
}
