// SPDX-License-Identifier: MPL-2.0

package pool

import (
	"context"
	"errors"
	"fmt"
	"net/http/httptest"
	"os"
	"testing"
	"time"

	"github.com/hashicorp/go-hclog"
	"github.com/hashicorp/nomad/api"
	"github.com/shoenig/test/must"
)

// fakeMaker makes machines m1, m2 … in memory.
type fakeMaker struct {
	machines []Machine
	refused  string
	fail     error
	// lost: the answer of a purchase does not arrive, the purchase is made.
	lost     bool
	tokens   map[string]bool
	made     int
	did      []string
	listings int
	// blind: it does not tell what it has. late: so many listings show what the one before did.
	blind error
	late  int
	told  []Machine
}

func (f *fakeMaker) List(context.Context) ([]Machine, string, error) {
	f.listings++
	if f.blind != nil {
		return nil, "", f.blind
	}
	if f.late > 0 {
		f.late--
	} else {
		f.told = append([]Machine{}, f.machines...)
	}
	return append([]Machine{}, f.told...), f.refused, nil
}

func (f *fakeMaker) Create(_ context.Context, token string, count int) error {
	if f.fail != nil {
		return f.fail
	}
	if !f.tokens[token] {
		f.tokens[token] = true
		for range count {
			f.made++
			f.machines = append(f.machines, Machine{ID: fmt.Sprint("m", f.made)})
		}
	}
	if f.lost {
		return errors.New("no answer")
	}
	return nil
}

func (f *fakeMaker) Destroy(_ context.Context, ids []string) error {
	for _, id := range ids {
		f.did = append(f.did, id)
		for i, m := range f.machines {
			if m.ID == id {
				f.machines = append(f.machines[:i:i], f.machines[i+1:]...)
				break
			}
		}
	}
	return nil
}

// machineBench is a pool of at most four machines, with a stand-in of Nomad, at a clock of its own.
type machineBench struct {
	t     *testing.T
	nomad *fakeNomad
	maker *fakeMaker
	pool  *MachinePool
	next  func() *MachinePool
	now   time.Time
}

func newMachineBench(t *testing.T) *machineBench {
	b := &machineBench{t: t, now: time.Unix(1000, 0), maker: &fakeMaker{tokens: map[string]bool{}},
		nomad: &fakeNomad{nodes: map[string]*api.NodeListStub{}, busy: map[string]bool{}}}
	server := httptest.NewServer(b.nomad)
	t.Cleanup(server.Close)
	client, err := api.NewClient(&api.Config{Address: server.URL})
	must.NoError(t, err)
	d := &Definition{Name: "h100", Max: 4, start: time.Minute, down: 5 * time.Minute, retry: 5 * time.Minute}
	dir := t.TempDir()
	b.next = func() *MachinePool { return NewMachines(d, b.maker, dir, client, hclog.NewNullLogger()) }
	b.pool = b.next()
	return b
}

func (b *machineBench) grow(count int) error { return b.pool.Grow(b.t.Context(), b.now, count) }

func (b *machineBench) tend(after time.Duration) {
	b.t.Helper()
	b.now = b.now.Add(after)
	must.NoError(b.t, b.pool.Tend(b.t.Context(), b.now))
}

// up makes machine i a ready node of Nomad, known by its address.
func (b *machineBench) up(i int) {
	m := &b.maker.machines[i]
	m.Address = "10.0.0." + m.ID
	b.nomad.nodes["node-"+m.ID] = &api.NodeListStub{ID: "node-" + m.ID, Name: "node-" + m.ID, Address: m.Address, Status: "ready", SchedulingEligibility: "eligible"}
}

func (b *machineBench) nodes() string {
	b.t.Helper()
	// Another plugin's process reads the same.
	nodes, err := b.next().Nodes()
	must.NoError(b.t, err)
	return show(nodes)
}

