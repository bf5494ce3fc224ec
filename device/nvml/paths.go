// SPDX-License-Identifier: MPL-2.0

package nvml

import (
	"slices"

	"github.com/NVIDIA/go-nvml/pkg/nvml"

	"github.com/nomad-gpu/nomad-gpu/device/gpu"
)

// levels are NVML's PCIe distances. Internal means two GPUs of one board, which
// has a switch of its own.
var levels = map[nvml.GpuTopologyLevel]gpu.Level{
	nvml.TOPOLOGY_INTERNAL: gpu.PIX, nvml.TOPOLOGY_SINGLE: gpu.PIX, nvml.TOPOLOGY_MULTIPLE: gpu.PXB,
	nvml.TOPOLOGY_HOSTBRIDGE: gpu.PHB, nvml.TOPOLOGY_NODE: gpu.NODE, nvml.TOPOLOGY_SYSTEM: gpu.SYS,
}

// versions of NVLink by NVML's number (nvmlNvlinkVersion_t).
var nvlinkVersions = map[uint32]float64{1: 1, 2: 2, 3: 2.2, 4: 3, 5: 3.1, 6: 4, 7: 5, 8: 6}

// paths fills in how the GPUs are connected. queries stand beside the machine's
// GPUs; one that is nil cannot be asked.
func (r *Reader) paths(m *gpu.Machine, queries []*query) {
	n := len(m.GPUs)
	m.Paths = gpu.NewPaths(n)
	if r.lib.can("nvmlDeviceGetTopologyCommonAncestor") {
		for i := range n {
			for j := range i {
				if queries[i] == nil || queries[j] == nil {
					continue
				}
				if level, ret := queries[i].device.GetTopologyCommonAncestor(queries[j].device); ret == nvml.SUCCESS {
					m.Paths[i][j].PCIe, m.Paths[j][i].PCIe = levels[level], levels[level]
				}
			}
		}
	}
	position := make(map[string]int, n)
	for i, g := range m.GPUs {
		if g.Parent == "" { // NVLink is off where MIG is on
			position[g.BusID] = i
		}
	}
	switched, direct := make([]uint, n), make([][]uint, n)
	for i, q := range queries {
		direct[i] = make([]uint, n)
		if q == nil {
			continue
		}
		m.GPUs[i].NVLinks = 0
		for _, link := range q.links() {
			m.GPUs[i].NVLinks++
			m.GPUs[i].NVLinkVersion = max(m.GPUs[i].NVLinkVersion, link.version)
			if j, ok := position[link.remote]; ok && j != i && !link.toSwitch {
				direct[i][j]++
			} else if link.toSwitch {
				switched[i]++
			}
		}
	}
	m.JoinNVLinks(switched, direct)
	switch {
	case slices.ContainsFunc(switched, func(links uint) bool { return links > 0 }):
		m.NVSwitch = gpu.Present
	case slices.ContainsFunc(queries, func(q *query) bool { return q != nil }):
		m.NVSwitch = gpu.Absent
	}
}

// link is one NVLink that is up.
type link struct {
	version  float64
	toSwitch bool
	remote   string // bus ID of the other end
}

// links are the GPU's NVLinks that are up. A part without NVLink says "not
// supported" to the first.
func (q *query) links() []link {
	var links []link
	if !q.lib.can("nvmlDeviceGetNvLinkState") {
		return nil
	}
	for n := range nvml.NVLINK_MAX_LINKS {
		state, ret := q.device.GetNvLinkState(n)
		if ret != nvml.SUCCESS {
			// Parts with fewer links than the library knows end here; one link
			// that fails does not hide those after it.
			if ret == nvml.ERROR_INVALID_ARGUMENT || ret == nvml.ERROR_NOT_SUPPORTED && n == 0 {
				break
			}
			continue
		}
		if state != nvml.FEATURE_ENABLED {
			continue
		}
		links = append(links, q.link(n))
	}
	return links
}

func (q *query) link(n int) link {
	var l link
	if version, ok := ask(q, func() (uint32, nvml.Return) { return q.device.GetNvLinkVersion(n) }, "nvmlDeviceGetNvLinkVersion"); ok {
		l.version = nvlinkVersions[version]
	}
	if pci, ok := ask(q, func() (nvml.PciInfo, nvml.Return) { return q.device.GetNvLinkRemotePciInfo(n) },
		"nvmlDeviceGetNvLinkRemotePciInfo_v2", "nvmlDeviceGetNvLinkRemotePciInfo"); ok {
		l.remote = busID(pci)
	}
	kind, ok := ask(q, func() (nvml.IntNvLinkDeviceType, nvml.Return) { return q.device.GetNvLinkRemoteDeviceType(n) },
		"nvmlDeviceGetNvLinkRemoteDeviceType")
	switch {
	case ok && kind != nvml.NVLINK_DEVICE_TYPE_UNKNOWN:
		l.toSwitch = kind == nvml.NVLINK_DEVICE_TYPE_SWITCH
	default:
		// Drivers before 465 do not tell the kind, and virtual machines hide
		// the switches behind the address FFFFFFFF:FF:FF.0.
		l.toSwitch = l.remote == "" || l.remote == hiddenRemote
	}
	return l
}

// hiddenRemote is how a remote end shows that the guest may not see.
const hiddenRemote = "ffffffff:ff:ff.0"
