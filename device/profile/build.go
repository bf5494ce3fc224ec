// SPDX-License-Identifier: MPL-2.0

package profile

import (
	"fmt"
	"maps"
	"regexp"
	"slices"
	"strings"

	"github.com/nomad-gpu/nomad-gpu/device/gpu"
)

var (
	busIDForm   = regexp.MustCompile(`^[0-9a-f]{4,8}:[0-9a-f]{2}:[0-9a-f]{2}\.[0-7]$`)
	versionForm = regexp.MustCompile(`^\d{1,4}(\.\d{1,4}){1,2}$`)
	capability  = regexp.MustCompile(`^\d{1,2}\.\d$`)
	plainName   = regexp.MustCompile(`^[A-Za-z0-9][A-Za-z0-9 _.:/()+-]{0,62}$`)
)

// slot is where a GPU or NIC hangs in the PCI tree.
type slot struct {
	numa       int
	bridge, sw string
}

// level is the distance of two slots. A switch's name may be a path: "a/1" and
// "a/2" are different switches below "a", so that what hangs on them is PXB
// apart.
func (a slot) level(b slot) gpu.Level {
	switch {
	case a.sw != "" && a.sw == b.sw:
		return gpu.PIX
	case a.sw != "" && b.sw != "" && top(a.sw) == top(b.sw):
		return gpu.PXB
	case a.bridge != "" && a.bridge == b.bridge:
		return gpu.PHB
	case a.numa != gpu.NoNUMA && a.numa == b.numa:
		return gpu.NODE
	}
	return gpu.SYS
}

func top(path string) string {
	first, _, _ := strings.Cut(path, "/")
	return first
}

// machine checks the document and turns it into a machine.
func (d *document) machine() (*gpu.Machine, error) {
	if err := d.checkHead(); err != nil {
		return nil, err
	}
	for _, name := range slices.Sorted(maps.Keys(d.Parts)) {
		if err := d.Parts[name].check("$.parts." + name); err != nil {
			return nil, err
		}
	}
	m := &gpu.Machine{Name: d.Name, DriverVersion: d.DriverVersion, CUDAVersion: d.CUDAVersion, NVSwitch: gpu.Absent}
	if d.NVSwitch {
		m.NVSwitch = gpu.Present
	}
	gpuSlots, err := d.addGPUs(m)
	if err != nil {
		return nil, err
	}
	nicSlots, err := d.addNICs(m)
	if err != nil {
		return nil, err
	}
	m.Paths, m.NICPaths = gpu.NewPaths(len(m.GPUs)), gpu.NewNICPaths(len(m.GPUs), len(m.NICs))
	for i, slot := range gpuSlots {
		for j, other := range gpuSlots {
			if i != j {
				m.Paths[i][j].PCIe = slot.level(other)
			}
		}
		for k, other := range nicSlots {
			m.NICPaths[i][k] = slot.level(other)
		}
	}
	return m, d.addLinks(m)
}

func (d *document) checkHead() error {
	switch {
	case d.Name == "":
		return bad("$.name", "missing; it must name the machine")
	case !plainName.MatchString(d.Name):
		return bad("$.name", "%q; allowed are up to 63 letters, digits, spaces and _.:/()+-", d.Name)
	case d.DriverVersion != "" && !versionForm.MatchString(d.DriverVersion):
		return bad("$.driver_version", "%q; it must look like \"550.54.15\"", d.DriverVersion)
	case d.CUDAVersion != "" && !versionForm.MatchString(d.CUDAVersion):
		return bad("$.cuda_version", "%q; it must look like \"12.4\"", d.CUDAVersion)
	case len(d.Parts) == 0:
		return bad("$.parts", "missing; it must hold at least one kind of GPU")
	case len(d.GPUs) == 0 || len(d.GPUs) > maxGPUs:
		return bad("$.gpus", "%d GPUs; allowed are 1 to %d", len(d.GPUs), maxGPUs)
	case len(d.NICs) > maxNICs:
		return bad("$.nics", "%d NICs; allowed are up to %d", len(d.NICs), maxNICs)
	}
	return nil
}

