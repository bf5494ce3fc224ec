// SPDX-License-Identifier: MPL-2.0

package gang

import (
	"fmt"
	"net/netip"
	"testing"
	"time"

	"github.com/shoenig/test/must"
)

// hall is a gang's records and head, as one coordinator sees them.
type hall struct {
	t       *testing.T
	c       *Coordinator
	now     time.Time
	head    Head
	view    []Member
	records []Record
}

func newHall(t *testing.T, spec Spec, members int) *hall {
	h := &hall{t: t, c: NewCoordinator(spec), now: time.Unix(1000, 0), head: Head{State: Forming}}
	for range members {
		h.join()
	}
	return h
}

func (h *hall) join() {
	n := len(h.records)
	h.records = append(h.records, Record{Phase: Idle, Member: Member{Alloc: fmt.Sprintf("alloc-%d", n), Index: n, Node: fmt.Sprintf("node-%d", n),
		Address: netip.MustParseAddr("10.0.0.1"), Ports: [2]int{1, 2}, Slots: 1}})
}

// look lets time pass, asks, and takes the decision.
func (h *hall) look(pass time.Duration, line *Line) Decision {
	h.now = h.now.Add(pass)
	d := h.c.Decide(h.now, h.head, h.view, h.records, line)
	if d.Head != nil {
		h.head = *d.Head
	}
	if d.View != nil {
		h.view = d.View
	}
	return d
}

// all brings every member of the view to the generation's phase.
func (h *hall) all(p Phase) {
	for i := range h.records {
		for _, m := range h.view {
			if m.Alloc == h.records[i].Member.Alloc {
				h.records[i].Phase, h.records[i].Generation = p, h.head.Generation
			}
		}
	}
}

// running forms the gang and lets it run.
func (h *hall) running() {
	h.t.Helper()
	h.look(0, nil)
	must.Eq(h.t, Preparing, h.head.State, must.Sprint(h.head.Reason))
	h.all(Prepared)
	h.look(0, nil)
	must.Eq(h.t, Running, h.head.State)
	h.all(Started)
	h.look(0, nil)
}

func (h *hall) fail(alloc int, x Exit) {
	h.records[alloc].Phase, h.records[alloc].Exit = Broken, &x
	h.look(time.Second, nil)
}

// again stops what runs and forms anew.
func (h *hall) again() {
	h.t.Helper()
	must.Eq(h.t, Stopping, h.head.State, must.Sprint(h.head.Reason))
	h.all(Idle)
	h.look(0, nil)
	must.Eq(h.t, Forming, h.head.State)
	h.running()
}

func TestAnElasticGangGoesOnWithFewerAfterTheLastCall(t *testing.T) {
	h := newHall(t, Spec{Nodes: 4, MinNodes: 2, LastCall: 30 * time.Second, PrepareTimeout: time.Minute, GrowInterval: 10 * time.Minute, Restarts: 3}, 1)
	h.look(time.Hour, nil)
	must.Eq(t, "1 of 4 members; waiting for 3 more", h.head.Reason)
	h.join()
	d := h.look(time.Second, nil)
	must.Eq(t, "2 of 4 members; waiting for 2 more; 2 are enough, last call for 30s", h.head.Reason)
	must.Eq(t, h.now.Add(30*time.Second), d.Again)
	h.join()
	h.look(29*time.Second, nil)
	must.Eq(t, Forming, h.head.State)
	h.look(time.Second, nil)
	must.Eq(t, Preparing, h.head.State)
	must.Eq(t, 3, h.head.World)
	must.Eq(t, "3 members of 4 prepare generation 1", h.head.Reason)
}

func TestTheLastCallBeginsAnewWhereTooFewAreLeft(t *testing.T) {
	h := newHall(t, Spec{Nodes: 3, MinNodes: 2, LastCall: 30 * time.Second, PrepareTimeout: time.Minute}, 2)
	h.look(0, nil)
	gone := h.records[1]
	h.records = h.records[:1]
	h.look(20*time.Second, nil)
	h.records = append(h.records, gone)
	h.look(20*time.Second, nil)
	must.Eq(t, Forming, h.head.State)
	h.look(30*time.Second, nil)
	must.Eq(t, Preparing, h.head.State)
}

