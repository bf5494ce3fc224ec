// SPDX-License-Identifier: MPL-2.0

package pools

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/shoenig/test/must"

	"github.com/nomad-gpu/nomad-gpu/autoscaler/demand"
	"github.com/nomad-gpu/nomad-gpu/e2e/cluster"
	"github.com/nomad-gpu/nomad-gpu/e2e/clustertest"
)

// A record says that two nodes' GPUs were in use at this time of the days before:
// the pool grows by exactly that with nothing queued, and goes back after it.
func TestAPoolGrowsAheadOfALoadThatRecurs(t *testing.T) {
	c := clustertest.Start(t)
	file, err := Describe(c, Pool{Name: "spot", Lifecycle: "spot", Price: 1, Max: 4})
	must.NoError(t, err)
	record := filepath.Join(c.Dir(), "pools.record") // the one that Agent names too
	text, err := os.ReadFile(file)
	must.NoError(t, err)
	must.NoError(t, os.WriteFile(file, append(text, fmt.Sprintf("forecast {\n  record  = %q\n  period  = \"24h\"\n  periods = 4\n  ahead   = \"1m\"\n}\n", record)...), 0o600))
	f, err := os.Create(record)
	must.NoError(t, err)
	lines, begin := json.NewEncoder(f), time.Now()
	end := begin.Add(100 * time.Second)
	for day := 4; day > 0; day-- {
		for at := begin.Add(-2 * time.Hour); at.Before(begin.Add(2 * time.Hour)); at = at.Add(20 * time.Second) {
			s := demand.Sample{At: at.Add(-time.Duration(day) * 24 * time.Hour), Pool: "spot", Nodes: 3, GPUs: 24}
			if at.After(begin) && at.Before(end) {
				s.Used = []demand.Held{{Namespace: "default", Job: "daily", GPUs: 16}}
			}
			must.NoError(t, lines.Encode(s))
		}
	}
	must.NoError(t, f.Close())
	must.NoError(t, c.StartAutoscaler(Agent{}.Config(c, filepath.Join(clustertest.Programs, "autoscaler"), file)))
	m := &market{Cluster: c, t: t, file: file}
	have := func(want int) {
		t.Helper()
		must.NoError(t, cluster.WaitFor(t.Context(), 4*time.Minute, fmt.Sprintf("the pool has %d nodes", want), func() (bool, string, error) {
			n := m.clients("spot")
			return n == want, fmt.Sprint(n), m.Ended()
		}))
	}
	have(2)
	must.NoError(t, cluster.WaitFor(t.Context(), time.Minute, "the plan says why they are kept", func() (bool, string, error) {
		out := m.plan()
		return strings.Contains(out, "2 nodes without work are kept: 16 GPUs or more were asked for between "), out, m.Ended()
	}))
	have(0)
	log, err := c.AutoscalerLog()
	must.NoError(t, err)
	up := 0
	for _, s := range ParseScalings(log) {
		if s.To > s.From {
			up++
			must.Eq(t, [3]int{0, 2, 0}, [3]int{s.From, s.To, s.QueuedGPUs})
			must.StrContains(t, s.Reason, "2 more nodes are bought ahead: 16 GPUs or more were asked for between ")
			must.StrContains(t, s.Reason, " UTC on 4 of the last 4 days")
		}
	}
	must.Eq(t, 1, up)
}
