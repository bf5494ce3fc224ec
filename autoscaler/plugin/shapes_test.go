// SPDX-License-Identifier: MPL-2.0

package plugin

import (
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/hashicorp/go-hclog"
	"github.com/shoenig/test/must"
)

// waits is a stand-in of a Nomad without a node, with one job that waits: count
// allocations of one task with these device blocks.
func waits(t *testing.T, count int, devices string) string {
	job := fmt.Sprintf(`{"ID":"j","Namespace":"default","Status":"pending","Type":"service","TaskGroups":[{"Name":"g","Count":%d,"Tasks":[{"Name":"t","Resources":{"Devices":[%s]}}]}]}`, count, devices)
	must.True(t, json.Valid([]byte(job)), must.Sprint(job))
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		switch r.URL.Path {
		case "/v1/evaluations":
			fmt.Fprint(w, `[{"ID":"e","Namespace":"default","JobID":"j","Status":"blocked"}]`)
		case "/v1/job/j":
			fmt.Fprint(w, job)
		default:
			fmt.Fprint(w, `[]`)
		}
	}))
	t.Cleanup(s.Close)
	return s.URL
}

// What the reference says of slices, MIG and islands holds for its own example.
func TestTheShapesOfTheReferenceServeWhatItSays(t *testing.T) {
	text, err := os.ReadFile("../README.md")
	must.NoError(t, err)
	_, example, found := strings.Cut(string(text), "### Slices, MIG and islands")
	must.True(t, found)
	_, example, _ = strings.Cut(example, "```hcl\n")
	example, _, _ = strings.Cut(example, "```")
	file := filepath.Join(t.TempDir(), "pools.hcl")
	must.NoError(t, os.WriteFile(file, []byte(example), 0o600))

	device := func(name string, count int, constraint ...string) string {
		d := fmt.Sprintf(`{"Name":%q,"Count":%d`, name, count)
		if len(constraint) > 0 {
			d += fmt.Sprintf(`,"Constraints":[{"LTarget":"${device.attr.%s}","Operand":%q,"RTarget":%q}]`, constraint[0], constraint[1], constraint[2])
		}
		return d + "}"
	}
	rack := []string{"fabric_cluster", "=", "5f3c8a52-7d1e-4b90-9a6d-2f0c1e7b4d13"}
	for name, c := range map[string]struct {
		count   int
		devices string
		pool    string // that is bought from; empty: none ever is
		nodes   int
	}{
		"slices":                           {33, device("nvidia/gpu-slice", 1), "notebooks", 2},
		"slices of four GPUs":              {9, device("nvidia/gpu-slice", 4), "notebooks", 2},
		"more slices than GPUs":            {1, device("nvidia/gpu-slice", 5), "", 0},
		"MIG instances":                    {15, device("nvidia/gpu/NVIDIA A100-SXM4-40GB MIG 1g.5gb", 1), "a100-mig", 2},
		"the GPUs beside them":             {2, device("nvidia/gpu/NVIDIA A100-SXM4-40GB", 4), "a100-mig", 2},
		"one of each":                      {7, device("nvidia/gpu/NVIDIA A100-SXM4-40GB", 1) + "," + device("nvidia/gpu/NVIDIA A100-SXM4-40GB MIG 1g.5gb", 1), "a100-mig", 2},
		"a profile that no pool has":       {1, device("nvidia/gpu/NVIDIA A100-SXM4-40GB MIG 3g.20gb", 1), "", 0},
		"an island":                        {3, device("nvidia/gpu/Tesla V100-SXM2-32GB island 0", 4), "v100", 2},
		"more than an island of its model": {1, device("nvidia/gpu/Tesla V100-SXM2-32GB island 0", 8), "", 0},
		"islands of two":                   {2, device("nvidia/gpu/NVIDIA A100 80GB PCIe", 8, "nvlink_island_size", ">=", "2"), "pcie", 2},
		"islands of four":                  {1, device("nvidia/gpu/NVIDIA A100 80GB PCIe", 4, "nvlink_island_size", ">=", "4"), "", 0},
		"a rack's fabric":                  {18, device("nvidia/gpu/NVIDIA GB200", 4, rack...), "rack-7", 18},
		"another rack's":                   {1, device("nvidia/gpu/NVIDIA GB200", 4, "fabric_cluster", "=", "00000000-0000-0000-0000-000000000000"), "", 0},
	} {
		t.Run(name, func(t *testing.T) {
			l, _, err := NewLookout(map[string]string{"pools_file": file, "nomad_address": waits(t, c.count, c.devices)}, hclog.NewNullLogger())
			must.NoError(t, err)
			_, out, err := l.Look(t.Context(), "", 0)
			must.NoError(t, err)
			must.Len(t, 1, out.Waiting)
			must.Eq(t, c.pool == "", out.Waiting[0].Unsatisfiable, must.Sprint(out.Waiting[0].Reason))
			for _, d := range out.Decisions {
				want := 0
				if d.Pool == c.pool {
					want = c.nodes
				}
				must.Eq(t, want, d.Want, must.Sprint(d))
			}
		})
	}
}

func TestAPoolsFileWithOnlyGPUsIsServedAsBefore(t *testing.T) {
	path := filepath.Join(t.TempDir(), "pools.hcl")
	must.NoError(t, os.WriteFile(path, []byte(strings.Split(file, "pool \"own\"")[0]), 0o600))
	l, _, err := NewLookout(map[string]string{"pools_file": path, "nomad_address": waits(t, 9, `{"Name":"gpu","Count":2}`)}, hclog.NewNullLogger())
	must.NoError(t, err)
	_, out, err := l.Look(t.Context(), "", 0)
	must.NoError(t, err)
	d, _ := out.Of("asg")
	must.Eq(t, 3, d.Want)
}
