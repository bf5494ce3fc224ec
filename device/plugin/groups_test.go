// SPDX-License-Identifier: MPL-2.0

package plugin

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/hashicorp/nomad/plugins/device"
	"github.com/hashicorp/nomad/plugins/shared/structs"
	"github.com/shoenig/test/must"

	"github.com/nomad-gpu/nomad-gpu/device/gpu"
	"github.com/nomad-gpu/nomad-gpu/device/profile"
	"github.com/nomad-gpu/nomad-gpu/device/sharing"
	"github.com/nomad-gpu/nomad-gpu/device/topology"
)

func simulated(t testing.TB, name string) *gpu.Machine {
	t.Helper()
	m, err := profile.Load(name)
	must.NoError(t, err)
	must.NoError(t, profile.Simulate(m, "node-1"))
	return m
}

func shown(group *device.DeviceGroup) map[string]string {
	out := make(map[string]string)
	for name, value := range group.Attributes {
		out[name] = value.GoString()
	}
	return out
}

func TestAttributesOfADGXH100(t *testing.T) {
	groups := DeviceGroups(simulated(t, "dgx-h100"), Grouping{})
	must.Len(t, 1, groups)
	must.EqOp(t, "nvidia", groups[0].Vendor)
	must.EqOp(t, "gpu", groups[0].Type)
	must.EqOp(t, "NVIDIA H100 80GB HBM3", groups[0].Name)
	must.Len(t, 8, groups[0].Devices)
	want := map[string]*structs.Attribute{
		"memory":             structs.NewIntAttribute(81559, "MiB"),
		"bar1":               structs.NewIntAttribute(131072, "MiB"),
		"power":              structs.NewIntAttribute(700, "W"),
		"cores_clock":        structs.NewIntAttribute(1980, "MHz"),
		"memory_clock":       structs.NewIntAttribute(2619, "MHz"),
		"pci_bandwidth":      structs.NewIntAttribute(63008, "MB/s"),
		"driver_version":     structs.NewStringAttribute("550.54.15"),
		"display_state":      structs.NewStringAttribute("Disabled"),
		"persistence_mode":   structs.NewStringAttribute("Enabled"),
		"architecture":       structs.NewStringAttribute("hopper"),
		"compute_capability": structs.NewStringAttribute("9.0"),
		"cuda_version":       structs.NewStringAttribute("12.4"),
		"numa_nodes":         structs.NewIntAttribute(2, ""),
		"nvlink_version":     structs.NewFloatAttribute(4, ""),
		"nvlink_links":       structs.NewIntAttribute(18, ""),
		"nvlink_bandwidth":   structs.NewIntAttribute(450, "GB/s"),
		"nvlink_island_size": structs.NewIntAttribute(8, ""),
		"nvswitch":           structs.NewBoolAttribute(true),
		"nic_count":          structs.NewIntAttribute(12, ""),
		"rdma":               structs.NewBoolAttribute(true),
		"sharing":            structs.NewStringAttribute("none"),
		"count":              structs.NewIntAttribute(8, ""),
		"healthy_count":      structs.NewIntAttribute(8, ""),
		"simulated":          structs.NewBoolAttribute(true),
	}
	must.Eq(t, want, groups[0].Attributes)
}

func TestEveryProfileGivesGroupsThatNomadAccepts(t *testing.T) {
	for _, name := range profile.Names() {
		for _, group := range DeviceGroups(simulated(t, name), Grouping{}) {
			must.NoError(t, group.Validate())
			must.Greater(t, 20, len(group.Attributes), must.Sprint(name))
		}
	}
}

