// SPDX-License-Identifier: MPL-2.0

package nvml

import (
	"encoding/binary"
	"math"

	"github.com/NVIDIA/go-nvml/pkg/nvml"

	"github.com/nomad-gpu/nomad-gpu/device/gpu"
)

// energy is in joules; Volta and newer tell it.
func (q *query) energy() *uint64 {
	millijoules, ok := ask(q, q.device.GetTotalEnergyConsumption, "nvmlDeviceGetTotalEnergyConsumption")
	if !ok {
		return nil
	}
	joules := millijoules / 1000
	return &joules
}

func (q *query) clock(kind nvml.ClockType) *uint {
	mhz, ok := ask(q, func() (uint32, nvml.Return) { return q.device.GetClockInfo(kind) }, "nvmlDeviceGetClockInfo")
	if !ok {
		return nil
	}
	return number(mhz)
}

// pcie is in megabytes per second; NVML gives kilobytes, measured over 20 ms.
func (q *query) pcie(counter nvml.PcieUtilCounter) *uint {
	kilobytes, ok := ask(q, func() (uint32, nvml.Return) { return q.device.GetPcieThroughput(counter) }, "nvmlDeviceGetPcieThroughput")
	if !ok {
		return nil
	}
	return number(kilobytes / 1000)
}

// reasonNames are the bits of the reasons for which clocks are lowered, by
// NVML's names; the bit for an idle GPU is no reason.
var reasonNames = []struct {
	bit  uint64
	name string
}{
	{nvml.ClocksThrottleReasonApplicationsClocksSetting, "applications_clocks_setting"},
	{nvml.ClocksThrottleReasonDisplayClockSetting, "display_clock_setting"},
	{nvml.ClocksThrottleReasonHwPowerBrakeSlowdown, "hw_power_brake_slowdown"},
	{nvml.ClocksThrottleReasonHwSlowdown, "hw_slowdown"},
	{nvml.ClocksThrottleReasonHwThermalSlowdown, "hw_thermal_slowdown"},
	{nvml.ClocksThrottleReasonSwPowerCap, "sw_power_cap"},
	{nvml.ClocksEventReasonSwThermalSlowdown, "sw_thermal_slowdown"},
	{nvml.ClocksThrottleReasonSyncBoost, "sync_boost"},
}

func (q *query) clockReasons() []string {
	// The older name exists in every driver so far.
	mask, ok := ask(q, q.device.GetCurrentClocksThrottleReasons, "nvmlDeviceGetCurrentClocksThrottleReasons")
	if !ok {
		return nil
	}
	reasons := []string{}
	for _, r := range reasonNames {
		if mask&r.bit != 0 {
			reasons = append(reasons, r.name)
		}
	}
	return reasons
}

// fields reads what NVML gives by number only, all in one call. Each value says
// for itself whether the part has it.
func (q *query) fields(s *gpu.Sample) {
	values := []nvml.FieldValue{
		{FieldId: nvml.FI_DEV_MEMORY_TEMP},
		{FieldId: nvml.FI_DEV_NVLINK_THROUGHPUT_DATA_TX, ScopeId: math.MaxUint32}, // all links, in KiB
		{FieldId: nvml.FI_DEV_NVLINK_THROUGHPUT_DATA_RX, ScopeId: math.MaxUint32},
	}
	if _, ok := ask(q, func() (struct{}, nvml.Return) { return struct{}{}, q.device.GetFieldValues(values) }, "nvmlDeviceGetFieldValues"); !ok {
		return
	}
	if celsius, ok := fieldNumber(values[0]); ok && celsius > 0 && celsius < 200 {
		s.MemoryTemperatureC = number(uint32(celsius))
	}
	for n, place := range []**uint64{&s.NVLinkSentMiB, &s.NVLinkReceivedMiB} {
		if kib, ok := fieldNumber(values[1+n]); ok {
			m := kib / 1024
			*place = &m
		}
	}
}

// fieldNumber is a field's value as a whole number; the field says itself
// whether there is one.
func fieldNumber(v nvml.FieldValue) (uint64, bool) {
	if nvml.Return(v.NvmlReturn) != nvml.SUCCESS {
		return 0, false
	}
	switch nvml.ValueType(v.ValueType) {
	case nvml.VALUE_TYPE_UNSIGNED_INT:
		return uint64(binary.NativeEndian.Uint32(v.Value[:4])), true
	case nvml.VALUE_TYPE_UNSIGNED_LONG, nvml.VALUE_TYPE_UNSIGNED_LONG_LONG:
		return binary.NativeEndian.Uint64(v.Value[:8]), true
	}
	return 0, false
}