func TestMachinesComeUpAndEmptyOnesGo(t *testing.T) {
	b := newMachineBench(t)
	must.NoError(t, b.grow(2))
	must.Eq(t, "[{m1 false false} {m2 false false}]", b.nodes(), must.Sprint("they count from the moment they are asked for"))
	must.NoError(t, b.grow(2))
	must.Eq(t, 2, b.maker.made)
	b.up(0)
	b.up(1)
	b.tend(10 * time.Second)
	must.Eq(t, "[{node-m1 true false} {node-m2 true false}]", b.nodes())
	b.nomad.busy["node-m1"] = true
	must.ErrorContains(t, b.pool.Shrink(t.Context(), 0, nil), "1 of the nodes to let go have work or are not ready")
	must.Eq(t, "[{node-m1 true false} {node-m2 true true}]", b.nodes())
	b.tend(10 * time.Second)
	must.Eq(t, "[{node-m1 true false}]", b.nodes())
	must.Eq(t, []string{"m2"}, b.maker.did)
	must.NoError(t, b.grow(2))
	must.ErrorContains(t, b.pool.Shrink(t.Context(), 1, []string{"node-m1"}), "1 of the nodes to let go", must.Sprint("none that was not named, nor one that starts"))
	must.Eq(t, "[{node-m1 true false} {m3 false false}]", b.nodes())
	must.Eq(t, "node-m2 ineligible", b.nomad.done(), must.Sprint("purged now it would come back, open for work"))
	b.nomad.nodes["node-m2"].Status = "down"
	b.tend(10 * time.Second)
	must.Eq(t, "node-m2 ineligible, node-m2 purged", b.nomad.done())
}

func TestAMachineOnItsWayOutIsKeptWhenWantedAgain(t *testing.T) {
	b := newMachineBench(t)
	must.NoError(t, b.grow(1))
	b.up(0)
	b.tend(time.Second)
	must.NoError(t, b.pool.Shrink(t.Context(), 0, nil))
	must.NoError(t, b.grow(1))
	must.Eq(t, "[{node-m1 true false}]", b.nodes())
	must.Eq(t, 1, b.maker.made)
	must.NoError(t, b.pool.Shrink(t.Context(), 0, nil))
	b.nomad.busy["node-m1"] = true
	b.tend(time.Second)
	must.Eq(t, "[{node-m1 true false}]", b.nodes(), must.Sprint("work was placed meanwhile"))
}

func TestAPurchaseWhoseAnswerIsLostIsNotMadeTwice(t *testing.T) {
	b := newMachineBench(t)
	b.maker.lost = true
	must.ErrorContains(t, b.grow(3), "create 3 machines: no answer")
	hidden := b.maker.machines
	b.maker.machines, b.maker.lost = nil, false // nor are they listed yet
	b.pool = b.next()
	must.NoError(t, b.grow(3))
	must.Eq(t, 3, b.maker.made, must.Sprint("the same token was given"))
	b.maker.machines = hidden
	b.pool = b.next()
	must.NoError(t, b.grow(3))
	must.Eq(t, 3, b.maker.made)
	must.NoError(t, b.grow(9))
	must.Eq(t, 4, b.maker.made, must.Sprint("the pool's maximum holds"))
}

func TestARefusalLetsThePoolRestSoThatOthersServe(t *testing.T) {
	b := newMachineBench(t)
	b.maker.fail = &RefusedError{Reason: "capacity: none of this type in the zone"}
	must.ErrorContains(t, b.grow(1), "capacity: none of this type")
	why, err := b.next().Resting(b.now.Add(time.Minute))
	must.NoError(t, err)
	must.Eq(t, "capacity: none of this type in the zone", why)
	b.maker.fail = nil
	must.ErrorContains(t, b.grow(1), "rests until")
	b.now = b.now.Add(5 * time.Minute)
	why, err = b.next().Resting(b.now)
	must.NoError(t, err)
	must.Eq(t, "", why)
	must.NoError(t, b.grow(1), must.Sprint("it is tried again"))
}

func TestWhatWasAskedForIsTakenBackWhenItIsRefusedLater(t *testing.T) {
	b := newMachineBench(t)
	must.NoError(t, b.grow(1))
	b.up(0)
	b.tend(time.Second)
	must.NoError(t, b.grow(3))
	b.maker.refused = "InsufficientInstanceCapacity"
	b.tend(time.Second)
	must.Eq(t, "[{node-m1 true false}]", b.nodes())
	must.Eq(t, []string{"m2", "m3"}, b.maker.did)
	why, err := b.next().Resting(b.now)
	must.NoError(t, err)
	must.Eq(t, "InsufficientInstanceCapacity", why)
}

func TestAMachineThatDoesNotComeUpIsGivenUpAndThePoolRests(t *testing.T) {
	b := newMachineBench(t)
	must.NoError(t, b.grow(1))
	b.tend(30 * time.Second)
	must.Eq(t, "[{m1 false false}]", b.nodes())
	b.tend(31 * time.Second)
	must.Eq(t, "[]", b.nodes())
	must.Eq(t, []string{"m1"}, b.maker.did)
	why, err := b.next().Resting(b.now)
	must.NoError(t, err)
	must.Eq(t, "node m1 was not ready within 1m0s", why)
}

