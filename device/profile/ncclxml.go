// SPDX-License-Identifier: MPL-2.0

package profile

import (
	"cmp"
	"encoding/xml"
	"errors"
	"fmt"
	"io"
	"slices"
	"strconv"
	"strings"

	"github.com/nomad-gpu/nomad-gpu/device/gpu"
)

// PCI classes that matter, as the first characters of NCCL's class attribute
// (PCI Code and ID Assignment Specification).
const (
	classVGA      = "0x0300"
	class3D       = "0x0302"
	classNetwork  = "0x02"
	classSwitch   = "0x0680" // "other bridge": how an NVSwitch shows
	classNPU      = "0x068001"
	maxXMLDepth   = 64
	maxXMLNodes   = 20000
	affinityWidth = 8 // hex digits of each word of a CPU mask
)

// node is an element of the file with the line it begins on.
type node struct {
	name     string
	line     int
	attr     map[string]string
	parent   *node
	children []*node
}

func (n *node) find(name string) *node {
	for _, child := range n.children {
		if child.name == name {
			return child
		}
	}
	return nil
}

// ParseNCCL reads an NCCL topology file: what NCCL dumps (NCCL_TOPO_DUMP_FILE)
// or is given (NCCL_TOPO_FILE). Clouds ship files with the PCI tree alone;
// those have no NVLinks. GPUs stand in the order of their `dev` numbers, or of
// their bus IDs where there are none.
func ParseNCCL(text string) (*gpu.Machine, error) {
	if len(text) > maxTextBytes {
		return nil, fmt.Errorf("the text has %d bytes; at most %d are read", len(text), maxTextBytes)
	}
	root, cut, err := parseTree(text)
	if err != nil {
		return nil, err
	}
	r := &ncclReader{machine: &gpu.Machine{}}
	if cut != "" {
		r.machine.Warn("%s", cut)
	}
	for _, child := range root.children {
		if child.name == "cpu" {
			r.collect(child, child)
		}
	}
	if err := r.check(); err != nil {
		return nil, err
	}
	r.sortGPUs()
	r.fill()
	r.nvlinks()
	return r.machine, nil
}

// parseTree reads the elements under <system>. A file that ends or breaks in
// the middle gives what came before, and a warning that names the line.
func parseTree(text string) (root *node, warning string, err error) {
	decoder := xml.NewDecoder(strings.NewReader(text))
	var at *node
	nodes, depth := 0, 0
	for {
		line, _ := decoder.InputPos()
		token, err := decoder.Token()
		if err != nil {
			switch {
			case root == nil:
				return nil, "", fmt.Errorf("no <system> element: this is no NCCL topology file")
			case errors.Is(err, io.EOF):
				return root, "", nil
			}
			line, _ = decoder.InputPos()
			return root, fmt.Sprintf("line %d: %v; what stands before counts", line, err), nil
		}
		switch element := token.(type) {
		case xml.StartElement:
			if root == nil && element.Name.Local != "system" {
				return nil, "", fmt.Errorf("line %d: <%s> where <system> must stand: this is no NCCL topology file", line, element.Name.Local)
			}
			if nodes++; nodes > maxXMLNodes {
				return nil, "", fmt.Errorf("line %d: more than %d elements", line, maxXMLNodes)
			}
			if depth++; depth > maxXMLDepth {
				return nil, "", fmt.Errorf("line %d: elements nested deeper than %d", line, maxXMLDepth)
			}
			line, _ = decoder.InputPos()
			n := &node{name: element.Name.Local, line: line, attr: make(map[string]string, len(element.Attr)), parent: at}
			for _, a := range element.Attr {
				n.attr[a.Name.Local] = a.Value
			}
			if root == nil {
				root = n
			} else if at != nil {
				at.children = append(at.children, n)
			}
			at = n
		case xml.EndElement:
			depth--
			at = at.parent
			if at == nil {
				return root, "", nil
			}
		}
	}
}

