// SPDX-License-Identifier: MPL-2.0

package nvml

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/shoenig/test/must"

	"github.com/nomad-gpu/nomad-gpu/device/gpu"
)

func TestAMachineBehindSwitches(t *testing.T) {
	f := newFake(t, build(t, t.TempDir()))
	f.set("gpus 8", "links switch 18")
	m := f.machine()
	must.EqOp(t, "550.54.15", m.DriverVersion)
	must.EqOp(t, "12.4", m.CUDAVersion)
	must.EqOp(t, gpu.Present, m.NVSwitch)
	must.False(t, m.Simulated)
	must.Len(t, 0, m.Warnings)
	must.Len(t, 8, m.GPUs)
	must.Eq(t, gpu.GPU{
		Index: 3, UUID: "GPU-00000000-0000-0000-0000-000000000003", BusID: "0000:13:00.0",
		Model: "NVIDIA H100 80GB HBM3", Architecture: "hopper", ComputeCapability: "9.0",
		MemoryMiB: 81559, BAR1MiB: 131072, CoresClockMHz: 1980, MemoryClockMHz: 2619, PowerLimitW: 700,
		PCIeGeneration: 5, PCIeWidth: 16, DisplayState: "Disabled", PersistenceMode: "Enabled",
		NUMANode: gpu.NoNUMA, NVLinks: 18, NVLinkVersion: 4,
	}, m.GPUs[3])
	must.EqOp(t, gpu.Path{NVLinks: 18, PCIe: gpu.NODE}, m.Paths[0][3])
	must.EqOp(t, gpu.Path{NVLinks: 18, PCIe: gpu.SYS}, m.Paths[7][3])
}

func TestLinksOfOtherShapes(t *testing.T) {
	library := build(t, t.TempDir())
	cases := []struct {
		name, state string
		nvswitch    gpu.Presence
		near, far   uint // links between GPUs 0 and 1, 0 and 2
	}{
		{"bridge pairs", "links pairs 12", gpu.Absent, 12, 0},
		{"no NVLink", "links none", gpu.Absent, 0, 0},
		{"all links down", "links switch 0", gpu.Absent, 0, 0},
		{"switches hidden from a virtual machine", "links hidden 18", gpu.Present, 18, 18},
	}
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			f := newFake(t, library)
			f.set("gpus 4", c.state)
			m := f.machine()
			must.EqOp(t, c.nvswitch, m.NVSwitch)
			must.EqOp(t, c.near, m.Paths[0][1].NVLinks)
			must.EqOp(t, c.far, m.Paths[0][2].NVLinks)
			must.EqOp(t, c.near, m.GPUs[0].NVLinks)
			must.Len(t, 0, m.Warnings)
		})
	}
}

func TestAnOldLibraryLacksFunctionsAndIsReadWithoutThem(t *testing.T) {
	f := newFake(t, build(t, t.TempDir(), "OLD"))
	f.set("gpus 4", "links switch 6")
	m := f.machine()
	must.Len(t, 4, m.GPUs)
	must.EqOp(t, "", m.GPUs[0].Architecture)
	must.EqOp(t, "9.0", m.GPUs[0].ComputeCapability)
	must.EqOp(t, "10.1", m.CUDAVersion)
	must.EqOp(t, "0000:10:00.0", m.GPUs[0].BusID)

	f.set("gpus 4", "links pairs 2")
	m = f.machine()
	must.EqOp(t, 2, m.Paths[2][3].NVLinks)
	must.EqOp(t, gpu.Absent, m.NVSwitch)
}

func TestALibraryThatIsNoneIsRefusedByName(t *testing.T) {
	f := newFake(t, build(t, t.TempDir(), "EMPTY"))
	must.StrContains(t, f.ask("machine").Error, "lacks the function nvmlInit_v2 or nvmlInit: it is too old, or no NVML")
}

func TestADriverThatComesLateIsFound(t *testing.T) {
	built := build(t, t.TempDir())
	f := newFake(t, filepath.Join(t.TempDir(), "libnvidia-ml.so.1"))
	must.StrContains(t, f.ask("machine").Error, "is the NVIDIA driver installed?")

	text, err := os.ReadFile(built)
	must.NoError(t, err)
	must.NoError(t, os.WriteFile(f.library, text, 0o700))
	f.set("gpus 2", "error nvmlInit_v2 * 9")
	must.StrContains(t, f.ask("machine").Error, "Driver Not Loaded")
	must.StrContains(t, f.ask("machine").Error, "Driver Not Loaded")

	f.set("gpus 2")
	must.Len(t, 2, f.machine().GPUs)
}

