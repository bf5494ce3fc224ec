// SPDX-License-Identifier: MPL-2.0

package gang

import (
	"errors"
	"fmt"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/shoenig/test/must"
)

func TestWhyAGenerationEndedFollowsFromItsHeads(t *testing.T) {
	running := Head{State: Running, Generation: 3, Restarts: 1}
	stopping := func(restarts int, planned bool, c Cause) Head {
		return Head{State: Stopping, Generation: 3, Restarts: restarts, Planned: planned, Cause: c}
	}
	for name, c := range map[string]struct {
		before, after Head
		want          Cause
	}{
		"the head says so":             {running, stopping(1, true, CauseNotice), CauseNotice},
		"an older release: a failure":  {running, stopping(2, false, ""), CauseFailure},
		"an older release: a loss":     {running, stopping(1, false, ""), CauseLost},
		"an older release: a plan":     {running, stopping(1, true, ""), CauseUnknown},
		"it still stops":               {stopping(1, false, CauseLost), stopping(1, false, CauseLost), ""},
		"it runs":                      {Head{State: Preparing, Generation: 3}, running, ""},
		"it is done":                   {running, Head{State: Done, Generation: 3}, ""},
		"the gang failed":              {running, Head{State: Failed, Generation: 3, Cause: CauseFailure}, ""},
		"the first head that is seen":  {Head{}, stopping(1, false, CauseLost), ""},
		"another generation was there": {Head{State: Running, Generation: 2}, stopping(1, false, CauseLost), ""},
	} {
		must.Eq(t, c.want, EndOf(c.before, c.after), must.Sprint(name))
	}
}

func TestEachEndNamesItsCause(t *testing.T) {
	spec := Spec{Nodes: 3, MinNodes: 2, PrepareTimeout: time.Minute, GrowInterval: time.Minute, Restarts: 1}
	for name, c := range map[string]struct {
		happens func(h *hall)
		want    Cause
		reason  string
		planned bool
	}{
		"a process fails":    {func(h *hall) { h.fail(1, Exit{Code: 3}) }, CauseFailure, "rank 1 on node-1 exited with code 3", false},
		"a node is lost":     {func(h *hall) { h.records = h.records[:1]; h.look(0, nil) }, CauseLost, "rank 1 on node-1 is lost: its session is gone", false},
		"a process is lost":  {func(h *hall) { h.records[1].Phase = Idle; h.look(0, nil) }, CauseLost, "rank 1 on node-1 lost its process", false},
		"Nomad stops one":    {func(h *hall) { h.records[1].Leaving = true; h.look(0, nil) }, CauseLeave, "rank 1 on node-1 was told to stop by Nomad", true},
		"a node gets notice": {func(h *hall) { h.leaves(1, CauseNotice, "spot notice: the rack is moved") }, CauseNotice, "rank 1 on node-1 leaves: spot notice: the rack is moved", true},
		"it grows":           {func(h *hall) { h.join(); h.look(0, nil); h.look(time.Minute, nil) }, CauseGrow, "it grows from 2 to 3 members: node-2", true},
		"not all prepare": {func(h *hall) {
			h.head.State = Preparing
			h.all(Idle)
			h.records[0].Phase, h.records[1].Generation = Prepared, 0
			h.look(0, nil)
			h.look(time.Minute, nil)
		}, CauseFailure, "not prepared within 1m0s: node-1", false},
		"one fails, one is lost, one leaves": {func(h *hall) {
			h.records[0].Leaving = true
			h.fail(1, Exit{Signal: 9})
		}, CauseFailure, "rank 1 on node-1 was ended by signal 9 (killed)", false},
	} {
		t.Run(name, func(t *testing.T) {
			h := newHall(t, spec, 2)
			h.running()
			before := h.head
			c.happens(h)
			must.Eq(t, Stopping, h.head.State)
			must.Eq(t, c.want, h.head.Cause)
			must.Eq(t, c.reason, h.head.Reason)
			must.Eq(t, c.planned, h.head.Planned)
			must.NoError(t, checkCause(before, h.head))
			h.all(Idle)
			h.look(0, nil)
			must.Eq(t, c.want, h.head.Cause, must.Sprint("it stands until the next generation"))
		})
	}
}

