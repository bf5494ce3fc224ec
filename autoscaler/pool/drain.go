// SPDX-License-Identifier: MPL-2.0

package pool

import (
	"context"
	"fmt"
	"time"
)

// Pool makes the nodes of one pool come and go. Its nodes are counted once:
// from the moment they are asked for until they are on their way out.
type Pool interface {
	// Nodes reads what is known of the pool's nodes, without a call to anyone.
	Nodes() ([]Node, error)
	// Grow brings the pool to at least count nodes, and returns when they are asked for.
	Grow(ctx context.Context, now time.Time, count int) error
	// Shrink marks all but count nodes to go: only ones that are ready and without
	// work. Where nodes are named, no others: one that got work meanwhile is not made up for.
	Shrink(ctx context.Context, count int, wanted []string) error
	// Drain marks nodes to go whose work has leave to move: it is asked to stop
	// at a checkpoint, and the nodes go once they are empty. A node with other
	// work stays, and the error says why.
	Drain(ctx context.Context, names []string) error
	// Tend moves on what is in progress; it is to be called now and then.
	Tend(ctx context.Context, now time.Time) error
	// Resting says why nothing can be bought here now; empty where it can.
	Resting(now time.Time) (string, error)
	// History is what the pool's makers have done to it lately.
	History(now time.Time) (History, error)
}

// History is what a pool's price does not tell.
type History struct {
	// Refused is when nodes that were asked for last did not come; zero: never, or long ago.
	Refused time.Time
	// Interrupted is how many nodes were taken away within memory.
	Interrupted int
}

// memory is how long an interruption counts.
const memory = 6 * time.Hour

// Node is one node of a pool.
type Node struct {
	// Name is Nomad's name of it, or its maker's until Nomad knows it.
	Name string
	// Ready: Nomad has it. Leaving: it takes no more work and goes when it is empty.
	Ready, Leaving bool
	// Since is when it was asked for, or first seen.
	Since time.Time
	// AtRisk: its maker expects to take it away, and has not said when.
	AtRisk bool
	// Late: it did not come up in time, and is kept: it may have work all the same.
	Late bool
	// Doomed: it is taken away whether it has work or not.
	Doomed bool
}

// situation is what is known of one node.
type situation struct {
	// Exists: its machine or process is there.
	Exists bool
	// Ready: it was seen ready before. Up: Nomad has it ready now.
	Ready, Up bool
	// Leaving: it was marked to go. Ending: it was told to end; there is no way back.
	Leaving, Ending bool
	// Doomed: its machine is taken away whether it has work or not.
	Doomed bool
	// Moving: what runs there was asked to stop and may not come back.
	// Draining: Nomad still drains it.
	Moving, Draining bool
	// Age is the time since it was asked for, Start the most it may take to be ready.
	Age, Start time.Duration
	// Lost is for how long one that was ready has been out of Nomad's contact,
	// Patience how long it may be.
	Lost, Patience time.Duration
}

// move is what to do with one node now.
type move int

const (
	stay     move = iota
	forget        // it ended by itself: what is left of it goes
	remove        // nothing runs on it: it goes
	keep          // work was placed on it before it was marked: it is no longer to go
	welcome       // it came up
	giveUp        // it did not come up in time
	evacuate      // it will be taken away: no more work there, what runs is asked to stop
	ask           // what runs there is asked to stop once more: the first time was not heard
	lose          // it is out of contact for too long: it is given up
)

// next decides on one node. A node that was let go goes only while nothing
// runs on it: a gang's member is never the reason that a gang ends. Idle is
// asked only where it matters.
func next(s situation, idle func() (bool, error)) (move, error) {
	switch {
	case !s.Exists:
		return forget, nil
	case s.Ending && s.Up:
		// Noted in a former life, or by an autoscaler that led before: it did not end, and may be in use again.
		empty, err := idle()
		switch {
		case err != nil:
			return stay, err
		case !empty:
			return keep, nil
		}
		return remove, nil
	case s.Ending:
		return remove, nil
	case s.Ready && s.Lost > s.Patience:
		// What ran there has been started elsewhere, or is no more waited for.
		return lose, nil
	case s.Doomed && !s.Leaving:
		return evacuate, nil
	case s.Leaving:
		empty, err := idle()
		switch {
		case err != nil:
			return stay, err
		case empty:
			return remove, nil
		case s.Moving && !s.Draining:
			return ask, nil
		case s.Doomed || s.Moving:
			return stay, nil
		}
		return keep, nil
	case !s.Ready && s.Up:
		return welcome, nil
	case !s.Ready && s.Age > s.Start:
		return giveUp, nil
	}
	return stay, nil
}

// release marks nodes to go until count are left, only ones that are idle: of
// the wanted, or where none are named, of all. It returns an error where too few are.
func release(names []string, count int, wanted []string, idle func(name string) (bool, error), mark func(name string) error) error {
	left := map[string]bool{}
	for _, name := range names {
		left[name] = true
	}
	surplus := len(names) - count
	if len(wanted) == 0 {
		wanted = names
	}
	for _, name := range wanted {
		if surplus <= 0 || !left[name] {
			continue
		}
		empty, err := idle(name)
		if err != nil {
			return err
		}
		if !empty {
			continue
		}
		if err := mark(name); err != nil {
			return err
		}
		left[name] = false
		surplus--
	}
	if surplus > 0 {
		return fmt.Errorf("%d of the nodes to let go have work or are not ready; they stay", surplus)
	}
	return nil
}
