// SPDX-License-Identifier: MPL-2.0

package profile

import (
	"fmt"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"github.com/nomad-gpu/nomad-gpu/device/gpu"
)

// Limits on what a text may hold. They are far above any machine, and keep a
// wrong file from being read for long.
const (
	maxTextBytes = 4 << 20
	maxGPUs      = 128
	maxNICs      = 512
)

var (
	escape   = regexp.MustCompile("\x1b\\[[0-9;?]*[ -/]*[@-~]")
	gpuName  = regexp.MustCompile(`^GPU(\d{1,4})$`)
	nicName  = regexp.MustCompile(`^[A-Za-z][A-Za-z0-9_.:-]*$`)
	legend   = regexp.MustCompile(`^(NIC\d+):\s+([A-Za-z0-9_.:-]+)$`)
	oneCell  = regexp.MustCompile(`^(?:X|SYS|SOC|NODE|PHB|PXB|PIX|NV\d{1,3})`)
	plainNUM = regexp.MustCompile(`^\d{1,4}$`)
	numaList = regexp.MustCompile(`^\d{1,4}(?:-\d{1,4})?(?:,\d{1,4}(?:-\d{1,4})?)+$`)
	cpuList  = regexp.MustCompile(`^\d{1,5}(?:-\d{1,5})?(?:,\d{1,5}(?:-\d{1,5})?)*$`)
)

// affinityColumns are the columns after the devices, in their order, with their
// names joined so that they survive being split at spaces.
var affinityColumns = []string{"CPU_Affinity", "NUMA_Affinity", "GPU_NUMA_ID"}

// ParseMatrix reads what `nvidia-smi topo -m` prints, also with prompts, legend
// and terminal escapes around it, from any release. Damage is repaired where
// the text itself says how (cells run together; a value that the opposite row
// still has), left unknown where not, and in both cases named in a warning. It
// fails only if there is no matrix at all, or one that contradicts itself in
// its header.
func ParseMatrix(text string) (*gpu.Machine, error) {
	if len(text) > maxTextBytes {
		return nil, fmt.Errorf("the text has %d bytes; at most %d are read", len(text), maxTextBytes)
	}
	lines := strings.Split(strings.ReplaceAll(escape.ReplaceAllString(text, ""), "\r", ""), "\n")
	at, devices, columns := findHeader(lines)
	if at < 0 {
		return nil, fmt.Errorf("no matrix: no line names the columns GPU0, GPU1 and so on")
	}
	r := &matrixReader{columns: columns, machine: &gpu.Machine{}, position: make(map[string]int, len(devices))}
	if err := r.takeHeader(at+1, devices); err != nil {
		return nil, err
	}
	for n, line := range lines[at+1:] {
		r.line(at+2+n, line)
	}
	r.finish()
	return r.machine, nil
}

// findHeader gives the header's line (counted from 0), the devices it names and
// its affinity columns.
func findHeader(lines []string) (int, []string, []string) {
	for at, line := range lines {
		for _, name := range affinityColumns {
			line = strings.ReplaceAll(line, strings.ReplaceAll(name, "_", " "), " "+name+" ")
		}
		var devices, columns []string
		gpus := 0
		for _, word := range strings.Fields(line) {
			switch {
			case slices.Contains(affinityColumns, word):
				columns = append(columns, word)
			case gpuName.MatchString(word) && gpus == len(devices):
				gpus++
				devices = append(devices, word)
			case isCell(word) || gpuName.MatchString(word) || !nicName.MatchString(word):
				gpus = -1 // a row or prose, not a header: there all GPUs come first
			default:
				devices = append(devices, word)
			}
			if gpus < 0 {
				break
			}
		}
		if gpus > 0 && (gpus > 1 || len(columns) > 0) {
			return at, devices, columns
		}
	}
	return -1, nil, nil
}

func isCell(word string) bool {
	match := oneCell.FindString(word)
	return match != "" && match == word
}

// cell is one entry of the matrix; known is false for what could not be read.
type cell struct {
	path  gpu.Path
	self  bool
	known bool
}

type matrixReader struct {
	machine  *gpu.Machine
	columns  []string       // affinity columns
	names    []string       // devices in the header's order
	gpus     int            // the first this many of names are GPUs
	position map[string]int // of a device in names
	rows     [][]cell       // by position of the device; nil if its row is missing
	inLegend bool
}