func TestAnInterruptedMachineIsReplacedBeforeItGoes(t *testing.T) {
	b := newMachineBench(t)
	must.NoError(t, b.grow(1))
	b.up(0)
	b.nomad.busy["node-m1"] = true
	b.tend(time.Second)
	b.maker.machines[0].Interrupted = true
	b.tend(time.Second)
	must.Eq(t, "[{node-m1 true true}]", b.nodes(), must.Sprint("it counts no more"))
	must.Eq(t, "node-m1 drains", b.nomad.done())
	must.NoError(t, b.grow(1))
	must.Eq(t, 2, b.maker.made)
	must.SliceEmpty(t, b.maker.did, must.Sprint("its work has time for a checkpoint"))
	b.tend(time.Second)
	must.SliceEmpty(t, b.maker.did)
	delete(b.nomad.busy, "node-m1")
	b.tend(time.Second)
	must.Eq(t, []string{"m1"}, b.maker.did)
}

func TestBatchWorkOnAnInterruptedMachineIsAskedToStopOnceAnotherIsReady(t *testing.T) {
	b := newMachineBench(t)
	must.NoError(t, b.grow(3))
	for i := range 2 {
		b.up(i)
		b.nomad.busy[fmt.Sprint("node-m", i+1)] = true
	}
	b.nomad.kind = map[string]string{"node-m1": "batch", "node-m2": "batch"}
	b.tend(time.Second)
	b.maker.machines[0].Interrupted, b.maker.machines[1].Interrupted = true, true
	b.tend(time.Second)
	must.Eq(t, "[{node-m1 true true} {node-m2 true true} {m3 false false}]", b.nodes())
	must.Eq(t, "node-m1 ineligible, node-m2 ineligible", b.nomad.done(), must.Sprint("a drain would have Nomad take it for finished"))
	nodes, err := b.next().Nodes()
	must.NoError(t, err)
	must.True(t, nodes[0].Doomed)
	b.pool = b.next() // it is told in the ledger
	b.up(2)
	b.tend(time.Second)
	must.StrHasSuffix(t, "node-m1 drains", b.nomad.done(), must.Sprint("one is ready, for one"))
	b.tend(time.Second)
	must.StrNotContains(t, b.nomad.done(), "node-m2 drains")
	delete(b.nomad.busy, "node-m1")
	b.nomad.busy["node-m3"] = true
	b.tend(time.Second)
	must.Eq(t, []string{"m1"}, b.maker.did)
	must.StrNotContains(t, b.nomad.done(), "node-m2 drains")
	must.NoError(t, b.grow(2))
	b.up(len(b.maker.machines) - 1)
	b.tend(time.Second)
	b.tend(time.Second)
	must.StrContains(t, b.nomad.done(), "node-m2 drains")
}

func TestAMachineThatVanishesIsForgottenWithItsNode(t *testing.T) {
	b := newMachineBench(t)
	must.NoError(t, b.grow(1))
	b.up(0)
	b.tend(time.Second)
	b.maker.machines = nil
	b.nomad.nodes["node-m1"].Status = "down"
	b.tend(time.Second)
	must.Eq(t, "[]", b.nodes())
	must.Eq(t, "node-m1 purged", b.nomad.done())
}

func TestAnotherAutoscalerTakesOverWithoutALedger(t *testing.T) {
	b := newMachineBench(t)
	must.NoError(t, b.grow(2))
	b.up(0)
	b.up(1)
	b.nomad.nodes["node-m2"].SchedulingEligibility = "ineligible" // let go by the one before
	b.pool.store.dir = t.TempDir()
	b.tend(time.Second)
	nodes, err := b.pool.Nodes()
	must.NoError(t, err)
	must.Eq(t, "[{node-m1 true false}]", show(nodes))
	must.Eq(t, []string{"m2"}, b.maker.did)
}

func TestTheMakerIsAskedOnceAPeriod(t *testing.T) {
	b := newMachineBench(t)
	b.pool.definition.period = 10 * time.Second
	for range 30 {
		b.tend(time.Second)
	}
	must.Eq(t, 3, b.maker.listings)
}