func (h *hall) leaves(alloc int, c Cause, why string) {
	h.records[alloc].Leaving, h.records[alloc].Cause, h.records[alloc].Why = true, c, why
	h.look(0, nil)
}

// slow lets one member report while the others prepare.
func (h *hall) slow(teller int, out string) {
	h.t.Helper()
	h.look(0, nil)
	must.Eq(h.t, Preparing, h.head.State, must.Sprint(h.head.Reason))
	h.all(Prepared)
	h.records[teller].Phase, h.records[teller].Exit = Broken, &Exit{Generation: h.head.Generation, Err: "preflight: bandwidth from rank 1 on node-1 to rank 2 on node-2: 3 Gbit/s, usually 100", LeaveOut: out}
	h.look(0, nil)
}

func TestTheWorseNodeOfASlowPairIsLeftOutAndCostsNoRestart(t *testing.T) {
	for name, teller := range map[string]int{"itself": 2, "the one before it": 1, "the one after it": 3} {
		t.Run(name, func(t *testing.T) {
			h := newHall(t, Spec{Nodes: 4, PrepareTimeout: time.Minute, FenceDelay: 5 * time.Second}, 4)
			h.slow(teller, "alloc-2")
			must.Eq(t, Stopping, h.head.State)
			must.Eq(t, CauseSlow, h.head.Cause)
			must.Eq(t, "alloc-2", h.head.Out)
			must.Eq(t, 0, h.head.Restarts)
			must.StrHasPrefix(t, "rank 2 is left out: preflight: bandwidth from rank 1 on node-1 to rank 2 on node-2: 3 Gbit/s, usually 100", h.head.Reason)

			gone := h.records[2].Member
			h.records = append(h.records[:2:2], h.records[3:]...) // it leaves
			h.all(Idle)
			h.look(0, nil)
			h.look(5*time.Second, nil)
			must.Eq(t, Forming, h.head.State)
			h.look(0, nil)
			must.StrHasSuffix(t, " | 3 of 4 members; waiting for 1 more", h.head.Reason)
			h.records = append(h.records, Record{Phase: Idle, Member: Member{Alloc: "alloc-9", Node: "node-9", Address: gone.Address, Ports: gone.Ports, Slots: 1}})
			h.running()
			must.Eq(t, "alloc-9", h.view[2].Alloc, must.Sprint("the replacement takes its rank"))
			must.Eq(t, Head{State: Running, Generation: 2, World: 4, Barren: 1, Reason: h.head.Reason}, h.head)
		})
	}
}

func TestAnElasticGangGoesOnWithoutTheNodeItLeavesOut(t *testing.T) {
	h := newHall(t, Spec{Nodes: 4, MinNodes: 3, PrepareTimeout: time.Minute}, 4)
	h.slow(1, "alloc-2")
	h.records = append(h.records[:2:2], h.records[3:]...)
	h.again()
	must.Eq(t, 3, h.head.World)
}

func TestAMemberIsNotBelievedAboutOnesThatItDidNotMeasure(t *testing.T) {
	for _, out := range []string{"alloc-3", "alloc-9", ""} {
		h := newHall(t, Spec{Nodes: 5, PrepareTimeout: time.Minute, Restarts: 1}, 5)
		h.slow(1, out)
		must.Eq(t, CauseFailure, h.head.Cause)
		must.Eq(t, "", h.head.Out)
		must.Eq(t, 1, h.head.Restarts)
	}
	h := newHall(t, Spec{Nodes: 3, PrepareTimeout: time.Minute, Restarts: 1}, 3)
	h.running()
	h.fail(1, Exit{LeaveOut: "alloc-2", Code: 1})
	must.Eq(t, CauseFailure, h.head.Cause, must.Sprint("a run is past its preflight"))
}

func TestAGangThatCallsNodeAfterNodeSlowEnds(t *testing.T) {
	h := newHall(t, Spec{Nodes: 3, MinNodes: 2, PrepareTimeout: time.Minute, NoProgress: 2, Restarts: 9}, 4)
	h.slow(1, "alloc-2")
	must.Eq(t, Stopping, h.head.State)
	h.records = append(h.records[:2:2], h.records[3:]...)
	h.all(Idle)
	h.look(0, nil)
	h.slow(1, h.records[1].Member.Alloc)
	must.Eq(t, Failed, h.head.State)
	must.Eq(t, CauseSlow, h.head.Cause)
	must.StrContains(t, h.head.Reason, "3 Gbit/s, usually 100; 2 failures in a row without progress")
}

