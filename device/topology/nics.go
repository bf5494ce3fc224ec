// SPDX-License-Identifier: MPL-2.0

package topology

import (
	"slices"

	"github.com/nomad-gpu/nomad-gpu/device/gpu"
)

// Nearest is the best PCIe level that a GPU reaches to any NIC, and the NICs
// at that level, by position. [gpu.SYS] means that none is near;
// [gpu.NoLevel] and no NIC, that there is none that counts, or that it is not
// known.
type Nearest struct {
	Level gpu.Level
	NICs  []int
}

// NearestNICs finds, for each GPU, its nearest NICs. Only NICs that can do
// RDMA count: one that cannot will not move GPU data however near it is. If a
// path to any of them is not known, neither is the nearest, unless one known
// is as near as can be.
func NearestNICs(m *gpu.Machine) []Nearest {
	nearest := make([]Nearest, len(m.GPUs))
	for i := range m.GPUs {
		var best Nearest
		unknown := false
		for k := range m.NICs {
			level := m.NICPaths[i][k]
			switch {
			case !m.NICs[k].RDMA:
			case level == gpu.NoLevel:
				unknown = true
			case level > best.Level:
				best = Nearest{Level: level, NICs: []int{k}}
			case level == best.Level:
				best.NICs = append(best.NICs, k)
			}
		}
		if unknown && best.Level != gpu.PIX {
			best = Nearest{}
		}
		nearest[i] = best
	}
	return nearest
}

// NearestNICsOf joins the nearest NICs of several GPUs, in the GPUs' order and
// without duplicates. NICs that are near none of them (SYS) are left out,
// unless no GPU has a near one.
func NearestNICsOf(m *gpu.Machine, gpus []int) []int {
	all := NearestNICs(m)
	join := func(atLeast gpu.Level) []int {
		var out []int
		for _, i := range gpus {
			if all[i].Level < atLeast {
				continue
			}
			for _, k := range all[i].NICs {
				if !slices.Contains(out, k) {
					out = append(out, k)
				}
			}
		}
		return out
	}
	if near := join(gpu.NODE); len(near) > 0 {
		return near
	}
	return join(gpu.SYS)
}
