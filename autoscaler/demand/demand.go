// SPDX-License-Identifier: MPL-2.0

// Package demand reads from Nomad which GPU work waits, which runs, and what
// the nodes have left.
package demand

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"net/http"
	"slices"
	"sync"
	"time"

	"github.com/hashicorp/nomad/api"
	"golang.org/x/sync/errgroup"

	"github.com/nomad-gpu/nomad-gpu/autoscaler/plan"
	"github.com/nomad-gpu/nomad-gpu/autoscaler/rights"
)

// Reading is one look at the cluster.
type Reading struct {
	At    time.Time
	Work  []plan.Work
	Nodes []plan.Node
	// RunningGPUs and TotalGPUs are those in use, and those of nodes that are ready.
	RunningGPUs, TotalGPUs int
	// Running is who holds the GPUs in use.
	Running []Running
}

// Reader reads a cluster. One reading costs three calls, and one for each job
// that waits and has changed; its size grows with the nodes and what runs.
type Reader struct {
	client *api.Client
	told   []Offer

	mu   sync.Mutex
	jobs map[string]*api.Job // by namespace/name, as of their newest index
	// idle is since when a node is without work, as far as this reader has seen.
	idle map[string]time.Time
}

// jobCalls is how many jobs are read at once.
const jobCalls = 8

// NewReader reads the region of a client, all its namespaces. The token needs
// read-job on them, and node:read. Offers tell what the nodes of pools have
// that have no node yet.
func NewReader(client *api.Client, told ...Offer) *Reader {
	return &Reader{client: client, told: told, jobs: map[string]*api.Job{}, idle: map[string]time.Time{}}
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
		return Reading{}, fmt.Errorf("list the evaluations: %w", rights.Explain(err, rights.ReadJobs))
	}
	allocs, _, err := r.client.Allocations().List(all(map[string]string{"resources": "true"}, ""))
	if err != nil {
		return Reading{}, fmt.Errorf("list the allocations: %w", rights.Explain(err, rights.ReadJobs))
	}
	nodes, _, err := r.client.Nodes().List((&api.QueryOptions{Params: map[string]string{"resources": "true"}}).WithContext(ctx))
	if err != nil {
		return Reading{}, fmt.Errorf("list the nodes: %w", rights.Explain(err, rights.ReadNodes))
	}
	jobs, err := r.waitingJobs(ctx, evals)
	if err != nil {
		return Reading{}, err
	}
	out := join(evals, jobs, allocs, nodes, r.told...)
	out.At = now
	r.noteIdle(now, out.Nodes)
	return out, nil
}

// Allocations lists all that Nomad still knows of, with what they hold.
func (r *Reader) Allocations(ctx context.Context) ([]*api.AllocationListStub, error) {
	allocs, _, err := r.client.Allocations().List((&api.QueryOptions{Namespace: "*", Params: map[string]string{"resources": "true", "task_states": "true"}}).WithContext(ctx))
	if err != nil {
		return nil, fmt.Errorf("list the allocations: %w", rights.Explain(err, rights.ReadJobs))
	}
	return allocs, nil
}

// waitingJobs reads the jobs that have an open evaluation: those not known
// from an earlier reading, or changed since.
func (r *Reader) waitingJobs(ctx context.Context, evals []*api.Evaluation) (map[string]*api.Job, error) {
	type wanted struct {
		namespace, id string
		index         uint64 // of the job, newest of its evaluations
	}
	want := map[string]wanted{}
	for _, e := range evals {
		if e == nil || e.JobID == "" {
			continue
		}
		key := e.Namespace + "/" + e.JobID
		want[key] = wanted{e.Namespace, e.JobID, max(want[key].index, e.JobModifyIndex)}
	}
	jobs := make(map[string]*api.Job, len(want))
	var mu sync.Mutex
	calls, ctx := errgroup.WithContext(ctx)
	calls.SetLimit(jobCalls)
	for _, key := range slices.Sorted(maps.Keys(want)) {
		w := want[key]
		if known := r.jobs[key]; known != nil && known.JobModifyIndex != nil && *known.JobModifyIndex >= w.index {
			mu.Lock()
			jobs[key] = known
			mu.Unlock()
			continue
		}
		calls.Go(func() error {
			if err := ctx.Err(); err != nil {
				return fmt.Errorf("read job %s: %w", key, err)
			}
			job, _, err := r.client.Jobs().Info(w.id, (&api.QueryOptions{Namespace: w.namespace}).WithContext(ctx))
			var answer api.UnexpectedResponseError
			if errors.As(err, &answer) && answer.StatusCode() == http.StatusNotFound {
				return nil // it was purged after its evaluation was listed
			}
			if err != nil {
				return fmt.Errorf("read job %s: %w", key, rights.Explain(err, rights.ReadJobs))
			}
			mu.Lock()
			defer mu.Unlock()
			jobs[key] = job
			return nil
		})
	}
	err := calls.Wait()
	r.jobs = jobs // also what was read before an error: the next reading goes on from there
	return jobs, err
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
