// SPDX-License-Identifier: MPL-2.0

// Package demand reads from Nomad which GPU work waits, which runs, and what
// the nodes have left.
package demand

import (
	"cmp"
	"context"
	"errors"
	"fmt"
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
	// RunningGPUs and TotalGPUs are those in use, and those of nodes that are
	// ready: whole ones and MIG instances. The same of slices of GPUs.
	RunningGPUs, TotalGPUs     int
	RunningSlices, TotalSlices int
	// RunningShared and TotalShared are the slices, in GPUs.
	RunningShared, TotalShared float64
	// Running is who holds the GPUs in use.
	Running []Running
	// Told is what nodes that are inspected tell of themselves, by name:
	// attr.NAME, meta.NAME, and device.NAME of their GPUs.
	Told map[string]map[string]string
	// Unread is how many jobs that wait are left for the next readings.
	Unread int
	// Faults are what could not be read and is done without.
	Faults []string
}

// Utilisation is the part of the GPUs that is in use, 0 to 1, slices by their part of one.
func (r Reading) Utilisation() float64 {
	return (float64(r.RunningGPUs) + r.RunningShared) / max(float64(r.TotalGPUs)+r.TotalShared, 1)
}

// Reader reads a cluster. One reading costs four calls, and one for each job
// that has changed and waits or may be moved, MostJobs of them at most; its
// size grows with the nodes and what runs. Nomad 1.6 has no call that tells
// what several jobs ask for: lists of jobs and evaluations leave the groups out.
type Reader struct {
	// Inspect says at which places nodes are read in full, a call for each that
	// is new or changed; nil: none.
	Inspect func(plan.Where) bool
	// MostJobs bounds how many jobs one reading reads; the next ones read the
	// rest. 0: none are left.
	MostJobs int

	client *api.Client
	told   []Offer

	mu   sync.Mutex
	jobs map[string]*api.Job // by namespace/name, as of their newest index
	// idle is since when a node is without work, as far as this reader has seen.
	idle map[string]time.Time
	// inspected are the nodes read in full, by id, as of their newest index.
	inspected map[string]*api.Node
}

// jobCalls is how many jobs are read at once.
const jobCalls = 8

// mostJobs is what a reading reads at most: some tenths of a second's work for a server.
const mostJobs = 1000

