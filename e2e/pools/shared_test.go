// SPDX-License-Identifier: MPL-2.0

package pools

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/shoenig/test/must"

	"github.com/nomad-gpu/nomad-gpu/autoscaler/demand"
	"github.com/nomad-gpu/nomad-gpu/e2e/cluster"
	"github.com/nomad-gpu/nomad-gpu/e2e/clustertest"
)

// service is a job that runs until it is stopped: count allocations with these
// device blocks. More is more of its group.
func (m *market) service(name string, count int, devices string, more ...string) {
	m.t.Helper()
	job, err := m.Nomad().Jobs().ParseHCL(fmt.Sprintf(`
job %q {
  datacenters = ["*"]
  node_pool   = %q
  group "g" {
    count = %d
    %[5]s
    task "t" {
      driver = "raw_exec"
      config {
        command = "/bin/sleep"
        args    = ["1000"]
      }
      resources {
        cpu    = 20
        memory = 20
        %[4]s
      }
    }
  }
}
`, name, NodePool, count, devices, strings.Join(more, "\n")), true)
	must.NoError(m.t, err)
	_, _, err = m.Nomad().Jobs().Register(job, nil)
	must.NoError(m.t, err)
}

// on waits until so many allocations of a job run and gives their nodes, each once.
func (m *market) on(job string, count int) (nodes []string) {
	m.t.Helper()
	must.NoError(m.t, cluster.WaitFor(m.t.Context(), 2*time.Minute, job+" runs", func() (bool, string, error) {
		allocs, _, err := m.Nomad().Jobs().Allocations(job, false, nil)
		if err != nil {
			return false, "", err
		}
		nodes = nil
		running := 0
		for _, a := range allocs {
			if a.ClientStatus == "running" && a.DesiredStatus == "run" {
				nodes = append(nodes, a.NodeName)
				running++
			}
		}
		log, _ := m.AutoscalerLog()
		return running == count, fmt.Sprint(nodes, ParseScalings(log), m.queue()), m.Ended()
	}))
	slices.Sort(nodes)
	return slices.Compact(nodes)
}

// left waits until a class has so many nodes.
func (m *market) left(class string, count int) {
	m.t.Helper()
	must.NoError(m.t, cluster.WaitFor(m.t.Context(), 2*time.Minute, fmt.Sprint(class, " has ", count, " nodes"), func() (bool, string, error) {
		return len(m.nodes(class)) == count && m.clients(class) == count, fmt.Sprint(m.nodes(class), m.plan()), m.Ended()
	}))
}

// Notebooks share GPUs: their pool comes from zero, follows what they ask for
// and goes back to zero. A request that no group of a node's devices serves buys
// nothing and says why, of slices and of an NVLink island.
func TestAPoolOfSlicesFollowsNotebooksFromZeroAndBack(t *testing.T) {
	m := newMarket(t,
		Pool{Name: "shared", Class: "shared", Lifecycle: "on-demand", Price: 8, Max: 2, Devices: "time_slices {\n      replicas = 4\n    }",
			Shape: fmt.Sprintf("gpus   = 8\n    slices = 4\n    model  = %q", Model)},
		Pool{Name: "pairs", Class: "pairs", Lifecycle: "spot", Price: 2, Max: 1, Profile: "pcie-nvlink-pairs", Devices: `group_by = "island"`,
			Shape: "gpus   = 4\n    island = 2\n    model  = \"NVIDIA A100 80GB PCIe\""})
	// Eight slices are of eight GPUs: a node has room for four such notebooks.
	m.service("notebooks", 5, "device \"nvidia/gpu-slice\" {\n count = 8\n }")
	m.service("nine", 1, "device \"nvidia/gpu-slice\" {\n count = 9\n }")
	m.service("pair", 1, "device \"gpu\" {\n count = 2\n }")
	m.service("four", 1, "device \"nvidia/gpu\" {\n count = 4\n }")
	must.Eq(t, []string{"shared-1", "shared-2"}, m.on("notebooks", 5))
	must.Eq(t, []string{"pairs-1"}, m.on("pair", 1))
	var queue string
	must.NoError(t, cluster.WaitFor(t.Context(), time.Minute, "only what can never run waits", func() (bool, string, error) {
		queue = strings.Join(strings.Fields(m.queue()), " ")
		return strings.Contains(queue, "2 of 4 GPUs are in use, 40 of 64 slices"), queue, m.Ended()
	}))
	for _, want := range []string{
		"nine/g │ 50 │ 0 of 1 │ 9 slices", "pool shared: its nodes have groups of 8 devices at most",
		"four/g │ 50 │ 0 of 1 │ 4 GPUs", "pool pairs: its nodes have groups of 2 devices at most",
	} {
		must.StrContains(t, queue, want)
	}
	must.StrNotContains(t, queue, "notebooks")
	m.service("notebooks", 3, "device \"nvidia/gpu-slice\" {\n count = 8\n }")
	must.Positive(t, len(m.on("notebooks", 3)))
	for _, job := range []string{"nine", "four", "notebooks", "pair"} {
		_, _, err := m.Nomad().Jobs().Deregister(job, false, nil)
		must.NoError(t, err)
	}
	m.left("shared", 0)
	m.left("pairs", 0)
}

// Nomad is asked for the jobs that may be moved; it looks into their groups too.
func TestLeaveToMoveIsFoundInAGroupsMeta(t *testing.T) {
	m := &market{Cluster: clustertest.Start(t, cluster.Client{Name: "n1", NodePool: NodePool, Profile: profile}), t: t}
	m.service("moves", 1, "device \"gpu\" {}", "meta = {\n \"gpu.move\" = \"yes\"\n }")
	m.service("stays", 1, "device \"gpu\" {}")
	reader := demand.NewReader(m.Nomad())
	must.NoError(t, cluster.WaitFor(t.Context(), time.Minute, "both run", func() (bool, string, error) {
		r, err := reader.Read(t.Context(), time.Now())
		if err != nil || len(r.Nodes) != 1 || len(r.Nodes[0].Tenants) != 2 {
			return false, fmt.Sprint(r.Nodes), err
		}
		for _, tenant := range r.Nodes[0].Tenants {
			must.Eq(t, tenant.Work.Job == "moves", tenant.Movable, must.Sprint(tenant.Work.Job))
		}
		return true, "", nil
	}))
}
