// SPDX-License-Identifier: MPL-2.0

package plugin

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/hashicorp/nomad/plugins/device"
	"github.com/hashicorp/nomad/plugins/shared/structs"

	"github.com/nomad-gpu/nomad-gpu/device/gpu"
)

// stats sends samples at once and then every interval, until the context ends.
// A failure is logged, not sent: an error makes Nomad wait up to half an hour,
// and the end of the stream is for good.
func (d *Device) stats(ctx context.Context, c config, source Source, interval time.Duration, out chan<- *device.StatsResponse) {
	defer close(out)
	if interval <= 0 {
		interval = time.Second
	}
	ticker := time.NewTicker(interval)
	defer ticker.Stop()
	failure := ""
	for {
		response, err := d.sample(c, source)
		switch {
		case err != nil && failure != err.Error():
			failure = err.Error()
			d.logger.Error("cannot read the GPUs' statistics; trying again", "error", err, "interval", interval.String())
		case err == nil:
			failure = ""
			select {
			case <-ctx.Done():
				return
			case out <- response:
			}
		}
		select {
		case <-ctx.Done():
			return
		case <-ticker.C:
		}
	}
}

func (d *Device) sample(c config, source Source) (response *device.StatsResponse, err error) {
	defer func() {
		if p := recover(); p != nil {
			response, err = nil, fmt.Errorf("panic while reading statistics: %v", p)
		}
	}()
	machine, err := d.known(source)
	if err != nil {
		return nil, err
	}
	samples, err := d.sampleOnce(source)
	if err != nil {
		return nil, err
	}
	return &device.StatsResponse{Groups: StatsGroups(machine, samples, c.bound(), time.Now())}, nil
}

// StatsGroups arranges samples by device group. Every GPU has an entry with a
// summary and a Stats object, also if nothing of it is known: `nomad node
// status -stats` panics without (Nomad 1.6.3).
func StatsGroups(m *gpu.Machine, samples map[string]gpu.Sample, grouping Grouping, at time.Time) []*device.DeviceGroupStats {
	byGroup := make(map[string]*device.DeviceGroupStats)
	for _, u := range grouping.units(m) {
		stats := byGroup[u.Group]
		if stats == nil {
			stats = &device.DeviceGroupStats{Vendor: vendor, Type: deviceTypeOf(u.Kind), Name: u.Group, InstanceStats: make(map[string]*device.DeviceStats)}
			byGroup[u.Group] = stats
		}
		// A slice shows its GPU's: what is its own alone, nothing tells.
		stats.InstanceStats[u.ID] = deviceStats(samples[m.GPUs[u.GPU].UUID], at)
	}
	groups := []*device.DeviceGroupStats{}
	for _, name := range slices.Sorted(maps.Keys(byGroup)) {
		groups = append(groups, byGroup[name])
	}
	return groups
}

// deviceStats uses the names and units of nomad-device-nvidia for what it has too.
func deviceStats(s gpu.Sample, at time.Time) *device.DeviceStats {
	memory := fraction(s.MemoryUsedMiB, s.MemoryTotalMiB, "MiB", "Memory in use / memory of the GPU")
	values := map[string]*structs.StatValue{
		"GPU utilization":     single(s.UtilizationPercent, "%", "Part of the last sampling period in which a kernel ran"),
		"Memory utilization":  single(s.MemoryUtilizationPercent, "%", "Part of the last sampling period in which memory was read or written"),
		"Encoder utilization": single(s.EncoderPercent, "%", "Use of the video encoder in the last sampling period"),
		"Decoder utilization": single(s.DecoderPercent, "%", "Use of the video decoder in the last sampling period"),
		"Temperature":         single(s.TemperatureC, "C", "Temperature of the GPU's die"),
		"Power usage":         single(s.PowerW, "W", "Power that the GPU and its memory draw"),
		"Memory state":        memory,
		"BAR1 buffer state":   fraction(s.BAR1UsedMiB, s.BAR1TotalMiB, "MiB", "BAR1 space in use / BAR1 space of the GPU"),
		"Memory temperature":  single(s.MemoryTemperatureC, "C", "Temperature of the GPU's memory"),
		"Energy":              single(s.EnergyJ, "J", "Energy used since the driver was loaded"),
		"SM clock":            single(s.SMClockMHz, "MHz", "Clock of the multiprocessors now"),
		"Memory clock":        single(s.MemoryClockMHz, "MHz", "Clock of the memory now"),
		"PCIe sent":           single(s.PCIeSentMBps, "MB/s", "Sent over PCIe"),
		"PCIe received":       single(s.PCIeReceivedMBps, "MB/s", "Received over PCIe"),
		"NVLink sent":         single(s.NVLinkSentMiB, "MiB", "Sent over all NVLinks since the driver was loaded"),
		"NVLink received":     single(s.NVLinkReceivedMiB, "MiB", "Received over all NVLinks since the driver was loaded"),
		"Processes":           single(s.Processes, "#", "Processes that compute on the GPU"),
		"Clocks lowered by":   words(s.ClockReasons, "Why the clocks are lower than they could be"),
		"ECC L1 errors":       single(s.ECCL1, "#", "Errors in the L1 cache since the driver was loaded"),
		"ECC L2 errors":       single(s.ECCL2, "#", "Errors in the L2 cache since the driver was loaded"),
		"ECC memory errors":   single(s.ECCMemory, "#", "Errors in the GPU's memory since the driver was loaded"),
	}
	for name, value := range values {
		if value == nil {
			delete(values, name)
		}
	}
	summary := memory
	if summary == nil {
		unknown := "N/A"
		summary = &structs.StatValue{StringVal: &unknown, Desc: "Memory in use is not known"}
	}
	return &device.DeviceStats{Summary: summary, Stats: &structs.StatObject{Attributes: values}, Timestamp: at}
}

func single[T uint | uint64](value *T, unit, desc string) *structs.StatValue {
	if value == nil {
		return nil
	}
	n := int64(*value)
	return &structs.StatValue{IntNumeratorVal: &n, Unit: unit, Desc: desc}
}

func words(list []string, desc string) *structs.StatValue {
	if list == nil {
		return nil
	}
	text := cmp.Or(strings.Join(list, ", "), "nothing")
	return &structs.StatValue{StringVal: &text, Desc: desc}
}

func fraction(value, of *uint64, unit, desc string) *structs.StatValue {
	if value == nil || of == nil {
		return nil
	}
	n, d := int64(*value), int64(*of)
	return &structs.StatValue{IntNumeratorVal: &n, IntDenominatorVal: &d, Unit: unit, Desc: desc}
}
