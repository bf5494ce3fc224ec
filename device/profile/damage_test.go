// SPDX-License-Identifier: MPL-2.0

package profile

import (
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/shoenig/test/must"

	"github.com/nomad-gpu/nomad-gpu/device/gpu"
)

var uuidForm = regexp.MustCompile(`^GPU-[0-9a-f]{8}-[0-9a-f]{4}-5[0-9a-f]{3}-[89ab][0-9a-f]{3}-[0-9a-f]{12}$`)

const matrix = "\tGPU0\tGPU1\tGPU2\tNIC0\tNIC1\tCPU Affinity\tNUMA Affinity\n" +
	"GPU0\t X \tNV4\tSYS\tPIX\tSYS\t0-7\t0\n" +
	"GPU1\tNV4\t X \tSYS\tNODE\tSYS\t0-7\t0\n" +
	"GPU2\tSYS\tSYS\t X \tSYS\tPXB\t8-15\t1\n" +
	"NIC0\tPIX\tNODE\tSYS\t X \tSYS\t\t\n" +
	"NIC1\tSYS\tSYS\tPXB\tSYS\t X \t\t\n"

func TestADamagedMatrixIsReadForWhatIsThere(t *testing.T) {
	change := func(old, new string) string { return strings.Replace(matrix, old, new, 1) }
	cases := []struct {
		name, text, warning string
		check               func(t *testing.T, m *gpu.Machine)
	}{
		{"cells run together are taken apart", change("NV4\tSYS\tPIX", "NV4SYS\tPIX"), `line 2, row GPU0: "NV4SYS" for GPU1 is read as 2 cells run together`,
			func(t *testing.T, m *gpu.Machine) {
				must.EqOp(t, gpu.PIX, m.NICPaths[0][0])
				must.EqOp(t, 0, m.GPUs[0].NUMANode)
			}},
		{"cells run together in a row that lacks none are not", change("NV4\tSYS\tPIX", "NV4SYS\tSYS\tPIX"), `line 2, row GPU0: "NV4SYS" for GPU1 cannot be read`,
			func(t *testing.T, m *gpu.Machine) {
				must.EqOp(t, 4, m.Paths[0][1].NVLinks)
				must.EqOp(t, gpu.PIX, m.NICPaths[0][0])
			}},
		{"a cell that is cut is filled from the opposite row", change("SYS\tPIX\tSYS\t0-7", "SYS\tPI0-7"), `line 2, row GPU0: "PI0-7" for NIC0 cannot be read`,
			func(t *testing.T, m *gpu.Machine) {
				must.EqOp(t, gpu.PIX, m.NICPaths[0][0])
				must.EqOp(t, gpu.SYS, m.NICPaths[0][1])
				must.EqOp(t, gpu.NoNUMA, m.GPUs[0].NUMANode)
			}},
		{"a cell that is missing is never its neighbour's", change("SYS\tPIX\tSYS\t0-7", "SYS\tSYS\t0-7"), `row GPU0: "0-7" for NIC1 cannot be read`,
			func(t *testing.T, m *gpu.Machine) { must.EqOp(t, gpu.NoNUMA, m.GPUs[0].NUMANode) }},
		{"both ends lost stay unknown", strings.NewReplacer("SYS\tPXB\t8-15", "SYS\tERR\t8-15", "SYS\tPXB\tSYS\t X", "SYS\tERR\tSYS\t X").Replace(matrix), "GPU2 to NIC1: not known",
			func(t *testing.T, m *gpu.Machine) { must.EqOp(t, gpu.NoLevel, m.NICPaths[2][1]) }},
		{"of two answers the worse counts", change("GPU1\tNV4", "GPU1\tSYS"), "GPU1 to GPU0: SYS one way and NV4 the other; SYS counts",
			func(t *testing.T, m *gpu.Machine) { must.EqOp(t, gpu.Path{PCIe: gpu.SYS}, m.Paths[0][1]) }},
		{"fewer links count", change("GPU1\tNV4", "GPU1\tNV2"), "NV2 counts",
			func(t *testing.T, m *gpu.Machine) { must.EqOp(t, 2, m.Paths[0][1].NVLinks) }},
		{"a row that is missing", change("GPU1\tNV4\t X \tSYS\tNODE\tSYS\t0-7\t0\n", ""), "rows missing: GPU1",
			func(t *testing.T, m *gpu.Machine) {
				must.EqOp(t, 4, m.Paths[1][0].NVLinks)
				must.EqOp(t, gpu.NODE, m.NICPaths[1][0])
			}},
		{"a row that stands twice", matrix + "GPU0\t X \tSYS\tSYS\tSYS\tSYS\t0-7\t1\n", "line 7, row GPU0: the row stands here a second time",
			func(t *testing.T, m *gpu.Machine) { must.EqOp(t, 4, m.Paths[0][1].NVLinks) }},
		{"X off the diagonal", strings.NewReplacer("GPU0\t X \tNV4", "GPU0\t X \tX").Replace(matrix), "GPU1 to GPU0: X",
			func(t *testing.T, m *gpu.Machine) { must.EqOp(t, gpu.Path{}, m.Paths[0][1]) }},
		{"no X on the diagonal", change("GPU0\t X ", "GPU0\tPIX"), "row GPU0: PIX towards itself",
			func(t *testing.T, m *gpu.Machine) { must.EqOp(t, 4, m.Paths[0][1].NVLinks) }},
		{"an empty cell", change("GPU0\t X \tNV4", "GPU0\t X \t"), "row GPU0: no value for GPU1",
			func(t *testing.T, m *gpu.Machine) { must.EqOp(t, 4, m.Paths[0][1].NVLinks) }},
		{"a row that is cut off", change("\tSYS\tPIX\tSYS\t0-7\t0\n", "\n"), "row GPU0: cut off before GPU2",
			func(t *testing.T, m *gpu.Machine) { must.EqOp(t, gpu.PIX, m.NICPaths[0][0]) }},
		{"affinity that is none", change("0-7\t0", "zero\t0"), `row GPU0: CPU Affinity "zero" is no list of CPUs`,
			func(t *testing.T, m *gpu.Machine) { must.EqOp(t, gpu.NoNUMA, m.GPUs[0].NUMANode) }},
		{"affinity that is cut off", change("\t0-7\t0\n", "\n"), "row GPU0: cut off before CPU Affinity",
			func(t *testing.T, m *gpu.Machine) { must.EqOp(t, "", m.GPUs[0].CPUs) }},
	}
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			must.NotEqOp(t, matrix, c.text)
			m, err := ParseMatrix(c.text)
			must.NoError(t, err)
			must.StrContains(t, strings.Join(m.Warnings, "\n"), c.warning)
			c.check(t, m)
		})
	}
	m, err := ParseMatrix("$ nvidia-smi topo -m\r\n" + strings.ReplaceAll(matrix, "\n", "\r\n") + "$ exit")
	must.NoError(t, err)
	must.Len(t, 0, m.Warnings)
}

