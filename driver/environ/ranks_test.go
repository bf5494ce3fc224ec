// SPDX-License-Identifier: MPL-2.0

package environ

import (
	"slices"
	"strconv"
	"testing"

	"github.com/shoenig/test/must"
	"pgregory.net/rapid"
)

func TestEachProcessOfANodeGetsItsRankAndSeesAllItsGPUs(t *testing.T) {
	a := assignment(2, 2, 1)
	a.Members[0].Slots = 3 // nodes need not be alike
	s := Settings{PerGPU: true, Framework: "jax", Device: map[string]string{"GPU_DEVICES_A": "GPU-a,GPU-b"}}
	common := Environment(a, s)
	must.Eq(t, "5", common["WORLD_SIZE"])
	must.Eq(t, "2", common["LOCAL_WORLD_SIZE"])
	must.Eq(t, "GPU-a,GPU-b", common["CUDA_VISIBLE_DEVICES"])
	must.Eq(t, "5", common["JAX_NUM_PROCESSES"])
	must.MapNotContainsKey(t, common, "RANK")
	must.MapNotContainsKey(t, common, "JAX_PROCESS_ID")
	must.Eq(t, []Rank{
		{3, map[string]string{"RANK": "3", "LOCAL_RANK": "0", "JAX_PROCESS_ID": "3", "JAX_LOCAL_DEVICE_IDS": "0"}},
		{4, map[string]string{"RANK": "4", "LOCAL_RANK": "1", "JAX_PROCESS_ID": "4", "JAX_LOCAL_DEVICE_IDS": "1"}},
	}, Ranks(a, s))
	s.Task = map[string]string{"JAX_LOCAL_DEVICE_IDS": "7"}
	must.MapNotContainsKey(t, Ranks(a, s)[0].Env, "JAX_LOCAL_DEVICE_IDS", must.Sprint("the user's value wins"))
	s.Framework = ""
	must.Eq(t, map[string]string{"RANK": "3", "LOCAL_RANK": "0"}, Ranks(a, s)[0].Env)
}

func TestTheRanksOfAllNodesAreTheWorldOnceEach(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		a := assignment(rapid.IntRange(1, 8).Draw(t, "nodes"), 1, 0)
		for i := range a.Members {
			a.Members[i].Slots = rapid.IntRange(1, 9).Draw(t, "slots")
		}
		var all []int
		for a.Rank = range a.Members {
			for _, r := range Ranks(a, Settings{}) {
				all = append(all, r.Number)
			}
		}
		world, err := strconv.Atoi(Environment(a, Settings{})["WORLD_SIZE"])
		must.NoError(t, err)
		must.Eq(t, slices.Collect(func(yield func(int) bool) {
			for i := range world {
				if !yield(i) {
					return
				}
			}
		}), all)
	})
}