// place is a GPU or NIC in the tree.
type place struct {
	pci *node // nil for a NIC that stands directly under its CPU
	cpu *node
	gpu *node // the <gpu> element, nil in a bare PCI tree
	dev int   // its dev number, -1 if none
}

type ncclReader struct {
	machine    *gpu.Machine
	gpus, nics []place
	unclear    int // pci elements that could be anything
	unclearAt  int // line of the first
}

// collect walks the tree in the file's order.
func (r *ncclReader) collect(n, cpu *node) {
	for _, child := range n.children {
		switch child.name {
		case "pci":
			r.collectPCI(child, cpu)
		case "nic":
			r.collectNIC(child, nil, cpu)
		}
	}
}

func (r *ncclReader) collectPCI(n, cpu *node) {
	class := n.attr["class"]
	element := n.find("gpu")
	switch {
	case element != nil || strings.HasPrefix(class, class3D) || strings.HasPrefix(class, classVGA):
		p := place{pci: n, cpu: cpu, gpu: element, dev: -1}
		if element != nil {
			if dev, err := strconv.Atoi(element.attr["dev"]); err == nil && dev >= 0 {
				p.dev = dev
			}
		}
		r.gpus = append(r.gpus, p)
	case n.find("nic") != nil:
		r.collectNIC(n.find("nic"), n, cpu)
	case strings.HasPrefix(class, classNetwork):
		// In a file that is given to NCCL, bare NICs are those meant for it.
		r.addNIC(gpu.NIC{Name: gpu.NormalBusID(n.attr["busid"]), RDMA: true}, place{pci: n, cpu: cpu})
	case class == "" && len(n.children) == 0:
		if r.unclear++; r.unclear == 1 {
			r.unclearAt = n.line
		}
	default:
		r.collect(n, cpu)
	}
}

func (r *ncclReader) collectNIC(n, pci, cpu *node) {
	for _, net := range n.children {
		if net.name != "net" {
			continue
		}
		name := net.attr["name"]
		if name == "" {
			r.machine.Warn("line %d: a net without a name is left out", net.line)
			continue
		}
		nic := gpu.NIC{Name: name, RDMA: net.attr["gdr"] == "1"}
		if nic.RDMA {
			nic.Device = name
		}
		if speed, err := strconv.ParseUint(net.attr["speed"], 10, 32); err == nil {
			nic.SpeedMbps = uint(speed)
		}
		r.addNIC(nic, place{pci: pci, cpu: cpu})
	}
}

// addNIC takes a NIC once: one without a PCI place of its own is listed under
// every CPU, and is then near none of them.
func (r *ncclReader) addNIC(nic gpu.NIC, p place) {
	nic.NUMANode = r.numa(p.cpu)
	if p.pci != nil {
		nic.BusID = gpu.NormalBusID(p.pci.attr["busid"])
	}
	for k, other := range r.machine.NICs {
		if other.Name == nic.Name {
			if r.nics[k].cpu != p.cpu {
				r.machine.NICs[k].NUMANode = gpu.NoNUMA
				r.nics[k] = place{}
			}
			return
		}
	}
	r.machine.NICs = append(r.machine.NICs, nic)
	r.nics = append(r.nics, p)
}

func (r *ncclReader) numa(cpu *node) int {
	id, err := strconv.Atoi(cpu.attr["numaid"])
	if err != nil || id < 0 {
		return gpu.NoNUMA
	}
	return id
}

func (r *ncclReader) check() error {
	switch {
	case len(r.gpus) == 0 && r.unclear > 0:
		return fmt.Errorf("line %d: %d pci elements have no class, so that it cannot be told which are GPUs; "+
			"give them class=\"0x030200\" (GPU) or \"0x020000\" (NIC)", r.unclearAt, r.unclear)
	case len(r.gpus) == 0:
		return errors.New("no GPU in the file")
	case len(r.gpus) > maxGPUs || len(r.nics) > maxNICs:
		return fmt.Errorf("%d GPUs and %d NICs; at most %d and %d are read", len(r.gpus), len(r.nics), maxGPUs, maxNICs)
	case r.unclear > 0:
		r.machine.Warn("line %d: %d pci elements without a class are left out", r.unclearAt, r.unclear)
	}
	return nil
}