func TestANodeWhoseWorkMayMoveIsDrainedAndGoesWhenItIsEmpty(t *testing.T) {
	b := newMachineBench(t)
	must.NoError(t, b.grow(2))
	b.up(0)
	b.up(1)
	b.tend(time.Second)
	b.nomad.busy = map[string]bool{"node-m1": true, "node-m2": true}
	b.nomad.leave, b.nomad.job = map[string]bool{"node-m1": true}, map[string]string{"node-m1": "other"}
	must.ErrorContains(t, b.pool.Drain(t.Context(), []string{"node-m1", "node-m2", "other"}),
		"drain node-m2: allocation a1 of job train has no leave to move (meta gpu.move)")
	must.Eq(t, "[{node-m1 true true} {node-m2 true false}]", b.nodes())
	must.Eq(t, "node-m1 ineligible, node-m2 ineligible, node-m1 drains, node-m2 eligible", b.nomad.done())
	b.tend(time.Second)
	must.SliceEmpty(t, b.maker.did, must.Sprint("its work has time for a checkpoint"))
	must.NoError(t, b.grow(2))
	must.Eq(t, 3, b.maker.made, must.Sprint("it is not kept: its work is asked to stop"))
	b.nomad.nodes["node-m1"].Drain = false
	b.pool = b.next()
	b.tend(time.Second)
	must.StrHasSuffix(t, "node-m1 drains", b.nomad.done(), must.Sprint("another life asks again"))
	delete(b.nomad.busy, "node-m1")
	b.tend(time.Second)
	must.Eq(t, []string{"m1"}, b.maker.did)
}

func TestAGangsNodesAreDrainedTogetherOrNotAtAll(t *testing.T) {
	b := newMachineBench(t)
	must.NoError(t, b.grow(3))
	for i := range 3 {
		b.up(i)
	}
	b.tend(time.Second)
	all := []string{"node-m1", "node-m2", "node-m3"}
	b.nomad.busy = map[string]bool{"node-m1": true, "node-m2": true, "node-m3": true}
	b.nomad.leave, b.nomad.job = map[string]bool{"node-m1": true, "node-m3": true}, map[string]string{"node-m3": "single"}
	must.ErrorContains(t, b.pool.Drain(t.Context(), all), "drain node-m1: it has work of a job in common with node-m2, which stays")
	must.Eq(t, "[{node-m1 true false} {node-m2 true false} {node-m3 true true}]", b.nodes())
	must.StrHasSuffix(t, "node-m3 ineligible, node-m1 eligible, node-m2 eligible, node-m3 drains", b.nomad.done())
	b.nomad.leave["node-m2"] = true
	must.NoError(t, b.pool.Drain(t.Context(), all))
	must.StrHasSuffix(t, "node-m1 ineligible, node-m2 ineligible, node-m1 drains, node-m2 drains", b.nomad.done())
	// A life that ended before Nomad heard of it is made good for both at once.
	b.nomad.nodes["node-m1"].Drain, b.nomad.nodes["node-m2"].Drain = false, false
	b.nomad.leave["node-m2"] = false
	b.pool = b.next()
	b.now = b.now.Add(time.Second)
	must.ErrorContains(t, b.pool.Tend(t.Context(), b.now), "in common with node-m2")
	must.Eq(t, "[{node-m1 true false} {node-m2 true false} {node-m3 true true}]", b.nodes())
}

func TestWhatAPoolRemembersOfItsMaker(t *testing.T) {
	b := newMachineBench(t)
	history := func() History {
		h, err := b.next().History(b.now)
		must.NoError(t, err)
		return h
	}
	must.Eq(t, History{}, history())
	must.NoError(t, b.grow(2))
	b.up(0)
	b.up(1)
	b.tend(time.Second)
	b.maker.machines[0].Interrupted = true
	b.tend(time.Second)
	b.tend(time.Second)
	must.Eq(t, 1, history().Interrupted, must.Sprint("it is counted once, while it goes too"))
	b.maker.machines = nil // the other is gone without notice
	b.tend(time.Second)
	must.Eq(t, 2, history().Interrupted)
	b.maker.fail = &RefusedError{Reason: "capacity"}
	must.Error(t, b.grow(1))
	must.True(t, b.now.Equal(history().Refused))
	b.now = b.now.Add(memory + time.Second)
	must.Eq(t, 0, history().Interrupted)
}

