// SPDX-License-Identifier: MPL-2.0

package gang

import "slices"

// Cause is why a generation ended, or why a member leaves, for machines: the
// reason beside it is for people.
type Cause string

const (
	// CauseFailure: a process failed, or was not prepared in time.
	CauseFailure Cause = "failure"
	// CauseLost: a node, a session or a process was lost.
	CauseLost Cause = "lost"
	// CauseLeave: Nomad stopped a member.
	CauseLeave Cause = "leave"
	// CauseNotice: a member's node is about to be taken away.
	CauseNotice Cause = "notice"
	// CauseSlow: a member is left out, whose node slows the gang down.
	CauseSlow Cause = "slow"
	// CauseGrow: more members had come.
	CauseGrow Cause = "grow"
	// CauseLine: the gang gave its nodes back to one before it in line.
	CauseLine Cause = "line"
	// CauseUnknown: another release gave one that this one does not know, or none.
	CauseUnknown Cause = "unknown"
)

// Causes lists them all.
var Causes = []Cause{CauseFailure, CauseLost, CauseLeave, CauseNotice, CauseSlow, CauseGrow, CauseLine, CauseUnknown}

// read is a cause as another release may have written it.
func (c Cause) read() Cause {
	if c == "" || slices.Contains(Causes, c) {
		return c
	}
	return CauseUnknown
}

// EndOf reads from two heads in a row why the first one's generation ended
// and gave way to another; empty: it did not. Releases without causes leave
// the first head's count of restarts and the plan to go by.
func EndOf(before, after Head) Cause {
	switch {
	case after.State != Stopping || before.State == Stopping || before.Generation != after.Generation:
		return ""
	case after.Cause != "":
		return after.Cause
	case after.Restarts > before.Restarts:
		return CauseFailure
	case !after.Planned:
		return CauseLost
	}
	return CauseUnknown
}

// LeaveOut is why a member could not prepare where another member is to
// blame, and is to be left out of the gang.
type LeaveOut struct {
	// Alloc is that member.
	Alloc string
	Err   error
}

func (l *LeaveOut) Error() string { return l.Err.Error() }

func (l *LeaveOut) Unwrap() error { return l.Err }
