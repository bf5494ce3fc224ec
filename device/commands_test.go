// SPDX-License-Identifier: MPL-2.0

package main

import (
	"bytes"
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/shoenig/test/must"
)

const fixtures = "profile/testdata/topology/"

// execute runs the command line and gives what it prints.
func execute(t *testing.T, stdin string, args ...string) (stdout, stderr string, err error) {
	t.Helper()
	var out, errOut bytes.Buffer
	cmd := newCommand()
	cmd.SetArgs(args)
	cmd.SetIn(strings.NewReader(stdin))
	cmd.SetOut(&out)
	cmd.SetErr(&errOut)
	err = cmd.Execute()
	return out.String(), errOut.String(), err
}

func TestTopoPrintsMatrixAndConclusions(t *testing.T) {
	cases := []struct {
		name string
		args []string
		want []string
	}{
		{"a profile", []string{"--profile", "dgx1-v100", "--choose", "2"}, []string{
			"NVIDIA DGX-1 with V100, 8 × Tesla V100-SXM2-32GB, simulated",
			"GPU0  X     NV1   NV1   NV2   NV2   SYS   SYS   SYS   PIX     PHB     SYS     SYS     0     0-19,40-59",
			"NVLink island:  0 1 2 3 4 5 6 7 (cliques 0 1 2 3, 0 4, 1 5, 2 6, 3 7, 4 5 6 7)",
			"Nearest to 7:   mlx5_3 (PIX)",
			"Visible order:  0 3 2 1 5 6 7 4",
			"Best 2:         ",
		}},
		{"a matrix", []string{"--topo-file", fixtures + "nv12-8-pairs-interleaved.txt"}, []string{
			"NVLink island:  0 2 (full mesh)", "NVSwitch:       no", "Visible order:  0 2",
		}},
		{"a topology file", []string{"--nccl-xml", fixtures + "perlmutter-4xa100.xml"}, []string{
			"NVLink island:  0 1 2 3 (full mesh)", "Nearest to 0:   cxi3 (PHB)",
		}},
		{"no NVLink", []string{"--topo-file", fixtures + "k80-legacy-soc.txt"}, []string{"No NVLink:      0 1 2 3"}},
	}
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			out, errOut, err := execute(t, "", append([]string{"topo"}, c.args...)...)
			must.NoError(t, err)
			must.EqOp(t, "", errOut)
			for _, want := range c.want {
				must.StrContains(t, out, want)
			}
		})
	}
}

func TestTopoWarnsOfDamageAndReadsStandardInput(t *testing.T) {
	text, err := os.ReadFile(fixtures + "b200-hgx-16-nics-damaged-whole.txt")
	must.NoError(t, err)
	out, errOut, err := execute(t, string(text), "topo", "--topo-file", "-")
	must.NoError(t, err)
	must.StrContains(t, errOut, `Warning: line 4, row GPU2: "PXBNODE" for NIC8 is read as 2 cells run together`)
	must.StrContains(t, out, "Nearest to 2:   mlx5_8 (PXB)")
}

func TestJSONIsForMachines(t *testing.T) {
	out, _, err := execute(t, "", "topo", "--profile", "pcie-nvlink-pairs", "--choose", "2", "--json")
	must.NoError(t, err)
	var r report
	must.NoError(t, json.Unmarshal([]byte(out), &r))
	must.Len(t, 4, r.Machine.GPUs)
	must.Eq(t, []island{{GPUs: []int{0, 1}, FullMesh: true}, {GPUs: []int{2, 3}, FullMesh: true}}, r.Islands)
	must.Eq(t, []int{0, 1}, r.Chosen)

	out, _, err = execute(t, "", "topo", "--topo-file", fixtures+"pcie-6-gpus.txt", "--json")
	must.NoError(t, err)
	must.StrContains(t, out, `"islands": []`)
	must.StrContains(t, out, `"nics": []`)

	out, _, err = execute(t, "", "profiles", "--json")
	must.NoError(t, err)
	must.StrContains(t, out, `"profile": "dgx-h100"`)
	out, _, err = execute(t, "", "profiles")
	must.NoError(t, err)
	must.StrContains(t, out, "NVIDIA DGX H100")

	out, _, err = execute(t, "", "fingerprint", "--json", "--profile", "dgx-h100", "--profile-seed", "x")
	must.NoError(t, err)
	var groups []struct {
		Name    string
		Devices []struct{ ID string }
	}
	must.NoError(t, json.Unmarshal([]byte(out), &groups))
	must.Len(t, 8, groups[0].Devices)
}

