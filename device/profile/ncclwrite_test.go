// SPDX-License-Identifier: MPL-2.0

package profile

import (
	"testing"

	"github.com/shoenig/test/must"

	"github.com/nomad-gpu/nomad-gpu/device/gpu"
)

// near folds what the file does not tell apart: without a common switch two
// devices of a NUMA node are one step away, whatever bridges are between them.
func near(l gpu.Level) gpu.Level {
	if l == gpu.NODE {
		return gpu.PHB
	}
	return l
}

func TestTheFileForNCCLReadsBackAsTheMachine(t *testing.T) {
	for _, name := range Names() {
		t.Run(name, func(t *testing.T) {
			m, err := Load(name)
			must.NoError(t, err)
			text, err := WriteNCCL(m)
			must.NoError(t, err)
			read, err := ParseNCCL(string(text))
			must.NoError(t, err, must.Sprint(string(text)))
			must.SliceEmpty(t, read.Warnings)
			must.Len(t, len(m.GPUs), read.GPUs)
			at := map[string]int{}
			for i, g := range read.GPUs {
				at[g.BusID] = i
			}
			nic := map[string]int{}
			for k, n := range read.NICs {
				nic[n.BusID] = k
			}
			for i, g := range m.GPUs {
				got := read.GPUs[at[g.BusID]]
				must.EqOp(t, g.NUMANode, got.NUMANode)
				must.EqOp(t, g.CPUs, got.CPUs)
				must.EqOp(t, g.PCIeGeneration, got.PCIeGeneration)
				must.EqOp(t, g.PCIeWidth, got.PCIeWidth)
				for j := range m.GPUs {
					if i != j && m.Paths[i][j].PCIe != gpu.NoLevel {
						must.EqOp(t, near(m.Paths[i][j].PCIe), near(read.Paths[at[g.BusID]][at[m.GPUs[j].BusID]].PCIe), must.Sprintf("GPUs %d and %d\n%s", i, j, text))
					}
				}
				for k, n := range m.NICs {
					if n.BusID == "" || n.NUMANode == gpu.NoNUMA {
						continue
					}
					must.EqOp(t, near(m.NICPaths[i][k]), near(read.NICPaths[at[g.BusID]][nic[n.BusID]]), must.Sprintf("GPU %d and %s\n%s", i, n.Name, text))
				}
			}
		})
	}
}

func TestWithTooLittleKnownThereIsNoFile(t *testing.T) {
	for want, spoil := range map[string]func(*gpu.Machine){
		"no GPU":                    func(m *gpu.Machine) { m.GPUs = nil },
		"GPU 2: its bus ID or NUMA": func(m *gpu.Machine) { m.GPUs[2].BusID = "" },
		"GPU 0: its bus ID or NUMA": func(m *gpu.Machine) { m.GPUs[0].NUMANode = gpu.NoNUMA },
		"is a MIG instance":         func(m *gpu.Machine) { m.GPUs[1].Parent = "GPU-x" },
	} {
		m, err := Load("dgx-h100")
		must.NoError(t, err)
		spoil(m)
		_, err = WriteNCCL(m)
		must.ErrorContains(t, err, want)
	}
}

func TestMasksAndLists(t *testing.T) {
	for list, mask := range map[string]string{"0": "00000001", "0-19": "000fffff", "0-31,64-65": "00000003,00000000,ffffffff", "32": "00000001,00000000"} {
		must.EqOp(t, mask, listToMask(list))
		must.EqOp(t, list, maskToList(mask))
	}
	for _, bad := range []string{"", "x", "5-3", "-1", "0-99999"} {
		must.EqOp(t, "", listToMask(bad))
	}
}
