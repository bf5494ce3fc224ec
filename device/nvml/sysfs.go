// SPDX-License-Identifier: MPL-2.0

package nvml

import (
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"github.com/nomad-gpu/nomad-gpu/device/gpu"
)

// maxNICs bounds what is taken from sysfs.
const maxNICs = 512

var (
	cpuList  = regexp.MustCompile(`^\d{1,5}(?:-\d{1,5})?(?:,\d{1,5}(?:-\d{1,5})?)*$`)
	busForm  = regexp.MustCompile(`^[0-9a-f]{4,8}:[0-9a-f]{2}:[0-9a-f]{2}\.[0-7]$`)
	rateForm = regexp.MustCompile(`^(\d{1,6}) Gb/sec`)
)

// pciTree is the kernel's view of the PCI bus (Documentation/ABI in the Linux
// source: sysfs-bus-pci, stable/sysfs-class-infiniband). What cannot be read
// is left out.
type pciTree struct{ root string }

// place adds what NVML does not tell: each GPU's NUMA node and CPUs, the RDMA
// NICs, and the distances between the two.
func (t pciTree) place(m *gpu.Machine) {
	paths := make([][]string, len(m.GPUs))
	for i := range m.GPUs {
		g := &m.GPUs[i]
		if !busForm.MatchString(g.BusID) {
			continue
		}
		dir := filepath.Join(t.root, "bus/pci/devices", g.BusID)
		g.NUMANode = t.numa(dir)
		if list := t.line(dir, "local_cpulist"); cpuList.MatchString(list) {
			g.CPUs = list
		}
		paths[i] = t.chain(dir)
	}
	nicPaths := t.nics(m)
	m.NICPaths = gpu.NewNICPaths(len(m.GPUs), len(m.NICs))
	for i := range m.GPUs {
		for k := range m.NICs {
			m.NICPaths[i][k] = distance(paths[i], nicPaths[k], m.GPUs[i].NUMANode, m.NICs[k].NUMANode)
		}
	}
}

// nics appends the RDMA devices, by name, and gives their places.
func (t pciTree) nics(m *gpu.Machine) [][]string {
	entries, err := os.ReadDir(filepath.Join(t.root, "class/infiniband"))
	if err != nil {
		return nil // no RDMA stack on this host
	}
	names := make([]string, 0, len(entries))
	for _, entry := range entries {
		names = append(names, entry.Name())
	}
	slices.SortFunc(names, func(a, b string) int {
		if len(a) != len(b) { // mlx5_2 before mlx5_10
			return len(a) - len(b)
		}
		return strings.Compare(a, b)
	})
	var paths [][]string
	for _, name := range names[:min(len(names), maxNICs)] {
		dir := filepath.Join(t.root, "class/infiniband", name)
		chain := t.chain(filepath.Join(dir, "device"))
		nic := gpu.NIC{Name: name, Device: name, RDMA: true, NUMANode: t.numa(filepath.Join(dir, "device"))}
		if len(chain) > 0 {
			nic.BusID = chain[len(chain)-1]
		}
		if rate := rateForm.FindStringSubmatch(t.line(dir, "ports/1/rate")); rate != nil {
			gigabits, _ := strconv.Atoi(rate[1]) // the form allows nothing else
			nic.SpeedMbps = uint(gigabits) * 1000
		}
		m.NICs = append(m.NICs, nic)
		paths = append(paths, chain)
	}
	return paths
}

// chain is the way from the host bridge to a device: "pci0000:15",
// "0000:15:01.0", …; nil for a device that is not on the PCI bus.
func (t pciTree) chain(dir string) []string {
	real, err := filepath.EvalSymlinks(dir)
	if err != nil {
		return nil
	}
	parts := strings.Split(filepath.ToSlash(real), "/")
	at := slices.IndexFunc(parts, func(part string) bool { return strings.HasPrefix(part, "pci") && strings.Contains(part, ":") })
	if at < 0 {
		return nil
	}
	return parts[at:]
}

// distance compares two ways. Below a common switch each way goes through a
// port of the switch to the device: two steps. More steps are more switches.
func distance(a, b []string, numaA, numaB int) gpu.Level {
	if len(a) == 0 || len(b) == 0 {
		return gpu.NoLevel
	}
	common := 0
	for common < len(a) && common < len(b) && a[common] == b[common] {
		common++
	}
	switch {
	case common == 0 && numaA != gpu.NoNUMA && numaA == numaB:
		return gpu.NODE
	case common == 0:
		return gpu.SYS
	case common == 1:
		return gpu.PHB
	case len(a)-common <= 2 && len(b)-common <= 2:
		return gpu.PIX
	}
	return gpu.PXB
}

func (t pciTree) numa(dir string) int {
	node, err := strconv.Atoi(t.line(dir, "numa_node"))
	if err != nil || node < 0 {
		return gpu.NoNUMA
	}
	return node
}

func (t pciTree) line(dir, file string) string {
	text, err := os.ReadFile(filepath.Join(dir, filepath.FromSlash(file)))
	if err != nil {
		return ""
	}
	return strings.TrimSpace(string(text))
}
