// SPDX-License-Identifier: MPL-2.0

package nvml

import (
	"fmt"
	"strings"

	"github.com/NVIDIA/go-nvml/pkg/nvml"

	"github.com/nomad-gpu/nomad-gpu/device/gpu"
)

// query asks one GPU for its values. A value that the part does not have is
// left out; an answer that the GPU itself is broken becomes its fault; any
// other error leaves the value out with a warning.
type query struct {
	lib      *library
	device   nvml.Device
	index    int
	fault    string
	warnings []string
}

// ask calls a function of the library, which goes by one of these names.
func ask[T any](q *query, call func() (T, nvml.Return), names ...string) (T, bool) {
	var none T
	if !q.lib.can(names...) {
		return none, false
	}
	value, ret := call()
	switch {
	case ret == nvml.SUCCESS:
		return value, true
	case unsupported(ret):
	case broken(ret):
		if q.fault == "" {
			q.fault = fmt.Sprintf("%s: %v", names[0], failure(ret))
		}
	default:
		q.warnings = append(q.warnings, fmt.Sprintf("GPU %d: %s: %v", q.index, names[0], failure(ret)))
	}
	return none, false
}

const mib = 1 << 20

// describe reads the values that do not change while the driver runs.
func (q *query) describe() gpu.GPU {
	d := q.device
	g := gpu.GPU{Index: q.index, NUMANode: gpu.NoNUMA}
	g.UUID, _ = ask(q, d.GetUUID, "nvmlDeviceGetUUID")
	if pci, ok := ask(q, d.GetPciInfo, "nvmlDeviceGetPciInfo_v3", "nvmlDeviceGetPciInfo_v2", "nvmlDeviceGetPciInfo"); ok {
		g.BusID = busID(pci)
	}
	name, _ := ask(q, d.GetName, "nvmlDeviceGetName")
	g.Model = printable(name)
	if memory, ok := ask(q, d.GetMemoryInfo, "nvmlDeviceGetMemoryInfo"); ok {
		g.MemoryMiB = memory.Total / mib
	}
	if bar1, ok := ask(q, d.GetBAR1MemoryInfo, "nvmlDeviceGetBAR1MemoryInfo"); ok {
		g.BAR1MiB = bar1.Bar1Total / mib
	}
	clock := func(kind nvml.ClockType) uint {
		mhz, _ := ask(q, func() (uint32, nvml.Return) { return d.GetMaxClockInfo(kind) }, "nvmlDeviceGetMaxClockInfo")
		return uint(mhz)
	}
	g.CoresClockMHz, g.MemoryClockMHz = clock(nvml.CLOCK_SM), clock(nvml.CLOCK_MEM)
	if milliwatts, ok := ask(q, d.GetPowerManagementLimit, "nvmlDeviceGetPowerManagementLimit"); ok {
		g.PowerLimitW = uint(milliwatts) / 1000
	}
	if generation, ok := ask(q, d.GetMaxPcieLinkGeneration, "nvmlDeviceGetMaxPcieLinkGeneration"); ok && generation > 0 {
		g.PCIeGeneration = uint(generation)
	}
	if width, ok := ask(q, d.GetMaxPcieLinkWidth, "nvmlDeviceGetMaxPcieLinkWidth"); ok && width > 0 {
		g.PCIeWidth = uint(width)
	}
	if mode, ok := ask(q, d.GetDisplayMode, "nvmlDeviceGetDisplayMode"); ok {
		g.DisplayState = enabled(mode)
	}
	if mode, ok := ask(q, d.GetPersistenceMode, "nvmlDeviceGetPersistenceMode"); ok {
		g.PersistenceMode = enabled(mode)
	}
	if capability, ok := ask(q, func() ([2]int, nvml.Return) {
		major, minor, ret := d.GetCudaComputeCapability()
		return [2]int{major, minor}, ret
	}, "nvmlDeviceGetCudaComputeCapability"); ok {
		g.ComputeCapability = fmt.Sprintf("%d.%d", capability[0], capability[1])
	}
	if architecture, ok := ask(q, d.GetArchitecture, "nvmlDeviceGetArchitecture"); ok {
		g.Architecture = architectures[architecture]
	}
	g.Fabric = q.fabric()
	g.Fault = q.fault
	return g
}

// architectures are NVML's generations by name; an unknown one is left out.
var architectures = map[nvml.DeviceArchitecture]string{
	nvml.DEVICE_ARCH_KEPLER: "kepler", nvml.DEVICE_ARCH_MAXWELL: "maxwell", nvml.DEVICE_ARCH_PASCAL: "pascal",
	nvml.DEVICE_ARCH_VOLTA: "volta", nvml.DEVICE_ARCH_TURING: "turing", nvml.DEVICE_ARCH_AMPERE: "ampere",
	nvml.DEVICE_ARCH_ADA: "ada", nvml.DEVICE_ARCH_HOPPER: "hopper", nvml.DEVICE_ARCH_BLACKWELL: "blackwell",
	nvml.DEVICE_ARCH_RUBIN: "rubin",
}

