// SPDX-License-Identifier: MPL-2.0

package plugin

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

	"github.com/hashicorp/nomad/plugins/device"
	"github.com/hashicorp/nomad/plugins/shared/structs"

	"github.com/nomad-gpu/nomad-gpu/device/gpu"
	"github.com/nomad-gpu/nomad-gpu/device/sharing"
	"github.com/nomad-gpu/nomad-gpu/device/topology"
)

// What every device of ours is to Nomad.
const (
	vendor     = "nvidia"
	deviceType = device.DeviceTypeGPU
	sliceType  = "gpu-slice"
	// noModel is the group of GPUs whose product name is not known: Nomad
	// refuses a group without a name.
	noModel = "NVIDIA GPU"
)

// Grouping says how GPUs become device groups.
type Grouping struct {
	// Ignored are the UUIDs of GPUs that Nomad shall not see.
	Ignored map[string]bool
	// ByIsland gives each NVLink island a group of its own, where a model's
	// GPUs are in several: Nomad serves a request from one group only, so that
	// it then never straddles islands.
	ByIsland bool
	// Sharing are the rules that make slices of GPUs.
	Sharing []sharing.Rule
	// MPSDir is where the MPS control daemon has its pipes and logs.
	MPSDir string
	// SlotOf gives the slots that GPUs are bound to, by UUID: their IDs stand
	// for the GPUs then.
	SlotOf map[string]string
}

// units are the devices that Nomad sees of a machine.
func (grouping Grouping) units(m *gpu.Machine) []sharing.Unit {
	units, _ := sharing.Units(m, grouping.names(m), grouping.Sharing)
	for n := range units {
		if slot, bound := grouping.SlotOf[m.GPUs[units[n].GPU].UUID]; bound && units[n].Kind == sharing.None {
			units[n].ID = slot
		}
	}
	return units
}

// deviceTypeOf is "gpu" but for slices: `device "gpu"` and `device "nvidia/gpu"`
// in a job must never be given less than a whole GPU or MIG instance.
func deviceTypeOf(k sharing.Kind) string {
	if k.Slice() {
		return sliceType
	}
	return deviceType
}

// names are the Nomad device names of the GPUs: the model, or with islands the
// model and the island, named after its first GPU, so that one that changes
// does not rename the others. GPUs without NVLink stay together in the model's
// own group. The name is empty for a GPU that is not offered: one without a
// UUID cannot be addressed.
func (grouping Grouping) names(m *gpu.Machine) []string {
	names := make([]string, len(m.GPUs))
	models := make(map[string]int) // a model's islands and the rest
	islands := topology.Islands(m)
	islandOf := make(map[int]int)
	for n, island := range islands {
		here := make(map[string]bool)
		for _, i := range island {
			islandOf[i] = n
			here[m.GPUs[i].Model] = true
		}
		for model := range here {
			models[model]++
		}
	}
	for _, i := range topology.Alone(m) {
		models[m.GPUs[i].Model]++
	}
	for i := range m.GPUs {
		g := &m.GPUs[i]
		if g.UUID == "" || grouping.Ignored[g.UUID] {
			continue
		}
		names[i] = cmp.Or(g.Model, noModel)
		if n, ok := islandOf[i]; ok && grouping.ByIsland && models[g.Model] > 1 {
			names[i] += fmt.Sprintf(" island %d", m.GPUs[islands[n][0]].Index)
		}
	}
	return names
}

// DeviceGroups turns a machine into what Nomad sees, groups by name and devices
// by UUID, so that the same machine always gives the same value.
func DeviceGroups(m *gpu.Machine, grouping Grouping) []*device.DeviceGroup {
	members := make(map[string][]sharing.Unit)
	for _, u := range grouping.units(m) {
		members[u.Group] = append(members[u.Group], u)
	}
	groups := make([]*device.DeviceGroup, 0, len(members))
	for name, units := range members {
		group := &device.DeviceGroup{Vendor: vendor, Type: deviceTypeOf(units[0].Kind), Name: name, Attributes: attributes(m, units)}
		for _, u := range units {
			g := &m.GPUs[u.GPU]
			d := &device.Device{ID: u.ID, Healthy: g.Fault == "", HealthDesc: cmp.Or(g.Fault, g.Degraded)}
			// A slot is nowhere for long.
			if g.BusID != "" && grouping.SlotOf[g.UUID] == "" {
				d.HwLocality = &device.DeviceLocality{PciBusID: gpu.NormalBusID(g.BusID)}
			}
			group.Devices = append(group.Devices, d)
		}
		slices.SortFunc(group.Devices, func(a, b *device.Device) int { return strings.Compare(a.ID, b.ID) })
		groups = append(groups, group)
	}
	slices.SortFunc(groups, func(a, b *device.DeviceGroup) int { return strings.Compare(a.Name, b.Name) })
	return groups
}

