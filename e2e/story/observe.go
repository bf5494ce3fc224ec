// SPDX-License-Identifier: MPL-2.0

package story

import (
	"cmp"
	"context"
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"
	"time"

	consul "github.com/hashicorp/consul/api"
	nomad "github.com/hashicorp/nomad/api"
)

// observer reads snapshots of one job and its nodes from Nomad's API. A
// snapshot costs 4 calls, and 1 for each allocation's output.
type observer struct {
	nomad *nomad.Client
	job   string
	task  string
	// output keeps what each allocation printed: its last words are read
	// while its node is still there.
	output map[string][]byte
	gpus   map[string]int
}

func newObserver(c *nomad.Client, job, task string) *observer {
	return &observer{nomad: c, job: job, task: task, output: map[string][]byte{}, gpus: map[string]int{}}
}

func (o *observer) snapshot(ctx context.Context) (Snapshot, error) {
	var s Snapshot
	q := (&nomad.QueryOptions{}).WithContext(ctx)
	nodes, _, err := o.nomad.Nodes().List(q)
	if err != nil {
		return s, fmt.Errorf("list the nodes: %w", err)
	}
	classes := map[string]string{}
	for _, n := range nodes {
		classes[n.ID] = n.NodeClass
		s.Nodes = append(s.Nodes, Node{Name: n.Name, Class: n.NodeClass, Status: n.Status, Draining: n.Drain,
			Eligible: n.SchedulingEligibility == nomad.NodeSchedulingEligible, GPUs: o.countGPUs(ctx, n)})
	}
	job, _, err := o.nomad.Jobs().Info(o.job, q)
	if err != nil {
		if strings.Contains(err.Error(), "404") {
			return s, nil // not submitted yet
		}
		return s, fmt.Errorf("read job %s: %w", o.job, err)
	}
	s.JobStatus = *job.Status
	allocs, _, err := o.nomad.Jobs().Allocations(o.job, true, q)
	if err != nil {
		return s, fmt.Errorf("list the allocations of job %s: %w", o.job, err)
	}
	slices.SortFunc(allocs, func(a, b *nomad.AllocationListStub) int { return cmp.Compare(a.CreateIndex, b.CreateIndex) })
	s.TaskEvents = map[string][]TaskEvent{}
	for _, a := range allocs {
		o.read(ctx, a)
		s.Members = append(s.Members, Member{Alloc: a.ID, Node: a.NodeName, Class: classes[a.NodeID],
			Status: a.ClientStatus, Events: ParseEvents(o.output[a.ID])})
		if state := a.TaskStates[o.task]; state != nil {
			for _, e := range state.Events {
				if e.Type == "Driver" || e.Type == nomad.TaskDriverFailure || e.Type == nomad.TaskTerminated {
					s.TaskEvents[a.ID] = append(s.TaskEvents[a.ID], TaskEvent{At: time.Unix(0, e.Time), Message: e.DisplayMessage})
				}
			}
		}
	}
	s.Waiting, err = o.waiting(q)
	return s, err
}

// countGPUs asks each node once: the list of nodes does not hold devices.
func (o *observer) countGPUs(ctx context.Context, n *nomad.NodeListStub) int {
	if o.gpus[n.ID] == 0 && n.Status == nomad.NodeStatusReady {
		if node, _, err := o.nomad.Nodes().Info(n.ID, (&nomad.QueryOptions{}).WithContext(ctx)); err == nil && node.NodeResources != nil {
			for _, d := range node.NodeResources.Devices {
				o.gpus[n.ID] += len(d.Instances)
			}
		}
	}
	return o.gpus[n.ID]
}

// read takes what the task has printed so far. A node on its way out answers
// no more; what was read before stays.
func (o *observer) read(ctx context.Context, a *nomad.AllocationListStub) {
	if a.ClientStatus == nomad.AllocClientStatusPending {
		return
	}
	ctx, cancel := context.WithTimeout(ctx, 3*time.Second)
	defer cancel()
	path := "/v1/client/fs/logs/" + a.ID
	body, err := o.nomad.Raw().Response(path, (&nomad.QueryOptions{Params: map[string]string{
		"task": o.task, "type": "stdout", "plain": "true", "origin": "start"}}).WithContext(ctx))
	if err != nil {
		return
	}
	defer body.Close()
	if output, err := io.ReadAll(io.LimitReader(body, 4<<20)); err == nil && len(output) >= len(o.output[a.ID]) {
		o.output[a.ID] = output
	}
}

// waiting says why Nomad cannot place the rest of the job.
func (o *observer) waiting(q *nomad.QueryOptions) (string, error) {
	evals, _, err := o.nomad.Jobs().Evaluations(o.job, q)
	if err != nil {
		return "", fmt.Errorf("list the evaluations of job %s: %w", o.job, err)
	}
	var reasons []string
	for _, e := range evals {
		if e.Status != "blocked" {
			continue
		}
		for group, m := range e.FailedTGAllocs {
			why := slices.Sorted(maps.Keys(m.DimensionExhausted))
			why = append(why, slices.Sorted(maps.Keys(m.ConstraintFiltered))...)
			if len(why) == 0 {
				why = []string{fmt.Sprintf("%d nodes looked at", m.NodesEvaluated)}
			}
			reasons = append(reasons, fmt.Sprintf("%d of group %s not placed: %s", m.CoalescedFailures+1, group, strings.Join(why, "; ")))
		}
	}
	slices.Sort(reasons)
	return strings.Join(slices.Compact(reasons), "; "), nil
}

// leftovers counts keys under the gang's prefix and the sessions in Consul.
func leftovers(c *consul.Client, prefix string) (keys, sessions int, err error) {
	names, _, err := c.KV().Keys(prefix, "", nil)
	if err != nil {
		return 0, 0, fmt.Errorf("list the keys under %s: %w", prefix, err)
	}
	all, _, err := c.Session().List(nil)
	if err != nil {
		return 0, 0, fmt.Errorf("list the sessions: %w", err)
	}
	return len(names), len(all), nil
}