func TestADriverThatGoesAwayIsFoundAgain(t *testing.T) {
	f := newFake(t, build(t, t.TempDir()))
	must.Len(t, 2, f.machine().GPUs)
	f.set("gpus 2", "error nvmlDeviceGetCount_v2 * 9", "error nvmlShutdown * 1")
	must.StrContains(t, f.ask("machine").Error, "counting GPUs: NVML error 9")
	must.EqOp(t, "", f.ask("samples").Error)
	f.set("gpus 3", "driver 560.1")
	m := f.machine()
	must.Len(t, 3, m.GPUs)
	must.EqOp(t, "560.1", m.DriverVersion)
}

func TestADriverThatWasReplacedNeedsANewProcess(t *testing.T) {
	f := newFake(t, build(t, t.TempDir()))
	f.set("gpus 2", "error nvmlInit_v2 * 18")
	r := f.ask("machine")
	must.StrContains(t, r.Error, "version mismatch")
	must.False(t, r.Stale, must.Sprint("a mismatch from the start is not cured by starting again"))

	f.set("gpus 2")
	f.machine()
	f.set("gpus 2", "error nvmlInit_v2 * 18", "error nvmlDeviceGetCount_v2 * 999")
	must.False(t, f.ask("machine").Stale)
	must.True(t, f.ask("machine").Stale)
}

func TestOneGPUThatFailsLeavesTheOthers(t *testing.T) {
	library := build(t, t.TempDir())
	cases := []struct {
		name, state string
		known       bool // read once before the failure
		gpus        int
		fault       string
		warning     string
	}{
		{"lost before it was ever seen", "error nvmlDeviceGetHandleByIndex_v2 1 15", false, 2, "", "GPU 1 cannot be asked: NVML error 15: GPU is lost"},
		{"lost later", "error nvmlDeviceGetHandleByIndex_v2 1 15", true, 3, "NVML error 15: GPU is lost", "GPU 1 cannot be asked"},
		{"no UUID", "error nvmlDeviceGetUUID 1 999", false, 2, "", "GPU 1: nvmlDeviceGetUUID: NVML error 999"},
		{"no UUID any more", "error nvmlDeviceGetUUID 1 15", true, 3, "nvmlDeviceGetUUID: NVML error 15: GPU is lost", "GPU 1 does not tell its UUID"},
		{"needs a reset", "error nvmlDeviceGetMemoryInfo 1 16", false, 3, "nvmlDeviceGetMemoryInfo: NVML error 16", "GPU 1 (GPU-"},
		{"fails in the middle", "error nvmlDeviceGetMemoryInfo 1 15", true, 3, "nvmlDeviceGetMemoryInfo: NVML error 15", "GPU 1 (GPU-"},
	}
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			f := newFake(t, library)
			if c.known {
				f.set("gpus 3", "links switch 18")
				f.machine()
			}
			f.set("gpus 3", "links switch 18", c.state)
			m := f.machine()
			must.StrContains(t, strings.Join(m.Warnings, "\n"), c.warning)
			must.Len(t, c.gpus, m.GPUs)
			must.EqOp(t, 0, m.GPUs[0].Index)
			must.EqOp(t, 2, m.GPUs[c.gpus-1].Index)
			must.EqOp(t, 18, m.Paths[0][c.gpus-1].NVLinks)
			if c.gpus == 3 {
				must.StrContains(t, m.GPUs[1].Fault, c.fault)
				must.EqOp(t, "GPU-00000000-0000-0000-0000-000000000001", m.GPUs[1].UUID)
				if c.known {
					must.EqOp(t, 81559, m.GPUs[1].MemoryMiB)
				}
			}
			f.set("gpus 3", "links switch 18")
			m = f.machine()
			must.Len(t, 3, m.GPUs)
			must.EqOp(t, "", m.GPUs[1].Fault)
			must.Len(t, 0, m.Warnings)
		})
	}
}

func TestAGPUThatIsNoLongerListedIsStillNamed(t *testing.T) {
	f := newFake(t, build(t, t.TempDir()))
	f.set("gpus 3")
	f.machine()
	f.set("gpus 2")
	m := f.machine()
	must.Len(t, 3, m.GPUs)
	must.EqOp(t, "the driver no longer lists it", m.GPUs[2].Fault)
	must.EqOp(t, "GPU-00000000-0000-0000-0000-000000000002", m.GPUs[2].UUID)
	f.set("gpus 2", "error nvmlDeviceGetCount_v2 * 9")
	f.ask("machine")
	f.set("gpus 2") // a driver that was loaded anew knows what is there
	must.Len(t, 2, f.machine().GPUs)
}

