// SPDX-License-Identifier: MPL-2.0

package demand

import (
	"cmp"
	"maps"
	"slices"
	"time"

	"github.com/hashicorp/nomad/api"

	"github.com/nomad-gpu/nomad-gpu/autoscaler/plan"
)

// maxCount bounds what one device block can ask for: the planner multiplies it.
const maxCount = 1 << 16

// join is pure: it makes a reading from what the API answered. Entries that
// miss what makes them one (a name, an object at all) are left out.
func join(evals []*api.Evaluation, jobs map[string]*api.Job, allocs []*api.AllocationListStub, nodes []*api.NodeListStub, told ...Offer) Reading {
	var out Reading
	known := catalogue{seen: seenOn(nodes), told: told}
	perNode := map[string][]*api.AllocationListStub{}
	perGroup := map[string][]*api.AllocationListStub{}
	for _, a := range allocs {
		if a == nil {
			continue
		}
		perGroup[groupKey(a.Namespace, a.JobID, a.TaskGroup)] = append(perGroup[groupKey(a.Namespace, a.JobID, a.TaskGroup)], a)
		if !terminal(a) {
			perNode[a.NodeID] = append(perNode[a.NodeID], a)
			if n := gpusOf(a); n > 0 {
				out.RunningGPUs += n
				out.Running = append(out.Running, Running{a.NodeName, a.Namespace, a.JobID, n})
			}
		}
	}
	for _, n := range nodes {
		if n == nil {
			continue
		}
		node, total := nodeOf(n, perNode[n.ID])
		if n.Status == api.NodeStatusReady {
			out.TotalGPUs += total
		}
		if n.Status == api.NodeStatusReady || n.Status == api.NodeStatusInit {
			out.Nodes = append(out.Nodes, node)
		}
	}
	since := map[string]time.Time{}
	for _, e := range evals {
		if e == nil {
			continue
		}
		at := time.Unix(0, e.CreateTime)
		key := e.Namespace + "/" + e.JobID
		if old, ok := since[key]; !ok || at.Before(old) {
			since[key] = at
		}
	}
	for key, job := range jobs {
		if job == nil || job.Namespace == nil || job.ID == nil || job.Status == nil || *job.Status == "dead" || job.Stop != nil && *job.Stop || job.Type != nil && *job.Type == api.JobTypeSystem ||
			job.IsPeriodic() || job.IsParameterized() && !job.Dispatched {
			continue
		}
		for _, g := range job.TaskGroups {
			if g == nil || g.Name == nil {
				continue
			}
			at := since[key]
			if job.SubmitTime != nil {
				at = time.Unix(0, *job.SubmitTime)
			}
			w, ok := workOf(job, g, perGroup[groupKey(*job.Namespace, *job.ID, *g.Name)], known, at)
			if !ok {
				continue
			}
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

func isGPU(vendor, kind string) bool { return kind == "gpu" && (vendor == "" || vendor == "nvidia") }

func gpusOf(a *api.AllocationListStub) int {
	n := 0
	for _, d := range devicesOf(a) {
		n += len(d.DeviceIDs)
	}
	return n
}

// devicesOf are the GPUs that an allocation holds.
func devicesOf(a *api.AllocationListStub) []*api.AllocatedDeviceResource {
	var all []*api.AllocatedDeviceResource
	if a.AllocatedResources != nil {
		for _, t := range a.AllocatedResources.Tasks {
			if t == nil {
				continue
			}
			for _, d := range t.Devices {
				if d != nil && isGPU(d.Vendor, d.Type) {
					all = append(all, d)
				}
			}
		}
	}
	return all
}

// nodeOf is a node with what its allocations leave, and how many healthy GPUs
// it has in all. Work of a system job, such as a collector of logs, keeps no
// node: it is on every one of them. Where its GPUs are of several names (MIG instances beside
// whole ones), the name with the most left stands for it: two names never
// serve one request.
func nodeOf(n *api.NodeListStub, allocs []*api.AllocationListStub) (plan.Node, int) {
	node := plan.Node{Name: n.Name, Where: plan.Where{NodePool: n.NodePool, Class: n.NodeClass, Datacenter: n.Datacenter},
		Busy: slices.ContainsFunc(allocs, func(a *api.AllocationListStub) bool { return !everywhere(a) }), Starting: n.Status == api.NodeStatusInit,
		Closed: n.Drain || n.SchedulingEligibility != api.NodeSchedulingEligible}
	total := 0
	free := map[string]int{}
	if n.NodeResources != nil {
		node.Free.CPU, node.Free.Memory = int(n.NodeResources.Cpu.CpuShares), int(n.NodeResources.Memory.MemoryMB)
		for _, d := range n.NodeResources.Devices {
			if d == nil || !isGPU(d.Vendor, d.Type) {
				continue
			}
			free[d.Name] += 0
			for _, i := range d.Instances {
				if i != nil && i.Healthy {
					free[d.Name]++
					total++
				}
			}
		}
	}
	for _, a := range allocs {
		for _, d := range devicesOf(a) {
			free[d.Name] -= len(d.DeviceIDs)
		}
		if a.AllocatedResources == nil {
			continue
		}
		for _, t := range a.AllocatedResources.Tasks {
			if t != nil {
				node.Free.CPU -= int(t.Cpu.CpuShares)
				node.Free.Memory -= int(t.Memory.MemoryMB)
			}
		}
	}
	for _, name := range slices.Sorted(maps.Keys(free)) {
		if node.Free.Model == "" || free[name] > node.Free.GPUs {
			node.Free.Model, node.Free.GPUs = name, free[name]
		}
	}
	node.Free.GPUs = max(node.Free.GPUs, 0)
	if refusesGangs(n) {
		node.Free = plan.Shape{} // it is in its pool until it goes, and takes nothing
	}
	return node, total
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
// asks for GPUs. Since is when it was submitted.
func workOf(job *api.Job, g *api.TaskGroup, allocs []*api.AllocationListStub, known catalogue, since time.Time) (plan.Work, bool) {
	i := intentOf(job.Meta, since)
	w := plan.Work{Namespace: *job.Namespace, Job: *job.ID, Group: *g.Name, Since: since, Spot: i.Spot, Deadline: i.Deadline, Length: i.Length,
		MaxCost: i.MaxCost, Move: i.Move, Restart: i.Restart, Faults: i.Faults}
	if job.Priority != nil {
		w.Priority = *job.Priority
	}
	if g.Count != nil {
		w.Count = *g.Count
	}
	constraints := slices.Concat(job.Constraints, g.Constraints)
	var devices []*api.RequestedDevice
	for _, t := range g.Tasks {
		if t == nil {
			continue
		}
		constraints = append(constraints, t.Constraints...)
		if t.Driver == gangDriver && t.Config["gang"] != nil {
			w.Gang, w.Distinct = true, true
		}
		if t.Resources == nil {
			continue
		}
		if t.Resources.CPU != nil {
			w.Request.CPU += *t.Resources.CPU
		}
		if t.Resources.MemoryMB != nil {
			w.Request.Memory += *t.Resources.MemoryMB
		}
		for _, d := range t.Resources.Devices {
			if d == nil {
				continue
			}
			vendor, kind, model := deviceName(d.Name)
			if !isGPU(vendor, kind) {
				continue
			}
			devices = append(devices, d)
			n := 1
			if d.Count != nil {
				n = int(min(*d.Count, maxCount))
			}
			w.Request.GPUs += n
			w.Request.Model = cmp.Or(model, w.Request.Model, modelOf(d.Constraints))
		}
	}
	for _, c := range constraints {
		if c != nil && c.Operand == "distinct_hosts" {
			w.Distinct = true
		}
	}
	batch := job.Type != nil && *job.Type == api.JobTypeBatch
	for _, a := range allocs {
		live := !terminal(a) && a.DesiredStatus == api.AllocDesiredStatusRun
		// What a batch job has finished need not run again, in this version of it.
		if live || batch && a.ClientStatus == api.AllocClientStatusComplete && a.DesiredStatus == api.AllocDesiredStatusRun && !older(a, job) {
			w.Placed++
			w.PlacedOn = append(w.PlacedOn, a.NodeName)
			if placed := time.Unix(0, a.CreateTime); a.CreateTime > 0 && placed.After(w.Began) {
				w.Began = placed
			}
		}
	}
	slices.Sort(w.PlacedOn)
	w.Placed = min(w.Placed, w.Count)
	w.Allowed = allowed(job, constraints, devices, known)
	return w, w.Request.GPUs > 0
}

// older reports whether an allocation is of a former version or life of a job:
// Nomad runs such work again.
func older(a *api.AllocationListStub, job *api.Job) bool {
	return job.Version != nil && a.JobVersion < *job.Version || job.CreateIndex != nil && a.CreateIndex < *job.CreateIndex
}

// modelOf is the model that a device constraint asks for by name.
func modelOf(constraints []*api.Constraint) string {
	for _, c := range constraints {
		if c != nil && c.LTarget == "${device.model}" && (c.Operand == "=" || c.Operand == "==" || c.Operand == "is" || c.Operand == "") {
			return c.RTarget
		}
	}
	return ""
}