func TestGroupsOfAMixedAndFaultyMachine(t *testing.T) {
	m := &gpu.Machine{
		GPUs: []gpu.GPU{
			{UUID: "GPU-b", Model: "B", BusID: "00000000:1B:00.0", NUMANode: 0, MemoryMiB: 200, Architecture: "x"},
			{UUID: "GPU-a", Model: "B", NUMANode: 0, MemoryMiB: 100, Architecture: "y", Fault: "fell off the bus"},
			{UUID: "GPU-c", Model: "A", NUMANode: gpu.NoNUMA, MIGProfile: "1g.10gb"},
			{UUID: "GPU-d", NUMANode: 1},
			{UUID: "", Model: "A"},
			{UUID: "GPU-e", Model: "A"},
		},
		Paths: gpu.NewPaths(6),
	}
	groups := DeviceGroups(m, Grouping{Ignored: map[string]bool{"GPU-e": true}})
	must.Len(t, 3, groups)
	a, b, unnamed := groups[0], groups[1], groups[2]
	must.EqOp(t, "A", a.Name)
	must.Len(t, 1, a.Devices)
	must.Nil(t, a.Devices[0].HwLocality)
	must.EqOp(t, noModel, unnamed.Name)

	must.Eq(t, []*device.Device{
		{ID: "GPU-a", Healthy: false, HealthDesc: "fell off the bus"},
		{ID: "GPU-b", Healthy: true, HwLocality: &device.DeviceLocality{PciBusID: "0000:1b:00.0"}},
	}, b.Devices)
	got := shown(b)
	must.EqOp(t, "100MiB", got["memory"]) // the least of the group
	must.EqOp(t, "1", got["healthy_count"])
	must.EqOp(t, "2", got["count"])
	must.EqOp(t, "fell off the bus", got["fault"])
	must.EqOp(t, "1", got["numa_nodes"])
	for _, name := range []string{"architecture", "nvswitch", "bar1", "nvlink_version", "nvlink_bandwidth", "cuda_version"} {
		must.MapNotContainsKey(t, got, name) // differs, or not known
	}
	must.MapNotContainsKey(t, shown(a), "numa_nodes")
	must.EqOp(t, "1g.10gb", shown(a)["mig_profile"])
	for _, group := range groups {
		must.NoError(t, group.Validate())
	}
}

func TestIslandSizeHoldsForEveryGPUOfTheGroup(t *testing.T) {
	must.EqOp(t, "2", shown(DeviceGroups(simulated(t, "pcie-nvlink-pairs"), Grouping{})[0])["nvlink_island_size"])
	m := simulated(t, "pcie-nvlink-pairs")
	m.Paths[2][3].NVLinks, m.Paths[3][2].NVLinks = 0, 0
	must.EqOp(t, "1", shown(DeviceGroups(m, Grouping{})[0])["nvlink_island_size"])
}

func TestReserve(t *testing.T) {
	m := simulated(t, "pcie-nvlink-pairs")
	// Bridge 0 with 2 and 1 with 3 instead, so that order matters.
	m.GPUs[1], m.GPUs[2] = m.GPUs[2], m.GPUs[1]
	m.Paths = gpu.NewPaths(4)
	for _, pair := range [][2]int{{0, 2}, {1, 3}} {
		m.Paths[pair[0]][pair[1]].NVLinks, m.Paths[pair[1]][pair[0]].NVLinks = 12, 12
	}
	id := func(i int) string { return m.GPUs[i].UUID }

	envs, err := reserve(m, Grouping{}, []string{id(0), id(1), id(2), id(3), id(1)})
	must.NoError(t, err)
	order := id(0) + "," + id(2) + "," + id(1) + "," + id(3)
	must.Eq(t, map[string]string{
		"NVIDIA_VISIBLE_DEVICES": order, "CUDA_VISIBLE_DEVICES": order,
		"GPU_DEVICES_NVIDIA_A100_80GB_PCIE": order,
	}, envs)

	_, err = reserve(m, Grouping{}, []string{id(0), "GPU-no-such"})
	must.ErrorContains(t, err, `cannot reserve "GPU-no-such": this node has no such GPU`)
	_, err = reserve(m, Grouping{Ignored: map[string]bool{id(0): true}}, []string{id(0)})
	must.ErrorContains(t, err, id(0))
	_, err = reserve(m, Grouping{}, nil)
	must.ErrorContains(t, err, "no device ID")
	m.GPUs[0].UUID = ""
	_, err = reserve(m, Grouping{}, []string{""})
	must.Error(t, err)
}