func TestIfNoGPUWorksTheReadingFails(t *testing.T) {
	f := newFake(t, build(t, t.TempDir()))
	f.set("gpus 2", "error nvmlDeviceGetHandleByIndex_v2 * 15")
	must.StrContains(t, f.ask("machine").Error, "none of 2 GPUs works")
	f.set("gpus 0")
	must.Len(t, 0, f.machine().GPUs)
}

// functions are all that a reading and a sampling call for one GPU.
var functions = []string{
	"nvmlDeviceGetHandleByIndex_v2", "nvmlDeviceGetUUID", "nvmlDeviceGetName", "nvmlDeviceGetPciInfo_v3",
	"nvmlDeviceGetMemoryInfo", "nvmlDeviceGetBAR1MemoryInfo", "nvmlDeviceGetMaxClockInfo",
	"nvmlDeviceGetPowerManagementLimit", "nvmlDeviceGetMaxPcieLinkGeneration", "nvmlDeviceGetMaxPcieLinkWidth",
	"nvmlDeviceGetDisplayMode", "nvmlDeviceGetPersistenceMode", "nvmlDeviceGetCudaComputeCapability",
	"nvmlDeviceGetArchitecture", "nvmlDeviceGetTopologyCommonAncestor", "nvmlDeviceGetNvLinkState",
	"nvmlDeviceGetNvLinkVersion", "nvmlDeviceGetNvLinkRemotePciInfo_v2", "nvmlDeviceGetNvLinkRemoteDeviceType",
	"nvmlDeviceGetUtilizationRates", "nvmlDeviceGetEncoderUtilization", "nvmlDeviceGetDecoderUtilization",
	"nvmlDeviceGetTemperature", "nvmlDeviceGetPowerUsage", "nvmlDeviceGetMemoryErrorCounter",
	"nvmlDeviceGetRemappedRows", "nvmlDeviceGetRetiredPagesPendingStatus", "nvmlDeviceGetTotalEccErrors",
	"nvmlDeviceGetCurrentClocksThrottleReasons", "nvmlDeviceGetFieldValues", "nvmlDeviceRegisterEvents",
	"nvmlDeviceGetMigMode", "nvmlDeviceGetTotalEnergyConsumption", "nvmlDeviceGetClockInfo", "nvmlDeviceGetPcieThroughput",
	"nvmlDeviceGetGpuFabricInfoV", "nvmlDeviceGetComputeRunningProcesses_v3", "nvmlDeviceGetPowerManagementLimitConstraints",
}

// TestEveryErrorOfEveryCallLeavesTheOtherGPUs goes through NVML's error codes
// on one GPU of three: no crash, the others whole, and what is "not supported"
// no fault.
func TestEveryErrorOfEveryCallLeavesTheOtherGPUs(t *testing.T) {
	f := newFake(t, build(t, t.TempDir()))
	f.set("gpus 3", "links switch 18")
	whole := f.machine()
	codes := []string{"1", "2", "3", "4", "6", "7", "8", "10", "11", "12", "13", "14", "15", "16", "17", "19", "20", "21", "22", "23", "24", "25", "26", "27", "28", "29", "999"}
	for _, function := range functions {
		for _, code := range codes {
			if code == "7" && function == "nvmlDeviceGetComputeRunningProcesses_v3" {
				continue // "too small": the binding asks again with more, for ever if it stays so
			}
			f.set("gpus 3", "links switch 18", "error "+function+" 1 "+code)
			r := f.ask("machine")
			must.EqOp(t, "", r.Error, must.Sprint(function, code))
			must.Len(t, 3, r.Machine.GPUs, must.Sprint(function, code))
			must.Eq(t, whole.GPUs[0], r.Machine.GPUs[0], must.Sprint(function, code))
			must.Eq(t, whole.GPUs[2], r.Machine.GPUs[2], must.Sprint(function, code))
			if code == "3" && function != "nvmlDeviceGetHandleByIndex_v2" && function != "nvmlDeviceGetUUID" {
				must.EqOp(t, "", r.Machine.GPUs[1].Fault, must.Sprint(function))
				must.Len(t, 0, r.Machine.Warnings, must.Sprint(function))
			}
			must.EqOp(t, "", f.ask("samples").Error)
			must.MapContainsKey(t, f.ask("bounds").Bounds, whole.GPUs[0].UUID)
			must.MapContainsKey(t, f.ask("health").Health, whole.GPUs[0].UUID)
		}
	}
}