func TestWhatIsNoMatrixIsRefused(t *testing.T) {
	cases := []struct{ name, text, want string }{
		{"nothing", "", "no matrix"},
		{"prose", "GPU0 is better than GPU1, says GPU2\n", "no matrix"},
		{"a row alone", "GPU0\t X \tNV4\n", "no matrix"},
		{"a GPU after a NIC", "\tGPU0\tNIC0\tGPU1\n", "no matrix"},
		{"a column twice", "\tGPU0\tGPU1\tGPU0\n", "line 1: the header names GPU0 twice"},
		{"too many GPUs", "\tGPU" + strings.Join(strings.Fields(strings.Repeat("1 ", 200)), "\tGPU"), "200 GPUs and 0 NICs; at most 128 and 512"},
		{"too long", strings.Repeat(" ", maxTextBytes+1), "at most 4194304 are read"},
	}
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			_, err := ParseMatrix(c.text)
			must.ErrorContains(t, err, c.want)
		})
	}
}

const topologyFile = `<system version="1">
  <cpu numaid="0" affinity="00000000,000fffff">
    <pci busid="0000:01:00.0" class="0x030200" link_speed="16.0 GT/s PCIe" link_width="16">
      <gpu dev="0" sm="80">
        <nvlink target="0000:02:00.0" count="4" tclass="0x030200"/>
      </gpu>
    </pci>
    <pci busid="0000:02:00.0" class="0x030200">
      <gpu dev="1" sm="80">
        <nvlink target="0000:01:00.0" count="4" tclass="0x030200"/>
      </gpu>
    </pci>
  </cpu>
</system>
`

