// SPDX-License-Identifier: MPL-2.0

package environ

import (
	"testing"

	"github.com/shoenig/test/must"
	"k8s.io/utils/cpuset"
	"pgregory.net/rapid"
)

func TestProcessesRunNearTheirGPUs(t *testing.T) {
	for name, c := range map[string]struct {
		device    map[string]string
		reserved  string
		processes int
		want      Locality
	}{
		"nothing is known":           {nil, "0-3", 2, Locality{}},
		"one process":                {map[string]string{envCPUs: "0-15,64-79", envNodes: "0"}, "", 1, Locality{CPUs: "0-15,64-79", MemoryNodes: "0"}},
		"the memory alone":           {map[string]string{envNodes: "1"}, "0-3", 4, Locality{MemoryNodes: "1"}},
		"within Nomad's cores":       {map[string]string{envCPUs: "0-15"}, "8-31", 1, Locality{CPUs: "8-15"}},
		"equal parts":                {map[string]string{envCPUs: "0-7"}, "", 2, Locality{CPUs: "0-7", Ranks: []string{"0-3", "4-7"}}},
		"threads of a core together": {map[string]string{envCPUs: "0-3,64-67"}, "", 2, Locality{CPUs: "0-3,64-67", Ranks: []string{"0-1,64-65", "2-3,66-67"}}},
		"uneven":                     {map[string]string{envCPUs: "0-4"}, "", 2, Locality{CPUs: "0-4", Ranks: []string{"0-1", "2-4"}}},
		"fewer CPUs than processes":  {map[string]string{envCPUs: "0-2"}, "", 4, Locality{CPUs: "0-2"}},
		"a part for each GPU":        {map[string]string{envCPUs: "0-31", envCPUParts: "0-15;16-31"}, "", 2, Locality{CPUs: "0-31", Ranks: []string{"0-15", "16-31"}}},
		"parts within Nomad's cores": {map[string]string{envCPUs: "0-31", envCPUParts: "0-15;16-31"}, "4-7", 2, Locality{CPUs: "4-7", Ranks: []string{"4-7", "4-7"}}},
		"parts for other processes":  {map[string]string{envCPUs: "0-3", envCPUParts: "0-1;2-3;0-3"}, "", 2, Locality{CPUs: "0-3", Ranks: []string{"0-1", "2-3"}}},
	} {
		t.Run(name, func(t *testing.T) {
			got, err := Near(c.device, c.reserved, c.processes)
			must.NoError(t, err)
			must.Eq(t, c.want, got)
		})
	}
}

func TestWhatCannotBePlacedIsSaidAndNotBound(t *testing.T) {
	for want, c := range map[string]struct {
		device   map[string]string
		reserved string
	}{
		`GPU_CPU_SET: "0-99999999"; allowed is a list`:                      {map[string]string{envCPUs: "0-99999999"}, ""},
		`GPU_CPU_SET: "all"; allowed is a list`:                             {map[string]string{envCPUs: "all"}, ""},
		`GPU_CPU_SET: "3-1"; allowed is a list`:                             {map[string]string{envCPUs: "3-1"}, ""},
		`GPU_NUMA_NODES: "-1"; allowed is a list`:                           {map[string]string{envNodes: "-1"}, ""},
		`GPU_CPU_SETS: "x"; allowed is a list`:                              {map[string]string{envCPUs: "0-3", envCPUParts: "0-1;x"}, ""},
		`reserved cores: "8192"; allowed is a list`:                         {map[string]string{envCPUs: "0-3"}, "8192"},
		"none of the cores that Nomad reserved, 8-9, is near the GPUs: 0-3": {map[string]string{envCPUs: "0-3", envNodes: "0"}, "8-9"},
	} {
		l, err := Near(c.device, c.reserved, 2)
		must.ErrorContains(t, err, want)
		must.Eq(t, Locality{}, l)
	}
}

func TestPartsAreEqualDisjointAndWhole(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		all := cpuset.New(rapid.SliceOfN(rapid.IntRange(0, 300), 1, 80).Draw(t, "cpus")...)
		n := rapid.IntRange(1, all.Size()).Draw(t, "n")
		union, least, most := cpuset.New(), all.Size(), 0
		for _, text := range split(all, n) {
			part, err := cpuset.Parse(text)
			must.NoError(t, err)
			must.True(t, union.Intersection(part).IsEmpty())
			union, least, most = union.Union(part), min(least, part.Size()), max(most, part.Size())
		}
		must.True(t, union.Equals(all))
		must.Positive(t, least)
		must.LessEq(t, least+1, most)
	})
}
