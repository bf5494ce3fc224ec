// SPDX-License-Identifier: MPL-2.0

package plugin

import (
	"net/netip"
	"testing"

	"github.com/shoenig/test/must"

	"github.com/nomad-gpu/nomad-gpu/driver/environ"
	"github.com/nomad-gpu/nomad-gpu/driver/gang"
	"github.com/nomad-gpu/nomad-gpu/driver/runtime"
)

func twoNodes(rank int) gang.Assignment {
	a := gang.Assignment{Generation: 7, Rank: rank}
	for _, address := range []string{"10.0.0.1", "10.0.0.2"} {
		a.Members = append(a.Members, gang.Member{Address: netip.MustParseAddr(address), Ports: [2]int{2000, 3000}, Slots: 2})
	}
	return a
}

// specOf is what one of two nodes runs.
func specOf(r *runner, rank int) runtime.Spec {
	a := twoNodes(rank)
	return r.specOf(a, environ.Environment(a, r.settings))
}

func TestEachGPUGetsAProcessWithItsRankAndItsCPUs(t *testing.T) {
	r := &runner{locality: true, settings: environ.Settings{PerGPU: true,
		Device: map[string]string{"GPU_DEVICES_X": "GPU-a,GPU-b", "GPU_CPU_SET": "0-7", "GPU_NUMA_NODES": "1"}}}
	s := specOf(r, 1)
	must.Eq(t, []runtime.Rank{{Number: 2, Env: []string{"LOCAL_RANK=0", "RANK=2"}, CPUs: "0-3"}, {Number: 3, Env: []string{"LOCAL_RANK=1", "RANK=3"}, CPUs: "4-7"}}, s.Ranks)
	must.Eq(t, "0-7", s.CPUs)
	must.Eq(t, "1", s.MemoryNodes)
	must.SliceContains(t, s.Env, "CUDA_VISIBLE_DEVICES=GPU-a,GPU-b")
	must.SliceContains(t, s.Env, "WORLD_SIZE=4")
	r.locality = false
	s = specOf(r, 1)
	must.Eq(t, "", s.CPUs+s.MemoryNodes+s.Ranks[0].CPUs)
	r.settings.PerGPU = false
	must.SliceEmpty(t, specOf(r, 1).Ranks)
}

func TestEachGenerationHasACgroupOfItsOwn(t *testing.T) {
	r := &runner{spec: runtime.Spec{Cgroup: &runtime.Cgroup{Path: "/p/alloc.task", PIDs: 9}}}
	for range 2 { // the same again: it does not grow
		must.Eq(t, &runtime.Cgroup{Path: "/p/alloc.task.7", PIDs: 9}, specOf(r, 0).Cgroup)
	}
	must.Nil(t, (&runner{}).specOf(twoNodes(0), nil).Cgroup)
}

func TestWhereNoReservedCoreIsNearTheProcessesAreNotBound(t *testing.T) {
	var told []string
	r := &runner{locality: true, cores: "8-9", settings: environ.Settings{Device: map[string]string{"GPU_CPU_SET": "0-7"}},
		spec: runtime.Spec{Warn: func(w string) { told = append(told, w) }}}
	must.Eq(t, "", specOf(r, 0).CPUs)
	must.Len(t, 1, told)
	must.StrContains(t, told[0], "none of the cores that Nomad reserved, 8-9, is near the GPUs: 0-7")
	r.cores = "6-9"
	must.Eq(t, "6-7", specOf(r, 0).CPUs)
	must.Len(t, 1, told)
}
