// SPDX-License-Identifier: MPL-2.0

package gang

import (
	"fmt"
	"slices"
	"strings"
	"time"
)

// Coordinator decides what follows for the whole gang. One member at a time
// has this part: the one whose session holds the lock. It can die after any
// step; the next one goes on from what stands in the store, and only waits
// longer, never shorter, since its clocks begin anew.
//
//	forming ──all members, or enough after the last call; none holds a process──▶ preparing(g+1)
//	preparing ──all prepared──▶ running
//	preparing, running ──a member broken, lost or leaving──▶ stopping
//	running with fewer than all ──others have settled, and the interval is over──▶ stopping
//	stopping ──all idle, or gone and fenced──▶ forming
//	running ──all finished, or rank 0──▶ done
//	any failure past the budget or without progress, or forming past its
//	timeout while another gang is first in line ──▶ failed
type Coordinator struct {
	spec Spec
	// entered is when this coordinator first saw the head's state.
	entered time.Time
	state   State
	gen     uint64
	// lost is when a member of the view was first seen without a record.
	lost map[string]time.Time
	// spares is when an allocation outside the view was first seen to wait
	// beside what runs.
	spares map[string]time.Time
	// enough is when a forming gang was first seen with its least members.
	enough time.Time
}

// NewCoordinator begins a coordinator's term.
func NewCoordinator(spec Spec) *Coordinator {
	return &Coordinator{spec: spec, lost: map[string]time.Time{}}
}

// Decision is what the coordinator wants written.
type Decision struct {
	// Head is the next head, or nil: nothing changes.
	Head *Head
	// View names the members of Head.Generation in rank order, to be written
	// before the head; nil: as it was.
	View []Member
	// Again is when to ask again if nothing happens; zero: only on a change.
	Again time.Time
}

// WantsLine reports whether the next decision depends on the line: the gang
// has been forming for as long as it may unless it is the first.
func (c *Coordinator) WantsLine(now time.Time, head Head) bool {
	return head.State == Forming && c.spec.FormTimeout > 0 && c.state == Forming && c.gen == head.Generation &&
		!now.Before(c.entered.Add(c.spec.FormTimeout))
}

// Decide takes what stands in the store, the members of the head's generation
// in rank order, the gang's place in the line (nil: not known) and the time.
// It costs O(members).
func (c *Coordinator) Decide(now time.Time, head Head, view []Member, records []Record, line *Line) Decision {
	if head.State != c.state || head.Generation != c.gen {
		c.entered, c.state, c.gen = now, head.State, head.Generation
		c.enough, c.spares = time.Time{}, nil
	}
	byAlloc := make(map[string]Record, len(records))
	for _, r := range records {
		byAlloc[r.Member.Alloc] = r
	}
	c.noteLost(now, view, byAlloc)
	switch head.State {
	case Forming:
		return c.forming(now, head, view, records, line)
	case Preparing:
		return c.preparing(now, head, view, byAlloc)
	case Running:
		return c.running(now, head, view, records, byAlloc)
	case Stopping:
		return c.stopping(now, head, view, byAlloc)
	}
	return Decision{}
}

func (c *Coordinator) noteLost(now time.Time, view []Member, byAlloc map[string]Record) {
	gone := map[string]time.Time{}
	for _, m := range view {
		if _, here := byAlloc[m.Alloc]; here {
			continue
		}
		gone[m.Alloc] = now
		if since, known := c.lost[m.Alloc]; known {
			gone[m.Alloc] = since
		}
	}
	c.lost = gone
}

