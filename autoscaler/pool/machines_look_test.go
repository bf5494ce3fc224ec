// SPDX-License-Identifier: MPL-2.0

package pool

import (
	"testing"
	"time"

	"github.com/hashicorp/nomad/api"
	"github.com/shoenig/test/must"
)

func TestAMachineIsNotTakenForADeadNodeOfItsAddressOrName(t *testing.T) {
	b := newMachineBench(t)
	must.NoError(t, b.grow(1))
	b.up(0)
	b.tend(time.Second)
	b.maker.machines[0].Interrupted = true
	b.tend(time.Second)
	b.tend(time.Second)
	must.Eq(t, "[]", b.nodes())
	must.Eq(t, []string{"m1"}, b.maker.did)
	dead := b.nomad.nodes["node-m1"]
	dead.SchedulingEligibility = "ineligible"

	must.NoError(t, b.grow(1))
	b.maker.machines[0].Address = dead.Address // its heartbeat has not run out yet
	b.tend(time.Second)
	must.StrNotContains(t, b.nodes(), "true true", must.Sprint("it is not on its way out, as the dead one was"))
	must.Eq(t, []string{"m1"}, b.maker.did)
	dead.Status = "down"
	b.tend(time.Second)
	b.nomad.nodes["young"] = &api.NodeListStub{ID: "young", Name: "young", Address: dead.Address, Status: "ready", SchedulingEligibility: "eligible", CreateIndex: 9}
	b.tend(time.Second)
	must.Eq(t, "[{young true false}]", b.nodes())
	must.Eq(t, []string{"m1"}, b.maker.did)
}

func TestAMachineIsFoundThoughNomadRemembersADeadNodeOfItsName(t *testing.T) {
	b := newMachineBench(t)
	b.nomad.nodes["old"] = &api.NodeListStub{ID: "old", Name: "rack-1", Status: "down", SchedulingEligibility: "ineligible"}
	must.NoError(t, b.grow(1))
	b.maker.machines[0].Node = "rack-1"
	b.tend(time.Second)
	must.Eq(t, "[{m1 false false}]", b.nodes())
	must.SliceEmpty(t, b.maker.did)
	// The same client again, which Nomad has closed in its former life.
	b.nomad.nodes["old"].Status = "ready"
	b.tend(time.Second)
	must.Eq(t, "[{rack-1 true false}]", b.nodes())
	must.Eq(t, "old eligible", b.nomad.done())
}

func TestTheNodeOfAMachineThatIsGoneLeavesNomadWhenItIsDown(t *testing.T) {
	b := newMachineBench(t)
	must.NoError(t, b.grow(1))
	b.up(0)
	b.tend(time.Second)
	b.maker.machines = nil
	b.tend(time.Second)
	must.Eq(t, "", b.nomad.done(), must.Sprint("its heartbeat has not run out yet"))
	b.nomad.nodes["node-m1"].Status = "down"
	b.pool = b.next()
	b.tend(time.Second)
	must.Eq(t, "node-m1 purged", b.nomad.done())
	l, err := b.pool.store.load()
	must.NoError(t, err)
	must.MapEmpty(t, l.Gone)
}

func TestAMachineOfAWrongNameIsKeptWhileAnUnknownNodeHasWork(t *testing.T) {
	b := newMachineBench(t)
	b.nomad.nodes["fixed"] = &api.NodeListStub{ID: "fixed", Name: "fixed", Status: "ready", CreateIndex: 3}
	b.nomad.busy["fixed"] = true
	b.nomad.index = 5
	must.NoError(t, b.grow(1))
	b.maker.machines[0].Node = "rack-1.internal" // Nomad says rack-1
	b.nomad.nodes["rack-1"] = &api.NodeListStub{ID: "rack-1", Name: "rack-1", Status: "ready", SchedulingEligibility: "eligible", CreateIndex: 7}
	b.nomad.busy["rack-1"] = true
	b.tend(time.Second)
	b.tend(2 * time.Minute)
	must.SliceEmpty(t, b.maker.did)
	must.Eq(t, `machine m1 was not ready within 1m0s: its maker tells of node "rack-1.internal", address ""; rack-1 has work and may be it, so it is kept`, b.resting())
	nodes, err := b.next().Nodes()
	must.NoError(t, err)
	must.True(t, nodes[0].Late, must.Sprint("nothing is planned on it"))
	must.ErrorContains(t, b.pool.Shrink(t.Context(), 0, nil), "have work or are not ready")
	b.tend(time.Second)
	must.SliceEmpty(t, b.maker.did, must.Sprint("nor is it let go"))
	delete(b.nomad.busy, "rack-1")
	b.tend(time.Second)
	must.Eq(t, []string{"m1"}, b.maker.did, must.Sprint("a node that was there before it was asked for is not it"))
}

