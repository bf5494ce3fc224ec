// SPDX-License-Identifier: MPL-2.0

package demand

import (
	"cmp"
	"fmt"
	"math"
	"slices"
	"time"

	"github.com/hashicorp/nomad/api"

	"github.com/nomad-gpu/nomad-gpu/autoscaler/plan"
)

// Drained is batch work of which a drain stopped allocations while there was
// no place for others. Nomad takes one that ended well for finished (shouldFilter
// in its scheduler/reconcile_util.go) and places no other in this version of the
// job, so that no node bought for it would help: it is no demand.
type Drained struct {
	Work plan.Work
	// Lost is how many of its allocations were, and Since when the last was.
	Lost  int
	Since time.Time
	// Over: nothing of it runs any more, and Nomad takes the job for complete.
	Over bool
}

// Waiting is the work as it stands in the queue.
func (d Drained) Waiting() plan.Waiting {
	w := plan.Waiting{Work: d.Work, Cause: plan.Drained}
	w.Work.Since = d.Since
	taken, then := fmt.Sprintf("%d of its %d allocations", d.Lost, d.Work.Count), "it lacks them, and no node bought would help"
	if d.Over {
		taken, then = "all of it that ran", "for the whole job too: it is complete"
	}
	w.Reason = w.Work.Explain(fmt.Sprintf("a drain stopped %s while there was no place for others; Nomad takes what so ends for finished: %s", taken, then))
	return w
}

const (
	// drainedPeriod is how often a job with drained work is read again: what its
	// owner does about it need not change an allocation.
	drainedPeriod = 30 * time.Second
	// maxDrained bounds how many such jobs are read.
	maxDrained = 100
)

// lost reports whether Nomad stopped an allocation that then ended well, and
// put no other in its place. Those of a system job go with their node.
func lost(a *api.AllocationListStub) bool {
	if a.JobType != api.JobTypeBatch || a.DesiredStatus != api.AllocDesiredStatusStop || a.ClientStatus != api.AllocClientStatusComplete || a.NextAllocation != "" || len(a.TaskStates) == 0 {
		return false
	}
	for _, s := range a.TaskStates {
		if s == nil || s.State != "dead" || s.Failed {
			return false
		}
	}
	return true
}

// drainedJobs are the jobs that lost GPU work, the latest first, to be read
// beside those that wait: at once, and again each drainedPeriod.
func (r *Reader) drainedJobs(allocs []*api.AllocationListStub, now time.Time) (jobs []*api.JobListStub) {
	latest := map[string]*api.AllocationListStub{}
	for _, a := range allocs {
		if a == nil || !lost(a) || len(devicesOf(a)) == 0 {
			continue
		}
		if key := a.Namespace + "/" + a.JobID; latest[key] == nil || latest[key].ModifyTime < a.ModifyTime {
			latest[key] = a
		}
	}
	read := map[string]time.Time{}
	for key, a := range latest {
		at, index := r.drained[key], uint64(0)
		if r.jobs[key] == nil || now.Sub(at) >= drainedPeriod || r.jobs[key].Version != nil && *r.jobs[key].Version < a.JobVersion {
			at, index = now, math.MaxUint64 // no copy is new enough
		}
		read[key] = at
		jobs = append(jobs, &api.JobListStub{Namespace: a.Namespace, ID: a.JobID, JobModifyIndex: index})
	}
	r.drained = read
	slices.SortFunc(jobs, func(a, b *api.JobListStub) int {
		x, y := a.Namespace+"/"+a.ID, b.Namespace+"/"+b.ID
		return cmp.Or(cmp.Compare(latest[y].ModifyTime, latest[x].ModifyTime), cmp.Compare(x, y))
	})
	return jobs[:min(len(jobs), maxDrained)]
}

// drainedOf is pure: the work of jobs that lost some.
func drainedOf(jobs map[string]*api.Job, allocs []*api.AllocationListStub, known *catalogue) (all []Drained) {
	perGroup := map[string][]*api.AllocationListStub{}
	for _, a := range allocs {
		if a != nil && jobs[a.Namespace+"/"+a.JobID] != nil {
			key := groupKey(a.Namespace, a.JobID, a.TaskGroup)
			perGroup[key] = append(perGroup[key], a)
		}
	}
	for _, job := range jobs {
		if job == nil || job.ID == nil || job.Namespace == nil || job.Stop != nil && *job.Stop {
			continue
		}
		for _, g := range job.TaskGroups {
			if g == nil || g.Name == nil {
				continue
			}
			if d, ok := drainedGroup(job, g, perGroup[groupKey(*job.Namespace, *job.ID, *g.Name)], known); ok {
				all = append(all, d)
			}
		}
	}
	slices.SortFunc(all, func(a, b Drained) int { return cmp.Compare(a.Work.Name(), b.Work.Name()) })
	return all
}

func drainedGroup(job *api.Job, g *api.TaskGroup, allocs []*api.AllocationListStub, known *catalogue) (d Drained, ok bool) {
	live, finished, last := 0, 0, int64(0)
	for _, a := range allocs {
		switch {
		case older(a, job):
		case lost(a):
			d.Lost++
			last = max(last, a.ModifyTime)
		case !terminal(a):
			live++
		case a.ClientStatus == api.AllocClientStatusComplete && a.DesiredStatus == api.AllocDesiredStatusRun:
			finished++
		}
	}
	if d.Lost == 0 {
		return d, false
	}
	since := time.Time{}
	if job.SubmitTime != nil {
		since = time.Unix(0, *job.SubmitTime)
	}
	d.Work, ok = workOf(job, g, allocs, known, nil, since)
	d.Since, d.Over = time.Unix(0, last), live == 0
	// What another allocation does is not missing; and a gang is done when a member is.
	if d.Lost = min(d.Lost, d.Work.Count-live-finished); d.Lost <= 0 || d.Over && d.Work.Gang && finished > 0 {
		return d, false
	}
	d.Work.Placed = live + finished
	return d, ok
}
