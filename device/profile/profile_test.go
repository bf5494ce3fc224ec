// SPDX-License-Identifier: MPL-2.0

package profile

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/shoenig/test/must"

	"github.com/nomad-gpu/nomad-gpu/device/gpu"
	"github.com/nomad-gpu/nomad-gpu/device/topology"
)

// TestBuiltInProfilesMatchTheMatricesOfRealMachines compares each profile with
// a published matrix of that machine, cell by cell.
func TestBuiltInProfilesMatchTheMatricesOfRealMachines(t *testing.T) {
	cases := []struct {
		profile, matrix string
		nics            bool // the matrix's NICs are the profile's
	}{
		{"dgx-h100", "h100-hgx-12-nics.txt", true},
		{"dgx-a100", "dgx-a100-12-nics.txt", true},
		{"dgx1-v100", "dgx1-v100.txt", true},
		{"pcie-nvlink-pairs", "a100-pcie-2-pairs.txt", false},
	}
	must.Len(t, len(cases), Names())
	for _, c := range cases {
		t.Run(c.profile, func(t *testing.T) {
			m, err := Load(c.profile)
			must.NoError(t, err)
			real, err := readFixture(t, c.matrix)
			must.NoError(t, err)
			must.Len(t, len(real.GPUs), m.GPUs)
			must.EqOp(t, real.NVSwitch, m.NVSwitch)
			must.Len(t, 0, m.Warnings)
			for i := range m.GPUs {
				for j := range m.GPUs {
					must.EqOp(t, real.Paths[i][j].NVLinks, m.Paths[i][j].NVLinks)
					if i != j && real.Paths[i][j].NVLinks == 0 {
						must.EqOp(t, real.Paths[i][j].PCIe, m.Paths[i][j].PCIe, must.Sprintf("GPU %d to %d", i, j))
					}
				}
				if real.GPUs[i].NUMANode != gpu.NoNUMA {
					must.EqOp(t, real.GPUs[i].NUMANode, m.GPUs[i].NUMANode)
				}
				must.NotEqOp(t, gpu.NoNUMA, m.GPUs[i].NUMANode)
				if c.nics {
					must.EqOp(t, real.GPUs[i].CPUs, m.GPUs[i].CPUs)
				}
			}
			if !c.nics {
				return
			}
			column := make(map[string]int)
			for k, nic := range real.NICs {
				column[strings.Replace(nic.Name, "NIC", "mlx5_", 1)] = k
			}
			must.Len(t, len(real.NICs), m.NICs)
			for k, nic := range m.NICs {
				at, ok := column[nic.Name]
				must.True(t, ok, must.Sprint(nic.Name))
				for i := range m.GPUs {
					must.EqOp(t, real.NICPaths[i][at], m.NICPaths[i][k], must.Sprintf("GPU %d to %s", i, nic.Name))
				}
			}
		})
	}
}

func TestBuiltInProfilesKnowEveryValue(t *testing.T) {
	for _, name := range Names() {
		m, err := Load(name)
		must.NoError(t, err)
		must.NotEq(t, "", m.DriverVersion)
		must.NotEq(t, "", m.CUDAVersion)
		for _, g := range m.GPUs {
			must.Positive(t, g.MemoryMiB)
			must.Positive(t, g.BAR1MiB)
			must.Positive(t, g.CoresClockMHz)
			must.Positive(t, g.MemoryClockMHz)
			must.Positive(t, g.PowerLimitW)
			must.Positive(t, g.PCIeMBps())
			must.Positive(t, g.NVLinkMBps())
			must.Positive(t, g.NVLinks)
			must.NotEq(t, "", g.Architecture)
			must.NotEq(t, "", g.ComputeCapability)
			must.NotEq(t, "", g.BusID)
		}
		for i, nearest := range topology.NearestNICs(m) {
			must.Greater(t, gpu.SYS, nearest.Level, must.Sprintf("%s: GPU %d", name, i))
		}
	}
}

