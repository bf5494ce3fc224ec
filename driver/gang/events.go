// SPDX-License-Identifier: MPL-2.0

package gang

// Outcome is how the gang ended for a member.
type Outcome struct {
	// State is Done, Failed, or empty where the member left before the end.
	State State
	// Cause is why the member left before the end.
	Cause  Cause
	Reason string
}

// LeftFor is the outcome of a member that left for a cause; the empty one is
// Nomad's own wish.
func LeftFor(c Cause, why string) Outcome {
	if c == "" {
		return Outcome{Cause: CauseLeave, Reason: "stopped by Nomad"}
	}
	return Outcome{Cause: c, Reason: why}
}

// Events.
type (
	// HeadSeen: the head as it stands in the store, and this member's
	// assignment where it is in the head's generation.
	HeadSeen struct {
		Head       Head
		Assignment *Assignment
	}
	// HeadGone: there is no head in the store.
	HeadGone struct{}
	// PrepareEnded, StartEnded and StopEnded: the operation is over.
	PrepareEnded struct {
		Generation uint64
		Err        error
	}
	StartEnded struct {
		Generation uint64
		Err        error
	}
	StopEnded struct{ Generation uint64 }
	// ProcessEnded: the process that was started has ended.
	ProcessEnded struct{ Exit Exit }
	// LeaveAsked: Nomad stops this allocation, or, with a cause, it cannot go
	// on here; why is told then.
	LeaveAsked struct {
		Cause Cause
		Why   string
	}
	// CutOff: the store was out of reach for longer than is allowed.
	CutOff struct{ Reason string }
)

// Event is one of the above.
type Event interface{ event() }

func (HeadSeen) event()     {}
func (HeadGone) event()     {}
func (PrepareEnded) event() {}
func (StartEnded) event()   {}
func (StopEnded) event()    {}
func (ProcessEnded) event() {}
func (LeaveAsked) event()   {}
func (CutOff) event()       {}

// Actions.
type (
	// Publish: write this record to the store, until it stands there or a
	// newer one does.
	Publish struct{ Record Record }
	// Keep: hold this record for the driver's next life. The gang need not know:
	// a write that is saved for each member of each generation.
	Keep struct{ Record Record }
	// CreateHead: write this head where there is none.
	CreateHead struct{ Head Head }
	// Prepare, Start, Stop: begin the process operation.
	Prepare struct{ Assignment Assignment }
	Start   struct{ Generation uint64 }
	// A planned stop lets the processes agree on a checkpoint.
	Stop struct {
		Generation uint64
		Planned    bool
	}
	// Tell: a milestone for people.
	Tell struct{ Kind, Message string }
	// End: take the record out of the store, then the member is over.
	End struct{ Outcome Outcome }
)

// Action is one of the above.
type Action interface{ action() }

func (Publish) action()    {}
func (Keep) action()       {}
func (CreateHead) action() {}
func (Prepare) action()    {}
func (Start) action()      {}
func (Stop) action()       {}
func (Tell) action()       {}
func (End) action()        {}