func TestFingerprintPrintsWhatNomadSees(t *testing.T) {
	out, _, err := execute(t, "", "fingerprint", "--profile", "dgx-a100")
	must.NoError(t, err)
	for _, want := range []string{"nvidia/gpu/NVIDIA A100-SXM4-80GB", "0000:07:00.0", "nvlink_bandwidth    300GB/s"} {
		must.StrContains(t, out, want)
	}
	out, _, err = execute(t, "", "fingerprint", "--topo-file", fixtures+"aws-p4d.txt")
	must.NoError(t, err)
	must.StrContains(t, out, "none tells its UUID")
}

func TestBadCommandLinesSayWhatIsAllowed(t *testing.T) {
	missing := filepath.Join(t.TempDir(), "missing.txt")
	cases := []struct {
		name string
		args []string
		want string
	}{
		{"unknown profile", []string{"topo", "--profile", "dgx"}, `profile "dgx" is not known; allowed are dgx-a100`},
		{"two sources", []string{"topo", "--profile", "dgx-h100", "--nccl-xml", "x"}, "[nccl-xml profile]"},
		{"seed alone", []string{"topo", "--profile-seed", "x"}, "--profile-seed is of use only together with --profile"},
		{"no such file", []string{"topo", "--topo-file", missing}, missing},
		{"no matrix", []string{"topo", "--topo-file", "-"}, "-: no matrix"},
		{"no topology file", []string{"topo", "--nccl-xml", "-"}, "-: no <system> element"},
		{"too many chosen", []string{"topo", "--profile", "dgx-h100", "--choose", "9"}, "--choose: count 9: only 8 GPUs are free"},
		{"none chosen", []string{"topo", "--profile", "dgx-h100", "--choose", "0"}, "--choose: count 0"},
		{"no driver", []string{"fingerprint", "--nvml-library", missing}, "is the NVIDIA driver installed?"},
		{"an argument", []string{"topo", "extra"}, "extra"},
	}
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			_, _, err := execute(t, "", c.args...)
			must.ErrorContains(t, err, c.want)
		})
	}
}

func TestHealthExplainsEveryVerdict(t *testing.T) {
	faults := filepath.Join(t.TempDir(), "faults.yaml")
	must.NoError(t, os.WriteFile(faults, []byte("faults:\n  - { gpu: 2, xids: [79] }\n  - { gpu: 4, thermal_slowdown: true }\n"), 0o600))
	out, _, err := execute(t, "", "health", "--profile", "dgx-h100", "--profile-faults", faults)
	must.NoError(t, err)
	for _, want := range []string{"unhealthy  xid", "Xid 79, the GPU has fallen off the bus", "cured by a restart of the machine", "degraded   thermal", "healthy"} {
		must.StrContains(t, out, want)
	}
	out, _, err = execute(t, "", "health", "--profile", "dgx-h100", "--json")
	must.NoError(t, err)
	must.EqOp(t, 8, strings.Count(out, `"state": "healthy"`))

	out, _, err = execute(t, "", "health", "--xid", "48")
	must.NoError(t, err)
	must.StrContains(t, out, "48  reset")
	out, _, err = execute(t, "", "health", "--xid", "all", "--json")
	must.NoError(t, err)
	must.StrContains(t, out, `"xid": 119`)
	for _, asJSON := range []string{"--json=true", "--json=false"} {
		out, _, err = execute(t, "", "health", "--rules", asJSON)
		must.NoError(t, err)
		must.StrContains(t, out, "remap_failed")
	}
	for _, c := range []struct {
		args []string
		want string
	}{
		{[]string{"--xid", "many"}, `--xid "many": it must be a number, or all`},
		{[]string{"--profile-faults", "x"}, "of use only together with --profile"},
		{[]string{"--profile", "none"}, `profile "none" is not known`},
		{[]string{"--nvml-library", filepath.Join(t.TempDir(), "none.so")}, "is the NVIDIA driver installed?"},
	} {
		_, _, err := execute(t, "", append([]string{"health"}, c.args...)...)
		must.ErrorContains(t, err, c.want)
	}
}
