// SPDX-License-Identifier: MPL-2.0

// Package demand reads from Nomad which GPU work waits, which runs, and what
// the nodes have left.
package demand

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"sync"
	"time"

	"github.com/hashicorp/nomad/api"

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
	// Drained is work that Nomad takes for finished and that is not.
	Drained []Drained
	// Forming are gangs that are placed whole and wait in their driver.
	Forming []Forming
	// Unread is how many jobs that wait are left for the next readings.
	Unread int
	// Faults are what could not be read and is done without.
	Faults []string
}

// NotForNodes is what waits and no node that is bought would help.
func (r Reading) NotForNodes() (all []plan.Waiting) {
	for _, f := range r.Forming {
		all = append(all, f.Waiting())
	}
	for _, d := range r.Drained {
		all = append(all, d.Waiting())
	}
	return all
}

// Utilisation is the part of the GPUs that is in use, 0 to 1, slices by their part of one.
func (r Reading) Utilisation() float64 {
	return (float64(r.RunningGPUs) + r.RunningShared) / max(float64(r.TotalGPUs)+r.TotalShared, 1)
}

// Reader reads a cluster. One reading costs four calls, and one for each job
// that has changed and waits or may be moved, or lost work to a drain, MostJobs
// of them at most; its size grows with the nodes and what runs. Nomad 1.6 has no
// call that tells what several jobs ask for: lists of jobs and evaluations leave
// the groups out.
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
	// judged are the evaluations, by id with the job's index in them, since whose
	// making the job was read: many tell another index than the job's, or none.
	judged map[string]uint64
	// idle is since when a node is without work, as far as this reader has seen.
	idle map[string]time.Time
	// waiting is since when work waits, by its name: an evaluation that is due again
	// takes the place of the one before.
	waiting map[string]time.Time
	// had is what the nodes of each place had when one was seen last.
	had map[plan.Where]seen
	// drained is when jobs with drained work were read.
	drained map[string]time.Time
	// inspected are the nodes read in full, by id, as of their newest index.
	inspected map[string]*api.Node
}

// memory is how long the devices of a place's nodes are remembered once none is
// left: a pool at zero that has just shown that it does not serve a work is not
// bought for it again and again, and may have other nodes later.
const memory = time.Hour

// seen is what the nodes of a place had, and when.
type seen struct {
	at      time.Time
	devices []Offer
}

// jobCalls is how many jobs are read at once.
const jobCalls = 8

// mostJobs is what a reading reads at most: some tenths of a second's work for a server.
const mostJobs = 1000

// NewReader reads the region of a client, all its namespaces. The token needs
// read-job on them, and node:read. Offers tell what the nodes of pools have
// that have no node yet.
func NewReader(client *api.Client, told ...Offer) *Reader {
	return &Reader{client: client, MostJobs: mostJobs, told: told, jobs: map[string]*api.Job{}, idle: map[string]time.Time{}, had: map[plan.Where]seen{}}
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
	allocs, uses, err := r.listAllocations(all(map[string]string{"resources": "true"}, ""))
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
	drained, forming := r.drainedJobs(allocs, now), formingGroups(allocs)
	jobs, unread, err := r.readJobs(ctx, evals, slices.Concat(movable, drained, formingJobs(allocs, forming)))
	if err != nil {
		return Reading{}, err
	}
	waits, moves, lost := map[string]*api.Job{}, map[string]*api.Job{}, map[string]*api.Job{}
	for _, e := range evals {
		if e != nil {
			waits[e.Namespace+"/"+e.JobID] = jobs[e.Namespace+"/"+e.JobID]
		}
	}
	for _, j := range movable {
		moves[j.Namespace+"/"+j.ID] = jobs[j.Namespace+"/"+j.ID]
	}
	known := newCatalogue(nodes, r.told, r.recall(now)...)
	known.uses = uses
	known.want(moves)
	r.remember(now, known.seenNow())
	for _, j := range drained {
		lost[j.Namespace+"/"+j.ID] = jobs[j.Namespace+"/"+j.ID]
	}
	out := readingOf(now, evals, waits, allocs, nodes, known)
	settle(out.Nodes, allocs, moves, known)
	out.Drained = drainedOf(lost, allocs, known)
	out.Forming = formingOf(jobs, forming, allocs, out.Work, known)
	out.At, out.Faults, out.Unread = now, fault, unread
	if unread > 0 {
		out.Faults = append(out.Faults, fmt.Sprintf("%d jobs that wait are not read yet: the next readings do, in order of priority", unread))
	}
	if out.Told, err = r.inspect(ctx, nodes, toInspect(out.Work)); err != nil {
		return Reading{}, err
	}
	known.settled(r.inspected, now)
	r.noteWaiting(out.Work)
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

// recall gives what nodes had that were seen lately.
func (r *Reader) recall(now time.Time) (all []Offer) {
	for place, s := range r.had {
		if now.Sub(s.at) > memory {
			delete(r.had, place)
			continue
		}
		all = append(all, s.devices...)
	}
	return all
}

func (r *Reader) remember(now time.Time, devices []Offer) {
	fresh := map[plan.Where][]Offer{}
	for _, o := range devices {
		fresh[o.Where] = append(fresh[o.Where], o)
	}
	for place, all := range fresh {
		r.had[place] = seen{now, all}
	}
}

// noteWaiting keeps since when work waits over evaluations that follow one another.
func (r *Reader) noteWaiting(work []plan.Work) {
	waiting := map[string]time.Time{}
	for i := range work {
		w := &work[i]
		if w.Missing() == 0 && w.Later == 0 {
			continue
		}
		if since, known := r.waiting[w.Name()]; known && since.Before(w.Since) {
			w.Since = since
		}
		waiting[w.Name()] = w.Since
	}
	r.waiting = waiting
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
