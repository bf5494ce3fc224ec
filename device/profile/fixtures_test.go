// SPDX-License-Identifier: MPL-2.0

package profile

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/shoenig/test/must"

	"github.com/nomad-gpu/nomad-gpu/device/gpu"
	"github.com/nomad-gpu/nomad-gpu/device/topology"
)

const fixtures = "testdata/topology"

type wantNearest struct {
	Level string   `json:"level"`
	NICs  []string `json:"nics"`
}

// wanted is an entry of expected.json; its keys are explained in README.md
// there. A pointer or nil map tells "not said" from a value.
type wanted struct {
	GPUs         *int                   `json:"gpus"`
	NICs         *int                   `json:"nics"`
	Islands      *[][]int               `json:"nvlink_islands"`
	Alone        []int                  `json:"alone"`
	FullMeshes   *bool                  `json:"islands_are_full_meshes"`
	Cliques      [][]int                `json:"cliques"`
	LinksPerPair *uint                  `json:"links_per_connected_pair"`
	AllPairs     *uint                  `json:"all_pairs"`
	PairLinks    map[string]uint        `json:"pair_links"`
	LinksPerGPU  *uint                  `json:"links_per_gpu"`
	NVSwitch     *bool                  `json:"nvswitch"`
	Nearest      map[string]wantNearest `json:"closest_nics"`
	NUMA         map[string]int         `json:"numa"`
	NICNames     map[string]string      `json:"nic_names"`
	Warning      string                 `json:"warning"`
	Recovered    *struct {
		Nearest map[string]wantNearest `json:"closest_nics"`
		NUMA    map[string]int         `json:"numa"`
	} `json:"if_recovered"`
	PCI *struct {
		GPUBusIDs []string               `json:"gpu_bus_ids"`
		NICBusIDs []string               `json:"nic_bus_ids"`
		Nearest   map[string]wantNearest `json:"closest_nics"`
		NUMA      map[string]int         `json:"numa"`
	} `json:"pci"`
}

func readFixture(t testing.TB, name string) (*gpu.Machine, error) {
	t.Helper()
	text, err := os.ReadFile(filepath.Join(fixtures, name))
	must.NoError(t, err)
	if strings.HasSuffix(name, ".xml") {
		return ParseNCCL(string(text))
	}
	return ParseMatrix(string(text))
}

// TestEveryFixtureIsReadAsExpected also fails if a file of the folder has no
// entry in expected.json.
func TestEveryFixtureIsReadAsExpected(t *testing.T) {
	text, err := os.ReadFile(filepath.Join(fixtures, "expected.json"))
	must.NoError(t, err)
	var expected map[string]map[string]any
	must.NoError(t, json.Unmarshal(text, &expected))
	var want map[string]wanted
	must.NoError(t, json.Unmarshal(text, &want))
	files, err := filepath.Glob(filepath.Join(fixtures, "*.[tx][xm][tl]"))
	must.NoError(t, err)
	must.Eq(t, len(want), len(files))

	for _, file := range files {
		name := filepath.Base(file)
		t.Run(name, func(t *testing.T) {
			w, ok := want[name]
			must.True(t, ok, must.Sprint("not in expected.json"))
			m, err := readFixture(t, name)
			if name == "aws-g5-48xl-pci.xml" {
				must.ErrorContains(t, err, "line 14: 9 pci elements have no class")
				return
			}
			must.NoError(t, err)
			checkLinks(t, m, w)
			checkNICs(t, m, w)
			if w.Warning != "" {
				must.Greater(t, 0, len(m.Warnings), must.Sprint("a damaged file must be warned of"))
			}
			_, said := expected[name]["closest_nics"]
			if said && w.Nearest == nil && w.Recovered == nil {
				for i, n := range topology.NearestNICs(m) {
					must.EqOp(t, gpu.NoLevel, n.Level, must.Sprintf("GPU %d", i))
				}
			}
			if w.NUMA == nil && w.PCI == nil && w.Recovered == nil && w.Warning == "" && w.GPUs != nil {
				for i := range m.GPUs {
					must.EqOp(t, gpu.NoNUMA, m.GPUs[i].NUMANode, must.Sprintf("GPU %d", i))
				}
			}
		})
	}
}