func (r *ncclReader) sortGPUs() {
	byDev := true
	seen := make(map[int]bool)
	for _, p := range r.gpus {
		byDev = byDev && p.dev >= 0 && !seen[p.dev]
		seen[p.dev] = true
	}
	slices.SortStableFunc(r.gpus, func(a, b place) int {
		if byDev {
			return cmp.Compare(a.dev, b.dev)
		}
		return strings.Compare(gpu.NormalBusID(a.pci.attr["busid"]), gpu.NormalBusID(b.pci.attr["busid"]))
	})
	for i := range r.gpus {
		if !byDev {
			r.gpus[i].dev = i
		}
	}
}

func (r *ncclReader) fill() {
	m := r.machine
	n := len(r.gpus)
	m.Paths, m.NICPaths = gpu.NewPaths(n), gpu.NewNICPaths(n, len(m.NICs))
	seen := make(map[string]bool)
	for _, p := range r.gpus {
		g := gpu.GPU{
			Index: p.dev, BusID: gpu.NormalBusID(p.pci.attr["busid"]),
			NUMANode: r.numa(p.cpu), CPUs: maskToList(p.cpu.attr["affinity"]),
			PCIeGeneration: pcieGeneration(p.pci.attr["link_speed"]),
		}
		if width, err := strconv.ParseUint(p.pci.attr["link_width"], 10, 8); err == nil {
			g.PCIeWidth = uint(width)
		}
		if p.gpu != nil {
			if sm, err := strconv.ParseUint(p.gpu.attr["sm"], 10, 16); err == nil && sm >= 10 {
				g.ComputeCapability = fmt.Sprintf("%d.%d", sm/10, sm%10)
			}
		}
		if seen[g.BusID] {
			m.Warn("line %d: bus ID %s stands here a second time", p.pci.line, g.BusID)
		}
		seen[g.BusID] = true
		m.GPUs = append(m.GPUs, g)
	}
	for i := range r.gpus {
		for j := range i {
			level := distance(r.gpus[i], r.gpus[j])
			m.Paths[i][j].PCIe, m.Paths[j][i].PCIe = level, level
		}
		for k := range r.nics {
			m.NICPaths[i][k] = distance(r.gpus[i], r.nics[k])
		}
	}
}

// distance is the PCIe level between two places of the tree. NCCL folds a chain
// of switches into one element, so that PXB shows only where they branch.
func distance(a, b place) gpu.Level {
	switch {
	case a.cpu == nil || b.cpu == nil:
		return gpu.NoLevel
	case a.cpu != b.cpu:
		return gpu.SYS
	case a.pci == nil || b.pci == nil:
		return gpu.PHB
	}
	steps := make(map[*node]int)
	for n, k := a.pci, 0; n != nil && n.name == "pci"; n, k = n.parent, k+1 {
		steps[n] = k
	}
	for n, k := b.pci, 0; n != nil && n.name == "pci"; n, k = n.parent, k+1 {
		if other, ok := steps[n]; ok {
			if other <= 1 && k <= 1 {
				return gpu.PIX
			}
			return gpu.PXB
		}
	}
	return gpu.PHB
}

// pcieGeneration reads "16.0 GT/s PCIe" and "16 GT/s"; 0 if it says nothing.
func pcieGeneration(speed string) uint {
	number, _, _ := strings.Cut(strings.TrimSpace(speed), " ")
	return map[string]uint{
		"2.5": 1, "5": 2, "5.0": 2, "8": 3, "8.0": 3, "16": 4, "16.0": 4, "32": 5, "32.0": 5, "64": 6, "64.0": 6,
	}[number]
}
