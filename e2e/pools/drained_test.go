// SPDX-License-Identifier: MPL-2.0

package pools

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/hashicorp/nomad/api"
	"github.com/shoenig/test/must"

	"github.com/nomad-gpu/nomad-gpu/e2e/cluster"
)

// node is the id of one by its name.
func (m *market) node(name string) string {
	m.t.Helper()
	nodes, _, err := m.Nomad().Nodes().List(nil)
	must.NoError(m.t, err)
	i := slices.IndexFunc(nodes, func(n *api.NodeListStub) bool { return n.Name == name })
	must.GreaterEq(m.t, 0, i, must.Sprint(name))
	return nodes[i].ID
}

// nomad runs a command of Nomad.
func (m *market) nomad(in []byte, args ...string) []byte {
	m.t.Helper()
	cmd := exec.Command(m.Program("nomad"), args...)
	cmd.Env, cmd.Stdin = append(os.Environ(), "NOMAD_ADDR="+m.NomadAddress()), bytes.NewReader(in)
	out, err := cmd.Output()
	must.NoError(m.t, err, must.Sprint(args, string(out)))
	return out
}

// metrics are those that the strategy serves.
func (m *market) metrics() string {
	m.t.Helper()
	response, err := http.Get("http://" + MetricsAddress(m.Cluster) + "/metrics")
	must.NoError(m.t, err)
	defer response.Body.Close()
	body, err := io.ReadAll(response.Body)
	must.NoError(m.t, err)
	return string(body)
}

// settles waits until the queue says something.
func (m *market) settles(what string, holds func(queue string) bool) {
	m.t.Helper()
	must.NoError(m.t, cluster.WaitFor(m.t.Context(), time.Minute, what, func() (bool, string, error) {
		out := m.queue()
		return holds(out), out, m.Ended()
	}))
}

// What Nomad 1.6 takes for finished is named, nothing is bought for it, and the
// way out that the queue names is one: where nothing else brings it back.
func TestAGangThatADrainTookAMemberOfIsNamedAndRunsAgainByAnotherPriority(t *testing.T) {
	m := newMarket(t, Pool{Name: "spot", Lifecycle: "spot", Price: 12.5, Max: 3})
	m.gang("gang", 2, "only")
	before := m.running("gang", 2)
	m.gang("other", 1, "only")
	m.running("other", 1)
	// No place is free: the pool is at its maximum.
	_, err := m.Nomad().Nodes().UpdateDrain(m.node(before[0]), &api.DrainSpec{Deadline: time.Second}, false, nil)
	must.NoError(t, err)
	named := func(out string) bool {
		return strings.Contains(out, "a drain stopped 1 of its 2 allocations while there was no place for others") &&
			strings.Contains(out, "run the job again with another priority in its file: nomad job run; what runs of it goes on")
	}
	m.settles("the queue names what the drain took", named)
	must.NoError(t, cluster.WaitFor(t.Context(), time.Minute, "the metrics tell it too", func() (bool, string, error) {
		said := m.metrics()
		for _, line := range []string{`queue_gpus{cause="drained",model="",namespace="default",priority="50-74"} 16`, `pool_used_gpus{pool="spot"} 16`, `decisions_total{kind="buy",pool="spot"} `, `used_gpu_seconds_total{namespace="default",pool="spot"} `} {
			if !strings.Contains(said, "nomad_gpu_autoscaler_"+line) {
				return false, said, m.Ended()
			}
		}
		return true, said, nil
	}))

	// There is room again, and Nomad places nothing, whatever is said to do but the one thing.
	_, _, err = m.Nomad().Jobs().Deregister("other", true, nil)
	must.NoError(t, err)
	m.settles("the other's node goes", func(string) bool { return len(m.nodes("spot")) == 2 })
	_, _, err = m.Nomad().Jobs().EvaluateWithOpts("gang", api.EvalOptions{ForceReschedule: true}, nil)
	must.NoError(t, err)
	job, _, err := m.Nomad().Jobs().Info("gang", nil)
	must.NoError(t, err)
	answer, _, err := m.Nomad().Jobs().Register(job, nil)
	must.NoError(t, err)
	must.NoError(t, cluster.WaitFor(t.Context(), time.Minute, "Nomad has decided", func() (bool, string, error) {
		e, _, err := m.Nomad().Evaluations().Info(answer.EvalID, nil)
		return err == nil && e.Status == "complete" && e.BlockedEval == "", fmt.Sprint(e), err
	}))
	must.True(t, named(m.queue()), must.Sprint(m.queue()))
	must.Len(t, 2, m.nodes("spot"), must.Sprint("a node was bought that nothing uses"))

	// As the reference page does, but for jq.
	var inspected struct{ Job map[string]any }
	must.NoError(t, json.Unmarshal(m.nomad(nil, "job", "inspect", "gang"), &inspected))
	inspected.Job["Priority"] = inspected.Job["Priority"].(float64) + 1
	again, err := json.Marshal(inspected)
	must.NoError(t, err)
	m.nomad(again, "job", "run", "-detach", "-json", "-")
	must.NoError(t, cluster.WaitFor(t.Context(), 2*time.Minute, "the gang goes on with another node", func() (bool, string, error) {
		allocs, _, err := m.Nomad().Jobs().Allocations("gang", true, nil)
		if err != nil {
			return false, "", err
		}
		var nodes []string
		generation := false
		for _, a := range allocs {
			if a.ClientStatus != "running" {
				continue
			}
			nodes = append(nodes, a.NodeName)
			for _, s := range a.TaskStates {
				generation = generation || slices.ContainsFunc(s.Events, func(e *api.TaskEvent) bool {
					return e.DisplayMessage == "Generation 2: all 2 members are prepared and start"
				})
			}
		}
		slices.Sort(nodes)
		log, _ := m.AutoscalerLog()
		return generation && len(nodes) == 2 && nodes[0] == before[1], fmt.Sprint(nodes, ParseScalings(log), "\n", m.queue()), m.Ended()
	}))
	must.False(t, named(m.queue()), must.Sprint(m.queue()))
	_, err = m.Nomad().Nodes().ToggleEligibility(m.node(before[0]), true, nil)
	must.NoError(t, err)
	m.finish()
}
