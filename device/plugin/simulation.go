// SPDX-License-Identifier: MPL-2.0

package plugin

import "github.com/nomad-gpu/nomad-gpu/device/gpu"

// simulation is a source that reports a machine from a profile.
type simulation struct{ machine *gpu.Machine }

func (s simulation) Machine() (*gpu.Machine, error) { return s.machine, nil }

// Samples are those of an idle GPU, steady and within what the part can have:
// little memory taken by the driver, a sixth of the power limit, 30 °C and one
// more with every GPU along the air's way.
func (s simulation) Samples() (map[string]gpu.Sample, error) {
	samples := make(map[string]gpu.Sample, len(s.machine.GPUs))
	for i, g := range s.machine.GPUs {
		sample := gpu.Sample{
			UtilizationPercent: new(uint), MemoryUtilizationPercent: new(uint),
			EncoderPercent: new(uint), DecoderPercent: new(uint),
			ECCL1: new(uint64), ECCL2: new(uint64), ECCMemory: new(uint64),
			TemperatureC: pointer(uint(30 + i)),
		}
		if g.PowerLimitW > 0 {
			sample.PowerW = pointer(g.PowerLimitW / 6)
		}
		if g.MemoryMiB > 0 {
			sample.MemoryUsedMiB, sample.MemoryTotalMiB = pointer(min(uint64(512), g.MemoryMiB)), pointer(g.MemoryMiB)
		}
		if g.BAR1MiB > 0 {
			sample.BAR1UsedMiB, sample.BAR1TotalMiB = pointer(min(uint64(4), g.BAR1MiB)), pointer(g.BAR1MiB)
		}
		samples[g.UUID] = sample
	}
	return samples, nil
}

func pointer[T any](v T) *T { return &v }