const small = `name: Box
parts:
  a: { model: Part A, nvlinks: 4 }
gpus:
  - { numa: 0 }
  - { numa: 1 }
`

func TestFaultsOfAProfileNameFileLineAndWhatIsAllowed(t *testing.T) {
	cases := []struct{ name, text, want string }{
		{"unknown key", small + "gpu: []\n", `box.yaml:7: unknown key "gpu"; allowed here: cuda_version, description`},
		{"unknown key of a part", strings.Replace(small, "nvlinks: 4", "nvlink: 4", 1), `box.yaml:3: unknown key "nvlink"; allowed here: architecture`},
		{"unknown key of a GPU", strings.Replace(small, "numa: 1", "node: 1", 1), `box.yaml:6: unknown key "node"; allowed here: bridge, bus_id, cpus`},
		{"not YAML", "name: [\n", `box.yaml:1: `},
		{"a word where a number must be", strings.Replace(small, "numa: 1", "numa: one", 1), "box.yaml:6: "},
		{"no document", "", "box.yaml: a profile is one YAML document; this file has 0"},
		{"two documents", small + "---\n" + small, "this file has 2"},
		{"a list", "- a\n", "box.yaml:1: "},
		{"no name", strings.Replace(small, "name: Box", "description: x", 1), "box.yaml:1: name: missing"},
		{"control character in the model", strings.Replace(small, "Part A", `"a\tb"`, 1), `box.yaml:3: parts.a.model: "a\tb"; allowed are`},
		{"no model", strings.Replace(small, "model: Part A, ", "", 1), "box.yaml:3: parts.a.model: missing"},
		{"no parts", "name: Box\ngpus: [{ numa: 0 }]\n", "parts: missing"},
		{"no GPUs", "name: Box\nparts:\n  a: { model: A }\n", "gpus: 0 GPUs; allowed are 1 to 128"},
		{"unknown part", strings.Replace(small, "numa: 1", "part: b", 1), `box.yaml:6: gpus[1].part: "b"; allowed are the parts of this file: a`},
		{"too many links of a part", strings.Replace(small, "nvlinks: 4", "nvlinks: 37", 1), "box.yaml:3: parts.a.nvlinks: 37; at most 36"},
		{"negative number", strings.Replace(small, "nvlinks: 4", "nvlinks: -1", 1), "box.yaml:3: "},
		{"NUMA node out of range", strings.Replace(small, "numa: 1", "numa: -2", 1), "box.yaml:6: gpus[1].numa: -2; allowed is 0 to 1023"},
		{"bus ID", strings.Replace(small, "numa: 1", "bus_id: 1b", 1), `box.yaml:6: gpus[1].bus_id: "1b"; it must look like`},
		{"bus ID twice", strings.ReplaceAll(small, "numa: ", `bus_id: "0000:1b:00.0", numa: `), "gpus[1].bus_id: \"0000:1b:00.0\" is also that of GPU 0"},
		{"CPUs", strings.Replace(small, "numa: 1", "cpus: all", 1), `gpus[1].cpus: "all"`},
		{"driver version", small + "driver_version: new\n", `box.yaml:7: driver_version: "new"`},
		{"CUDA version", small + "cuda_version: \"12\"\n", `box.yaml:7: cuda_version: "12"`},
		{"capability", strings.Replace(small, "nvlinks: 4", "compute_capability: x", 1), "parts.a.compute_capability"},
		{"NVLink version", strings.Replace(small, "nvlinks: 4", "nvlink_version: 12", 1), "parts.a.nvlink_version: 12"},
		{"NIC without name", small + "nics:\n  - { numa: 0 }\n", `box.yaml:8: nics[0].name: ""`},
		{"NIC twice", small + "nics:\n  - { name: a }\n  - { name: a }\n", "box.yaml:9: nics[1].name: \"a\" is the name of an earlier NIC"},
		{"NIC device", small + "nics:\n  - { name: a, device: \"../x\" }\n", "nics[0].device"},
		{"NIC bus ID", small + "nics:\n  - { name: a, bus_id: x }\n", "nics[0].bus_id"},
		{"NIC NUMA node", small + "nics:\n  - { name: a, numa: 4000 }\n", "nics[0].numa: 4000"},
		{"link to itself", small + "links:\n  - { gpus: [1, 1], count: 2 }\n", "box.yaml:8: links[0].gpus: [1 1]; it must be two different GPUs"},
		{"link of three", small + "links:\n  - { gpus: [0, 1, 1], count: 2 }\n", "two different GPUs"},
		{"link to nowhere", small + "links:\n  - { gpus: [0, 2], count: 2 }\n", "links[0].gpus: 2; allowed is 0 to 1"},
		{"link without count", small + "links:\n  - { gpus: [0, 1] }\n", "links[0].count: 0; allowed is 1 to 36"},
		{"link twice", small + "links:\n  - { gpus: [0, 1], count: 1 }\n  - { gpus: [1, 0], count: 1 }\n", "box.yaml:9: links[1].gpus: [1 0]: this pair is listed earlier"},
		{"more links than the part has", small + "links:\n  - { gpus: [0, 1], count: 5 }\n", "links[0].count: GPU 0 would have 5 NVLinks; its part has 4"},
		{"links beside switches", small + "nvswitch: true\nlinks:\n  - { gpus: [0, 1], count: 1 }\n", "links: not allowed with nvswitch"},
		{"switches without links", strings.Replace(small, ", nvlinks: 4", "", 1) + "nvswitch: true\n", "box.yaml:5: gpus[0]: with nvswitch its part must have nvlinks"},
		{"too long", small + "#" + strings.Repeat(" ", maxTextBytes), "at most 4194304 are read"},
	}
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			_, err := ParseYAML("box.yaml", []byte(c.text))
			must.ErrorContains(t, err, c.want)
		})
	}
	m, err := ParseYAML("box.yaml", []byte(small))
	must.NoError(t, err)
	must.Len(t, 2, m.GPUs)
}