func TestAGangGrowsAtMostOnceAnIntervalAndKeepsItsRanks(t *testing.T) {
	h := newHall(t, Spec{Nodes: 4, MinNodes: 2, PrepareTimeout: time.Minute, GrowInterval: 10 * time.Minute}, 2)
	h.running()
	must.Eq(t, 2, h.head.World)
	before := h.view
	h.join()
	h.join()
	h.look(0, nil)
	d := h.look(9*time.Minute, nil)
	must.Nil(t, d.Head)
	must.Eq(t, h.now.Add(time.Minute), d.Again)
	h.look(time.Minute, nil)
	must.Eq(t, Stopping, h.head.State)
	must.Eq(t, "it grows from 2 to 4 members: node-2, node-3", h.head.Reason)
	must.Eq(t, 0, h.head.Restarts, must.Sprint("to grow costs no restart"))
	h.again()
	must.Eq(t, 4, h.head.World)
	must.Eq(t, before, h.view[:2])
}

func TestAGangGrowsOnlyByWhatHasSettled(t *testing.T) {
	h := newHall(t, Spec{Nodes: 4, MinNodes: 2, PrepareTimeout: time.Minute, GrowInterval: 10 * time.Minute}, 2)
	h.running()
	h.look(time.Hour, nil)
	h.join()
	d := h.look(0, nil)
	must.Eq(t, h.now.Add(settle), d.Again)
	h.records[2].Leaving = true // Nomad replaces it
	h.look(settle-time.Second, nil)
	h.records = h.records[:2]
	h.join()
	h.records[2].Member.Alloc = "replacement"
	d = h.look(time.Second, nil)
	must.Eq(t, h.now.Add(settle), d.Again, must.Sprint("each counts on its own"))
	h.look(settle-time.Second, nil)
	h.join()
	must.Eq(t, h.now.Add(time.Second), h.look(0, nil).Again, must.Sprint("one that has just come keeps no other waiting"))
	h.look(time.Second, nil)
	must.Eq(t, "it grows from 2 to 4 members: node-2, node-3", h.head.Reason)
}

func TestAnAllocationThatComesAndGoesDoesNotSettle(t *testing.T) {
	h := newHall(t, Spec{Nodes: 3, MinNodes: 2, PrepareTimeout: time.Minute, GrowInterval: time.Minute}, 2)
	h.running()
	h.look(time.Hour, nil)
	for range 10 {
		h.join()
		h.look(0, nil)
		h.look(settle-time.Second, nil)
		h.records = h.records[:2]
		h.look(2*time.Second, nil)
	}
	must.Eq(t, Running, h.head.State)
}

func TestAnIntervalShorterThanTheSettleTimeIsTheSettleTime(t *testing.T) {
	h := newHall(t, Spec{Nodes: 3, MinNodes: 2, PrepareTimeout: time.Minute, GrowInterval: 5 * time.Second}, 2)
	h.running()
	h.look(time.Hour, nil)
	h.join()
	must.Eq(t, h.now.Add(5*time.Second), h.look(0, nil).Again)
	h.look(5*time.Second, nil)
	must.Eq(t, CauseGrow, h.head.Cause)
}

func TestAGangDoesNotGrowOnceAMemberHasFinished(t *testing.T) {
	h := newHall(t, Spec{Nodes: 3, MinNodes: 2, PrepareTimeout: time.Minute, GrowInterval: time.Minute}, 2)
	h.running()
	h.join()
	h.records[1].Phase = Finished
	h.look(time.Hour, nil)
	must.Eq(t, Running, h.head.State)
}

func TestAGangOfFixedSizeDoesNotShrink(t *testing.T) {
	h := newHall(t, Spec{Nodes: 3, LastCall: time.Second, PrepareTimeout: time.Minute}, 2)
	h.look(time.Hour, nil)
	h.look(time.Hour, nil)
	must.Eq(t, Forming, h.head.State)
}

func TestRank0EndsTheGangWhereItsCompletionSaysSo(t *testing.T) {
	for completion, end := range map[Completion]State{CompletionAll: Running, "": Running, CompletionRank0: Done} {
		h := newHall(t, Spec{Nodes: 2, PrepareTimeout: time.Minute, Completion: completion}, 2)
		h.running()
		h.records[1].Phase = Finished
		h.look(0, nil)
		must.Eq(t, Running, h.head.State, must.Sprint("another rank's early end is none"))
		h.records[1].Phase = Started
		h.records[0].Phase = Finished
		h.look(0, nil)
		must.Eq(t, end, h.head.State, must.Sprint(completion))
	}
}