func (c *Coordinator) forming(now time.Time, head Head, view []Member, records []Record, line *Line) Decision {
	var ready []Member
	for _, r := range records {
		switch {
		case r.Leaving:
		case r.holdsProcess():
			// A member that was cut off still runs what was given up: it stops
			// as soon as it reads the head, and until then nobody starts.
			return c.wait(head, fmt.Sprintf("%s still stops its process of generation %d", r.Member.Node, r.Generation))
		case r.Phase == Idle && r.Generation >= head.Generation:
			ready = append(ready, r.Member)
		case r.Phase == Idle && !slices.ContainsFunc(view, func(m Member) bool { return m.Alloc == r.Member.Alloc }):
			ready = append(ready, r.Member) // new here, or a spare: it has no process of this generation
		}
	}
	if len(ready) >= c.spec.Nodes {
		return c.form(head, view, ready, c.spec.Nodes)
	}
	waiting := fmt.Sprintf("%d of %d members; waiting for %d more", len(ready), c.spec.Nodes, c.spec.Nodes-len(ready))
	if len(ready) < c.spec.Least() {
		c.enough = time.Time{}
	} else {
		if c.enough.IsZero() {
			c.enough = now
		}
		lastCall := c.enough.Add(c.spec.LastCall)
		if !now.Before(lastCall) {
			return c.form(head, view, ready, len(ready))
		}
		d := c.wait(head, fmt.Sprintf("%s; %d are enough, last call for %s", waiting, c.spec.Least(), c.spec.LastCall))
		d.Again = lastCall
		return d
	}
	if head.Orphan {
		deadline := c.entered.Add(rejoinTimeout)
		if !now.Before(deadline) {
			return c.end(head, CauseLost, fmt.Sprintf("the gang's keys were gone, and not all members came back within %s: %s", rejoinTimeout, waiting))
		}
		d := c.wait(head, waiting)
		d.Again = deadline
		return d
	}
	if c.spec.FormTimeout == 0 {
		return c.wait(head, waiting)
	}
	deadline := c.entered.Add(c.spec.FormTimeout)
	if now.Before(deadline) {
		d := c.wait(head, waiting)
		d.Again = deadline
		return d
	}
	if line != nil && line.Ahead != "" {
		return c.end(head, CauseLine, fmt.Sprintf("gave its nodes back: not whole within form_timeout %s, and %s is before it in line: %s", c.spec.FormTimeout, line.Ahead, waiting))
	}
	if line != nil {
		waiting += "; first in line"
	}
	d := c.wait(head, waiting)
	d.Again = now.Add(lineInterval)
	return d
}

// form names the n members of the next generation.
func (c *Coordinator) form(head Head, view, ready []Member, n int) Decision {
	next := Head{State: Preparing, Generation: head.Generation + 1, World: n, Restarts: head.Restarts, Barren: head.Barren, Step: head.Step,
		Reason: fmt.Sprintf("%d members prepare generation %d", n, head.Generation+1)}
	if n < c.spec.Nodes {
		next.Reason = fmt.Sprintf("%d members of %d prepare generation %d", n, c.spec.Nodes, head.Generation+1)
	}
	return Decision{Head: &next, View: assignRanks(view, ready, n)}
}

func (c *Coordinator) preparing(now time.Time, head Head, view []Member, byAlloc map[string]Record) Decision {
	if d, over := c.interrupted(head, view, byAlloc, false); over {
		return d
	}
	var late []Member
	for _, m := range view {
		if r := byAlloc[m.Alloc]; !(r.Phase == Prepared && r.Generation == head.Generation) {
			late = append(late, m)
		}
	}
	if len(late) == 0 {
		next := head
		next.State, next.Reason = Running, fmt.Sprintf("generation %d runs on %d nodes", head.Generation, head.World)
		return Decision{Head: &next}
	}
	deadline := c.entered.Add(c.spec.PrepareTimeout)
	if !now.Before(deadline) {
		return c.restart(head, fmt.Sprintf("not prepared within %s: %s", c.spec.PrepareTimeout, nodes(late)), Exit{})
	}
	return Decision{Again: deadline}
}

