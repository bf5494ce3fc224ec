// SPDX-License-Identifier: MPL-2.0

package demand

import (
	"slices"
	"strings"

	"github.com/hashicorp/nomad/api"

	"github.com/nomad-gpu/nomad-gpu/autoscaler/plan"
)

// vendor is the one whose devices are looked at.
const vendor = "nvidia"

// noNewGangs ends what the gangs' driver says of its node while a notice holds
// that the node will be taken away.
const noNewGangs = "this node takes no new gangs"

// isGPU reports whether devices are GPUs, MIG instances or slices of GPUs.
func isGPU(of, kind string) bool {
	return (of == "" || of == vendor) && (kind == plan.GPU || kind == plan.Slice)
}

// asksForGPU reports the same of a device block's name. Nomad takes one that
// tells no type, "nvidia//MODEL", for any.
func asksForGPU(name string) bool {
	of, kind, _ := deviceName(name)
	return isGPU(of, kind) || of == vendor && kind == ""
}

// held is what an allocation holds, or what there is of it.
type held struct {
	gpus   int // whole ones and MIG instances
	slices int
	shared float64 // the slices, in GPUs
}

func (h *held) add(kind, name string, count int) {
	if kind == plan.Slice {
		h.slices += count
		h.shared += float64(count) / float64(max(slicesOf(kind, name), 1))
	} else {
		h.gpus += count
	}
}

func heldBy(a *api.AllocationListStub) (h held) {
	for _, d := range devicesOf(a) {
		h.add(d.Type, d.Name, len(d.DeviceIDs))
	}
	return h
}

// devicesOf are the GPUs and slices that an allocation holds.
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

// nodeOf is a node with what its allocations leave, and what it has in all that
// is in order. Work of a system job, such as a collector of logs, keeps no
// node: it is on every one of them.
func nodeOf(n *api.NodeListStub, allocs []*api.AllocationListStub, known *catalogue) (node plan.Node, whole held) {
	node = plan.Node{Name: n.Name, Where: placeOf(n),
		Busy: slices.ContainsFunc(allocs, func(a *api.AllocationListStub) bool { return !everywhere(a) }), Starting: n.Status == api.NodeStatusInit,
		Closed: n.Drain || n.SchedulingEligibility != api.NodeSchedulingEligible}
	type instance struct{ kind, name, id string }
	taken := map[instance]bool{}
	for _, a := range allocs {
		for _, d := range devicesOf(a) {
			for _, id := range d.DeviceIDs {
				taken[instance{d.Type, d.Name, id}] = true
			}
		}
	}
	if n.NodeResources != nil {
		node.Free = hostOffer(n)
		node.Whole = node.Free
		node.Free.Devices, node.Whole.Devices = []plan.Devices{}, []plan.Devices{}
		for _, d := range n.NodeResources.Devices {
			if d == nil || !isGPU(d.Vendor, d.Type) {
				continue
			}
			group := plan.Devices{Type: d.Type, Model: d.Name, Of: slicesOf(d.Type, d.Name), Kind: known.of[d]}
			for _, i := range d.Instances {
				if i == nil || !i.Healthy {
					continue
				}
				whole.add(d.Type, d.Name, 1)
				if !taken[instance{d.Type, d.Name, i.ID}] {
					group.Count++
				}
			}
			all := group
			all.Count = len(d.Instances)
			node.Free.Devices, node.Whole.Devices = append(node.Free.Devices, group), append(node.Whole.Devices, all)
			if d.Type == plan.GPU {
				node.Free.GPUs += group.Count
				node.Whole.GPUs += all.Count
			}
		}
	}
	for _, a := range allocs {
		takeOff(known.usedBy(a), &node.Free)
	}
	node.Claims = known.claimsOn(n, allocs)
	if refusesGangs(n) {
		node.Free = plan.Shape{} // it is in its pool until it goes, and takes nothing
		if told, ok := strings.CutSuffix(n.Drivers[gangDriver].HealthDescription, "; "+noNewGangs); ok {
			node.AtRisk, node.Replace = true, strings.ToValidUTF8(told[:min(len(told), maxReason)], "")
		}
	}
	return node, whole
}