func TestADamagedTopologyFileIsReadForWhatIsThere(t *testing.T) {
	change := func(old, new string) string { return strings.Replace(topologyFile, old, new, 1) }
	cases := []struct {
		name, text, warning string
		check               func(t *testing.T, m *gpu.Machine)
	}{
		{"the file ends in the middle", topologyFile[:strings.Index(topologyFile, `<gpu dev="1"`)], "line 9: ",
			func(t *testing.T, m *gpu.Machine) {
				must.Len(t, 2, m.GPUs)
				must.EqOp(t, 4, m.Paths[0][1].NVLinks)
			}},
		{"an edge that one end lacks", change(`<nvlink target="0000:01:00.0" count="4" tclass="0x030200"/>`, ""), "says 0 NVLinks to GPU 0000:01:00.0, which says 4; 4 count",
			func(t *testing.T, m *gpu.Machine) { must.EqOp(t, 4, m.Paths[0][1].NVLinks) }},
		{"ends that differ", change(`count="4"`, `count="2"`), "2 count",
			func(t *testing.T, m *gpu.Machine) { must.EqOp(t, 2, m.Paths[0][1].NVLinks) }},
		{"a remote end that is hidden", change(`target="0000:02:00.0"`, `target="FFFFFFFF:FF:FF.0"`), "line 5: GPU 0000:01:00.0 has 4 NVLinks to ffffffff:ff:ff.0, which is neither",
			func(t *testing.T, m *gpu.Machine) { must.EqOp(t, 4, m.Paths[0][1].NVLinks) }},
		{"a GPU that names itself", change(`target="0000:02:00.0"`, `target="0000:01:00.0"`), "line 5: GPU 0000:01:00.0 names itself",
			func(t *testing.T, m *gpu.Machine) { must.EqOp(t, 4, m.Paths[0][1].NVLinks) }},
		{"a count that is none", change(`count="4"`, `count="many"`), `line 5: nvlink count "many" is left out`,
			func(t *testing.T, m *gpu.Machine) { must.EqOp(t, 4, m.Paths[0][1].NVLinks) }},
		{"more links than a GPU has", change(`count="4"`, `count="40"`), "line 4: GPU 0000:01:00.0 has 40 NVLinks; no GPU has more than 36",
			func(t *testing.T, m *gpu.Machine) { must.EqOp(t, 4, m.Paths[0][1].NVLinks) }},
		{"a bus ID twice", change(`busid="0000:02:00.0"`, `busid="0000:01:00.0"`), "line 8: bus ID 0000:01:00.0 stands here a second time",
			func(t *testing.T, m *gpu.Machine) { must.Len(t, 2, m.GPUs) }},
		{"a net without a name", change("</cpu>", `<nic><net dev="0"/></nic></cpu>`), "line 13: a net without a name",
			func(t *testing.T, m *gpu.Machine) { must.Len(t, 0, m.NICs) }},
		{"a device that could be anything", change("</cpu>", `<pci busid="0000:03:00.0"/></cpu>`), "line 13: 1 pci elements without a class are left out",
			func(t *testing.T, m *gpu.Machine) { must.Len(t, 2, m.GPUs) }},
	}
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			must.NotEqOp(t, topologyFile, c.text)
			m, err := ParseNCCL(c.text)
			must.NoError(t, err)
			must.StrContains(t, strings.Join(m.Warnings, "\n"), c.warning)
			c.check(t, m)
		})
	}
	m, err := ParseNCCL(topologyFile)
	must.NoError(t, err)
	must.Len(t, 0, m.Warnings)
	must.EqOp(t, "0-19", m.GPUs[0].CPUs)
	must.EqOp(t, 4, m.GPUs[0].PCIeGeneration)
	must.EqOp(t, 16, m.GPUs[0].PCIeWidth)
	must.EqOp(t, "8.0", m.GPUs[0].ComputeCapability)
	must.EqOp(t, gpu.PHB, m.Paths[0][1].PCIe)
}

