// SPDX-License-Identifier: MPL-2.0

package plan

import (
	"testing"

	"github.com/shoenig/test/must"
)

func TestANodeWithTwoTenantsMovesToTwoCheaperNodesOrNotAtAll(t *testing.T) {
	in := Input{Now: now, Pools: pools(), Nodes: []Node{running(running(node("on-demand", "od-1"), single(4), true), single(4), true)}}
	spot := &in.Pools[0]
	spot.Shape.GPUs, spot.Price, in.Pools[1].Min = 4, 5, 0
	out := want(t, in, 2, 1)
	d, _ := out.Of("spot")
	must.StrContains(t, d.Reason, "2 nodes are bought for what runs on od-1 and may move: an hour costs 5.00 there each and 30.00 here")
	spot.Max = 1
	want(t, in, 0, 1)
	spot.Max, spot.Price = 2, 15
	want(t, in, 0, 1) // both together cost as much as the node
}

func TestOneTenantOfALargeNodeMovesToASmallNodeOfTheSamePriceForAGPU(t *testing.T) {
	in := Input{Now: now, Pools: pools(), Nodes: []Node{running(node("on-demand", "od-1"), single(2), true)}}
	small := &in.Pools[0]
	small.Shape.GPUs, small.Price, in.Pools[1].Min = 2, 7.5, 0
	want(t, in, 1, 1)
	ready := node("spot", "s1")
	ready.Free.GPUs = 2
	in.Nodes = append(in.Nodes, ready)
	out := want(t, in, 1, 1)
	d, _ := out.Of("on-demand")
	must.Eq(t, []string{"od-1"}, d.Drain)
}