func TestSamples(t *testing.T) {
	f := newFake(t, build(t, t.TempDir()))
	must.MapLen(t, 0, f.ask("samples").Samples)
	f.machine()
	f.set("gpus 2", "error nvmlDeviceGetPowerUsage 1 3", "error nvmlDeviceGetMemoryInfo 1 3", "error nvmlDeviceGetMemoryErrorCounter 1 3")
	samples := f.ask("samples").Samples
	must.MapLen(t, 2, samples)
	s := samples["GPU-00000000-0000-0000-0000-000000000000"]
	for _, v := range []struct {
		name string
		want uint
		got  *uint
	}{
		{"utilization", 42, s.UtilizationPercent}, {"memory utilization", 7, s.MemoryUtilizationPercent},
		{"encoder", 1, s.EncoderPercent}, {"decoder", 2, s.DecoderPercent}, {"temperature", 35, s.TemperatureC}, {"power", 120, s.PowerW},
	} {
		must.NotNil(t, v.got, must.Sprint(v.name))
		must.EqOp(t, v.want, *v.got, must.Sprint(v.name))
	}
	must.EqOp(t, 559, *s.MemoryUsedMiB)
	must.EqOp(t, 81559, *s.MemoryTotalMiB)
	must.EqOp(t, 2, *s.BAR1UsedMiB)
	must.EqOp(t, 3, *s.ECCL1)
	must.EqOp(t, 4, *s.ECCMemory)

	other := samples["GPU-00000000-0000-0000-0000-000000000001"]
	must.Nil(t, other.PowerW)
	must.Nil(t, other.MemoryUsedMiB)
	must.Nil(t, other.ECCL2)
	must.NotNil(t, other.UtilizationPercent)
}

func TestMomentaryValuesThatNewerPartsHave(t *testing.T) {
	f := newFake(t, build(t, t.TempDir()))
	f.set("gpus 1", "health 0 0 0 0 0 36 0") // software power cap and thermal slowdown
	f.machine()
	s := f.ask("samples").Samples["GPU-00000000-0000-0000-0000-000000000000"]
	must.EqOp(t, 5000, *s.EnergyJ)
	must.EqOp(t, 345, *s.SMClockMHz)
	must.EqOp(t, 1593, *s.MemoryClockMHz)
	must.EqOp(t, 12, *s.PCIeSentMBps)
	must.EqOp(t, 34, *s.PCIeReceivedMBps)
	must.EqOp(t, 41, *s.MemoryTemperatureC)
	must.EqOp(t, 4<<20, *s.NVLinkSentMiB) // 2^32 KiB
	must.EqOp(t, 8<<20, *s.NVLinkReceivedMiB)
	must.EqOp(t, 2, *s.Processes)
	must.Eq(t, []string{"sw_power_cap", "sw_thermal_slowdown"}, s.ClockReasons)

	f.set("gpus 1", "error nvmlDeviceGetTotalEnergyConsumption 0 3", "error nvmlDeviceGetFieldValues 0 3", "error nvmlDeviceGetComputeRunningProcesses_v3 0 4",
		"error nvmlDeviceGetCurrentClocksThrottleReasons 0 3", "error nvmlDeviceGetPcieThroughput 0 3", "error nvmlDeviceGetClockInfo 0 3")
	s = f.ask("samples").Samples["GPU-00000000-0000-0000-0000-000000000000"]
	must.Nil(t, s.EnergyJ)
	must.Nil(t, s.SMClockMHz)
	must.Nil(t, s.PCIeSentMBps)
	must.Nil(t, s.MemoryTemperatureC)
	must.Nil(t, s.NVLinkSentMiB)
	must.Nil(t, s.Processes)
	must.Nil(t, s.ClockReasons)
	must.NotNil(t, s.TemperatureC)
}

func TestTheFabricOfSwitches(t *testing.T) {
	f := newFake(t, build(t, t.TempDir()))
	for line, want := range map[string]*gpu.Fabric{
		"fabric 0 0 0": nil,
		"fabric 1 0 0": {Cluster: "abababab-abab-abab-abab-abababababab"},
		"fabric 3 0 7": {Cluster: "abababab-abab-abab-abab-abababababab", Clique: 7, Registered: true},
		"fabric 3 9 7": {Cluster: "abababab-abab-abab-abab-abababababab", Clique: 7, Registered: true, Status: "NVML error 9: Driver Not Loaded"},
	} {
		f.set("gpus 1", line)
		must.Eq(t, want, f.machine().GPUs[0].Fabric, must.Sprint(line))
	}
}
