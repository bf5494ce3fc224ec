// SPDX-License-Identifier: MPL-2.0

package pools

import (
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/hashicorp/nomad/api"
	"github.com/shoenig/test/must"

	"github.com/nomad-gpu/nomad-gpu/e2e/cluster"
	"github.com/nomad-gpu/nomad-gpu/e2e/clustertest"
)

func TestMain(m *testing.M) { clustertest.Main(m) }

// market is a cluster with an autoscaler and no node but those it buys.
type market struct {
	*cluster.Cluster
	t      *testing.T
	file   string
	region string // empty: the cluster's own
}

func (m *market) query() *api.QueryOptions { return &api.QueryOptions{Region: m.region} }

func newMarket(t *testing.T, pools ...Pool) *market {
	t.Helper()
	c := clustertest.Start(t)
	file, err := Start(c, filepath.Join(clustertest.Programs, "autoscaler"), pools...)
	must.NoError(t, err)
	return &market{Cluster: c, t: t, file: file}
}

// gang is a job that runs until the file "go" is there; size nodes of 8 GPUs.
// More is more of its group.
func (m *market) gang(name string, size int, spot string, more ...string) {
	m.t.Helper()
	job, err := m.Nomad().Jobs().ParseHCL(fmt.Sprintf(`
job %[1]q {
  type        = "batch"
  datacenters = ["*"]
  node_pool   = %[2]q
  meta = {
    "gpu.spot" = %[3]q
  }
  group "gang" {
    count = %[4]d
    restart {
      attempts = 0
      mode     = "fail"
    }
    reschedule {
      attempts  = 3
      interval  = "1h"
      delay     = "5s"
      unlimited = false
    }
    constraint {
      distinct_hosts = true
    }
    constraint {
      attribute = "${meta.gpu.lifecycle}"
      operator  = "regexp"
      value     = %[6]q
    }
    network {
      port "gang_a" {}
      port "gang_b" {}
    }
    %[7]s
    task "t" {
      driver = "nccl"
      config {
        command = "/bin/sh"
        args    = ["-c", "while [ ! -e %[5]s ]; do sleep 0.1; done"]
        gang {
          nodes = %[4]d
        }
      }
      resources {
        cpu    = 50
        memory = 50
        device "nvidia/gpu" {
          count = 8
        }
      }
    }
  }
}
`, name, NodePool, spot, size, filepath.Join(m.Dir(), "go"), map[string]string{"prefer": ".", "never": "^on-demand$", "only": "^spot$"}[spot], strings.Join(more, "\n")), true)
	must.NoError(m.t, err)
	if m.region != "" {
		job.Region = &m.region
	}
	_, _, err = m.Nomad().Jobs().Register(job, &api.WriteOptions{Region: m.region})
	must.NoError(m.t, err)
}

// nodes are the names of all nodes that Nomad has ever been told of, by class:
// the market purges none while the jobs run.
func (m *market) nodes(class string) []string {
	nodes, _, err := m.Nomad().Nodes().List(m.query())
	must.NoError(m.t, err)
	var names []string
	for _, n := range nodes {
		if n.NodeClass == class {
			names = append(names, n.Name)
		}
	}
	slices.Sort(names)
	return names
}

// clients are the Nomad clients that run, whether or not Nomad has heard of them.
func (m *market) clients(class string) int {
	found, err := filepath.Glob(filepath.Join(m.Dir(), class+"-*", "client"))
	must.NoError(m.t, err)
	return len(found)
}

// running waits until all of a job's allocations run and gives their nodes.
func (m *market) running(job string, size int) []string {
	m.t.Helper()
	var nodes []string
	must.NoError(m.t, cluster.WaitFor(m.t.Context(), 2*time.Minute, job+" runs whole", func() (bool, string, error) {
		allocs, _, err := m.Nomad().Jobs().Allocations(job, false, m.query())
		if err != nil {
			return false, "", err
		}
		nodes = nil
		started := 0
		for _, a := range allocs {
			if a.ClientStatus != "running" {
				continue
			}
			nodes = append(nodes, a.NodeName)
			for _, s := range a.TaskStates {
				if slices.ContainsFunc(s.Events, func(e *api.TaskEvent) bool {
					return strings.Contains(e.DisplayMessage, "members are prepared and start")
				}) {
					started++
				}
			}
		}
		log, _ := m.AutoscalerLog()
		return started == size, fmt.Sprint(nodes, ParseScalings(log)), m.Ended()
	}))
	slices.Sort(nodes)
	return nodes
}

// finish lets all jobs end and waits until the pools are back at their minimum.
func (m *market) finish() {
	m.t.Helper()
	must.NoError(m.t, os.WriteFile(filepath.Join(m.Dir(), "go"), nil, 0o644))
	must.NoError(m.t, cluster.WaitFor(m.t.Context(), 2*time.Minute, "no node is left", func() (bool, string, error) {
		left := append(m.nodes("spot"), m.nodes("on-demand")...)
		return len(left) == 0, fmt.Sprint(left), m.Ended()
	}))
}