func TestLoad(t *testing.T) {
	_, err := Load("dgx-h1000")
	must.ErrorContains(t, err, `profile "dgx-h1000" is not known; allowed are dgx-a100, dgx-h100, dgx1-v100, pcie-nvlink-pairs, or the path`)
	_, err = Load("../machines/dgx-h100")
	must.ErrorContains(t, err, "no such file")
	_, err = Load("missing.yaml")
	must.ErrorIs(t, err, os.ErrNotExist)

	file := filepath.Join(t.TempDir(), "box.yml")
	must.NoError(t, os.WriteFile(file, []byte(small), 0o600))
	m, err := Load(file)
	must.NoError(t, err)
	must.EqOp(t, "Box", m.Name)
	must.NoError(t, os.WriteFile(file, []byte(small+"x: 1\n"), 0o600))
	_, err = Load(file)
	must.ErrorContains(t, err, file+":7: ")
}

func TestSimulatedIdentitiesAreStableAndUnique(t *testing.T) {
	seen := make(map[string]bool)
	for _, name := range []string{"dgx-h100", "dgx-a100"} {
		for _, seed := range []string{"node-1", "node-2"} {
			a, err := Load(name)
			must.NoError(t, err)
			must.NoError(t, Simulate(a, seed))
			b, err := Load(name)
			must.NoError(t, err)
			must.NoError(t, Simulate(b, seed))
			must.True(t, a.Simulated)
			for i := range a.GPUs {
				must.EqOp(t, a.GPUs[i].UUID, b.GPUs[i].UUID)
				must.RegexMatch(t, uuidForm, a.GPUs[i].UUID)
				must.False(t, seen[a.GPUs[i].UUID])
				seen[a.GPUs[i].UUID] = true
			}
		}
	}
	must.ErrorIs(t, Simulate(&gpu.Machine{}, ""), ErrNoSeed)
}