func TestFailuresWithoutProgressEndTheGangBeforeItsBudgetDoes(t *testing.T) {
	for name, c := range map[string]struct {
		exits []Exit
		end   State
	}{
		"quick failures":           {[]Exit{{Code: 1, Ran: time.Second}, {Code: 1}, {Code: 1}}, Failed},
		"a long run between them":  {[]Exit{{Code: 1}, {Code: 1, Ran: time.Hour}, {Code: 1}}, Stopping},
		"long runs at one step":    {[]Exit{{Code: 1, Ran: time.Hour, Step: 7}, {Code: 1, Ran: time.Hour, Step: 7}, {Code: 1, Ran: time.Hour, Step: 6}, {Code: 1, Ran: time.Hour, Step: 7}}, Failed},
		"a further step each time": {[]Exit{{Code: 1, Step: 7}, {Code: 1, Step: 8}, {Code: 1, Step: 9}, {Code: 1, Step: 10}}, Stopping},
	} {
		t.Run(name, func(t *testing.T) {
			h := newHall(t, Spec{Nodes: 2, PrepareTimeout: time.Minute, Restarts: 100, NoProgress: 3}, 2)
			h.running()
			for n, x := range c.exits {
				if n > 0 {
					h.again()
				}
				h.fail(1, x)
			}
			must.Eq(t, c.end, h.head.State, must.Sprint(h.head.Reason))
			if c.end == Failed {
				must.StrContains(t, h.head.Reason, "rank 1 on node-1 exited with code 1; 3 failures in a row without progress")
			}
		})
	}
}

func TestAGangPastItsFormTimeoutKeepsItsNodesOnlyAsTheFirstInLine(t *testing.T) {
	spec := Spec{Nodes: 3, FormTimeout: time.Minute, PrepareTimeout: time.Minute}
	h := newHall(t, spec, 2)
	must.False(t, h.c.WantsLine(h.now, h.head))
	h.look(0, nil)
	must.False(t, h.c.WantsLine(h.now.Add(59*time.Second), h.head))
	must.True(t, h.c.WantsLine(h.now.Add(time.Minute), h.head))
	h.look(time.Minute, nil)
	must.Eq(t, Forming, h.head.State, must.Sprint("the line is not known"))
	d := h.look(time.Hour, &Line{Position: 1})
	must.Eq(t, "2 of 3 members; waiting for 1 more; first in line", h.head.Reason)
	must.Eq(t, h.now.Add(lineInterval), d.Again)
	h.look(time.Second, &Line{Position: 3, Ahead: "default/big/gang"})
	must.Eq(t, Failed, h.head.State)
	must.Eq(t, "gave its nodes back: not whole within form_timeout 1m0s, and default/big/gang is before it in line: 2 of 3 members; waiting for 1 more", h.head.Reason)
}

func TestTheLineIsOrderedByPriorityThenAge(t *testing.T) {
	own := Ticket{Gang: "own", Priority: 50, Age: 10}
	others := []Ticket{{Gang: "younger", Priority: 50, Age: 11}, {Gang: "lower", Priority: 40, Age: 1}}
	must.Eq(t, Line{Position: 1}, own.Place(others))
	others = append(others, Ticket{Gang: "older", Priority: 50, Age: 9}, Ticket{Gang: "urgent", Priority: 90, Age: 99}, Ticket{Gang: "oldest", Priority: 50, Age: 1})
	must.Eq(t, Line{Position: 4, Ahead: "urgent"}, own.Place(others))
	for _, a := range others {
		for _, b := range others {
			must.Eq(t, a != b, a.Before(b) || b.Before(a), must.Sprint("the order is total"))
			must.False(t, a.Before(b) && b.Before(a))
		}
	}
}

func TestATicketFromAnybodyIsChecked(t *testing.T) {
	good, err := EncodeTicket(Ticket{Gang: "default/a/b", Priority: 50, Age: 7})
	must.NoError(t, err)
	got, err := DecodeTicket(good)
	must.NoError(t, err)
	must.Eq(t, Ticket{V: 1, Gang: "default/a/b", Priority: 50, Age: 7}, got)
	for text, want := range map[string]string{
		`{"v":2}`:                "version 2",
		`{"v":1,"priority":0}`:   "priority 0",
		`{"v":1,"priority":101}`: "priority 101",
		`{"v":1,"age":-1}`:       "ticket",
		fmt.Sprintf(`{"gang":%q}`, make([]byte, 2000)): "allowed are 1024",
	} {
		_, err := DecodeTicket([]byte(text))
		must.ErrorContains(t, err, want)
	}
}