func enabled(state nvml.EnableState) string {
	if state == nvml.FEATURE_ENABLED {
		return "Enabled"
	}
	return "Disabled"
}

// busID is the address as the kernel writes it. NVML pads the field with NULs.
func busID(pci nvml.PciInfo) string {
	var b strings.Builder
	for _, c := range pci.BusId {
		if c == 0 {
			break
		}
		b.WriteByte(byte(c))
	}
	return gpu.NormalBusID(b.String())
}

// printable drops what has no place in a name that ends up in job files.
func printable(s string) string {
	return strings.TrimSpace(strings.Map(func(r rune) rune {
		if r < ' ' || r == 0x7f || r == '\uFFFD' {
			return -1
		}
		return r
	}, s))
}

// sample reads the momentary values.
func (q *query) sample() gpu.Sample {
	d := q.device
	var s gpu.Sample
	if use, ok := ask(q, d.GetUtilizationRates, "nvmlDeviceGetUtilizationRates"); ok {
		s.UtilizationPercent, s.MemoryUtilizationPercent = number(use.Gpu), number(use.Memory)
	}
	coder := func(call func() (uint32, uint32, nvml.Return), name string) *uint {
		percent, ok := ask(q, func() (uint32, nvml.Return) {
			percent, _, ret := call()
			return percent, ret
		}, name)
		if !ok {
			return nil
		}
		return number(percent)
	}
	s.EncoderPercent = coder(d.GetEncoderUtilization, "nvmlDeviceGetEncoderUtilization")
	s.DecoderPercent = coder(d.GetDecoderUtilization, "nvmlDeviceGetDecoderUtilization")
	if celsius, ok := ask(q, func() (uint32, nvml.Return) { return d.GetTemperature(nvml.TEMPERATURE_GPU) }, "nvmlDeviceGetTemperature"); ok {
		s.TemperatureC = number(celsius)
	}
	if milliwatts, ok := ask(q, d.GetPowerUsage, "nvmlDeviceGetPowerUsage"); ok {
		s.PowerW = number(milliwatts / 1000)
	}
	if memory, ok := ask(q, d.GetMemoryInfo, "nvmlDeviceGetMemoryInfo"); ok {
		used, total := memory.Used/mib, memory.Total/mib
		s.MemoryUsedMiB, s.MemoryTotalMiB = &used, &total
	}
	if bar1, ok := ask(q, d.GetBAR1MemoryInfo, "nvmlDeviceGetBAR1MemoryInfo"); ok {
		used, total := bar1.Bar1Used/mib, bar1.Bar1Total/mib
		s.BAR1UsedMiB, s.BAR1TotalMiB = &used, &total
	}
	s.EnergyJ = q.energy()
	s.SMClockMHz, s.MemoryClockMHz = q.clock(nvml.CLOCK_SM), q.clock(nvml.CLOCK_MEM)
	s.ClockReasons = q.clockReasons()
	s.PCIeSentMBps, s.PCIeReceivedMBps = q.pcie(nvml.PCIE_UTIL_TX_BYTES), q.pcie(nvml.PCIE_UTIL_RX_BYTES)
	q.fields(&s)
	if processes, ok := ask(q, d.GetComputeRunningProcesses, "nvmlDeviceGetComputeRunningProcesses_v3", "nvmlDeviceGetComputeRunningProcesses_v2", "nvmlDeviceGetComputeRunningProcesses"); ok {
		s.Processes = number(uint32(len(processes)))
	}
	s.ECCL1 = q.eccErrors(nvml.MEMORY_LOCATION_L1_CACHE)
	s.ECCL2 = q.eccErrors(nvml.MEMORY_LOCATION_L2_CACHE)
	s.ECCMemory = q.eccErrors(nvml.MEMORY_LOCATION_DEVICE_MEMORY)
	return s
}

// eccErrors is the sum of corrected and uncorrected errors at a place.
func (q *query) eccErrors(place nvml.MemoryLocation) *uint64 {
	var sum uint64
	for _, kind := range []nvml.MemoryErrorType{nvml.MEMORY_ERROR_TYPE_CORRECTED, nvml.MEMORY_ERROR_TYPE_UNCORRECTED} {
		count, ok := ask(q, func() (uint64, nvml.Return) {
			return q.device.GetMemoryErrorCounter(kind, nvml.VOLATILE_ECC, place)
		}, "nvmlDeviceGetMemoryErrorCounter")
		if !ok {
			return nil
		}
		sum += count
	}
	return &sum
}

func number(v uint32) *uint {
	n := uint(v)
	return &n
}
