// SPDX-License-Identifier: MPL-2.0

package plugin

import (
	"context"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/nomad-gpu/nomad-gpu/device/gpu"
	"github.com/nomad-gpu/nomad-gpu/device/mps"
	"github.com/nomad-gpu/nomad-gpu/device/sharing"
)

// mpsEnv is what clients of MPS need: where the daemon is, and the limits of
// their slices, in the order of the visible GPUs.
func mpsEnv(m *gpu.Machine, units []sharing.Unit, visible []string, dir string) map[string]string {
	memory := make(map[string]uint64)
	threads := make(map[string]int)
	for _, u := range units {
		if u.Kind == sharing.MPS {
			uuid := m.GPUs[u.GPU].UUID
			memory[uuid] += u.MemoryMiB
			threads[uuid] += u.Threads
		}
	}
	if len(threads) == 0 {
		return nil
	}
	least := 100
	var limits []string
	for n, uuid := range visible {
		least = min(least, threads[uuid])
		if memory[uuid] > 0 {
			limits = append(limits, fmt.Sprintf("%d=%dM", n, memory[uuid]))
		}
	}
	envs := map[string]string{
		"CUDA_MPS_PIPE_DIRECTORY":           mps.PipeDirectory(dir),
		"CUDA_MPS_LOG_DIRECTORY":            mps.LogDirectory(dir),
		"CUDA_MPS_ACTIVE_THREAD_PERCENTAGE": strconv.Itoa(least),
	}
	if len(limits) > 0 {
		envs["CUDA_MPS_PINNED_DEVICE_MEM_LIMIT"] = strings.Join(limits, ",")
	}
	return envs
}

// serveMPS sees to the control daemon. GPUs whose slices it should serve are
// out of order without it.
func (d *Device) serveMPS(ctx context.Context, c config, m *gpu.Machine) {
	if c.mps == nil {
		return
	}
	var limits []mps.Limit
	var served []int
	for _, u := range c.grouping.units(m) {
		if u.Kind != sharing.MPS || slices.Contains(served, u.GPU) {
			continue
		}
		served = append(served, u.GPU)
		l := mps.Limit{UUID: m.GPUs[u.GPU].UUID, Threads: u.Threads, MemoryMiB: u.MemoryMiB}
		if u.Of > 0 && sharesGPU(c.grouping.Sharing) {
			l.Threads, l.MemoryMiB = 100, 0 // one client may have several slices
		}
		limits = append(limits, l)
	}
	if len(limits) == 0 {
		return
	}
	if err := c.mps.Ensure(ctx, limits); err != nil {
		for _, i := range served {
			if m.GPUs[i].Fault == "" {
				m.GPUs[i].Fault = "mps: " + err.Error()
			}
		}
	}
}

func sharesGPU(rules []sharing.Rule) bool {
	return slices.ContainsFunc(rules, func(r sharing.Rule) bool { return r.Kind == sharing.MPS && r.SameGPU })
}
