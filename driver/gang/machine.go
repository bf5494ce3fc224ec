// SPDX-License-Identifier: MPL-2.0

package gang

import (
	"errors"
	"fmt"
	"strings"
)

// Machine decides what one member does. It is given what happens, one event
// at a time, and answers with actions, to be carried out in order. It holds
// this member's record as it should stand in the store.
//
// At most one process operation (prepare, start, stop) is under way at a time;
// its result comes back as an event. A head that asks for something else
// meanwhile is remembered and looked at again then.
type Machine struct {
	record Record
	// head is the newest one seen, with this member's assignment in it, if any.
	head       Head
	assignment *Assignment
	seen       bool
	// busy is the process operation under way.
	busy operation
	// stopped is true once Stop was asked for the record's generation: an
	// exit that follows is no failure.
	stopped bool
	// ended is set once the member has nothing left to do.
	ended *Outcome
	told  string
	// stopReason is why the newest generation stopped.
	stopReason string
}

type operation int

const (
	nothing operation = iota
	preparing
	starting
	stopping
)

// NewMachine begins a member that has no process.
func NewMachine(m Member) *Machine {
	return &Machine{record: Record{V: version, Member: m, Phase: Idle}}
}

// ResumeMachine goes on for a member whose driver was away. The record is the
// one it last saved; running says whether the process of the record's
// generation is still there. A process that ended meanwhile is told by a
// ProcessEnded event afterwards, as if it ended now.
func ResumeMachine(r Record, running bool) *Machine {
	m := &Machine{record: r}
	if r.holdsProcess() && !running {
		m.record.Phase = Idle
	}
	if r.Phase == Prepared && running {
		// Whether it was started is known to the process alone, so it is not relied on.
		m.stopped = true
		m.busy = stopping
	}
	return m
}

// Resume returns the actions that a resumed machine begins with.
func (m *Machine) Resume() []Action {
	actions := []Action{Publish{m.record}}
	if m.busy == stopping {
		actions = append(actions, Stop{Generation: m.record.Generation})
	}
	return actions
}

// Record is this member's record as it should stand in the store.
func (m *Machine) Record() Record { return m.record }

// Step takes one event and answers with what to do.
func (m *Machine) Step(e Event) []Action {
	if m.ended != nil {
		return nil
	}
	var actions []Action
	do := func(a ...Action) { actions = append(actions, a...) }
	switch e := e.(type) {
	case HeadSeen:
		m.head, m.assignment, m.seen = e.Head, e.Assignment, true
		m.tellHead(do)
		if out := m.head.Out; out != "" && out == m.record.Member.Alloc && !m.record.Leaving && !m.head.State.Final() {
			why, _, _ := strings.Cut(m.head.Reason, waitMark)
			do(Tell{"Left Out", "This member leaves, so that the gang goes on without its node: " + why})
			m.leave(m.head.Cause, why, do)
		}
	case HeadGone:
		if m.record.Leaving {
			break
		}
		m.seen = false
		if m.record.Phase == Finished {
			// Keys go when the last member leaves: the others have seen the end.
			m.end(Outcome{State: Done, Reason: "this member finished, and the gang has ended"}, do)
			break
		}
		g := m.record.Generation
		if m.head.State != "" || g > 0 {
			do(Publish{m.record}) // it went with the keys; one that is new here stands there since it joined
		}
		do(CreateHead{Head{State: Forming, Generation: g, Orphan: g > 0}})
	case PrepareEnded:
		m.busy = nothing
		switch {
		case e.Err == nil:
			m.record.Phase = Prepared
		case m.Abandoned():
			m.record.Phase = Idle // it was interrupted, which is no failure
		default:
			x := Exit{Generation: e.Generation, Err: e.Err.Error()}
			var other *LeaveOut
			if errors.As(e.Err, &other) {
				x.LeaveOut = other.Alloc
			}
			m.broken(x, do)
		}
		do(Publish{m.record})
	case StartEnded:
		m.busy = nothing
		if m.record.Phase != Prepared {
			break // the process was quicker than the word of its start
		}
		if e.Err == nil {
			m.record.Phase = Started
			do(Keep{m.record})
		} else {
			m.broken(Exit{Generation: e.Generation, Err: e.Err.Error()}, do)
			do(Publish{m.record})
		}
	case StopEnded:
		m.busy, m.stopped = nothing, false
		m.record.Phase, m.record.Exit = Idle, nil
		if !m.record.Leaving {
			do(Publish{m.record})
		}
	case ProcessEnded:
		if e.Exit.Generation != m.record.Generation || m.stopped || !m.mayEnd() {
			return nil
		}
		if e.Exit.OK() {
			m.record.Phase, m.record.Exit = Finished, &e.Exit
			do(Tell{"Finished", fmt.Sprintf("Generation %d: rank %d finished", e.Exit.Generation, m.rank())})
		} else {
			m.broken(e.Exit, do)
		}
		do(Publish{m.record})
	case LeaveAsked:
		if m.record.Leaving {
			return nil
		}
		m.leave(e.Cause, e.Why, do)
	case CutOff:
		// Whatever the gang does now is not known here; when the store is
		// back, the head decides.
		m.seen = false
		if m.record.holdsProcess() && m.busy == nothing {
			do(Tell{"Cut Off", e.Reason})
			m.stop(do)
		}
	}
	m.follow(do)
	return actions
}