func TestAMachineIsNoNodeOfAnotherPool(t *testing.T) {
	b := newMachineBench(t)
	b.pool.definition.Select = Select{NodeClass: "h100"}
	must.NoError(t, b.grow(1))
	b.maker.machines[0].Node = "other"
	b.nomad.nodes["other"] = &api.NodeListStub{ID: "other", Name: "other", NodeClass: "a100", Status: "ready", SchedulingEligibility: "eligible"}
	b.nomad.busy["other"] = true
	b.tend(time.Second)
	must.Eq(t, "[{m1 false false}]", b.nodes())
	b.tend(2 * time.Minute)
	must.SliceEmpty(t, b.maker.did)
	must.StrContains(t, b.resting(), "other has work and may be it")
	must.Eq(t, "", b.nomad.done(), must.Sprint("another pool's node is left alone"))
	b.maker.machines[0].Node, b.maker.machines[0].Address = "wrong", "10.0.0.1"
	b.nomad.nodes["right"] = &api.NodeListStub{ID: "right", Name: "right", Address: "10.0.0.1", NodeClass: "h100", Status: "ready", SchedulingEligibility: "eligible"}
	b.tend(time.Second)
	must.Eq(t, "[{right true false}]", b.nodes(), must.Sprint("its address tells which it is"))
}

func TestNoNodeIsTwoMachines(t *testing.T) {
	b := newMachineBench(t)
	must.NoError(t, b.grow(2))
	b.up(1)
	b.tend(time.Second)
	b.maker.machines[0].Node, b.maker.machines[1].Node = "node-m2", "node-m2"
	b.tend(time.Second)
	must.Eq(t, "[{m1 false false} {node-m2 true false}]", b.nodes())
	b.nomad.busy["node-m2"] = true
	b.tend(2 * time.Minute)
	must.Eq(t, []string{"m1"}, b.maker.did)
	must.Eq(t, "[{node-m2 true false}]", b.nodes())
}

func TestAMachineThatIsDestroyedAndStillListedIsOnItsWayOut(t *testing.T) {
	b := newMachineBench(t)
	must.NoError(t, b.grow(1))
	b.up(0)
	b.tend(time.Second)
	listed := b.maker.machines
	must.NoError(t, b.pool.Shrink(t.Context(), 0, nil))
	b.tend(time.Second)
	must.Eq(t, "[]", b.nodes())
	b.maker.machines = listed
	b.tend(time.Second)
	must.StrNotContains(t, b.nodes(), "false}", must.Sprint("it does not count"))
}

func TestWhatAnEarlierTermHadToldToEndIsKeptWhenItIsInUse(t *testing.T) {
	b := newMachineBench(t)
	must.NoError(t, b.grow(1))
	b.up(0)
	b.tend(time.Second)
	l, err := b.pool.store.load()
	must.NoError(t, err)
	l.Machines["m1"].Leaving, l.Machines["m1"].Ending = true, true
	must.NoError(t, b.pool.store.save(l))
	b.nomad.busy["node-m1"] = true
	b.tend(time.Second)
	must.SliceEmpty(t, b.maker.did)
	must.Eq(t, "[{node-m1 true false}]", b.nodes())
}

func TestAMachineOfAnIDThatIsUsedAgainIsANewOne(t *testing.T) {
	b := newMachineBench(t)
	must.NoError(t, b.grow(1))
	b.up(0)
	b.tend(time.Second)
	must.NoError(t, b.pool.Shrink(t.Context(), 0, nil))
	b.tend(time.Second)
	b.maker.made = 0
	must.NoError(t, b.grow(1))
	must.Eq(t, "[{m1 false false}]", b.nodes())
}