func checkLinks(t *testing.T, m *gpu.Machine, w wanted) {
	t.Helper()
	islands := topology.Islands(m)
	if w.GPUs != nil {
		must.Len(t, *w.GPUs, m.GPUs)
	}
	if w.Islands != nil {
		must.Eq(t, *w.Islands, append([][]int{}, islands...))
		must.Eq(t, append([]int{}, w.Alone...), append([]int{}, topology.Alone(m)...))
	}
	for _, island := range islands {
		if w.FullMeshes != nil {
			must.EqOp(t, *w.FullMeshes, topology.FullMesh(m, island))
		}
		if w.Cliques != nil {
			must.Eq(t, w.Cliques, topology.Cliques(m, island))
		}
	}
	pairs := make(map[string]uint)
	for i := range m.GPUs {
		for j := i + 1; j < len(m.GPUs); j++ {
			links := m.Paths[i][j].NVLinks
			if links > 0 {
				pairs[fmt.Sprintf("%d-%d", i, j)] = links
			}
			if w.LinksPerPair != nil && links > 0 {
				must.EqOp(t, *w.LinksPerPair, links)
			}
			if w.AllPairs != nil {
				must.EqOp(t, *w.AllPairs, links)
			}
		}
		if w.LinksPerGPU != nil {
			must.EqOp(t, *w.LinksPerGPU, m.GPUs[i].NVLinks)
		}
	}
	if w.PairLinks != nil {
		must.Eq(t, w.PairLinks, pairs)
	}
	if w.NVSwitch != nil {
		want := gpu.Absent
		if *w.NVSwitch {
			want = gpu.Present
		}
		must.EqOp(t, want, m.NVSwitch)
	}
}

func checkNICs(t *testing.T, m *gpu.Machine, w wanted) {
	t.Helper()
	if w.NICs != nil {
		must.Len(t, *w.NICs, m.NICs)
	}
	for _, nic := range m.NICs {
		if device, ok := w.NICNames[nic.Name]; ok {
			must.EqOp(t, device, nic.Device)
		}
	}
	nearest, numa := w.Nearest, w.NUMA
	switch {
	case w.Recovered != nil:
		nearest, numa = w.Recovered.Nearest, w.Recovered.NUMA
	case w.PCI != nil:
		nearest, numa = w.PCI.Nearest, w.PCI.NUMA
		var gpus, nics []string
		for _, g := range m.GPUs {
			gpus = append(gpus, g.BusID)
		}
		for _, n := range m.NICs {
			nics = append(nics, n.BusID)
		}
		slices.Sort(nics)
		must.Eq(t, w.PCI.GPUBusIDs, gpus)
		must.Eq(t, w.PCI.NICBusIDs, nics)
	}
	for i, got := range topology.NearestNICs(m) {
		if want, ok := nearest[fmt.Sprint(i)]; ok {
			var names []string
			for _, k := range got.NICs {
				names = append(names, m.NICs[k].Name)
			}
			slices.Sort(names)
			slices.Sort(want.NICs)
			must.EqOp(t, want.Level, got.Level.String(), must.Sprintf("GPU %d", i))
			must.Eq(t, want.NICs, names, must.Sprintf("GPU %d", i))
		}
		if want, ok := numa[fmt.Sprint(i)]; ok {
			must.EqOp(t, want, m.GPUs[i].NUMANode, must.Sprintf("GPU %d", i))
		}
	}
}

// TestWholeFilesAreReadWithoutWarning names the files whose rows are cut or
// damaged; all others must be read in silence.
func TestWholeFilesAreReadWithoutWarning(t *testing.T) {
	loud := []string{
		"a100-vm-damaged-nic-column.txt", "b200-hgx-16-nics-damaged-whole.txt", "b200-hgx-16-nics-damaged.txt",
		"b300-hgx-ansi-header.txt", "gb10-spark-capped.txt", "gb200-tray.txt", "h100-hgx-12-nics-6-rows.txt",
		"h100-hgx-12-nics.txt", "azure-ncv4.xml", "aws-g5-48xl-pci.xml",
	}
	files, err := filepath.Glob(filepath.Join(fixtures, "*.[tx][xm][tl]"))
	must.NoError(t, err)
	for _, file := range files {
		name := filepath.Base(file)
		m, err := readFixture(t, name)
		if err != nil {
			continue
		}
		must.EqOp(t, slices.Contains(loud, name), len(m.Warnings) > 0, must.Sprintf("%s: %q", name, m.Warnings))
	}
}