func (p part) check(path string) error {
	atMost := func(key string, value, most uint64) error {
		if value > most {
			return bad(path+"."+key, "%d; at most %d", value, most)
		}
		return nil
	}
	switch {
	case p.Model == "":
		return bad(path+".model", "missing; it must be the product name, such as \"NVIDIA H100 80GB HBM3\"")
	case !plainName.MatchString(p.Model):
		return bad(path+".model", "%q; allowed are up to 63 letters, digits, spaces and _.:/()+-", p.Model)
	case p.ComputeCapability != "" && !capability.MatchString(p.ComputeCapability):
		return bad(path+".compute_capability", "%q; it must look like \"9.0\"", p.ComputeCapability)
	case p.NVLinkVersion < 0 || p.NVLinkVersion >= 10:
		return bad(path+".nvlink_version", "%v; allowed is 0 (none) to below 10", p.NVLinkVersion)
	}
	for _, limit := range []struct {
		key         string
		value, most uint64
	}{
		{"memory_mib", p.MemoryMiB, 16 << 20}, {"bar1_mib", p.BAR1MiB, 16 << 20},
		{"cores_clock_mhz", uint64(p.CoresClockMHz), 20000}, {"memory_clock_mhz", uint64(p.MemoryClockMHz), 50000},
		{"power_limit_w", uint64(p.PowerLimitW), 10000}, {"pcie_generation", uint64(p.PCIeGeneration), 6},
		{"pcie_width", uint64(p.PCIeWidth), 32}, {"nvlinks", uint64(p.NVLinks), gpu.MostNVLinks},
	} {
		if err := atMost(limit.key, limit.value, limit.most); err != nil {
			return err
		}
	}
	return nil
}

func (d *document) addGPUs(m *gpu.Machine) ([]slot, error) {
	names := slices.Sorted(maps.Keys(d.Parts))
	seen := make(map[string]int)
	var slots []slot
	for i, entry := range d.GPUs {
		path := fmt.Sprintf("$.gpus[%d]", i)
		if entry.Part == "" && len(names) == 1 {
			d.GPUs[i].Part, entry.Part = names[0], names[0]
		}
		p, ok := d.Parts[entry.Part]
		if !ok {
			return nil, bad(path+".part", "%q; allowed are the parts of this file: %s", entry.Part, strings.Join(names, ", "))
		}
		busID := gpu.NormalBusID(entry.BusID)
		if busID != "" {
			if !busIDForm.MatchString(busID) {
				return nil, bad(path+".bus_id", "%q; it must look like \"0000:1b:00.0\"", entry.BusID)
			}
			if other, twice := seen[busID]; twice {
				return nil, bad(path+".bus_id", "%q is also that of GPU %d", entry.BusID, other)
			}
			seen[busID] = i
		}
		if entry.CPUs != "" && !cpuList.MatchString(entry.CPUs) {
			return nil, bad(path+".cpus", "%q; it must look like \"0-55,112-167\"", entry.CPUs)
		}
		numa, err := numaOf(path, entry.NUMA)
		if err != nil {
			return nil, err
		}
		m.GPUs = append(m.GPUs, gpu.GPU{
			Index: i, BusID: busID, Model: p.Model, Architecture: p.Architecture,
			ComputeCapability: p.ComputeCapability, MemoryMiB: p.MemoryMiB, BAR1MiB: p.BAR1MiB,
			CoresClockMHz: p.CoresClockMHz, MemoryClockMHz: p.MemoryClockMHz, PowerLimitW: p.PowerLimitW,
			PCIeGeneration: p.PCIeGeneration, PCIeWidth: p.PCIeWidth,
			DisplayState: "Disabled", PersistenceMode: "Enabled",
			NUMANode: numa, CPUs: entry.CPUs, NVLinkVersion: p.NVLinkVersion,
		})
		slots = append(slots, slot{numa: numa, bridge: entry.Bridge, sw: entry.Switch})
	}
	return slots, nil
}