// attributes are those of a group. The first nine have the names and units of
// nomad-device-nvidia, so that its job files keep working. Nothing here may
// flicker: every change is an update of the node. Where GPUs of one model
// differ, the least value counts, because a constraint asks for at least.
func attributes(m *gpu.Machine, units []sharing.Unit) map[string]*structs.Attribute {
	a := attributeSet{}
	gpus := make([]int, len(units))
	memory := units[0].MemoryMiB
	for n, u := range units {
		gpus[n] = u.GPU
		memory = min(memory, u.MemoryMiB)
	}
	least := func(value func(g *gpu.GPU) uint64) uint64 {
		low := value(&m.GPUs[gpus[0]])
		for _, i := range gpus[1:] {
			low = min(low, value(&m.GPUs[i]))
		}
		return low
	}
	same := func(value func(g *gpu.GPU) string) string {
		first := value(&m.GPUs[gpus[0]])
		for _, i := range gpus[1:] {
			if value(&m.GPUs[i]) != first {
				return ""
			}
		}
		return first
	}
	a.number("memory", memory, structs.UnitMiB)
	a.number("bar1", least(func(g *gpu.GPU) uint64 { return g.BAR1MiB }), structs.UnitMiB)
	a.number("power", least(func(g *gpu.GPU) uint64 { return uint64(g.PowerLimitW) }), structs.UnitW)
	a.number("cores_clock", least(func(g *gpu.GPU) uint64 { return uint64(g.CoresClockMHz) }), structs.UnitMHz)
	a.number("memory_clock", least(func(g *gpu.GPU) uint64 { return uint64(g.MemoryClockMHz) }), structs.UnitMHz)
	a.number("pci_bandwidth", least(func(g *gpu.GPU) uint64 { return uint64(g.PCIeMBps()) }), structs.UnitMBPerS)
	a.word("driver_version", m.DriverVersion)
	a.word("display_state", same(func(g *gpu.GPU) string { return g.DisplayState }))
	a.word("persistence_mode", same(func(g *gpu.GPU) string { return g.PersistenceMode }))

	a.word("architecture", same(func(g *gpu.GPU) string { return g.Architecture }))
	a.word("compute_capability", same(func(g *gpu.GPU) string { return g.ComputeCapability }))
	a.word("cuda_version", m.CUDAVersion)
	a.word("mig_profile", same(func(g *gpu.GPU) string { return g.MIGProfile }))
	a.word("sharing", string(units[0].Kind))
	a.number("slices", uint64(units[0].Of), "")
	a.number("numa_nodes", countNUMANodes(m, gpus), "")
	a.nvlink(m, gpus, least)
	a.word("fabric_cluster", same(func(g *gpu.GPU) string {
		if g.Fabric == nil {
			return ""
		}
		return g.Fabric.Cluster
	}))
	if f := m.GPUs[gpus[0]].Fabric; f != nil && f.Cluster != "" && same(func(g *gpu.GPU) string {
		if g.Fabric == nil {
			return ""
		}
		return fmt.Sprint(g.Fabric.Cluster, g.Fabric.Clique)
	}) != "" {
		a.count("fabric_clique", int(f.Clique))
	}
	a.nics(m)

	healthy := 0
	var faults []string
	for _, i := range gpus {
		if fault := m.GPUs[i].Fault; fault == "" {
			healthy++
		} else {
			faults = append(faults, fault)
		}
	}
	a.count("count", len(gpus))
	a.count("healthy_count", healthy)
	a.flag("simulated", m.Simulated)
	slices.Sort(faults)
	a.word("fault", strings.Join(slices.Compact(faults), "; "))
	return a
}

// countNUMANodes is 0 if the node of any GPU is not known.
func countNUMANodes(m *gpu.Machine, gpus []int) uint64 {
	nodes := make(map[int]bool)
	for _, i := range gpus {
		nodes[m.GPUs[i].NUMANode] = true
	}
	if nodes[gpu.NoNUMA] {
		return 0
	}
	return uint64(len(nodes))
}

// attributeSet collects attributes; a value that is not known is left out.
type attributeSet map[string]*structs.Attribute

func (a attributeSet) number(name string, value uint64, unit string) {
	if value > 0 {
		n := int64(value)
		a[name] = &structs.Attribute{Int: &n, Unit: unit}
	}
}

func (a attributeSet) count(name string, value int) {
	n := int64(value)
	a[name] = &structs.Attribute{Int: &n}
}

func (a attributeSet) word(name, value string) {
	if value != "" {
		a[name] = &structs.Attribute{String: &value}
	}
}

func (a attributeSet) flag(name string, value bool) {
	a[name] = &structs.Attribute{Bool: &value}
}

// nvlink adds what is known of NVLink, per GPU and in one direction. The island
// size is that of the smallest island, so that a constraint on it holds for
// every GPU of the group.
func (a attributeSet) nvlink(m *gpu.Machine, gpus []int, least func(func(g *gpu.GPU) uint64) uint64) {
	if m.NVSwitch != gpu.Unknown {
		a.flag("nvswitch", m.NVSwitch == gpu.Present)
	}
	sizes := topology.IslandSizes(m)
	island := sizes[gpus[0]]
	for _, i := range gpus {
		island = min(island, sizes[i])
	}
	a.count("nvlink_island_size", island)
	links := least(func(g *gpu.GPU) uint64 { return uint64(g.NVLinks) })
	a.count("nvlink_links", int(links))
	a.number("nvlink_bandwidth", least(func(g *gpu.GPU) uint64 { return uint64(g.NVLinks * g.NVLinkMBps()) })/1000, structs.UnitGBPerS)
	if version := m.GPUs[gpus[0]].NVLinkVersion; version > 0 && links > 0 {
		a["nvlink_version"] = &structs.Attribute{Float: &version}
	}
}

func (a attributeSet) nics(m *gpu.Machine) {
	rdma := slices.ContainsFunc(m.NICs, func(n gpu.NIC) bool { return n.RDMA })
	a.count("nic_count", len(m.NICs))
	a.flag("rdma", rdma)
}
