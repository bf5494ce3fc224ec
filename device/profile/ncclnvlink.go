// SPDX-License-Identifier: MPL-2.0

package profile

import (
	"slices"
	"strconv"
	"strings"

	"github.com/nomad-gpu/nomad-gpu/device/gpu"
)

// nvlinks reads the <nvlink> elements. A target is another GPU, an NVSwitch, or
// a CPU (POWER).
func (r *ncclReader) nvlinks() {
	m := r.machine
	position := make(map[string]int, len(m.GPUs))
	for i, g := range m.GPUs {
		position[g.BusID] = i
	}
	direct := make([][]uint, len(m.GPUs))
	switched := make([]uint, len(m.GPUs))
	any := false
	for i, p := range r.gpus {
		direct[i] = make([]uint, len(m.GPUs))
		if p.gpu == nil {
			continue
		}
		for _, link := range p.gpu.children {
			if link.name != "nvlink" {
				continue
			}
			count, ok := r.linkCount(link)
			if !ok {
				continue
			}
			any = true
			target, class := gpu.NormalBusID(link.attr["target"]), link.attr["tclass"]
			peer, known := position[target]
			switch {
			case strings.HasPrefix(class, classNPU):
				m.GPUs[i].NVLinks += count
			case strings.HasPrefix(class, classSwitch):
				m.GPUs[i].NVLinks += count
				switched[i] += count
			case known && peer == i:
				m.Warn("line %d: GPU %s names itself as the target of %d NVLinks; they are left out", link.line, target, count)
			case known:
				m.GPUs[i].NVLinks += count
				direct[i][peer] += count
			default:
				m.Warn("line %d: GPU %s has %d NVLinks to %s, which is neither a GPU of this file nor a switch (class %q)",
					link.line, m.GPUs[i].BusID, count, target, class)
			}
		}
		if m.GPUs[i].NVLinks > gpu.MostNVLinks {
			m.Warn("line %d: GPU %s has %d NVLinks; no GPU has more than %d", p.gpu.line, m.GPUs[i].BusID, m.GPUs[i].NVLinks, gpu.MostNVLinks)
		}
	}
	m.JoinNVLinks(switched, direct)
	switch {
	case slices.ContainsFunc(switched, func(links uint) bool { return links > 0 }):
		m.NVSwitch = gpu.Present
	case any:
		m.NVSwitch = gpu.Absent
	}
}

func (r *ncclReader) linkCount(link *node) (uint, bool) {
	count, err := strconv.ParseUint(link.attr["count"], 10, 8)
	if err != nil || count == 0 {
		r.machine.Warn("line %d: nvlink count %q is left out; it must be a number from 1 to 255", link.line, link.attr["count"])
		return 0, false
	}
	return uint(count), true
}

// maskToList turns NCCL's CPU mask, words of hex digits with the highest CPUs
// first, into the kernel's list: "00000000,000fffff" gives "0-19". Empty if it
// is no mask.
func maskToList(mask string) string {
	words := strings.Split(mask, ",")
	if mask == "" || len(words) > 512 {
		return ""
	}
	var ranges []string
	start, cpu := -1, 0
	end := func() {
		switch {
		case start < 0:
		case start == cpu-1:
			ranges = append(ranges, strconv.Itoa(start))
		default:
			ranges = append(ranges, strconv.Itoa(start)+"-"+strconv.Itoa(cpu-1))
		}
		start = -1
	}
	for at := len(words) - 1; at >= 0; at-- {
		word, err := strconv.ParseUint(words[at], 16, affinityWidth*4)
		if err != nil {
			return ""
		}
		for bit := range affinityWidth * 4 {
			if word>>bit&1 == 0 {
				end()
			} else if start < 0 {
				start = cpu
			}
			cpu++
		}
	}
	end()
	return strings.Join(ranges, ",")
}
