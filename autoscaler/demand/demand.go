// SPDX-License-Identifier: MPL-2.0

// Package demand reads from Nomad which GPU work waits, which runs, and what
// the nodes have left.
package demand

import (
	"context"
	"fmt"
	"sync"
	"time"

	"github.com/hashicorp/nomad/api"

	"github.com/nomad-gpu/nomad-gpu/autoscaler/plan"
)

// Reading is one look at the cluster.
type Reading struct {
	At    time.Time
	Work  []plan.Work
	Nodes []plan.Node
	// RunningGPUs and TotalGPUs are those in use, and those of nodes that are ready.
	RunningGPUs, TotalGPUs int
}

// Reader reads a cluster. One reading costs three calls, and one for each job
// that waits and has changed; its size grows with the nodes and what runs.
type Reader struct {
	client *api.Client

	mu   sync.Mutex
	jobs map[string]*api.Job // by namespace/name, as of their newest index
	// idle is since when a node is without work, as far as this reader has seen.
	idle map[string]time.Time
}

// NewReader reads through a client. Its token needs read-job on all
// namespaces, and node:read.
func NewReader(client *api.Client) *Reader {
	return &Reader{client: client, jobs: map[string]*api.Job{}, idle: map[string]time.Time{}}
}

// Read looks at the cluster now.
func (r *Reader) Read(ctx context.Context, now time.Time) (Reading, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	all := func(params map[string]string, filter string) *api.QueryOptions {
		return (&api.QueryOptions{Namespace: "*", Params: params, Filter: filter}).WithContext(ctx)
	}
	evals, _, err := r.client.Evaluations().List(all(nil, `Status == "blocked" or Status == "pending"`))
	if err != nil {
		return Reading{}, fmt.Errorf("list the evaluations: %w", err)
	}
	allocs, _, err := r.client.Allocations().List(all(map[string]string{"resources": "true"}, ""))
	if err != nil {
		return Reading{}, fmt.Errorf("list the allocations: %w", err)
	}
	nodes, _, err := r.client.Nodes().List((&api.QueryOptions{Params: map[string]string{"resources": "true"}}).WithContext(ctx))
	if err != nil {
		return Reading{}, fmt.Errorf("list the nodes: %w", err)
	}
	jobs, err := r.waitingJobs(ctx, evals)
	if err != nil {
		return Reading{}, err
	}
	out := join(evals, jobs, allocs, nodes)
	out.At = now
	r.noteIdle(now, out.Nodes)
	return out, nil
}

// waitingJobs reads the jobs that have an open evaluation.
func (r *Reader) waitingJobs(ctx context.Context, evals []*api.Evaluation) (map[string]*api.Job, error) {
	jobs := map[string]*api.Job{}
	for _, e := range evals {
		key := e.Namespace + "/" + e.JobID
		if e.JobID == "" || jobs[key] != nil {
			continue
		}
		if known := r.jobs[key]; known != nil && known.JobModifyIndex != nil && *known.JobModifyIndex == e.JobModifyIndex {
			jobs[key] = known
			continue
		}
		job, _, err := r.client.Jobs().Info(e.JobID, (&api.QueryOptions{Namespace: e.Namespace}).WithContext(ctx))
		if err != nil {
			if ctx.Err() != nil {
				return nil, fmt.Errorf("read job %s: %w", key, err)
			}
			continue // it was purged after its evaluation was listed
		}
		jobs[key] = job
	}
	r.jobs = jobs
	return jobs, nil
}

func (r *Reader) noteIdle(now time.Time, nodes []plan.Node) {
	idle := map[string]time.Time{}
	for i := range nodes {
		n := &nodes[i]
		if n.Busy {
			continue
		}
		since, known := r.idle[n.Name]
		if !known {
			since = now
		}
		idle[n.Name], n.IdleSince = since, since
	}
	r.idle = idle
}