func (r *matrixReader) takeHeader(line int, devices []string) error {
	split := slices.IndexFunc(devices, func(name string) bool { return !gpuName.MatchString(name) })
	if split < 0 {
		split = len(devices)
	}
	gpus, nics := devices[:split], devices[split:]
	if len(gpus) > maxGPUs || len(nics) > maxNICs {
		return fmt.Errorf("line %d: %d GPUs and %d NICs; at most %d and %d are read", line, len(gpus), len(nics), maxGPUs, maxNICs)
	}
	r.names, r.gpus = devices, len(gpus)
	r.rows = make([][]cell, len(devices))
	for at, name := range devices {
		if _, twice := r.position[name]; twice {
			return fmt.Errorf("line %d: the header names %s twice", line, name)
		}
		r.position[name] = at
	}
	for _, name := range gpus {
		index, err := strconv.Atoi(name[len("GPU"):])
		if err != nil {
			return fmt.Errorf("line %d: %s: %w", line, name, err)
		}
		r.machine.GPUs = append(r.machine.GPUs, gpu.GPU{Index: index, NUMANode: gpu.NoNUMA})
	}
	for _, name := range nics {
		// nvidia-smi lists only NICs with an RDMA device.
		nic := gpu.NIC{Name: name, NUMANode: gpu.NoNUMA, RDMA: true}
		if !strings.HasPrefix(name, "NIC") {
			nic.Device = name
		}
		r.machine.NICs = append(r.machine.NICs, nic)
	}
	return nil
}

func (r *matrixReader) line(number int, line string) {
	if m := legend.FindStringSubmatch(strings.TrimSpace(line)); m != nil {
		if at, ok := r.position[m[1]]; ok && at >= r.gpus {
			r.machine.NICs[at-r.gpus].Device = m[2]
		}
		return
	}
	name, cells := splitRow(line)
	at, ok := r.position[name]
	if !ok || r.inLegend || len(cells) == 0 {
		if strings.HasPrefix(name, "Legend") {
			r.inLegend = true
		}
		return
	}
	where := fmt.Sprintf("line %d, row %s", number, name)
	if r.rows[at] != nil {
		r.machine.Warn("%s: the row stands here a second time; the first counts", where)
		return
	}
	row, affinity, damaged := r.readRow(where, cells)
	r.rows[at] = row
	if at < r.gpus && !damaged {
		r.readAffinity(where, &r.machine.GPUs[at], affinity)
	}
}

// splitRow gives the row's device and its cells. With tabs, empty cells count;
// without, columns are padded by spaces and an empty cell cannot be seen.
func splitRow(line string) (string, []string) {
	name, rest, tabs := strings.Cut(strings.TrimLeft(line, " \t"), "\t")
	if !tabs {
		words := strings.Fields(line)
		if len(words) == 0 {
			return "", nil
		}
		return words[0], words[1:]
	}
	cells := strings.Split(rest, "\t")
	for i := range cells {
		cells[i] = strings.TrimSpace(cells[i])
	}
	return strings.TrimSpace(name), cells
}

// readRow gives the row's cells for all devices and the cells that follow. A
// cell that holds several values in one is taken apart if that makes the row
// exactly as long as it must be. Otherwise all from the first unreadable cell
// on is unknown: it must never be taken for its neighbour's.
func (r *matrixReader) readRow(where string, cells []string) (row []cell, affinity []string, damaged bool) {
	row = make([]cell, len(r.names))
	at := 0
	for n, text := range cells {
		if at == len(row) {
			return row, cells[n:], damaged
		}
		column := r.names[at]
		values := takeApart(text)
		switch {
		case len(values) == 1:
			row[at] = values[0]
			at++
		case text == "" || text == "N/A":
			r.machine.Warn("%s: no value for %s", where, column)
			at++
		case len(values) > 1 && r.fits(cells[n+1:], len(row)-at-len(values)):
			r.machine.Warn("%s: %q for %s is read as %d cells run together", where, text, column, len(values))
			at += copy(row[at:], values)
		default:
			r.machine.Warn("%s: %q for %s cannot be read; the row counts up to there", where, text, column)
			return row, nil, true
		}
	}
	if at < len(row) {
		r.machine.Warn("%s: cut off before %s", where, r.names[at])
		damaged = true
	}
	return row, nil, damaged
}

// fits says whether the cells begin with just as many values as are missing.
func (r *matrixReader) fits(cells []string, missing int) bool {
	if missing < 0 {
		return false
	}
	found := 0
	for _, text := range cells {
		values := takeApart(text)
		if len(values) == 0 {
			break
		}
		found += len(values)
	}
	return found == missing
}