func TestStatsAreNeverNil(t *testing.T) {
	m := simulated(t, "dgx-a100")
	now := time.Unix(1, 0)
	groups := StatsGroups(m, nil, Grouping{}, now)
	must.Len(t, 1, groups)
	must.MapLen(t, 8, groups[0].InstanceStats)
	for _, stats := range groups[0].InstanceStats {
		must.NotNil(t, stats.Stats)
		must.NotNil(t, stats.Summary)
		must.EqOp(t, now, stats.Timestamp)
	}

	samples, err := (&simulation{machine: m}).Samples()
	must.NoError(t, err)
	for _, stats := range StatsGroups(m, samples, Grouping{}, now)[0].InstanceStats {
		must.MapContainsKeys(t, stats.Stats.Attributes, []string{
			"GPU utilization", "Memory utilization", "Encoder utilization", "Decoder utilization", "Temperature",
			"Power usage", "Memory state", "BAR1 buffer state", "ECC L1 errors", "ECC L2 errors", "ECC memory errors",
		})
		must.EqOp(t, 512, *stats.Summary.IntNumeratorVal)
		must.EqOp(t, 81920, *stats.Summary.IntDenominatorVal)
		must.EqOp(t, "MiB", stats.Summary.Unit)
		must.EqOp(t, 66, *stats.Stats.Attributes["Power usage"].IntNumeratorVal)
	}
}

func TestGroupsByIsland(t *testing.T) {
	names := func(m *gpu.Machine) []string {
		var out []string
		for _, group := range DeviceGroups(m, Grouping{ByIsland: true}) {
			must.NoError(t, group.Validate())
			out = append(out, group.Name)
		}
		return out
	}
	pairs := simulated(t, "pcie-nvlink-pairs")
	must.Eq(t, []string{"NVIDIA A100 80GB PCIe island 0", "NVIDIA A100 80GB PCIe island 2"}, names(pairs))
	must.Eq(t, []string{"NVIDIA H100 80GB HBM3"}, names(simulated(t, "dgx-h100"))) // one island: nothing to tell apart

	broken := simulated(t, "pcie-nvlink-pairs")
	broken.Paths[0][1].NVLinks, broken.Paths[1][0].NVLinks = 0, 0
	must.Eq(t, []string{"NVIDIA A100 80GB PCIe", "NVIDIA A100 80GB PCIe island 2"}, names(broken))
	broken.Paths[2][3].NVLinks, broken.Paths[3][2].NVLinks = 0, 0
	must.Eq(t, []string{"NVIDIA A100 80GB PCIe"}, names(broken)) // no NVLink at all: all together

	envs, err := reserve(pairs, Grouping{ByIsland: true}, []string{pairs.GPUs[3].UUID, pairs.GPUs[2].UUID})
	must.NoError(t, err)
	must.MapContainsKey(t, envs, "GPU_DEVICES_NVIDIA_A100_80GB_PCIE_ISLAND_2")
}

func TestAReservationNamesWhatIsNear(t *testing.T) {
	m := simulated(t, "dgx-h100")
	envs, err := reserve(m, Grouping{}, []string{m.GPUs[4].UUID, m.GPUs[5].UUID})
	must.NoError(t, err)
	must.MapNotContainsKeys(t, envs, []string{EnvHCA, EnvCPUs, EnvNUMA}, must.Sprint("what is simulated is not there"))
	m.Simulated = false
	envs, err = reserve(m, Grouping{}, []string{m.GPUs[4].UUID, m.GPUs[5].UUID})
	must.NoError(t, err)
	var nics []string
	for _, k := range topology.NearestNICsOf(m, []int{4, 5}) {
		nics = append(nics, m.NICs[k].Device)
	}
	must.Len(t, 2, nics)
	must.EqOp(t, "="+strings.Join(nics, ","), envs[EnvHCA])
	must.EqOp(t, m.GPUs[4].CPUs, envs[EnvCPUs])
	must.EqOp(t, m.GPUs[4].CPUs+";"+m.GPUs[5].CPUs, envs[EnvCPUSets])
	must.EqOp(t, "1", envs[EnvNUMA])
	m.NICs[0].Device, m.NICPaths[4][0] = "", gpu.PIX
	m.GPUs[4].CPUs, m.GPUs[5].NUMANode = "", gpu.NoNUMA
	envs, err = reserve(m, Grouping{}, []string{m.GPUs[4].UUID, m.GPUs[5].UUID})
	must.NoError(t, err)
	for _, name := range []string{EnvHCA, EnvCPUs, EnvNUMA} {
		must.MapNotContainsKey(t, envs, name, must.Sprint("what is not known is left out"))
	}
}

