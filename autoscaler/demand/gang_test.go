// SPDX-License-Identifier: MPL-2.0

package demand

import (
	"encoding/json"
	"math"
	"testing"

	"github.com/hashicorp/nomad/api"
	"github.com/shoenig/test/must"
)

func TestAGangRunsWithItsLeastSize(t *testing.T) {
	for block, want := range map[string]int{
		`[{"nodes": 4}]`:                     4,
		`[{"nodes": 4, "min_nodes": 2}]`:     2,
		`[{"nodes": 4, "min_nodes": 0}]`:     4,
		`{"nodes": 4, "min_nodes": 3}`:       3,
		`[{"nodes": "${var}"}]`:              0,
		`[{"nodes": 2.5}]`:                   0,
		`[{"nodes": -1}]`:                    0,
		`[{"nodes": 1e300}]`:                 0,
		`[]`:                                 0,
		`[null]`:                             0,
		`"gang"`:                             0,
		`[{"nodes": null, "min_nodes": []}]`: 0,
	} {
		var v any
		must.NoError(t, json.Unmarshal([]byte(block), &v))
		must.Eq(t, want, leastOf(v), must.Sprint(block))
	}
	must.Eq(t, 4, leastOf([]map[string]any{{"nodes": json.Number("4")}}))
	must.Eq(t, 0, number(math.NaN()))

	job := train()
	job.TaskGroups[0].Tasks[0].Config["gang"] = []any{map[string]any{"nodes": 3, "min_nodes": 2}}
	w := read(job, on("a", alloc("running", "run", 3)), on("b", alloc("running", "run", 3))).Work[0]
	must.Eq(t, []int{2, 4, 2}, []int{w.Least, w.Count, w.Placed})
	must.True(t, w.Forms())
	must.Eq(t, 16, w.QueuedGPUs(), must.Sprint("what runs does not wait"))
}

func TestWhatOfAGangHasFailedForGoodIsNeitherPlacedNorMissing(t *testing.T) {
	job := train()
	job.TaskGroups[0].ReschedulePolicy = &api.ReschedulePolicy{Attempts: ptr(0), Unlimited: ptr(false)}
	allocs := []*api.AllocationListStub{on("a", alloc("running", "run", 3)), on("b", alloc("failed", "run", 3))}
	for name, evals := range map[string][]*api.Evaluation{
		"as Nomad tells":       {failed("e", 5, 2)},
		"before it has looked": {{Namespace: "default", JobID: "train", Status: "pending"}},
	} {
		w := join(evals, map[string]*api.Job{"default/train": job}, allocs, nil).Work[0]
		must.Eq(t, []int{4, 1, 2, 1}, []int{w.Count, w.Placed, w.Missing(), w.Gone}, must.Sprint(name))
	}
}
