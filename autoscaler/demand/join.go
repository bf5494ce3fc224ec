// SPDX-License-Identifier: MPL-2.0

package demand

import (
	"cmp"
	"slices"
	"time"

	"github.com/hashicorp/nomad/api"

	"github.com/nomad-gpu/nomad-gpu/autoscaler/plan"
)

// maxCount bounds what one device block can ask for: the planner multiplies it.
const maxCount = 1 << 16

// readingOf is pure: it makes a reading from what the API answered. Entries that
// miss what makes them one (a name, an object at all) are left out.
func readingOf(now time.Time, evals []*api.Evaluation, jobs map[string]*api.Job, allocs []*api.AllocationListStub, nodes []*api.NodeListStub, known *catalogue) Reading {
	var out Reading
	known.want(jobs)
	perNode := map[string][]*api.AllocationListStub{}
	perGroup := map[string][]*api.AllocationListStub{}
	for _, a := range allocs {
		if a == nil {
			continue
		}
		perGroup[groupKey(a.Namespace, a.JobID, a.TaskGroup)] = append(perGroup[groupKey(a.Namespace, a.JobID, a.TaskGroup)], a)
		if !terminal(a) {
			perNode[a.NodeID] = append(perNode[a.NodeID], a)
			if h := heldBy(a); h != (held{}) {
				out.RunningGPUs += h.gpus
				out.RunningSlices += h.slices
				out.RunningShared += h.shared
				out.Running = append(out.Running, Running{a.NodeName, a.Namespace, a.JobID, h.gpus, h.shared})
			}
		}
	}
	for _, n := range nodes {
		if n == nil {
			continue
		}
		node, whole := nodeOf(n, perNode[n.ID], known)
		if n.Status == api.NodeStatusReady {
			out.TotalGPUs += whole.gpus
			out.TotalSlices += whole.slices
			out.TotalShared += whole.shared
		}
		if n.Status == api.NodeStatusReady || n.Status == api.NodeStatusInit {
			out.Nodes = append(out.Nodes, node)
		}
	}
	standings := standingsOf(evals, now)
	since := map[string]time.Time{}
	for _, e := range evals {
		if e == nil {
			continue
		}
		at := time.Unix(0, e.CreateTime)
		if at.After(now) {
			at = now // by another machine's clock
		}
		key := e.Namespace + "/" + e.JobID
		if old, ok := since[key]; !ok || at.Before(old) {
			since[key] = at
		}
	}
	for key, job := range jobs {
		if job == nil || job.Namespace == nil || job.ID == nil || job.Status == nil || *job.Status == "dead" || job.Stop != nil && *job.Stop || job.Type != nil && (*job.Type == api.JobTypeSystem || *job.Type == api.JobTypeSysbatch) ||
			job.IsPeriodic() || job.IsParameterized() && !job.Dispatched {
			continue
		}
		for _, g := range job.TaskGroups {
			if g == nil || g.Name == nil {
				continue
			}
			w, ok := workOf(job, g, perGroup[groupKey(*job.Namespace, *job.ID, *g.Name)], known, standings[key], cmp.Or(submitTime(job), since[key]))
			if !ok {
				continue
			}
			w.Since = since[key]
			out.Work = append(out.Work, w)
		}
	}
	slices.SortFunc(out.Work, func(a, b plan.Work) int { return cmp.Compare(a.Name(), b.Name()) })
	slices.SortFunc(out.Nodes, func(a, b plan.Node) int { return cmp.Compare(a.Name, b.Name) })
	return out
}

func groupKey(namespace, job, group string) string { return namespace + "\x00" + job + "\x00" + group }

// terminal: it holds no resources any more. An allocation that Nomad wants
// stopped holds them until its client says so.
func terminal(a *api.AllocationListStub) bool {
	switch a.ClientStatus {
	case api.AllocClientStatusComplete, api.AllocClientStatusFailed, api.AllocClientStatusLost:
		return true
	}
	return false
}

// refusesGangs: its task driver has told Nomad to place nothing more, as on a
// spot node that will be taken back. A node without the driver is another's.
func refusesGangs(n *api.NodeListStub) bool {
	d := n.Drivers[gangDriver]
	return d != nil && d.Detected && !d.Healthy
}

// gangDriver is the task driver of gangs.
const gangDriver = "nccl"

// workOf is a group with what of it is placed; it reports whether the group
// asks for GPUs. Its deadline counts from when it was submitted; without a standing what is not
// placed is taken to be due.
func workOf(job *api.Job, g *api.TaskGroup, allocs []*api.AllocationListStub, known *catalogue, s *standing, submitted time.Time) (plan.Work, bool) {
	i := intentOf(metaOf(job, g), submitted)
	w := plan.Work{Namespace: *job.Namespace, Job: *job.ID, Group: *g.Name, Since: submitted, Spot: i.Spot, Deadline: i.Deadline, Length: i.Length,
		MaxCost: i.MaxCost, Move: i.Move, Restart: i.Restart, Faults: i.Faults}
	if job.Priority != nil {
		w.Priority = *job.Priority
	}
	if job.Version != nil {
		w.Version = *job.Version
	}
	w.Count = value(g.Count)
	constraints := slices.Concat(job.Constraints, g.Constraints)
	var devices []*api.RequestedDevice
	for _, t := range g.Tasks {
		if t == nil {
			continue
		}
		constraints = append(constraints, t.Constraints...)
		if t.Driver == gangDriver && t.Config["gang"] != nil {
			w.Gang, w.Distinct, w.Least = true, true, leastOf(t.Config["gang"])
		}
		if t.Resources == nil {
			continue
		}
		for _, d := range t.Resources.Devices {
			if d != nil && asksForGPU(d.Name) {
				devices = append(devices, d)
			}
		}
	}
	spread(&w, job, g)
	l := lacking(job, g, allocs, s)
	for _, a := range l.held {
		if !terminal(a) {
			w.PlacedOn = append(w.PlacedOn, a.NodeName)
		}
		if placed := time.Unix(0, a.CreateTime); a.CreateTime > 0 && placed.After(w.Began) {
			w.Began = placed
		}
	}
	slices.Sort(w.PlacedOn)
	w.Later, w.Until = l.later, l.until
	if w.Gang {
		w.Gone = max(min(l.spent, w.Count-len(l.held)-l.now-l.later), 0)
	} else {
		w.Count = len(l.held) + l.now + l.later
	}
	w.Placed = max(w.Count-l.now-l.later-w.Gone, 0)
	w.Allowed, w.Bars = allowed(job, constraints, devices, known), known.barsFor(g, constraints)
	w.Request = hostRequest(g)
	wanted := known.request(devices)
	w.Request.GPUs, w.Request.Asks = wanted.GPUs, wanted.Asks
	return w, len(devices) > 0
}

// older reports whether an allocation is of a former version or life of a job:
// Nomad runs such work again.
func older(a *api.AllocationListStub, job *api.Job) bool {
	return job.Version != nil && a.JobVersion < *job.Version || purged(a, job)
}

// purged reports whether an allocation is of a job that had the same name.
func purged(a *api.AllocationListStub, job *api.Job) bool {
	return job.CreateIndex != nil && a.CreateIndex < *job.CreateIndex
}
