// SPDX-License-Identifier: MPL-2.0

package pool

import (
	"context"
	"fmt"
	"strings"
	"time"

	"github.com/hashicorp/nomad/api"

	"github.com/nomad-gpu/nomad-gpu/autoscaler/rights"
)

// Pool makes the nodes of one pool come and go. Its nodes are counted once:
// from the moment they are asked for until they are on their way out.
type Pool interface {
	// Nodes reads what is known of the pool's nodes, without a call to anyone.
	Nodes() ([]Node, error)
	// Grow brings the pool to at least count nodes, and returns when they are asked for.
	Grow(ctx context.Context, now time.Time, count int) error
	// Shrink marks all but count nodes to go: only ones without work, the wanted first.
	Shrink(ctx context.Context, count int, wanted []string) error
	// Tend moves on what is in progress; it is to be called now and then.
	Tend(ctx context.Context, now time.Time) error
	// Resting says why nothing can be bought here now; empty where it can.
	Resting(now time.Time) (string, error)
}

// Node is one node of a pool.
type Node struct {
	// Name is Nomad's name of it, or its maker's until Nomad knows it.
	Name string
	// Ready: Nomad has it. Leaving: it takes no more work and goes when it is empty.
	Ready, Leaving bool
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
	// Age is the time since it was asked for, Start the most it may take to be ready.
	Age, Start time.Duration
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
)

// next decides on one node. A node that was let go goes only while nothing
// runs on it: a gang's member is never the reason that a gang ends. Idle is
// asked only where it matters.
func next(s situation, idle func() (bool, error)) (move, error) {
	switch {
	case !s.Exists:
		return forget, nil
	case s.Ending:
		return remove, nil
	case s.Doomed && !s.Leaving:
		return evacuate, nil
	case s.Leaving:
		empty, err := idle()
		switch {
		case err != nil:
			return stay, err
		case empty:
			return remove, nil
		case s.Doomed:
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

// release marks nodes to go until count are left: the wanted first, only ones
// that are idle. It returns an error where too few are.
func release(names []string, count int, wanted []string, idle func(name string) (bool, error), mark func(name string) error) error {
	left := map[string]bool{}
	for _, name := range names {
		left[name] = true
	}
	surplus := len(names) - count
	for _, name := range append(append([]string{}, wanted...), names...) {
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
		return fmt.Errorf("%d of the nodes to let go have work; they stay", surplus)
	}
	return nil
}

// nomadNodes is Nomad's side of a pool's nodes.
type nomadNodes struct{ client *api.Client }

func (n nomadNodes) list(ctx context.Context) ([]*api.NodeListStub, error) {
	nodes, _, err := n.client.Nodes().List((&api.QueryOptions{}).WithContext(ctx))
	if err != nil {
		return nil, fmt.Errorf("list the nodes: %w", rights.Explain(err, rights.ReadNodes))
	}
	return nodes, nil
}

// newest is the youngest node that a test holds for: a name is used again.
func newest(nodes []*api.NodeListStub, is func(*api.NodeListStub) bool) *api.NodeListStub {
	var found *api.NodeListStub
	for _, n := range nodes {
		if n != nil && is(n) && (found == nil || n.CreateIndex > found.CreateIndex) {
			found = n
		}
	}
	return found
}

// node finds a node by its name; nil where Nomad has none.
func (n nomadNodes) node(ctx context.Context, name string) (*api.NodeListStub, error) {
	nodes, err := n.list(ctx)
	if err != nil {
		return nil, err
	}
	return newest(nodes, func(s *api.NodeListStub) bool { return s.Name == name }), nil
}

// idle reports whether nothing runs or is placed on a node. System jobs run on
// every node and keep none.
func (n nomadNodes) idle(ctx context.Context, name string) (bool, error) {
	node, err := n.node(ctx, name)
	if err != nil || node == nil {
		return err == nil, err
	}
	allocs, _, err := n.client.Nodes().Allocations(node.ID, (&api.QueryOptions{}).WithContext(ctx))
	if err != nil {
		return false, fmt.Errorf("list what runs on %s: %w", name, rights.Explain(err, rights.ReadNodes))
	}
	for _, a := range allocs {
		system := a.Job != nil && a.Job.Type != nil && *a.Job.Type == api.JobTypeSystem
		if !a.ClientTerminalStatus() && !system {
			return false, nil
		}
	}
	if err := rights.SeesAllJobs(ctx, n.client); err != nil {
		return false, fmt.Errorf("whether %s has work: %w", name, err)
	}
	return true, nil
}

func (n nomadNodes) eligible(ctx context.Context, name string, yes bool) error {
	node, err := n.node(ctx, name)
	if err != nil || node == nil {
		return err
	}
	if _, err := n.client.Nodes().ToggleEligibility(node.ID, yes, (&api.WriteOptions{}).WithContext(ctx)); err != nil {
		return fmt.Errorf("make %s eligible %t: %w", name, yes, rights.Explain(err, rights.WriteNodes))
	}
	return nil
}

// drain lets a node take no more work, and asks what runs there to stop: each
// task gets its kill_signal and kill_timeout, the time for a checkpoint. Batch
// work, which Nomad lets run until the deadline, is asked after it.
func (n nomadNodes) drain(ctx context.Context, name string, deadline time.Duration) error {
	node, err := n.node(ctx, name)
	if err != nil || node == nil {
		return err
	}
	if _, err := n.client.Nodes().UpdateDrain(node.ID, &api.DrainSpec{Deadline: deadline, IgnoreSystemJobs: true}, false, (&api.WriteOptions{}).WithContext(ctx)); err != nil {
		return fmt.Errorf("drain %s: %w", name, rights.Explain(err, rights.WriteNodes))
	}
	return nil
}

// purge takes a node that is gone out of Nomad.
func (n nomadNodes) purge(ctx context.Context, id, name string) error {
	if _, _, err := n.client.Nodes().Purge(id, (&api.QueryOptions{}).WithContext(ctx)); err != nil && !strings.Contains(err.Error(), "404") {
		return fmt.Errorf("take node %s out of Nomad: %w", name, rights.Explain(err, rights.WriteNodes))
	}
	return nil
}
