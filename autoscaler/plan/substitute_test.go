// SPDX-License-Identifier: MPL-2.0

package plan

import (
	"testing"

	"github.com/shoenig/test/must"
)

func TestANodeThatIsTakenAwayWithItsWorkHasAnotherBoughtForIt(t *testing.T) {
	doomed := func(name string) Node {
		n := busy(node("spot", name))
		n.Closed, n.Doomed = true, true
		return n
	}
	in := Input{Now: now, Pools: pools()[:1], Nodes: []Node{doomed("a"), doomed("b"), busy(node("spot", "c"))}}
	wants := func() (int, string) {
		d, _ := Make(in).Of("spot")
		return d.Want, d.Reason
	}
	count, why := wants()
	must.Eq(t, 3, count)
	must.Eq(t, "2 more nodes are bought for the work of 2 that will be taken away", why)
	in.Nodes = append(in.Nodes, starting("d"), node("spot", "e"))
	in.Nodes[3].Pool = "spot"
	count, _ = wants()
	must.Eq(t, 3, count, must.Sprint("what is there or on its way is enough, and is kept"))
	in.Now = now.Add(1e12)
	count, _ = wants()
	must.Eq(t, 3, count, must.Sprint("the idle one is kept for them"))
	in.Nodes[0].Busy, in.Nodes[1].Busy = false, false
	count, _ = wants()
	must.Eq(t, 2, count, must.Sprint("nothing is left on them"))
	in.Nodes, in.Pools[0].Max = []Node{doomed("a"), busy(node("spot", "c"))}, 1
	count, _ = wants()
	must.Eq(t, 1, count, must.Sprint("no more than max"))
	// Work that has lost its node already is bought for as any other.
	in.Pools[0].Max, in.Work = 8, []Work{gang(2, 1)}
	in.Work[0].PlacedOn = []string{"c"}
	count, _ = wants()
	must.Eq(t, 3, count, must.Sprint("one for it, and one for what still runs on the other"))
}
