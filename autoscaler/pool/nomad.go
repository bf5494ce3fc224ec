// SPDX-License-Identifier: MPL-2.0

package pool

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/hashicorp/nomad/api"

	"github.com/nomad-gpu/nomad-gpu/autoscaler/rights"
)

// nomadNodes is Nomad's side of a pool's nodes.
type nomadNodes struct{ client *api.Client }

func (n nomadNodes) list(ctx context.Context) ([]*api.NodeListStub, error) {
	nodes, _, err := n.listAt(ctx)
	return nodes, err
}

// listAt lists the nodes, with Nomad's index of them.
func (n nomadNodes) listAt(ctx context.Context) ([]*api.NodeListStub, uint64, error) {
	nodes, meta, err := n.client.Nodes().List((&api.QueryOptions{}).WithContext(ctx))
	if err != nil {
		return nil, 0, fmt.Errorf("list the nodes: %w", rights.Explain(err, rights.ReadNodes))
	}
	nodes = slices.DeleteFunc(nodes, func(n *api.NodeListStub) bool { return n == nil })
	return nodes, meta.LastIndex, nil
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

// idle reports whether nothing runs or is placed on a node but system jobs,
// which every node of their kind has.
func (n nomadNodes) idle(ctx context.Context, name string) (bool, error) {
	node, err := n.node(ctx, name)
	if err != nil || node == nil {
		return err == nil, err
	}
	work, err := n.work(ctx, node)
	return err == nil && len(work) == 0, err
}

// work lists what runs or is placed on a node, but system jobs.
func (n nomadNodes) work(ctx context.Context, node *api.NodeListStub) ([]*api.Allocation, error) {
	allocs, _, err := n.client.Nodes().Allocations(node.ID, (&api.QueryOptions{}).WithContext(ctx))
	if err != nil {
		return nil, fmt.Errorf("list what runs on %s: %w", node.Name, rights.Explain(err, rights.ReadNodes))
	}
	allocs = slices.DeleteFunc(allocs, func(a *api.Allocation) bool {
		return a == nil || a.ClientTerminalStatus() || a.Job != nil && a.Job.Type != nil && *a.Job.Type == api.JobTypeSystem
	})
	if len(allocs) == 0 {
		return nil, n.seesAll(ctx, node.Name)
	}
	return allocs, nil
}

// seesAll fails where the token may not see all that runs on a node: a busy one would look empty.
func (n nomadNodes) seesAll(ctx context.Context, name string) error {
	if err := rights.SeesAllJobs(ctx, n.client); err != nil {
		return fmt.Errorf("whether %s has work: %w", name, err)
	}
	return nil
}

// vacate lets nodes take no more work and asks what runs there to stop, where
// all of it has leave to move; it may be called again. A plan is older than what
// may have been placed meanwhile: so all are closed first, and then looked at.
// One that stays is opened again, and so is one that has work of a job in common
// with it: a gang stops once, or not at all. Stay tells why each of them does.
func (n nomadNodes) vacate(ctx context.Context, names []string) (stay map[string]error, err error) {
	stay = map[string]error{}
	jobs := map[string][]string{} // of each node
	for _, name := range names {
		node, err := n.node(ctx, name)
		if err != nil {
			return nil, err
		}
		if node == nil {
			stay[name] = fmt.Errorf("drain %s: Nomad has no node of that name", name)
			continue
		}
		if err := n.eligible(ctx, name, false); err != nil {
			return nil, err
		}
		work, err := n.work(ctx, node)
		if err == nil {
			err = n.seesAll(ctx, name)
		}
		if err != nil {
			return nil, err
		}
		for _, a := range work {
			jobs[name] = append(jobs[name], a.Namespace+"/"+a.JobID)
			if !mayMove(a) {
				stay[name] = fmt.Errorf("drain %s: allocation %s of job %s has no leave to move (meta %s)", name, a.ID, a.JobID, moveMeta)
			}
		}
	}
	keepTogether(stay, names, jobs)
	var errs []error
	for _, name := range names {
		if stay[name] != nil {
			errs = append(errs, n.eligible(ctx, name, true))
		} else {
			errs = append(errs, n.drain(ctx, name, evacuation))
		}
	}
	return stay, errors.Join(errs...)
}

// keepTogether adds to the nodes that stay those that share a job with one of them.
func keepTogether(stay map[string]error, names []string, jobs map[string][]string) {
	for more := true; more; {
		more = false
		for _, name := range names {
			for _, other := range names {
				if stay[name] == nil && stay[other] != nil && slices.ContainsFunc(jobs[name], func(j string) bool { return slices.Contains(jobs[other], j) }) {
					stay[name], more = fmt.Errorf("drain %s: it has work of a job in common with %s, which stays", name, other), true
				}
			}
		}
	}
}

// moveMeta is the meta with an owner's leave to move work.
const moveMeta = "gpu.move"

// mayMove reports whether an allocation's owner gave leave: a group's meta goes
// over its job's.
func mayMove(a *api.Allocation) bool {
	if a.Job == nil {
		return false
	}
	for _, g := range a.Job.TaskGroups {
		if g != nil && g.Name != nil && *g.Name == a.TaskGroup {
			if leave, ok := g.Meta[moveMeta]; ok {
				return leave == "yes"
			}
		}
	}
	return a.Job.Meta[moveMeta] == "yes"
}

// close makes sure that a node on its way out takes no more work, before it is
// looked at whether it has any.
func (n nomadNodes) close(ctx context.Context, node *api.NodeListStub, leaving bool) error {
	if node == nil || !leaving || node.SchedulingEligibility != api.NodeSchedulingEligible {
		return nil
	}
	return n.eligible(ctx, node.Name, false)
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