// queue is what the command of that name prints.
func (m *market) queue() string {
	m.t.Helper()
	cmd := exec.Command(filepath.Join(clustertest.Programs, "autoscaler", "nomad-autoscaler-gpu"), "queue", "--pools", m.file)
	cmd.Env = append(os.Environ(), "NOMAD_ADDR="+m.NomadAddress(), "NOMAD_REGION="+m.region)
	out, err := cmd.CombinedOutput()
	must.NoError(m.t, err, must.Sprint(string(out)))
	return string(out)
}

func TestAMixedQueueFillsSpotFirstAndNothingIsBoughtTwice(t *testing.T) {
	m := newMarket(t, Pool{Name: "spot", Lifecycle: "spot", Price: 12.5, Max: 3}, Pool{Name: "on-demand", Lifecycle: "on-demand", Price: 40, Max: 3})
	m.gang("never", 1, "never")
	m.gang("only", 1, "only")
	m.gang("prefer", 2, "prefer")
	must.Eq(t, []string{"on-demand-1"}, m.running("never", 1))
	only, prefer := m.running("only", 1), m.running("prefer", 2)
	for _, node := range append(only, prefer...) {
		must.StrHasPrefix(t, "spot-", node)
	}
	must.Len(t, 3, m.nodes("spot"))
	must.Eq(t, []string{"on-demand-1"}, m.nodes("on-demand"))
	// Spot is full: what may be on demand goes there, what may not waits.
	m.gang("late", 1, "prefer")
	m.gang("waits", 1, "only")
	must.Eq(t, []string{"on-demand-2"}, m.running("late", 1))
	must.StrContains(t, m.queue(), "waits")
	must.Len(t, 2, m.nodes("on-demand"))
	m.finish()
}

func TestAGangThatNeverFitsBuysNothingAndSaysWhy(t *testing.T) {
	m := newMarket(t, Pool{Name: "spot", Lifecycle: "spot", Price: 12.5, Max: 2})
	m.gang("large", 3, "prefer")
	must.NoError(t, cluster.WaitFor(t.Context(), time.Minute, "the queue says why", func() (bool, string, error) {
		out := m.queue()
		return strings.Contains(out, "large") && strings.Contains(out, "it needs 3 allocations of 8 GPUs each at once; all pools at their maximum hold 2"), out, m.Ended()
	}))
	must.Zero(t, m.clients("spot"))
	_, _, err := m.Nomad().Jobs().Deregister("large", true, nil)
	must.NoError(t, err)
	// A later gang that fits is bought for, and only for.
	m.gang("small", 1, "prefer")
	must.Eq(t, []string{"spot-1"}, m.running("small", 1))
	must.Eq(t, 1, m.clients("spot"), must.Sprint("nodes were bought for what never fits"))
	m.finish()
}

// The autoscaler is killed again and again while it buys, each time a little
// later: what it had begun is neither forgotten nor begun again.
func TestAKilledAutoscalerBuysNothingTwice(t *testing.T) {
	m := newMarket(t, Pool{Name: "spot", Lifecycle: "spot", Price: 12.5, Max: 6})
	m.gang("gang", 3, "prefer")
	for n := range 8 {
		time.Sleep(time.Duration(300+200*n+rand.IntN(200)) * time.Millisecond) // the moment is what the test tries
		m.KillAutoscaler()
		must.NoError(t, m.RestartAutoscaler())
	}
	m.running("gang", 3)
	must.Len(t, 3, m.nodes("spot"))
	must.Eq(t, 3, m.clients("spot"))
	m.finish()
}

// A spot node is told by EC2's instance metadata that it will be taken: the gang
// writes its checkpoint, one node is bought in its place, and it trains on from there.
func TestAnInterruptedSpotNodeIsReplacedAndTheGangGoesOnFromItsCheckpoint(t *testing.T) {
	cloud := &instances{t: t, interrupted: map[string]bool{}}
	m := newMarket(t, Pool{Name: "spot", Lifecycle: "spot", Price: 12.5, Max: 4, Driver: func(node, server string) string {
		return fmt.Sprintf("notice {\n source = \"aws\"\n address = %q\n period = \"1s\"\n}", cloud.metadata(node, server))
	}})
	m.gang("gang", 2, "only")
	m.trains("gang", false)
	must.Eq(t, []string{"spot-1", "spot-2"}, m.running("gang", 2))
	cloud.interrupt("spot-1")
	must.NoError(t, cluster.WaitFor(t.Context(), 2*time.Minute, "another node is in the gang's second generation, and the first is gone", func() (bool, string, error) {
		allocs, _, err := m.Nomad().Jobs().Allocations("gang", true, nil)
		if err != nil {
			return false, "", err
		}
		var said []string
		for _, a := range allocs {
			for _, s := range a.TaskStates {
				for _, e := range s.Events {
					said = append(said, a.NodeName+": "+e.DisplayMessage)
				}
			}
		}
		log, _ := m.AutoscalerLog()
		return slices.Contains(said, "spot-3: Generation 2: all 2 members are prepared and start") && len(m.told("gang")) == 6 && !slices.Contains(m.nodes("spot"), "spot-1"),
			fmt.Sprint(said, m.told("gang"), m.nodes("spot"), ParseScalings(log), "\n", m.queue()), m.Ended()
	}))
	must.Eq(t, []string{"spot-2", "spot-3"}, m.nodes("spot"), must.Sprint("more than one replacement was bought"))
	m.goesOn("gang")
	m.finish()
}