func TestSlicesAreDevicesOfAnotherType(t *testing.T) {
	m := simulated(t, "pcie-nvlink-pairs")
	m.GPUs[2].Fault = "lost"
	for kind, want := range map[sharing.Kind]string{sharing.TimeSlice: "time slice", sharing.MPS: "mps"} {
		grouping := Grouping{MPSDir: "/s/mps", Sharing: []sharing.Rule{{Kind: kind, Replicas: 2, MemoryMiB: 10240, Threads: 30}}}
		groups := DeviceGroups(m, grouping)
		must.Len(t, 2, groups)
		for n, group := range groups {
			must.NoError(t, group.Validate())
			must.EqOp(t, "gpu-slice", group.Type)
			must.EqOp(t, fmt.Sprintf("NVIDIA A100 80GB PCIe %s %d of 2", want, n+1), group.Name)
			must.Len(t, 4, group.Devices)
			must.EqOp(t, string(kind), shown(group)["sharing"])
			must.EqOp(t, "3", shown(group)["healthy_count"], must.Sprint("what befalls the GPU befalls its slices"))
		}
		ids := []string{m.GPUs[1].UUID + "::1", m.GPUs[0].UUID + "::2", m.GPUs[0].UUID + "::1"}
		envs, err := reserve(m, grouping, ids)
		must.NoError(t, err)
		must.EqOp(t, m.GPUs[0].UUID+","+m.GPUs[1].UUID, envs[EnvCUDA], must.Sprint("each GPU once"))
		if kind == sharing.MPS {
			must.EqOp(t, "/s/mps/pipe", envs["CUDA_MPS_PIPE_DIRECTORY"])
			must.EqOp(t, "/s/mps/log", envs["CUDA_MPS_LOG_DIRECTORY"])
			must.EqOp(t, "30", envs["CUDA_MPS_ACTIVE_THREAD_PERCENTAGE"])
			must.EqOp(t, "0=20480M,1=10240M", envs["CUDA_MPS_PINNED_DEVICE_MEM_LIMIT"])
			must.EqOp(t, "10240MiB", shown(groups[0])["memory"])
		} else {
			must.MapNotContainsKey(t, envs, "CUDA_MPS_PIPE_DIRECTORY")
			must.EqOp(t, "81920MiB", shown(groups[0])["memory"])
		}
		stats := StatsGroups(m, nil, grouping, time.Unix(1, 0))
		must.Len(t, 2, stats)
		must.MapContainsKey(t, stats[0].InstanceStats, m.GPUs[3].UUID+"::1")
		_, err = reserve(m, grouping, []string{m.GPUs[0].UUID})
		must.ErrorContains(t, err, "has no such GPU", must.Sprint("a shared GPU is not there as a whole"))
	}
}

func TestSlotsStandForTheGPUsTheyAreBoundTo(t *testing.T) {
	m := simulated(t, "pcie-nvlink-pairs")
	m.GPUs[0].Fault = "lost"
	grouping := Grouping{SlotOf: map[string]string{}}
	for i := range m.GPUs {
		grouping.SlotOf[m.GPUs[i].UUID] = fmt.Sprintf("slot-%d", 4-i)
	}
	group := DeviceGroups(m, grouping)[0]
	must.NoError(t, group.Validate())
	must.EqOp(t, "slot-4", group.Devices[3].ID)
	must.False(t, group.Devices[3].Healthy)
	must.Nil(t, group.Devices[3].HwLocality)
	envs, err := reserve(m, grouping, []string{"slot-3", "slot-2"})
	must.NoError(t, err)
	must.EqOp(t, m.GPUs[1].UUID+","+m.GPUs[2].UUID, envs[EnvCUDA])
	samples := map[string]gpu.Sample{m.GPUs[1].UUID: {MemoryUsedMiB: pointer(uint64(7)), MemoryTotalMiB: pointer(uint64(9))}}
	must.EqOp(t, 7, *StatsGroups(m, samples, grouping, time.Unix(1, 0))[0].InstanceStats["slot-3"].Summary.IntNumeratorVal)
}