func TestANICUnderEveryCPUIsNearNoGPU(t *testing.T) {
	m, err := readFixture(t, "b200-vm-hidden-switch.xml")
	must.NoError(t, err)
	must.EqOp(t, gpu.NoNUMA, m.NICs[0].NUMANode)
	for i := range m.GPUs {
		must.Eq(t, []gpu.Level{gpu.NoLevel}, m.NICPaths[i])
	}
}

func TestWhatIsNoTopologyFileIsRefused(t *testing.T) {
	cases := []struct{ name, text, want string }{
		{"nothing", "", "no <system> element"},
		{"another document", "<html></html>", "line 1: <html> where <system> must stand"},
		{"no GPU", "<system><cpu/></system>", "no GPU in the file"},
		{"nested without end", strings.Repeat("<system>", 100), "nested deeper than 64"},
		{"too many elements", "<system>" + strings.Repeat("<cpu/>", maxXMLNodes), "more than 20000 elements"},
		{"too long", strings.Repeat(" ", maxTextBytes+1), "at most 4194304 are read"},
	}
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			_, err := ParseNCCL(c.text)
			must.ErrorContains(t, err, c.want)
		})
	}
}

func TestMaskToList(t *testing.T) {
	cases := []struct{ mask, want string }{
		{"00000000,000fffff", "0-19"},
		{"80000001", "0,31"},
		{"00000001,80000000", "31-32"},
		{"ffffffff", "0-31"},
		{"0", ""},
		{"", ""},
		{"xyz", ""},
		{"fffffffff", ""},
	}
	for _, c := range cases {
		must.EqOp(t, c.want, maskToList(c.mask), must.Sprint(c.mask))
	}
}

// wellFormed checks what every machine promises, whatever it was read from.
func wellFormed(t *testing.T, m *gpu.Machine) {
	must.Len(t, len(m.GPUs), m.Paths)
	must.Len(t, len(m.GPUs), m.NICPaths)
	for i := range m.GPUs {
		must.Len(t, len(m.GPUs), m.Paths[i])
		must.Len(t, len(m.NICs), m.NICPaths[i])
		must.EqOp(t, gpu.Path{}, m.Paths[i][i])
		for j := range m.GPUs {
			must.EqOp(t, m.Paths[i][j], m.Paths[j][i])
		}
	}
}

func seed(f *testing.F, pattern string) {
	files, err := filepath.Glob(filepath.Join(fixtures, pattern))
	must.NoError(f, err)
	must.Positive(f, len(files))
	for _, file := range files {
		text, err := os.ReadFile(file)
		must.NoError(f, err)
		f.Add(string(text))
	}
}

func FuzzMatrix(f *testing.F) {
	seed(f, "*.txt")
	f.Add(matrix)
	f.Fuzz(func(t *testing.T, text string) {
		if m, err := ParseMatrix(text); err == nil {
			wellFormed(t, m)
		}
	})
}

func FuzzNCCL(f *testing.F) {
	seed(f, "*.xml")
	f.Add(topologyFile)
	f.Fuzz(func(t *testing.T, text string) {
		if m, err := ParseNCCL(text); err == nil {
			wellFormed(t, m)
		}
	})
}

func FuzzYAML(f *testing.F) {
	f.Add(small)
	f.Fuzz(func(t *testing.T, text string) {
		if m, err := ParseYAML("fuzz.yaml", []byte(text)); err == nil {
			wellFormed(t, m)
		}
	})
}
