// SPDX-License-Identifier: MPL-2.0

// Package gpu is the vocabulary of the device plugin: a machine, its GPUs, the
// paths between them, and its network cards. The values are plain; where they
// come from (NVML, a profile, a file) is the business of other packages.
//
// A value that a source does not know is left at its zero value, or at
// [NoNUMA], and nothing downstream may invent one: a missing value leaves its
// attribute out, it never takes the GPU away.
package gpu

import (
	"fmt"
	"strings"
)

// NoNUMA stands for "NUMA node not known". Zero is a real node.
const NoNUMA = -1

// Presence answers a yes-or-no question that a source may be unable to answer.
type Presence int8

// The three answers; the zero value is [Unknown].
const (
	Unknown Presence = iota
	Absent
	Present
)

// String gives "unknown", "no" or "yes".
func (p Presence) String() string {
	switch p {
	case Absent:
		return "no"
	case Present:
		return "yes"
	}
	return "unknown"
}

// MarshalText makes JSON show the word rather than a number.
func (p Presence) MarshalText() ([]byte, error) { return []byte(p.String()), nil }

// UnmarshalText reads the word.
func (p *Presence) UnmarshalText(text []byte) error {
	for _, presence := range []Presence{Unknown, Absent, Present} {
		if presence.String() == string(text) {
			*p = presence
			return nil
		}
	}
	return fmt.Errorf("%q: allowed are yes, no and unknown", text)
}

// Machine is one host as far as its GPUs are concerned.
//
// GPUs and NICs are referred to by their position in the slices, never by
// [GPU.Index], which is the number the driver gives and can have gaps.
type Machine struct {
	// Name is the machine's kind, such as "NVIDIA DGX H100"; empty where unknown.
	Name string `json:"name,omitempty"`
	// DriverVersion and CUDAVersion are dotted numbers, such as "550.54.15" and "12.4".
	DriverVersion string `json:"driver_version,omitempty"`
	CUDAVersion   string `json:"cuda_version,omitempty"`
	// Simulated is true where no such hardware is in this host.
	Simulated bool `json:"simulated"`
	// NVSwitch says whether NVLinks go through switches.
	NVSwitch Presence `json:"nvswitch"`

	GPUs []GPU `json:"gpus"`
	NICs []NIC `json:"nics"`

	// Paths[i][j] is the best path between GPUs i and j. Square, symmetric,
	// with the zero Path on its diagonal. Build it with [NewPaths].
	Paths [][]Path `json:"paths"`
	// NICPaths[i][k] is the PCIe path between GPU i and NIC k.
	NICPaths [][]Level `json:"nic_paths"`

	// Warnings are what was wrong with the source and how it was read, each
	// naming the place.
	Warnings []string `json:"warnings,omitempty"`
}

// GPU is one physical GPU.
type GPU struct {
	// Index is the driver's number of the GPU: the N of GPUN.
	Index int `json:"index"`
	// UUID is the driver's identity of the GPU, "GPU-" and a UUID.
	UUID string `json:"uuid,omitempty"`
	// Parent is the UUID of the GPU that this is a MIG instance of, and
	// MIGProfile the instance's shape, such as "1g.10gb"; both empty for a whole
	// GPU. An instance has an index and bus ID in common with its siblings.
	Parent     string `json:"parent,omitempty"`
	MIGProfile string `json:"mig_profile,omitempty"`
	// BusID is the PCI address in sysfs form: "0000:1b:00.0", lower case.
	BusID string `json:"bus_id,omitempty"`
	// Model is the product name, such as "NVIDIA H100 80GB HBM3".
	Model string `json:"model,omitempty"`
	// Architecture is NVIDIA's name of the generation, such as "hopper".
	Architecture string `json:"architecture,omitempty"`
	// ComputeCapability is "major.minor", such as "9.0".
	ComputeCapability string `json:"compute_capability,omitempty"`

	MemoryMiB      uint64 `json:"memory_mib,omitempty"`
	BAR1MiB        uint64 `json:"bar1_mib,omitempty"`
	CoresClockMHz  uint   `json:"cores_clock_mhz,omitempty"`  // highest possible
	MemoryClockMHz uint   `json:"memory_clock_mhz,omitempty"` // highest possible
	PowerLimitW    uint   `json:"power_limit_w,omitempty"`
	PCIeGeneration uint   `json:"pcie_generation,omitempty"` // highest possible
	PCIeWidth      uint   `json:"pcie_width,omitempty"`      // lanes, highest possible

	// DisplayState and PersistenceMode are "Enabled" or "Disabled".
	DisplayState    string `json:"display_state,omitempty"`
	PersistenceMode string `json:"persistence_mode,omitempty"`

	// NUMANode is the CPU node the GPU hangs on, or [NoNUMA].
	NUMANode int `json:"numa_node"`
	// CPUs is the list of near CPUs in kernel form: "0-55,112-167".
	CPUs string `json:"cpus,omitempty"`

	// NVLinks is the number of links that are up, to whatever they lead.
	NVLinks uint `json:"nvlinks,omitempty"`
	// NVLinkVersion is the generation, such as 4 for Hopper.
	NVLinkVersion float64 `json:"nvlink_version,omitempty"`

	// Fabric is the fabric of switches it is in; nil where there is none, or it
	// is not known.
	Fabric *Fabric `json:"fabric,omitempty"`

	// Fault is what keeps the GPU from being usable, in words; empty if nothing.
	// Degraded is what someone should look at while it still is.
	Fault    string `json:"fault,omitempty"`
	Degraded string `json:"degraded,omitempty"`
}