// NewReader reads the region of a client, all its namespaces. The token needs
// read-job on them, and node:read. Offers tell what the nodes of pools have
// that have no node yet.
func NewReader(client *api.Client, told ...Offer) *Reader {
	return &Reader{client: client, MostJobs: mostJobs, told: told, jobs: map[string]*api.Job{}, idle: map[string]time.Time{}}
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
	movable, fault, err := r.movable(ctx)
	if err != nil {
		return Reading{}, err
	}
	jobs, unread, err := r.readJobs(ctx, evals, movable)
	if err != nil {
		return Reading{}, err
	}
	waits, moves := map[string]*api.Job{}, map[string]*api.Job{}
	for _, e := range evals {
		if e != nil {
			waits[e.Namespace+"/"+e.JobID] = jobs[e.Namespace+"/"+e.JobID]
		}
	}
	for _, j := range movable {
		moves[j.Namespace+"/"+j.ID] = jobs[j.Namespace+"/"+j.ID]
	}
	known := newCatalogue(nodes, r.told)
	out := readingOf(evals, waits, allocs, nodes, known)
	settle(out.Nodes, allocs, moves, known)
	out.At, out.Faults, out.Unread = now, fault, unread
	if unread > 0 {
		out.Faults = append(out.Faults, fmt.Sprintf("%d jobs that wait are not read yet: the next readings do, in order of priority", unread))
	}
	if out.Told, err = r.inspect(ctx, nodes); err != nil {
		return Reading{}, err
	}
	r.noteIdle(now, out)
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

// moveFilter finds the jobs whose meta, or a group's, speaks of moving them.
var moveFilter = fmt.Sprintf("%[1]q in Meta or any TaskGroups as _, g { %[1]q in g.Meta }", moveMeta)

// movable lists the jobs whose meta speaks of moving them. It needs list-jobs:
// without that right nothing is moved, and the fault says so.
func (r *Reader) movable(ctx context.Context) (jobs []*api.JobListStub, faults []string, err error) {
	jobs, _, err = r.client.Jobs().List((&api.QueryOptions{Namespace: "*", Filter: moveFilter}).WithContext(ctx))
	var answer api.UnexpectedResponseError
	if errors.As(err, &answer) && answer.StatusCode() == http.StatusForbidden {
		return nil, []string{"the token may not list jobs (list-jobs): which work may be moved is not known, and none is"}, nil
	}
	if err != nil {
		return nil, nil, fmt.Errorf("list the jobs with meta %s: %w", moveMeta, err)
	}
	return slices.DeleteFunc(jobs, func(j *api.JobListStub) bool { return j == nil || j.ID == "" || j.Status == "dead" }), nil, nil
}

// wanted is a job to be read.
type wanted struct {
	namespace, id string
	index         uint64 // newest that is known of it
	waits         bool
	priority      int
}

func (w wanted) key() string { return w.namespace + "/" + w.id }

// readJobs reads the jobs that have an open evaluation or may be moved: those
// not known from an earlier reading, or changed since. Unread is how many that
// wait are left out.
func (r *Reader) readJobs(ctx context.Context, evals []*api.Evaluation, movable []*api.JobListStub) (jobs map[string]*api.Job, unread int, err error) {
	want := map[string]wanted{}
	for _, e := range evals {
		if e == nil || e.JobID == "" {
			continue
		}
		w := wanted{e.Namespace, e.JobID, e.JobModifyIndex, true, e.Priority}
		w.index = max(w.index, want[w.key()].index)
		want[w.key()] = w
	}
	for _, j := range movable {
		w := wanted{j.Namespace, j.ID, j.JobModifyIndex, false, j.Priority}
		if known, ok := want[w.key()]; ok {
			w.waits, w.index = known.waits, max(known.index, w.index)
		}
		want[w.key()] = w
	}
	jobs = make(map[string]*api.Job, len(want))
	var lacking []wanted
	for key, w := range want {
		if known := r.jobs[key]; known != nil && known.JobModifyIndex != nil && *known.JobModifyIndex >= w.index {
			jobs[key] = known
			continue
		}
		lacking = append(lacking, w)
	}
	// What was counted on comes first, then what waits, by priority.
	first := func(yes bool) int {
		if yes {
			return 0
		}
		return 1
	}
	slices.SortFunc(lacking, func(a, b wanted) int {
		return cmp.Or(cmp.Compare(first(r.jobs[a.key()] != nil), first(r.jobs[b.key()] != nil)), cmp.Compare(first(a.waits), first(b.waits)),
			cmp.Compare(b.priority, a.priority), cmp.Compare(a.key(), b.key()))
	})
	if r.MostJobs > 0 && len(lacking) > r.MostJobs {
		for _, w := range lacking[r.MostJobs:] {
			if w.waits {
				unread++
			}
		}
		lacking = lacking[:r.MostJobs]
	}
	var mu sync.Mutex
	calls, ctx := errgroup.WithContext(ctx)
	calls.SetLimit(jobCalls)
	for _, w := range lacking {
		calls.Go(func() error {
			job, err := r.readJob(ctx, w)
			if job == nil {
				return err
			}
			mu.Lock()
			defer mu.Unlock()
			jobs[w.key()] = job
			return nil
		})
	}
	err = calls.Wait()
	r.jobs = jobs // also what was read before an error: the next reading goes on from there
	return jobs, unread, err
}

// readJob reads a job; nil: it was purged after it was listed.
func (r *Reader) readJob(ctx context.Context, w wanted) (*api.Job, error) {
	if err := ctx.Err(); err != nil {
		return nil, fmt.Errorf("read job %s: %w", w.key(), err)
	}
	job, _, err := r.client.Jobs().Info(w.id, (&api.QueryOptions{Namespace: w.namespace}).WithContext(ctx))
	var answer api.UnexpectedResponseError
	if errors.As(err, &answer) && answer.StatusCode() == http.StatusNotFound {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("read job %s: %w", w.key(), rights.Explain(err, rights.ReadJobs))
	}
	return job, nil
}

// noteIdle notes since when nodes are without work. That begins once all that
// waits is known: a node may be there for work that is not read yet.
func (r *Reader) noteIdle(now time.Time, out Reading) {
	idle := map[string]time.Time{}
	for i := range out.Nodes {
		n := &out.Nodes[i]
		if n.Busy {
			continue
		}
		since, known := r.idle[n.Name]
		if !known || out.Unread > 0 {
			since = now
		}
		idle[n.Name], n.IdleSince = since, since
	}
	r.idle = idle
}