func numaOf(path string, numa *int) (int, error) {
	if numa == nil {
		return gpu.NoNUMA, nil
	}
	if *numa < 0 || *numa > 1023 {
		return 0, bad(path+".numa", "%d; allowed is 0 to 1023", *numa)
	}
	return *numa, nil
}

func (d *document) addNICs(m *gpu.Machine) ([]slot, error) {
	seen := make(map[string]bool)
	var slots []slot
	for k, entry := range d.NICs {
		path := fmt.Sprintf("$.nics[%d]", k)
		switch {
		case !nicName.MatchString(entry.Name):
			return nil, bad(path+".name", "%q; it must be a name such as \"mlx5_0\"", entry.Name)
		case seen[entry.Name]:
			return nil, bad(path+".name", "%q is the name of an earlier NIC", entry.Name)
		case entry.Device != "" && !nicName.MatchString(entry.Device):
			return nil, bad(path+".device", "%q; it must be a name such as \"mlx5_0\"", entry.Device)
		}
		seen[entry.Name] = true
		busID := gpu.NormalBusID(entry.BusID)
		if busID != "" && !busIDForm.MatchString(busID) {
			return nil, bad(path+".bus_id", "%q; it must look like \"0000:1b:00.0\"", entry.BusID)
		}
		numa, err := numaOf(path, entry.NUMA)
		if err != nil {
			return nil, err
		}
		rdma := entry.RDMA == nil || *entry.RDMA
		if rdma && entry.Device == "" {
			entry.Device = entry.Name
		}
		m.NICs = append(m.NICs, gpu.NIC{
			Name: entry.Name, Device: entry.Device, BusID: busID,
			NUMANode: numa, SpeedMbps: entry.SpeedMbps, RDMA: rdma,
		})
		slots = append(slots, slot{numa: numa, bridge: entry.Bridge, sw: entry.Switch})
	}
	return slots, nil
}

// addLinks fills in the NVLinks: from the list, or, behind switches, every pair
// with the links of the GPU that has fewer.
func (d *document) addLinks(m *gpu.Machine) error {
	limit := make([]uint, len(m.GPUs))
	for i, entry := range d.GPUs {
		limit[i] = d.Parts[entry.Part].NVLinks
	}
	if d.NVSwitch {
		if len(d.Links) > 0 {
			return bad("$.links", "not allowed with nvswitch: every GPU reaches every other through the switches")
		}
		for i := range m.GPUs {
			if limit[i] == 0 {
				return bad(fmt.Sprintf("$.gpus[%d]", i), "with nvswitch its part must have nvlinks")
			}
			m.GPUs[i].NVLinks = limit[i]
			for j := range m.GPUs {
				if i != j {
					m.Paths[i][j].NVLinks = min(limit[i], limit[j])
				}
			}
		}
		return nil
	}
	for n, entry := range d.Links {
		path := fmt.Sprintf("$.links[%d]", n)
		if len(entry.GPUs) != 2 || entry.GPUs[0] == entry.GPUs[1] {
			return bad(path+".gpus", "%v; it must be two different GPUs", entry.GPUs)
		}
		for _, i := range entry.GPUs {
			if i < 0 || i >= len(m.GPUs) {
				return bad(path+".gpus", "%d; allowed is 0 to %d", i, len(m.GPUs)-1)
			}
		}
		i, j := entry.GPUs[0], entry.GPUs[1]
		switch {
		case entry.Count < 1 || entry.Count > gpu.MostNVLinks:
			return bad(path+".count", "%d; allowed is 1 to %d", entry.Count, gpu.MostNVLinks)
		case m.Paths[i][j].NVLinks > 0:
			return bad(path+".gpus", "%v: this pair is listed earlier", entry.GPUs)
		}
		m.Paths[i][j].NVLinks, m.Paths[j][i].NVLinks = entry.Count, entry.Count
		for _, x := range entry.GPUs {
			if m.GPUs[x].NVLinks += entry.Count; m.GPUs[x].NVLinks > limit[x] {
				return bad(path+".count", "GPU %d would have %d NVLinks; its part has %d", x, m.GPUs[x].NVLinks, limit[x])
			}
		}
	}
	return nil
}
