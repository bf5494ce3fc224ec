// SPDX-License-Identifier: MPL-2.0

package demand

import (
	"cmp"
	"slices"
	"strings"
	"time"

	"github.com/hashicorp/nomad/api"

	"github.com/nomad-gpu/nomad-gpu/autoscaler/plan"
)

// Forming is a gang of which Nomad has placed all that it was asked for, and
// that waits in its task driver: for its turn in line, or for a member that is
// not there. It holds its nodes, and none that is bought would help.
type Forming struct {
	Work plan.Work
	// Reason is the driver's, told at Since.
	Reason string
	Since  time.Time
}

// Waiting is the gang as it stands in the queue.
func (f Forming) Waiting() plan.Waiting {
	w := plan.Waiting{Work: f.Work, Cause: plan.Forming}
	w.Work.Since = f.Since
	w.Reason = w.Work.Explain("all of it is placed; the driver says: " + f.Reason)
	return w
}

const (
	// maxForming bounds how many such gangs are read.
	maxForming = 100
	// maxReason bounds what is taken of a driver's words, in bytes.
	maxReason = 500
)

// gangKinds are the task events by which the driver tells how its gang stands.
var gangKinds = []string{"Waiting", "Rank", "Spare", "Started", "Stopping", "Finished", "Failed", "Gang Failed", "Gang Done"}

// lastWord is the newest event by which the driver told of an allocation's gang; nil: none did.
func lastWord(a *api.AllocationListStub) (last *api.TaskEvent) {
	for _, s := range a.TaskStates {
		if s == nil {
			continue
		}
		for _, e := range s.Events {
			if e != nil && e.Type == driverMessage && slices.Contains(gangKinds, e.Details["kind"]) && (last == nil || e.Time >= last.Time) {
				last = e
			}
		}
	}
	return last
}

// driverMessage is the type of a driver's task events, whose annotations are the details.
const driverMessage = "Driver"

// formingGroups are the groups whose gang's last word is that it waits, by groupKey.
func formingGroups(allocs []*api.AllocationListStub) map[string]*api.TaskEvent {
	groups := map[string]*api.TaskEvent{}
	for _, a := range allocs {
		if a == nil || a.DesiredStatus != api.AllocDesiredStatusRun || a.ClientStatus != api.AllocClientStatusRunning || len(devicesOf(a)) == 0 {
			continue
		}
		key := groupKey(a.Namespace, a.JobID, a.TaskGroup)
		if e := lastWord(a); e != nil && (groups[key] == nil || e.Time > groups[key].Time) {
			groups[key] = e
		}
	}
	for key, e := range groups {
		if e.Details["kind"] != "Waiting" {
			delete(groups, key)
		}
	}
	return groups
}

// formingJobs are the jobs of such groups, to be read beside those that wait.
func formingJobs(allocs []*api.AllocationListStub, groups map[string]*api.TaskEvent) (jobs []*api.JobListStub) {
	known := map[string]bool{}
	for _, a := range allocs {
		if a == nil || groups[groupKey(a.Namespace, a.JobID, a.TaskGroup)] == nil || known[a.Namespace+"/"+a.JobID] {
			continue
		}
		known[a.Namespace+"/"+a.JobID] = true
		if jobs = append(jobs, &api.JobListStub{Namespace: a.Namespace, ID: a.JobID}); len(jobs) == maxForming {
			break
		}
	}
	return jobs
}

// formingOf is pure: the gangs of jobs that wait in the driver alone. Those that
// wait for Nomad too are work.
func formingOf(jobs map[string]*api.Job, groups map[string]*api.TaskEvent, allocs []*api.AllocationListStub, waits []plan.Work, known *catalogue) (all []Forming) {
	perGroup := map[string][]*api.AllocationListStub{}
	for _, a := range allocs {
		if a != nil && groups[groupKey(a.Namespace, a.JobID, a.TaskGroup)] != nil {
			key := groupKey(a.Namespace, a.JobID, a.TaskGroup)
			perGroup[key] = append(perGroup[key], a)
		}
	}
	queued := map[string]bool{}
	for _, w := range waits {
		if w.Placed < w.Count {
			queued[groupKey(w.Namespace, w.Job, w.Group)] = true
		}
	}
	for _, job := range jobs {
		if job == nil || job.ID == nil || job.Namespace == nil {
			continue
		}
		for _, g := range job.TaskGroups {
			if g == nil || g.Name == nil {
				continue
			}
			key := groupKey(*job.Namespace, *job.ID, *g.Name)
			e := groups[key]
			if e == nil || queued[key] {
				continue
			}
			if w, gpus := workOf(job, g, perGroup[key], known, nil, submitTime(job)); gpus && w.Gang {
				w.Placed = w.Count // nothing of it waits for a node
				text := strings.ToValidUTF8(e.DriverMessage[:min(len(e.DriverMessage), maxReason)], "")
				all = append(all, Forming{Work: w, Reason: text, Since: time.Unix(0, e.Time)})
			}
		}
	}
	slices.SortFunc(all, func(a, b Forming) int { return cmp.Compare(a.Work.Name(), b.Work.Name()) })
	return all
}
