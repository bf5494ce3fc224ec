// SPDX-License-Identifier: MPL-2.0

package demand

import (
	"github.com/hashicorp/nomad/api"

	"github.com/nomad-gpu/nomad-gpu/autoscaler/plan"
)

// most bounds MHz, MiB and cores: the planner adds and multiplies them.
const most = 1 << 40

func bounded[T int | int64 | uint64](n T) int { return int(min(max(n, 0), most)) }

func value[T int | int64 | uint64](n *T) int {
	if n == nil {
		return 0
	}
	return bounded(*n)
}

// usage is what tasks take of a host.
type usage struct{ mhz, memory, cores int }

func (u usage) add(v usage) usage {
	return usage{u.mhz + v.mhz, u.memory + v.memory, u.cores + v.cores}
}

func (u usage) max(v usage) usage {
	return usage{max(u.mhz, v.mhz), max(u.memory, v.memory), max(u.cores, v.cores)}
}

// phases adds up a group's tasks as Nomad does (nomad/structs,
// AllocatedResources.Comparable): tasks that run one after the other share what
// the greatest of them takes, and a sidecar adds to it. Tasks after the start
// are not counted at all.
type phases struct{ before, beside, main, after usage }

func (p *phases) add(when *api.TaskLifecycle, u usage) {
	of := &p.main
	if when != nil {
		switch {
		case when.Hook == api.TaskLifecycleHookPrestart && when.Sidecar:
			of = &p.beside
		case when.Hook == api.TaskLifecycleHookPrestart:
			of = &p.before
		case when.Hook == api.TaskLifecycleHookPoststop:
			of = &p.after
		case when.Hook != "":
			return
		}
	}
	*of = of.add(u)
}

func (p phases) sum() usage { return p.beside.add(p.before.max(p.main).max(p.after)) }

// hostRequest is what a group asks for of a host.
func hostRequest(g *api.TaskGroup) (s plan.Shape) {
	var p phases
	h := plan.Host{}
	for _, t := range g.Tasks {
		if t == nil || t.Resources == nil {
			continue
		}
		u := usage{value(t.Resources.CPU), value(t.Resources.MemoryMB), value(t.Resources.Cores)}
		if u.cores > 0 {
			u.mhz = 0 // Nomad takes that of the cores
		}
		p.add(t.Lifecycle, u)
		h.Cores += u.cores // each task is given its own
	}
	all := p.sum()
	s.CPU, s.Memory, h.Charged = all.mhz, all.memory, all.cores
	if g.EphemeralDisk != nil {
		h.Disk = value(g.EphemeralDisk.SizeMB)
	}
	if h != (plan.Host{}) {
		s.Host = &h
	}
	return s
}

// hostOffer is what a node has for allocations: what its client keeps for
// others is taken off.
func hostOffer(n *api.NodeListStub) (s plan.Shape) {
	r := n.NodeResources
	s.CPU, s.Memory = bounded(r.Cpu.CpuShares), bounded(r.Memory.MemoryMB)
	s.Host = &plan.Host{Cores: len(r.Cpu.ReservableCpuCores), Disk: bounded(r.Disk.DiskMB)}
	if r.Cpu.TotalCpuCores > 0 {
		s.Host.MHz = s.CPU / int(r.Cpu.TotalCpuCores)
	}
	if kept := n.ReservedResources; kept != nil {
		s.CPU -= bounded(kept.Cpu.CpuShares)
		s.Memory -= bounded(kept.Memory.MemoryMB)
		s.Host.Disk -= bounded(kept.Disk.DiskMB)
	}
	return s
}

// usedBy is what an allocation takes of its host.
func (c *catalogue) usedBy(a *api.AllocationListStub) (s plan.Shape) {
	if a.AllocatedResources == nil {
		return s
	}
	all, told := c.uses[a]
	if !told {
		for _, t := range a.AllocatedResources.Tasks {
			if t != nil {
				all = all.add(usage{bounded(t.Cpu.CpuShares), bounded(t.Memory.MemoryMB), 0})
			}
		}
	}
	s.CPU, s.Memory = all.mhz, all.memory
	s.Host = &plan.Host{Cores: all.cores, Disk: bounded(a.AllocatedResources.Shared.DiskMB)}
	return s
}

// takeOff subtracts what an allocation takes from what its node has.
func takeOff(used plan.Shape, free *plan.Shape) {
	free.CPU -= used.CPU
	free.Memory -= used.Memory
	if used.Host != nil && free.Host != nil {
		left := *free.Host
		left.Cores -= used.Host.Cores
		left.Disk -= used.Host.Disk
		free.Host = &left
	}
}

// listed is an allocation as Nomad lists it, with what Nomad's own client
// library leaves out.
type listed struct {
	api.AllocationListStub
	AllocatedResources *struct {
		Tasks map[string]*struct {
			api.AllocatedTaskResources
			Cpu struct {
				CpuShares     int64
				ReservedCores []uint16
			}
		}
		TaskLifecycles map[string]*api.TaskLifecycle
		Shared         api.AllocatedSharedResources
	}
}

// stub is the allocation as that library knows it, and what it takes of its
// host where its tasks do not simply add up.
func (l *listed) stub() (a *api.AllocationListStub, takes *usage) {
	a = &l.AllocationListStub
	r := l.AllocatedResources
	if r == nil {
		return a, nil
	}
	a.AllocatedResources = &api.AllocatedResources{Tasks: make(map[string]*api.AllocatedTaskResources, len(r.Tasks)), Shared: r.Shared}
	var p phases
	plain := true
	for name, t := range r.Tasks {
		if t == nil {
			continue
		}
		t.AllocatedTaskResources.Cpu = api.AllocatedCpuResources{CpuShares: t.Cpu.CpuShares}
		a.AllocatedResources.Tasks[name] = &t.AllocatedTaskResources
		when := r.TaskLifecycles[name]
		plain = plain && when == nil && len(t.Cpu.ReservedCores) == 0
		p.add(when, usage{bounded(t.Cpu.CpuShares), bounded(t.Memory.MemoryMB), len(t.Cpu.ReservedCores)})
	}
	if !plain {
		sum := p.sum()
		takes = &sum
	}
	return a, takes
}

// listAllocations lists allocations, with what those take whose tasks do not
// simply add up.
func (r *Reader) listAllocations(q *api.QueryOptions) ([]*api.AllocationListStub, map[*api.AllocationListStub]usage, error) {
	var all []*listed
	if _, err := r.client.Raw().Query("/v1/allocations", &all, q); err != nil {
		return nil, nil, err
	}
	stubs := make([]*api.AllocationListStub, 0, len(all))
	uses := map[*api.AllocationListStub]usage{}
	for _, l := range all {
		if l == nil {
			continue
		}
		a, takes := l.stub()
		stubs = append(stubs, a)
		if takes != nil {
			uses[a] = *takes
		}
	}
	return stubs, uses, nil
}