// does fails unless one of the actions is the wanted one.
func does(t *testing.T, actions []Action, want Action, settings ...must.Setting) {
	t.Helper()
	must.True(t, slices.ContainsFunc(actions, func(a Action) bool { return reflect.DeepEqual(a, want) }), append(settings, must.Sprint(actions))...)
}

func TestAMemberThatIsLeftOutLeavesAndSaysWhy(t *testing.T) {
	why := "rank 1 is left out: preflight: slow"
	head := Head{State: Stopping, Generation: 1, World: 3, Cause: CauseSlow, Out: "a", Reason: why}
	seen := func(h Head) HeadSeen {
		return HeadSeen{Head: h, Assignment: &Assignment{Generation: 1, Members: []Member{{Alloc: "a"}, {Alloc: "b"}, {Alloc: "c"}}}}
	}
	prepared := func() *Machine {
		m := NewMachine(Member{Alloc: "a"})
		m.Step(seen(Head{State: Preparing, Generation: 1, World: 3}))
		return m
	}
	end := End{Outcome{Cause: CauseSlow, Reason: why}}
	leaves := Record{V: version, Member: Member{Alloc: "a"}, Phase: Prepared, Generation: 1, Leaving: true, Cause: CauseSlow, Why: why}

	m := prepared()
	m.Step(PrepareEnded{Generation: 1})
	actions := m.Step(seen(head))
	does(t, actions, Publish{leaves})
	does(t, actions, Stop{Generation: 1, Planned: true})
	does(t, m.Step(StopEnded{Generation: 1}), end)

	m = prepared()
	m.Step(seen(head))
	does(t, m.Step(PrepareEnded{Generation: 1, Err: errors.New("given up")}), end, must.Sprint("its own prepare was under way"))

	m = prepared()
	m.Step(PrepareEnded{Generation: 1, Err: fmt.Errorf("wrapped: %w", &LeaveOut{Alloc: "a", Err: errors.New("slow")})})
	must.Eq(t, "a", m.Record().Exit.LeaveOut)
	head.State, head.Reason = Forming, why+waitMark+"2 of 3 members; waiting for 1 more"
	does(t, m.Step(seen(head)), end, must.Sprint("it saw no stop"))

	m = ResumeMachine(leaves, false)
	m.Resume()
	does(t, m.Step(seen(Head{State: Forming, Generation: 1})), end, must.Sprint("another life of the driver knows why"))

	m = prepared()
	head.Out = "b"
	m.Step(seen(head))
	must.False(t, m.Record().Leaving)
}

func TestWhatNomadStopsHasNoOtherCause(t *testing.T) {
	m := NewMachine(Member{Alloc: "a"})
	does(t, m.Step(LeaveAsked{}), End{Outcome{Cause: CauseLeave, Reason: "stopped by Nomad"}})
	m = NewMachine(Member{Alloc: "a"})
	does(t, m.Step(LeaveAsked{CauseNotice, "spot notice"}), End{Outcome{Cause: CauseNotice, Reason: "spot notice"}})
}

func TestALeaveOutFitsIntoTheHeadWithNamesOfAnyCloud(t *testing.T) {
	node := strings.Repeat("n", 44)
	pair := fmt.Sprintf("preflight: bandwidth from rank 4094 on %s (255.255.255.255) to rank 4095 on %s (255.255.255.254): 10 Gbit/s, usually 100", node, node)
	h := Head{State: Stopping, Generation: 1 << 40, View: "0123456789abcdef", World: MaxNodes, Restarts: 1_000_000, Barren: 1000, Step: 1 << 40,
		Cause: CauseSlow, Out: "01234567-0123-0123-0123-0123456789ab", Reason: "rank 4095 is left out: " + pair}
	data, err := EncodeHead(h)
	must.NoError(t, err)
	must.LessEq(t, maxHead, len(data))
	got, err := DecodeHead(data)
	must.NoError(t, err)
	must.Eq(t, h.Reason, got.Reason)
}
