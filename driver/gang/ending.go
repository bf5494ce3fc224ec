// SPDX-License-Identifier: MPL-2.0

package gang

import (
	"cmp"
	"fmt"
	"time"
)

// interrupted looks for what ends a generation: first a failure, so that its
// reason is told and not what it caused, then a planned leave, then a loss.
func (c *Coordinator) interrupted(head Head, view []Member, byAlloc map[string]Record, started bool) (Decision, bool) {
	var failed, lost, left string
	var exit Exit
	cause := CauseLost
	for rank, m := range view {
		r, here := byAlloc[m.Alloc]
		switch {
		case here && r.Phase == Broken && r.Generation == head.Generation:
			how := "could not be run"
			var x Exit
			if r.Exit != nil {
				x, how = *r.Exit, r.Exit.String()
			}
			if worse := toLeaveOut(view, rank, x); worse >= 0 && !started {
				return c.leaveOut(head, view, worse, how), true
			}
			if failed == "" {
				failed, exit = fmt.Sprintf("rank %d on %s %s", rank, m.Node, how), x
			}
		case here && r.Leaving && left == "":
			left, cause = fmt.Sprintf("rank %d on %s was told to stop by Nomad", rank, m.Node), CauseLeave
			if r.Cause != "" && r.Cause != CauseLeave {
				left, cause = fmt.Sprintf("rank %d on %s leaves: %s", rank, m.Node, r.Why), r.Cause
			}
		case !here && lost == "":
			lost = fmt.Sprintf("rank %d on %s is lost: its session is gone", rank, m.Node)
		case here && lost == "" && gaveUp(r, head.Generation, started):
			lost = fmt.Sprintf("rank %d on %s lost its process", rank, m.Node)
		}
	}
	if failed != "" {
		return c.restart(head, failed, exit), true
	}
	if reason := cmp.Or(left, lost); reason != "" {
		next := head
		next.State, next.Reason, next.Planned, next.Cause = Stopping, reason, lost == "", cause
		return Decision{Head: &next}, true
	}
	return Decision{}, false
}

// gaveUp reports whether a member has no process of a generation any more.
// Before the start a member that is still on its way is idle at an older one.
func gaveUp(r Record, generation uint64, started bool) bool {
	if r.Phase == Idle {
		return started || r.Generation >= generation
	}
	return started && r.Generation != generation
}

func (c *Coordinator) stopping(now time.Time, head Head, view []Member, byAlloc map[string]Record) Decision {
	var again time.Time
	for _, m := range view {
		r, here := byAlloc[m.Alloc]
		if here && (r.Phase != Idle || r.Generation < head.Generation) {
			return Decision{}
		}
		if !here {
			if fenced := c.lost[m.Alloc].Add(c.spec.FenceDelay); now.Before(fenced) && fenced.After(again) {
				again = fenced
			}
		}
	}
	if !again.IsZero() {
		return Decision{Again: again}
	}
	next := head
	next.State, next.Planned = Forming, false
	return Decision{Head: &next}
}

// restart ends a generation for a failure, and the gang with it where that was
// one too many, or where too many in a row came without progress: a further
// step of training where steps are reported, else a run of a minute.
func (c *Coordinator) restart(head Head, reason string, exit Exit) Decision {
	advanced := exit.Ran >= progressTime
	if exit.Step > 0 || head.Step > 0 {
		advanced = exit.Step > head.Step
	}
	next := head
	next.Barren, next.Step = head.Barren+1, max(head.Step, exit.Step)
	if advanced {
		next.Barren = 0
	}
	if d, over := c.barren(head, next, reason, CauseFailure); over {
		return d
	}
	if head.Restarts >= c.spec.Restarts {
		return c.end(head, CauseFailure, fmt.Sprintf("%s; no restart left of %d", reason, c.spec.Restarts))
	}
	next.State, next.Cause, next.Restarts, next.Reason = Stopping, CauseFailure, head.Restarts+1, reason
	return Decision{Head: &next}
}

// barren ends a gang that fails again and again without progress.
func (c *Coordinator) barren(head, next Head, reason string, cause Cause) (Decision, bool) {
	if c.spec.NoProgress == 0 || next.Barren < c.spec.NoProgress {
		return Decision{}, false
	}
	return c.end(head, cause, fmt.Sprintf("%s; %d failures in a row without progress", reason, next.Barren)), true
}

// toLeaveOut is the rank that the member of another one, or of the same, asks
// to leave out; -1: it does not, or may not. A member is believed about
// itself and its neighbours in rank order, to whom alone it measures.
func toLeaveOut(view []Member, teller int, x Exit) int {
	n := len(view)
	for _, rank := range []int{teller, (teller + 1) % n, (teller + n - 1) % n} {
		if x.LeaveOut != "" && view[rank].Alloc == x.LeaveOut {
			return rank
		}
	}
	return -1
}

// leaveOut ends a generation that one member's node would slow down: that
// member leaves, and the others form again. It costs no restart, since the
// gang itself did not fail, but is no progress either: where node after node is
// called slow, the gang ends.
func (c *Coordinator) leaveOut(head Head, view []Member, rank int, why string) Decision {
	reason := fmt.Sprintf("rank %d is left out: %s", rank, why)
	next := head
	next.Barren = head.Barren + 1
	if d, over := c.barren(head, next, reason, CauseSlow); over {
		return d
	}
	next.State, next.Cause, next.Out, next.Reason = Stopping, CauseSlow, view[rank].Alloc, reason
	return Decision{Head: &next}
}

// progressTime is how long a process must have run for its failure to count
// as one after progress, where it reports no steps.
const progressTime = time.Minute
