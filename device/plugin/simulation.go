// SPDX-License-Identifier: MPL-2.0

package plugin

import (
	"slices"
	"sync"

	"github.com/nomad-gpu/nomad-gpu/device/gpu"
	"github.com/nomad-gpu/nomad-gpu/device/health"
	"github.com/nomad-gpu/nomad-gpu/device/power"
	"github.com/nomad-gpu/nomad-gpu/device/profile"
)

// simulation is a source that reports a machine from a profile, with faults
// from a file that may change at any time.
type simulation struct {
	machine *gpu.Machine
	faults  string // path; empty for none

	mu      sync.Mutex
	current []profile.Fault
	told    map[int][]uint64 // the Xids that were reported, by GPU
	limits  map[string]uint  // power limits that were set, by UUID
}

// Simulate is a source that reports the machine, with the faults of a file; its
// path is empty for none.
func Simulate(m *gpu.Machine, faults string) Source { return &simulation{machine: m, faults: faults} }

// Machine reads the faults anew.
func (s *simulation) Machine() (*gpu.Machine, error) {
	if s.faults == "" {
		return s.limited(s.machine), nil
	}
	faults, err := profile.LoadFaults(s.faults, len(s.machine.GPUs))
	if err != nil {
		return nil, err
	}
	s.mu.Lock()
	s.current = faults
	s.mu.Unlock()
	return s.limited(profile.WithFaults(s.machine, faults)), nil
}

// limited is the machine with the power limits that were set.
func (s *simulation) limited(m *gpu.Machine) *gpu.Machine {
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(s.limits) == 0 {
		return m
	}
	changed := *m
	changed.GPUs = slices.Clone(m.GPUs)
	for i := range changed.GPUs {
		if watts, set := s.limits[changed.GPUs[i].UUID]; set {
			changed.GPUs[i].PowerLimitW = watts
		}
	}
	return &changed
}

// PowerBounds are from a third of a part's limit up to it.
func (s *simulation) PowerBounds() map[string]power.Bounds {
	s.mu.Lock()
	defer s.mu.Unlock()
	all := make(map[string]power.Bounds)
	for _, g := range s.machine.GPUs {
		if g.PowerLimitW == 0 {
			continue
		}
		b := power.Bounds{Least: g.PowerLimitW / 3, Most: g.PowerLimitW, Now: g.PowerLimitW}
		if watts, set := s.limits[g.UUID]; set {
			b.Now = watts
		}
		all[g.UUID] = b
	}
	return all
}

// SetPowerLimit never fails.
func (s *simulation) SetPowerLimit(uuid string, watts uint) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.limits == nil {
		s.limits = make(map[string]uint)
	}
	s.limits[uuid] = watts
	return nil
}

// Observe reports the file's conditions, and its Xids once each time that a
// GPU's list changes.
func (s *simulation) Observe() map[string]health.Observation {
	s.mu.Lock()
	defer s.mu.Unlock()
	observations := make(map[string]health.Observation)
	told := make(map[int][]uint64)
	for _, fault := range s.current {
		o := health.Observation{
			Epoch: fault.Epoch, ThermalSlowdown: fault.ThermalSlowdown, PowerBrake: fault.PowerBrake,
			RemapPending: fault.RemapPending, RemapFailed: fault.RemapFailed, TemperatureC: fault.TemperatureC,
		}
		if !slices.Equal(fault.Xids, s.told[fault.GPU]) {
			o.Xids = fault.Xids
		}
		told[fault.GPU] = fault.Xids
		observations[s.machine.GPUs[fault.GPU].UUID] = o
	}
	s.told = told
	return observations
}

// Samples are those of an idle GPU, steady and within what the part can have:
// little memory taken by the driver, a sixth of the power limit, 30 °C and one
// more with every GPU along the air's way.
func (s *simulation) Samples() (map[string]gpu.Sample, error) {
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
