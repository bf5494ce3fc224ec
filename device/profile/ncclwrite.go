// SPDX-License-Identifier: MPL-2.0

package profile

import (
	"cmp"
	"encoding/xml"
	"errors"
	"fmt"
	"math/big"
	"slices"
	"strconv"
	"strings"

	"github.com/nomad-gpu/nomad-gpu/device/gpu"
)

// The file that NCCL takes as NCCL_TOPO_FILE: CPUs with the PCI devices below
// them. As in the files that clouds ship, NVLinks are left to NCCL, which asks
// the driver, and switches stand under bus IDs that no device has.
type (
	ncclSystem struct {
		XMLName xml.Name  `xml:"system"`
		Version int       `xml:"version,attr"`
		CPUs    []ncclCPU `xml:"cpu"`
	}
	ncclCPU struct {
		NUMA     int       `xml:"numaid,attr"`
		Affinity string    `xml:"affinity,attr,omitempty"`
		Arch     string    `xml:"arch,attr"`
		PCI      []ncclPCI `xml:"pci"`
	}
	ncclPCI struct {
		BusID string    `xml:"busid,attr"`
		Class string    `xml:"class,attr"`
		Speed string    `xml:"link_speed,attr,omitempty"`
		Width uint      `xml:"link_width,attr,omitempty"`
		PCI   []ncclPCI `xml:"pci"`
	}
)

// WriteNCCL gives the machine's PCI tree as NCCL reads it. It fails where too
// little is known: a wrong file is worse than none.
func WriteNCCL(m *gpu.Machine) ([]byte, error) {
	w := ncclWriter{m: m}
	if err := w.check(); err != nil {
		return nil, err
	}
	system := ncclSystem{Version: 1}
	var nodes []int
	for _, d := range w.devices {
		nodes = append(nodes, d.numa)
	}
	slices.Sort(nodes)
	for _, numa := range slices.Compact(nodes) {
		cpu := ncclCPU{NUMA: numa, Arch: "x86_64"}
		var here []int
		for n, d := range w.devices {
			if d.numa == numa {
				here = append(here, n)
				cpu.Affinity = cmp.Or(cpu.Affinity, listToMask(d.cpus))
			}
		}
		for _, branch := range w.cluster(here, gpu.PXB) {
			cpu.PCI = append(cpu.PCI, w.branch(branch)...)
		}
		system.CPUs = append(system.CPUs, cpu)
	}
	text, err := xml.MarshalIndent(system, "", "  ")
	if err != nil {
		return nil, err
	}
	return append(text, '\n'), nil
}

// ncclDevice is a GPU or NIC of the file.
type ncclDevice struct {
	gpu, nic int // position, or -1
	busID    string
	numa     int
	cpus     string
	element  ncclPCI
}

type ncclWriter struct {
	m        *gpu.Machine
	devices  []ncclDevice
	switches int
}

// check collects the devices and says what is not known of them.
func (w *ncclWriter) check() error {
	if len(w.m.GPUs) == 0 {
		return errors.New("the machine has no GPU")
	}
	for i, g := range w.m.GPUs {
		if g.Parent != "" {
			return fmt.Errorf("GPU %d is a MIG instance: NCCL needs whole GPUs", g.Index)
		}
		if g.BusID == "" || g.NUMANode == gpu.NoNUMA {
			return fmt.Errorf("GPU %d: its bus ID or NUMA node is not known", g.Index)
		}
		speed := map[uint]string{1: "2.5", 2: "5.0", 3: "8.0", 4: "16.0", 5: "32.0", 6: "64.0"}[g.PCIeGeneration]
		if speed != "" {
			speed += " GT/s PCIe"
		}
		w.devices = append(w.devices, ncclDevice{i, -1, g.BusID, g.NUMANode, g.CPUs, ncclPCI{BusID: g.BusID, Class: "0x030200", Speed: speed, Width: g.PCIeWidth}})
	}
	for k, n := range w.m.NICs {
		if n.BusID == "" || n.NUMANode == gpu.NoNUMA {
			continue // NCCL finds and adds those that it uses
		}
		w.devices = append(w.devices, ncclDevice{-1, k, n.BusID, n.NUMANode, "", ncclPCI{BusID: n.BusID, Class: "0x020000"}})
	}
	return nil
}

// level is the PCIe distance of two devices, NoLevel for two NICs: of those it
// is known only through the GPUs between them.
func (w *ncclWriter) level(a, b ncclDevice) gpu.Level {
	switch {
	case a.gpu >= 0 && b.gpu >= 0:
		return w.m.Paths[a.gpu][b.gpu].PCIe
	case a.gpu >= 0 && b.nic >= 0:
		return w.m.NICPaths[a.gpu][b.nic]
	case a.nic >= 0 && b.gpu >= 0:
		return w.m.NICPaths[b.gpu][a.nic]
	}
	return gpu.NoLevel
}

// cluster parts devices into sets whose members are at least so near to one another.
func (w *ncclWriter) cluster(devices []int, near gpu.Level) [][]int {
	var sets [][]int
	left := slices.Clone(devices)
	for len(left) > 0 {
		set := []int{left[0]}
		left = left[1:]
		for at := 0; at < len(set); at++ {
			left = slices.DeleteFunc(left, func(n int) bool {
				joined := w.level(w.devices[set[at]], w.devices[n]) >= near
				if joined {
					set = append(set, n)
				}
				return joined
			})
		}
		slices.Sort(set)
		sets = append(sets, set)
	}
	return sets
}

// branch is a set of devices below one root: switches where several share one,
// and a switch above them where those share another.
func (w *ncclWriter) branch(devices []int) []ncclPCI {
	var all []ncclPCI
	for _, set := range w.cluster(devices, gpu.PIX) {
		var elements []ncclPCI
		for _, n := range set {
			elements = append(elements, w.devices[n].element)
		}
		if len(set) > 1 {
			elements = []ncclPCI{w.bridge(elements)}
		}
		all = append(all, elements...)
	}
	if len(all) > 1 {
		// Devices alone stand a step deeper, or they would seem to share a switch.
		for n := range all {
			if len(all[n].PCI) == 0 {
				all[n] = w.bridge(all[n : n+1 : n+1])
			}
		}
		return []ncclPCI{w.bridge(all)}
	}
	return all
}

func (w *ncclWriter) bridge(below []ncclPCI) ncclPCI {
	w.switches++
	return ncclPCI{BusID: fmt.Sprintf("ffff:%02x:%02x.0", 0xff-w.switches/32, w.switches%32), Class: "0x060400", PCI: slices.Clone(below)}
}

// maxCPU bounds a CPU's number in a mask.
const maxCPU = 4096

// listToMask is the reverse of maskToList; empty if it is no list.
func listToMask(list string) string {
	mask := new(big.Int)
	for _, part := range strings.Split(list, ",") {
		first, last, isRange := strings.Cut(part, "-")
		if !isRange {
			last = first
		}
		from, err := strconv.Atoi(first)
		to, err2 := strconv.Atoi(last)
		if err != nil || err2 != nil || from < 0 || to < from || to >= maxCPU {
			return ""
		}
		for cpu := from; cpu <= to; cpu++ {
			mask.SetBit(mask, cpu, 1)
		}
	}
	digits := fmt.Sprintf("%x", mask)
	var words []string
	for len(digits) > affinityWidth {
		words = append(words, digits[len(digits)-affinityWidth:])
		digits = digits[:len(digits)-affinityWidth]
	}
	words = append(words, strings.Repeat("0", affinityWidth-len(digits))+digits)
	slices.Reverse(words)
	return strings.Join(words, ",")
}