func TestAMachineAtRiskIsTold(t *testing.T) {
	b := newMachineBench(t)
	must.NoError(t, b.grow(1))
	b.up(0)
	b.maker.machines[0].AtRisk = true
	b.tend(time.Second)
	nodes, err := b.next().Nodes()
	must.NoError(t, err)
	must.True(t, nodes[0].AtRisk && !nodes[0].Leaving)
	must.Eq(t, b.now.Add(-time.Second).Unix(), nodes[0].Since.Unix())
	b.maker.machines[0].AtRisk = false
	b.tend(time.Second)
	nodes, err = b.next().Nodes()
	must.NoError(t, err)
	must.False(t, nodes[0].AtRisk, must.Sprint("advice can be taken back"))
}

func TestWhatAKilledAutoscalerHadMarkedIsClosedBeforeItIsLookedAt(t *testing.T) {
	b := newMachineBench(t)
	must.NoError(t, b.grow(2))
	b.up(0)
	b.up(1)
	b.tend(time.Second)
	l, err := b.pool.store.load()
	must.NoError(t, err)
	l.Machines["m1"].Leaving = true
	l.Machines["m2"].Leaving, l.Machines["m2"].Moving = true, true
	must.NoError(t, b.pool.store.save(l))
	b.pool = b.next()
	b.nomad.busy = map[string]bool{"node-m1": true, "node-m2": true}
	must.ErrorContains(t, b.pool.Tend(t.Context(), b.now), "drain node-m2: allocation a1 of job train has no leave to move")
	must.Eq(t, "[{node-m1 true false} {node-m2 true false}]", b.nodes(), must.Sprint("work was placed meanwhile: both stay"))
	must.Eq(t, "node-m1 ineligible, node-m1 eligible, node-m2 ineligible, node-m2 ineligible, node-m2 eligible", b.nomad.done())
	must.SliceEmpty(t, b.maker.did)
}

func TestALedgerThatIsDamagedIsNamedAndMayBeTakenAway(t *testing.T) {
	b := newMachineBench(t)
	must.NoError(t, b.grow(2))
	for _, text := range []string{"", "{", "[]", `{"machines":{"m1":null}}`} {
		must.NoError(t, os.WriteFile(b.pool.store.path(), []byte(text), 0o600))
		_, err := b.next().Nodes()
		must.ErrorContains(t, err, b.pool.store.path()+" is no ledger of a pool: ")
	}
	must.NoError(t, os.Remove(b.pool.store.path()))
	b.tend(time.Second)
	must.Eq(t, "[{m1 false false} {m2 false false}]", b.nodes())
}

func TestAMachineWhoseNodeIsLostIsGivenUpAndNotForAShortLossOfContact(t *testing.T) {
	for _, lost := range []string{"down", "disconnected", "gone"} {
		t.Run(lost, func(t *testing.T) {
			b := newMachineBench(t)
			must.NoError(t, b.grow(2))
			b.up(0)
			b.up(1)
			b.tend(time.Second)
			if b.nomad.nodes["node-m1"].Status = lost; lost == "gone" {
				delete(b.nomad.nodes, "node-m1")
			}
			for range 6 {
				b.tend(time.Minute)
			}
			must.Eq(t, "[{node-m1 true false} {node-m2 true false}]", b.nodes(), must.Sprint("it counts and may come back"))
			b.tend(time.Minute)
			must.Eq(t, "[{node-m2 true false}]", b.nodes())
			must.Eq(t, []string{"m1"}, b.maker.did)
			h, err := b.pool.History(b.now)
			must.NoError(t, err)
			must.Eq(t, 1, h.Interrupted)
			must.NoError(t, b.grow(2))
			must.Eq(t, 3, b.maker.made)
		})
	}
}

func TestNodesAreNotLostWhileNobodyCouldSeeThem(t *testing.T) {
	b := newMachineBench(t)
	must.NoError(t, b.grow(1))
	b.up(0)
	b.tend(time.Second)
	b.nomad.nodes["node-m1"].Status = "down"
	b.tend(time.Second)
	b.tend(time.Hour) // Nomad's servers or the autoscaler were away
	b.tend(4 * time.Minute)
	must.Eq(t, "[{node-m1 true false}]", b.nodes())
	b.nomad.nodes["node-m1"].Status = "ready"
	b.tend(time.Second)
	b.nomad.nodes["node-m1"].Status = "down"
	for range 5 {
		b.tend(time.Minute)
	}
	must.Eq(t, "[{node-m1 true false}]", b.nodes())
}