// mayEnd: a start that is still under way can be overtaken by its process's end.
func (m *Machine) mayEnd() bool {
	return m.record.Phase == Started || m.record.Phase == Prepared && m.busy == starting
}

func (m *Machine) broken(x Exit, do func(...Action)) {
	m.record.Phase, m.record.Exit = Broken, &x
	do(Tell{"Failed", fmt.Sprintf("Generation %d: rank %d on this node %s", x.Generation, m.rank(), x)})
}

func (m *Machine) rank() int {
	if m.assignment != nil {
		return m.assignment.Rank
	}
	return -1
}

// Abandoned reports whether the record's generation is over for this member,
// so that a prepare still under way may as well be given up.
func (m *Machine) Abandoned() bool {
	over := m.head.Generation != m.record.Generation || m.head.State == Stopping || m.head.State == Forming || m.head.State.Final()
	return m.record.Leaving || m.seen && over
}

// Missed reports whether the gang, as far as is known, still counts on this
// member, which leaves.
func (m *Machine) Missed() bool {
	goes := m.head.State == Preparing || m.head.State == Running
	return m.record.Leaving && m.seen && goes && m.assignment != nil
}

// follow does what the newest head asks for, one operation at a time.
func (m *Machine) follow(do func(...Action)) {
	if m.busy != nothing {
		return
	}
	if m.record.Leaving {
		if m.record.holdsProcess() {
			m.stop(do)
			return
		}
		m.end(LeftFor(m.record.Cause, m.record.Why), do)
		return
	}
	if !m.seen {
		return
	}
	current := m.head.Generation == m.record.Generation
	switch m.head.State {
	case Done, Failed:
		if m.record.holdsProcess() {
			m.stop(do)
			return
		}
		m.end(Outcome{State: m.head.State, Reason: m.head.Reason}, do)
	case Forming, Stopping:
		m.idle(do)
	case Preparing:
		switch {
		case m.record.holdsProcess() && !current:
			m.stop(do) // it was cut off while the gang went on
		case m.assignment != nil && m.record.Generation < m.head.Generation:
			m.record.Generation, m.record.Phase, m.record.Exit, m.stopped = m.head.Generation, Idle, nil, false
			m.busy = preparing
			do(Prepare{*m.assignment})
		}
	case Running:
		switch {
		case m.record.holdsProcess() && !current:
			m.stop(do)
		case current && m.record.Phase == Prepared && m.assignment != nil:
			m.busy = starting
			do(Start{m.record.Generation})
		}
	}
}

// idle brings the member to rest at the head's generation.
func (m *Machine) idle(do func(...Action)) {
	if m.record.holdsProcess() {
		m.stop(do)
		return
	}
	behind := m.record.Generation < m.head.Generation && m.assignment != nil
	if m.record.Phase == Idle && !behind {
		return
	}
	m.record.Phase, m.record.Exit = Idle, nil
	m.record.Generation = max(m.record.Generation, m.head.Generation)
	do(Publish{m.record})
}

func (m *Machine) stop(do func(...Action)) {
	m.busy, m.stopped = stopping, true
	planned := m.record.Leaving || m.seen && m.head.Generation == m.record.Generation && (m.head.State == Stopping && m.head.Planned || m.head.State == Done)
	do(Stop{m.record.Generation, planned})
}

func (m *Machine) leave(c Cause, why string, do func(...Action)) {
	m.record.Leaving, m.record.Cause, m.record.Why = true, c, why
	do(Publish{m.record})
}

func (m *Machine) end(o Outcome, do func(...Action)) {
	m.ended = &o
	do(End{o})
}

// tellHead reports a head's state once.
func (m *Machine) tellHead(do func(...Action)) {
	h := m.head
	key := fmt.Sprint(h.State, h.Generation, h.Reason)
	if key == m.told {
		return
	}
	m.told = key
	switch h.State {
	case Forming:
		// Just after a stop the reason is that of the stop, told already.
		if h.Reason != "" && h.Reason != m.stopReason {
			do(Tell{"Waiting", h.Reason})
		}
	case Preparing:
		if m.assignment != nil {
			a := m.assignment
			do(Tell{"Rank", fmt.Sprintf("Generation %d: rank %d of %d, master %s:%d", h.Generation, a.Rank, len(a.Members), a.Master().Address, a.MasterPort())})
		} else {
			do(Tell{"Spare", fmt.Sprintf("Generation %d forms with %d other members; waiting as a spare", h.Generation, h.World)})
		}
	case Running:
		if m.assignment != nil && m.record.Phase == Prepared {
			do(Tell{"Started", fmt.Sprintf("Generation %d: all %d members are prepared and start", h.Generation, h.World)})
		}
	case Stopping:
		m.stopReason = h.Reason
		do(Tell{"Stopping", fmt.Sprintf("Generation %d stops: %s", h.Generation, h.Reason)})
	case Failed:
		do(Tell{"Gang Failed", h.Reason})
	case Done:
		do(Tell{"Gang Done", h.Reason})
	}
}