// takeApart reads a cell that holds one value or several run together; nil if
// it holds anything else.
func takeApart(text string) []cell {
	var values []cell
	for rest := strings.TrimSpace(text); rest != ""; rest = strings.TrimSpace(rest) {
		word := oneCell.FindString(rest)
		if word == "" {
			return nil
		}
		rest = rest[len(word):]
		c := cell{known: true}
		if word == "X" {
			c.self = true
		} else if level, ok := gpu.ParseLevel(word); ok {
			c.path.PCIe = level
		} else {
			links, err := strconv.ParseUint(word[len("NV"):], 10, 16)
			if err != nil || links == 0 {
				return nil
			}
			c.path.NVLinks = uint(links)
		}
		values = append(values, c)
	}
	return values
}

// readAffinity reads the columns after the devices. GPU NUMA ID, the node of
// the GPU's own memory, is not needed.
func (r *matrixReader) readAffinity(where string, g *gpu.GPU, cells []string) {
	if len(cells) == 0 {
		if len(r.columns) > 0 {
			r.machine.Warn("%s: cut off before %s", where, strings.ReplaceAll(r.columns[0], "_", " "))
		}
		return
	}
	for n, column := range r.columns {
		if n >= len(cells) {
			return
		}
		text := cells[n]
		switch {
		case text == "" || text == "N/A":
		case column == "CPU_Affinity" && cpuList.MatchString(text):
			g.CPUs = text
		case column == "CPU_Affinity":
			r.machine.Warn("%s: CPU Affinity %q is no list of CPUs", where, text)
			return
		case column == "NUMA_Affinity" && plainNUM.MatchString(text):
			g.NUMANode, _ = strconv.Atoi(text)
		case column == "NUMA_Affinity" && numaList.MatchString(text):
			// On Grace the list begins with the node that has the CPUs; the
			// others are empty or GPU memory.
			first, _, _ := strings.Cut(text, ",")
			if plainNUM.MatchString(first) {
				g.NUMANode, _ = strconv.Atoi(first)
			}
		}
	}
}

// finish turns the rows into the machine's paths, each pair from both of its
// rows.
func (r *matrixReader) finish() {
	m := r.machine
	m.Paths = gpu.NewPaths(len(m.GPUs))
	m.NICPaths = gpu.NewNICPaths(len(m.GPUs), len(m.NICs))
	var missing []string
	for at, row := range r.rows {
		if row == nil {
			missing = append(missing, r.names[at])
		}
	}
	if len(missing) > 0 {
		m.Warn("rows missing: %s", strings.Join(missing, ", "))
	}
	for i := range m.GPUs {
		if own := r.at(i, i); own.known && !own.self {
			m.Warn("row %s: %s towards itself, where X must stand", r.names[i], own.path)
		}
		for j := range i {
			path := r.pair(i, j)
			m.Paths[i][j], m.Paths[j][i] = path, path
		}
		for k := range m.NICs {
			m.NICPaths[i][k] = r.pair(i, r.gpus+k).PCIe
		}
	}
	m.NVSwitch = m.InferNVSwitch()
	for i := range m.GPUs {
		for _, path := range m.Paths[i] {
			if m.NVSwitch == gpu.Present {
				m.GPUs[i].NVLinks = max(m.GPUs[i].NVLinks, path.NVLinks)
			} else {
				m.GPUs[i].NVLinks += path.NVLinks
			}
		}
	}
}

func (r *matrixReader) at(i, j int) cell {
	if r.rows[i] == nil {
		return cell{}
	}
	return r.rows[i][j]
}

// pair joins the two cells of a pair. Where they differ the worse counts: a
// link that only one end sees is not to be relied on.
func (r *matrixReader) pair(i, j int) gpu.Path {
	a, b := r.at(i, j), r.at(j, i)
	for _, c := range []cell{a, b} {
		if c.self {
			r.machine.Warn("%s to %s: X, which only stands for a device itself", r.names[i], r.names[j])
			return gpu.Path{}
		}
	}
	switch {
	case !a.known && !b.known:
		r.machine.Warn("%s to %s: not known", r.names[i], r.names[j])
		return gpu.Path{}
	case !a.known:
		return b.path
	case !b.known || a.path == b.path:
		return a.path
	}
	worse := a.path
	if b.path.NVLinks < a.path.NVLinks || b.path.NVLinks == a.path.NVLinks && b.path.PCIe < a.path.PCIe {
		worse = b.path
	}
	r.machine.Warn("%s to %s: %s one way and %s the other; %s counts", r.names[i], r.names[j], a.path, b.path, worse)
	return worse
}
