// SPDX-License-Identifier: MPL-2.0

package demand

import (
	"time"

	"github.com/hashicorp/nomad/api"

	"github.com/nomad-gpu/nomad-gpu/autoscaler/plan"
)

// everywhere is on all nodes of its kind, and no work that a node is kept for:
// a system job's allocation comes and goes with its node.
func everywhere(a *api.AllocationListStub) bool { return a.JobType == api.JobTypeSystem }

// settle notes on each node what runs there. Movable is what the jobs that are
// given allow in their meta; of any other job nothing is moved.
func settle(nodes []plan.Node, allocs []*api.AllocationListStub, jobs map[string]*api.Job, known *catalogue) {
	index := make(map[string]int, len(nodes))
	for i := range nodes {
		index[nodes[i].Name] = i
	}
	perGroup := map[string][]*api.AllocationListStub{}
	for _, a := range allocs {
		if a != nil && jobs[a.Namespace+"/"+a.JobID] != nil {
			key := groupKey(a.Namespace, a.JobID, a.TaskGroup)
			perGroup[key] = append(perGroup[key], a)
		}
	}
	moved := map[string]plan.Tenant{}
	for key, job := range jobs {
		if job == nil || job.ID == nil || job.Namespace == nil {
			continue
		}
		for _, g := range job.TaskGroups {
			if g == nil || g.Name == nil {
				continue
			}
			if w, _ := workOf(job, g, perGroup[groupKey(*job.Namespace, *job.ID, *g.Name)], known, nil, submitTime(job)); w.Move {
				moved[key+"\x00"+*g.Name] = plan.Tenant{Work: w, Movable: true}
			}
		}
	}
	for _, a := range allocs {
		if a == nil || terminal(a) || everywhere(a) {
			continue
		}
		i, ok := index[a.NodeName]
		if !ok {
			continue
		}
		tenant, ok := moved[a.Namespace+"/"+a.JobID+"\x00"+a.TaskGroup]
		if !ok {
			tenant = plan.Tenant{Work: plan.Work{Namespace: a.Namespace, Job: a.JobID, Group: a.TaskGroup, Request: requestOf(a, known),
				Allowed: func(plan.Where) bool { return false }}}
		}
		nodes[i].Tenants = append(nodes[i].Tenants, tenant)
	}
}

// submitTime is when a job was submitted; zero: not known.
func submitTime(job *api.Job) time.Time {
	if job.SubmitTime == nil {
		return time.Time{}
	}
	return time.Unix(0, *job.SubmitTime)
}

// requestOf is what an allocation holds.
func requestOf(a *api.AllocationListStub, known *catalogue) plan.Shape {
	s := known.usedBy(a)
	for _, d := range devicesOf(a) {
		s.Asks = append(s.Asks, plan.Ask{Type: d.Type, Model: d.Name, Count: len(d.DeviceIDs), Of: slicesOf(d.Type, d.Name)})
		if d.Type == plan.GPU {
			s.GPUs += len(d.DeviceIDs)
		}
	}
	return s
}