// Fabric is a GPU's place in an NVLink fabric of switches. One that spans
// machines, as that of an NVL72 rack does, has a cluster: GPUs with the same
// cluster and clique reach each other.
type Fabric struct {
	// Cluster is the fabric's UUID in the usual form; empty for a fabric within
	// one machine.
	Cluster string `json:"cluster,omitempty"`
	Clique  uint32 `json:"clique"`
	// Registered is true once the GPU has joined, and Status is empty if that
	// went well.
	Registered bool   `json:"registered"`
	Status     string `json:"status,omitempty"`
}

// NIC is one network card, or one port of it.
type NIC struct {
	// Name is the name the source uses: "NIC0", "mlx5_0", or a bus ID.
	Name string `json:"name"`
	// Device is the RDMA device, such as "mlx5_0"; empty where unknown.
	Device string `json:"device,omitempty"`
	BusID  string `json:"bus_id,omitempty"`
	// NUMANode is the CPU node the NIC hangs on, or [NoNUMA].
	NUMANode int `json:"numa_node"`
	// SpeedMbps is the link's speed in megabits per second.
	SpeedMbps uint `json:"speed_mbps,omitempty"`
	// RDMA is true for a NIC that can move GPU data by itself. Only such a NIC
	// counts when a GPU's nearest is looked for.
	RDMA bool `json:"rdma"`
}

// Path is the best way between two GPUs.
type Path struct {
	// NVLinks is the number of NVLinks between the two, directly or through
	// switches; 0 means that traffic goes over PCIe.
	NVLinks uint `json:"nvlinks,omitempty"`
	// PCIe is the PCIe distance, where the source tells it: a matrix shows it
	// only for pairs without NVLink.
	PCIe Level `json:"pcie,omitempty"`
}

// String gives the cell of `nvidia-smi topo -m`: "NV18", "PIX", or "?".
func (p Path) String() string {
	if p.NVLinks > 0 {
		return fmt.Sprintf("NV%d", p.NVLinks)
	}
	return p.PCIe.String()
}

// NewPaths makes the square matrix for n GPUs with nothing known.
func NewPaths(n int) [][]Path {
	paths := make([][]Path, n)
	for i := range paths {
		paths[i] = make([]Path, n)
	}
	return paths
}

// NewNICPaths makes the matrix of n GPUs by k NICs with nothing known.
func NewNICPaths(n, k int) [][]Level {
	paths := make([][]Level, n)
	for i := range paths {
		paths[i] = make([]Level, k)
	}
	return paths
}

// Warn adds a warning.
func (m *Machine) Warn(format string, args ...any) {
	m.Warnings = append(m.Warnings, fmt.Sprintf(format, args...))
}

// InferNVSwitch answers [Machine.NVSwitch] from the paths alone. Bridges and
// direct links share a GPU's links out among its peers; through switches every
// peer gets all of them. So a GPU whose pairs add up to more links than any
// GPU has must be behind switches. A single GPU says nothing.
func (m *Machine) InferNVSwitch() Presence {
	if len(m.GPUs) < 2 {
		return Unknown
	}
	for i := range m.Paths {
		var sum uint
		for j := range m.Paths[i] {
			sum += m.Paths[i][j].NVLinks
		}
		if sum > mostDirectNVLinks {
			return Present
		}
	}
	return Absent
}

// MostNVLinks is the largest number of NVLinks that a GPU can have
// (NVML_NVLINK_MAX_LINKS).
const MostNVLinks = 36

// mostDirectNVLinks is the largest number of NVLinks of a GPU that is sold
// without switches too: 18 in Hopper (NVIDIA NVLink product page).
const mostDirectNVLinks = 18

// NormalBusID turns a PCI address as NVML and NCCL write it into the kernel's
// form: lower case, four digits of domain, no padding ("00000000:1B:00.0" gives
// "0000:1b:00.0"). What is not a PCI address comes back trimmed and lower case.
func NormalBusID(s string) string {
	s = strings.ToLower(strings.Trim(s, "\x00 \t\r\n"))
	domain, rest, found := strings.Cut(s, ":")
	if found && strings.Contains(rest, ":") {
		for len(domain) > 4 && domain[0] == '0' {
			domain = domain[1:]
		}
		return domain + ":" + rest
	}
	return s
}
