// SPDX-License-Identifier: MPL-2.0

package gang

import (
	"testing"
	"time"

	"github.com/shoenig/test/must"
)

// The races that other rendezvous protocols lost, where a single step shows
// that they are not lost here. The simulation looks for what many steps do.

// old is a member whose process of generation 1 runs.
func old() *Machine {
	return ResumeMachine(Record{V: version, Member: Member{Alloc: "a"}, Phase: Started, Generation: 1}, true)
}

func TestAMemberThatWasCutOffStopsItsProcessWhateverTheGangDoesNow(t *testing.T) {
	named := &Assignment{Generation: 2, Members: []Member{{Alloc: "a"}}}
	for _, state := range []State{Forming, Preparing, Running, Stopping, Done, Failed} {
		for _, a := range []*Assignment{nil, named} {
			does(t, old().Step(HeadSeen{Head: Head{State: state, Generation: 2}, Assignment: a}), Stop{Generation: 1, Planned: false}, must.Sprint(state, a))
		}
	}
	must.SliceEmpty(t, old().Step(HeadSeen{Head: Head{State: Running, Generation: 1}, Assignment: &Assignment{Generation: 1, Members: named.Members}}))
}

func TestWhatWasPreparedForOneGenerationIsNotStartedForAnother(t *testing.T) {
	m := NewMachine(Member{Alloc: "a"})
	seen := func(s State, g uint64) []Action {
		return m.Step(HeadSeen{Head: Head{State: s, Generation: g}, Assignment: &Assignment{Generation: g, Members: []Member{{Alloc: "a"}}}})
	}
	seen(Preparing, 1)
	m.Step(PrepareEnded{Generation: 1})
	actions := seen(Running, 2)
	does(t, actions, Stop{Generation: 1})
	for _, a := range actions {
		_, starts := a.(Start)
		must.False(t, starts)
	}
}

func TestTheEndOfAnOlderProcessIsNoFailureOfTheNewOne(t *testing.T) {
	m := ResumeMachine(Record{V: version, Member: Member{Alloc: "a"}, Phase: Started, Generation: 2}, true)
	must.SliceEmpty(t, m.Step(ProcessEnded{Exit{Generation: 1, Code: 1}}))
	must.Eq(t, Started, m.Record().Phase)
	must.SliceNotEmpty(t, m.Step(ProcessEnded{Exit{Generation: 2, Code: 1}}))
	must.Eq(t, Broken, m.Record().Phase)
}

func TestNoGenerationIsNamedWhileAMemberHoldsAProcess(t *testing.T) {
	for _, p := range []Phase{Prepared, Started} {
		h := newHall(t, Spec{Nodes: 2, PrepareTimeout: time.Minute}, 3)
		h.head.Generation = 3
		for i := range h.records {
			h.records[i].Generation = 3
		}
		h.records[2].Phase, h.records[2].Generation = p, 1
		h.look(0, nil)
		must.Eq(t, Forming, h.head.State)
		must.Eq(t, "node-2 still stops its process of generation 1", h.head.Reason)
		h.records[2].Phase = Idle
		h.look(0, nil)
		must.Eq(t, Preparing, h.head.State)
	}
}

func TestTwoReportsOfOneFailureCostOneRestart(t *testing.T) {
	h := newHall(t, Spec{Nodes: 3, PrepareTimeout: time.Minute, Restarts: 9}, 3)
	h.running()
	h.fail(0, Exit{Code: 1})
	h.fail(1, Exit{Code: 1})
	h.records[2].Phase = Idle
	h.look(0, nil)
	must.Eq(t, Stopping, h.head.State)
	must.Eq(t, 1, h.head.Restarts)
	must.Eq(t, "rank 0 on node-0 exited with code 1", h.head.Reason, must.Sprint("the first one's"))
	h.again()
	must.Eq(t, 1, h.head.Restarts)
}

func TestOneJoinerTooManyWaitsAsASpareAndStepsIn(t *testing.T) {
	h := newHall(t, Spec{Nodes: 2, PrepareTimeout: time.Minute}, 3)
	h.running()
	must.Eq(t, 2, h.head.World)
	must.Eq(t, []string{"alloc-0", "alloc-1"}, []string{h.view[0].Alloc, h.view[1].Alloc})
	h.records = append(h.records[:1:1], h.records[2])
	h.look(0, nil)
	h.again()
	must.Eq(t, []string{"alloc-0", "alloc-2"}, []string{h.view[0].Alloc, h.view[1].Alloc})
}

func TestAStopIsOverOnlyWhenEachMemberIsIdleOrFenced(t *testing.T) {
	h := newHall(t, Spec{Nodes: 3, PrepareTimeout: time.Minute, FenceDelay: 5 * time.Second}, 3)
	h.running()
	h.records = h.records[:2]
	h.look(0, nil)
	must.Eq(t, Stopping, h.head.State)
	h.records[0].Phase = Idle
	h.look(time.Hour, nil)
	must.Eq(t, Stopping, h.head.State, must.Sprint("one still runs"))
	h.records[1].Phase = Idle
	h.c = NewCoordinator(h.c.spec) // another takes over, and its clock begins anew
	must.Eq(t, h.now.Add(5*time.Second), h.look(0, nil).Again)
	h.look(4*time.Second, nil)
	must.Eq(t, Stopping, h.head.State, must.Sprint("the lost one may still run"))
	h.look(time.Second, nil)
	must.Eq(t, Forming, h.head.State)
}

func TestTheRendezvousPortAlternates(t *testing.T) {
	a := Assignment{Members: []Member{{Ports: [2]int{1000, 2000}}}}
	for g, want := range []int{1000, 2000, 1000, 2000} {
		a.Generation = uint64(g)
		must.Eq(t, want, a.MasterPort())
	}
}

func TestAMemberWritesItsRecordAgainOnlyWhereTheKeysHaveGone(t *testing.T) {
	m := NewMachine(Member{Alloc: "a"})
	create := CreateHead{Head{State: Forming}}
	must.Eq(t, []Action{create}, m.Step(HeadGone{}), must.Sprint("a large gang that begins would write every record twice"))
	m.Step(HeadSeen{Head: Head{State: Forming}})
	actions := m.Step(HeadGone{})
	does(t, actions, Publish{m.Record()})
	does(t, actions, create)
	does(t, old().Step(HeadGone{}), CreateHead{Head{State: Forming, Generation: 1, Orphan: true}})
}