func (c *Coordinator) running(now time.Time, head Head, view []Member, records []Record, byAlloc map[string]Record) Decision {
	if d, over := c.interrupted(head, view, byAlloc, true); over {
		return d
	}
	finished := 0
	for rank, m := range view {
		if byAlloc[m.Alloc].Phase != Finished {
			continue
		}
		finished++
		if rank == 0 && c.spec.Completion == CompletionRank0 {
			next := head
			next.State, next.Reason = Done, "rank 0 finished"
			return Decision{Head: &next}
		}
	}
	if finished == len(view) {
		next := head
		next.State, next.Reason = Done, fmt.Sprintf("all %d members finished", len(view))
		return Decision{Head: &next}
	}
	if finished > 0 || len(view) >= c.spec.Nodes || c.spec.GrowInterval == 0 {
		return Decision{}
	}
	return c.grow(now, head, view, records)
}

// settle is how long an allocation waits, the interval at most, before a
// generation ends to take it in. A node that comes back from a partition longer
// than its heartbeat brings its old allocation back at once, while Nomad's
// client asks its server up to 30 s later (client.getHeartbeatRetryIntv in
// Nomad 1.6) and only then puts a new one in its place: a gang that had taken
// the old one would stop twice.
const settle = 45 * time.Second

// grow ends a generation that runs with fewer than all, once it has run for
// the interval and one of those that wait has settled. All that wait then come
// in.
func (c *Coordinator) grow(now time.Time, head Head, view []Member, records []Record) Decision {
	var spares []Member
	var first time.Time
	seen := map[string]time.Time{}
	for _, r := range records {
		if r.Phase != Idle || r.Leaving || slices.ContainsFunc(view, func(m Member) bool { return m.Alloc == r.Member.Alloc }) {
			continue
		}
		since, known := c.spares[r.Member.Alloc]
		if !known {
			since = now
		}
		seen[r.Member.Alloc] = since
		spares = append(spares, r.Member)
		if first.IsZero() || since.Before(first) {
			first = since
		}
	}
	c.spares = seen
	if len(spares) == 0 {
		return Decision{}
	}
	due := c.entered.Add(c.spec.GrowInterval)
	if settled := first.Add(min(settle, c.spec.GrowInterval)); settled.After(due) {
		due = settled
	}
	if now.Before(due) {
		return Decision{Again: due}
	}
	next := head
	next.State, next.Planned, next.Cause = Stopping, true, CauseGrow
	next.Reason = fmt.Sprintf("it grows from %d to %d members: %s", len(view), min(len(view)+len(spares), c.spec.Nodes), nodes(spares))
	return Decision{Head: &next}
}

// lineInterval is how often a gang that is past its form timeout looks where
// it stands in the line.
const lineInterval = 5 * time.Second

func (c *Coordinator) end(head Head, cause Cause, reason string) Decision {
	next := head
	next.State, next.Cause, next.Reason = Failed, cause, reason
	return Decision{Head: &next}
}

// wait keeps the state and says what is waited for. Where a generation has
// just ended its reason stays in front.
func (c *Coordinator) wait(head Head, reason string) Decision {
	if why, _, both := strings.Cut(head.Reason, waitMark); both {
		reason = why + waitMark + reason
	} else if head.Generation > 0 && !strings.Contains(head.Reason, " members; waiting for ") && head.Reason != "" {
		reason = shorten(head.Reason, maxReason/2) + waitMark + reason
	}
	reason = shorten(reason, maxReason)
	if reason == head.Reason {
		return Decision{}
	}
	next := head
	next.Reason = reason
	return Decision{Head: &next}
}

const waitMark = " | "

// rejoinTimeout is how long members that find the gang's keys gone wait for
// each other: longer than a session takes to be missed and made again.
const rejoinTimeout = time.Minute

func nodes(members []Member) string {
	if len(members) == 0 {
		return "none"
	}
	names := make([]string, len(members))
	for i, m := range members {
		names[i] = m.Node
	}
	slices.SortFunc(names, naturalCompare)
	if len(names) > 8 {
		return fmt.Sprintf("%s and %d more", strings.Join(names[:8], ", "), len(names)-8)
	}
	return strings.Join(names, ", ")
}
