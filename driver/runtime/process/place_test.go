// SPDX-License-Identifier: MPL-2.0

package process

import (
	"os"
	goruntime "runtime"
	"slices"
	"strings"
	"testing"

	"github.com/shoenig/test/must"
	"golang.org/x/sys/unix"
	"k8s.io/utils/cpuset"

	"github.com/nomad-gpu/nomad-gpu/driver/runtime"
)

// ownCPUs are those this process may use, one at least.
func ownCPUs(t *testing.T) cpuset.CPUSet {
	t.Helper()
	data, err := os.ReadFile("/proc/self/status")
	must.NoError(t, err)
	_, after, _ := strings.Cut(string(data), "Cpus_allowed_list:\t")
	list, _, _ := strings.Cut(after, "\n")
	cpus, err := cpuset.Parse(list)
	must.NoError(t, err)
	return cpus
}

func TestEachRankKeepsToItsCPUsAndTheSupervisorIsFree(t *testing.T) {
	all := ownCPUs(t).List()
	first, last := cpuset.New(all[0]).String(), cpuset.New(all[len(all)-1]).String()
	b := newBench(t)
	c, inCgroup := b.cgroup()
	defer b.read(".out")()
	spec := ranks(shell(b.dir, "grep Cpus_allowed_list /proc/self/status; sleep 1000"), 2)
	spec.Ranks[0].CPUs, spec.Ranks[1].CPUs = first, last
	if inCgroup {
		spec.Cgroup = &c // entering a cgroup must not undo it
	}
	p, err := Runtime{}.Create(t.Context(), b.dir, spec)
	must.NoError(t, err)
	must.NoError(t, p.Start(t.Context()))
	var got []string
	for range 2 {
		got = append(got, b.line())
	}
	slices.Sort(got)
	must.Eq(t, []string{"[rank 4] Cpus_allowed_list:\t" + first, "[rank 5] Cpus_allowed_list:\t" + last}, got)
	must.NoError(t, p.Stop(t.Context(), unix.SIGKILL, 0))
}

func TestThePlaceOfAThreadIsGivenBack(t *testing.T) {
	goruntime.LockOSThread()
	defer goruntime.UnlockOSThread()
	before, inside, after := unix.NewCPUSet(8192), unix.NewCPUSet(8192), unix.NewCPUSet(8192)
	must.NoError(t, unix.SchedGetaffinityDynamic(0, before))
	first := cpuset.New(ownCPUs(t).List()[0])
	must.NoError(t, place{cpus: first}.during(func() { must.NoError(t, unix.SchedGetaffinityDynamic(0, inside)) }))
	must.NoError(t, unix.SchedGetaffinityDynamic(0, after))
	must.Eq(t, 1, inside.Count())
	must.Eq(t, before, after)
}

func TestAPlaceThatIsNotThereIsWarnedOf(t *testing.T) {
	b := newBench(t)
	var warnings []string
	spec := shell(b.dir, "exit 0")
	spec.CPUs, spec.Warn = "8000", func(w string) { warnings = append(warnings, w) }
	p, err := Runtime{}.Create(t.Context(), b.dir, spec)
	must.NoError(t, err)
	must.Len(t, 1, warnings)
	must.StrHasPrefix(t, "the process is not bound: CPUs 8000", warnings[0])
	must.NoError(t, p.Start(t.Context()))
	must.True(t, b.exit(p).OK())
}

func TestMemoryNodesArePreferred(t *testing.T) {
	if _, err := os.Stat("/proc/self/numa_maps"); err != nil {
		return // this kernel knows one node only
	}
	b := newBench(t)
	defer b.read(".out")()
	spec := shell(b.dir, "head -1 /proc/self/numa_maps | cut -d' ' -f2")
	spec.MemoryNodes = "0"
	p, err := Runtime{}.Create(t.Context(), b.dir, spec)
	must.NoError(t, err)
	must.NoError(t, p.Start(t.Context()))
	must.StrHasPrefix(t, "prefer", b.line())
	must.True(t, b.exit(p).OK())
}

func TestListsOfAPlaceAreRead(t *testing.T) {
	p, err := placeOf(runtime.Spec{CPUs: "0-3", MemoryNodes: "1"}, runtime.Rank{CPUs: "2"})
	must.NoError(t, err)
	must.Eq(t, "2", p.cpus.String(), must.Sprint("the rank's own part wins"))
	must.Eq(t, "1", p.nodes.String())
	_, err = placeOf(runtime.Spec{CPUs: "x"}, runtime.Rank{})
	must.ErrorContains(t, err, `CPUs "x"`)
}
