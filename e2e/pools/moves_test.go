// SPDX-License-Identifier: MPL-2.0

package pools

import (
	"fmt"
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

// plan is what the command of that name prints.
func (m *market) plan() string {
	m.t.Helper()
	cmd := exec.Command(filepath.Join(clustertest.Programs, "autoscaler", "nomad-autoscaler-gpu"), "plan", "--pools", m.file)
	cmd.Env = append(os.Environ(), "NOMAD_ADDR="+m.NomadAddress())
	out, err := cmd.CombinedOutput()
	must.NoError(m.t, err, must.Sprint(string(out)))
	return strings.Join(strings.Fields(string(out)), " ")
}

// mayMove gives leave to move a job that has no node yet.
func (m *market) mayMove(name string) {
	m.t.Helper()
	job, _, err := m.Nomad().Jobs().Info(name, nil)
	must.NoError(m.t, err)
	job.Meta["gpu.move"] = "yes"
	_, _, err = m.Nomad().Jobs().Register(job, nil)
	must.NoError(m.t, err)
}

// image tells Nomad the image that a node was made from.
func (m *market) image(node, image string) {
	m.t.Helper()
	nodes, _, err := m.Nomad().Nodes().List(nil)
	must.NoError(m.t, err)
	i := slices.IndexFunc(nodes, func(n *api.NodeListStub) bool { return n.Name == node })
	must.GreaterEq(m.t, 0, i, must.Sprint(node))
	_, err = m.Nomad().Nodes().Meta().Apply(&api.NodeMetaApplyRequest{NodeID: nodes[i].ID, Meta: map[string]*string{"image": &image}}, nil)
	must.NoError(m.t, err)
}

// In its window an old node under a gang that may be moved is replaced: another
// is bought first, the gang goes on there, and the old one goes. One under a
// gang without leave stays.
func TestAnOldNodeIsReplacedUnderAGangThatMayMoveAndUnderNoOther(t *testing.T) {
	c := clustertest.Start(t)
	file, err := Describe(c, Pool{Name: "spot", Lifecycle: "spot", Price: 12.5, Max: 4})
	must.NoError(t, err)
	text, err := os.ReadFile(file)
	must.NoError(t, err)
	window := "pool \"spot\" {\n  maintenance {\n    start    = \"* * * * *\"\n    duration = \"1h\"\n    want     = { \"meta.image\" = \"2\" }\n  }\n"
	must.NoError(t, os.WriteFile(file, []byte(strings.Replace(string(text), "pool \"spot\" {\n", window, 1)), 0o600))
	must.NoError(t, c.StartAutoscaler(Agent{}.Config(c, filepath.Join(clustertest.Programs, "autoscaler"), file)))
	m := &market{Cluster: c, t: t, file: file}

	m.gang("stays", 1, "only")
	stays := m.running("stays", 1)
	m.gang("moves", 2, "only")
	m.mayMove("moves")
	before := m.running("moves", 2)
	m.image(stays[0], "1")
	must.NoError(t, cluster.WaitFor(t.Context(), time.Minute, "the plan says why a node stays", func() (bool, string, error) {
		out := m.plan()
		return strings.Contains(out, stays[0]+" shall be replaced") && strings.Contains(out, "stays/gang may not be moved"), out, m.Ended()
	}))
	must.Eq(t, 3, m.clients("spot"), must.Sprint("nothing is bought for a node that stays"))

	m.image(before[0], "1")
	var after []string
	must.NoError(t, cluster.WaitFor(t.Context(), 3*time.Minute, "the gang runs without the old node", func() (bool, string, error) {
		allocs, _, err := m.Nomad().Jobs().Allocations("moves", true, nil)
		if err != nil {
			return false, "", err
		}
		after = nil
		for _, a := range allocs {
			if a.ClientStatus == "running" && a.DesiredStatus == "run" {
				after = append(after, a.NodeName)
			}
		}
		log, _ := m.AutoscalerLog()
		return len(after) == 2 && !slices.Contains(after, before[0]) && !slices.Contains(m.nodes("spot"), before[0]), fmt.Sprint(after, ParseScalings(log), m.plan()), m.Ended()
	}))
	must.SliceContains(t, after, before[1], must.Sprint("the other member keeps its node"))
	must.Eq(t, stays, m.running("stays", 1))
	must.Eq(t, 3, m.clients("spot"), must.Sprint("one node was bought in place of one"))
	m.finish()
}

// trains makes a job that has no node yet a training that keeps a checkpoint
// and tells its log what happens: each member's start with its step, and its
// checkpoint. With leave it may be moved, which costs it a second.
func (m *market) trains(name string, leave bool) {
	m.t.Helper()
	job, _, err := m.Nomad().Jobs().Info(name, nil)
	must.NoError(m.t, err)
	if leave {
		job.Meta["gpu.move"], job.Meta["gpu.restart"] = "yes", "1s"
	}
	script := `
state=DIR/NAME-$NODE_RANK.step
step=$(cat $state 2> /dev/null || echo 0)
echo "begins $NOMAD_ALLOC_ID $NODE_RANK $step" >> DIR/NAME.log
trap 'echo $step > $state; echo "saves $NOMAD_ALLOC_ID $NODE_RANK $step" >> DIR/NAME.log; exit 1' TERM INT USR1
while [ ! -e DIR/go ]; do step=$((step+1)); sleep 0.1; done
`
	job.TaskGroups[0].Tasks[0].Config["args"] = []string{"-c", strings.NewReplacer("DIR", m.Dir(), "NAME", name).Replace(script)}
	_, _, err = m.Nomad().Jobs().Register(job, nil)
	must.NoError(m.t, err)
}

// told is what a training's log says, a line an entry.
func (m *market) told(name string) (all [][]string) {
	data, _ := os.ReadFile(filepath.Join(m.Dir(), name+".log"))
	for _, line := range strings.Split(strings.TrimSpace(string(data)), "\n") {
		all = append(all, strings.Fields(line))
	}
	return all
}

// goesOn checks that a gang of two was stopped once, whole, and each rank went on
// from its checkpoint.
func (m *market) goesOn(name string) {
	m.t.Helper()
	told := m.told(name)
	must.Len(m.t, 6, told)
	steps := map[string]string{}
	for i, line := range told {
		must.Eq(m.t, []string{"begins", "begins", "saves", "saves", "begins", "begins"}[i], line[0], must.Sprint("the gang ran in part, or started more than once: ", told))
		if i >= 4 {
			must.Eq(m.t, steps[line[2]], line[3], must.Sprint("rank ", line[2], " does not go on from its checkpoint: ", told))
			must.NotEq(m.t, "0", line[3])
		}
		steps[line[2]] = line[3]
	}
}

// A gang that fell back to on-demand nodes, as others had all of spot, goes back
// once spot is free: whole, from its checkpoint, in one restart. One without
// leave stays where it is.
func TestAGangThatFellBackToOnDemandReturnsToSpotWhenThatComesBack(t *testing.T) {
	m := newMarket(t, Pool{Name: "spot", Lifecycle: "spot", Price: 12.5, Max: 3}, Pool{Name: "on-demand", Lifecycle: "on-demand", Price: 40, Max: 3})
	m.gang("holds", 3, "only")
	m.running("holds", 3)
	m.gang("stays", 1, "prefer")
	m.trains("stays", false)
	stays := m.running("stays", 1)
	m.gang("returns", 2, "prefer")
	m.trains("returns", true)
	before := m.running("returns", 2)
	must.Eq(t, []string{"on-demand-1"}, stays)
	must.Eq(t, []string{"on-demand-2", "on-demand-3"}, before)
	_, _, err := m.Nomad().Jobs().Deregister("holds", false, nil)
	must.NoError(t, err)
	must.NoError(t, cluster.WaitFor(t.Context(), 3*time.Minute, "the gang trains on spot, and what nothing needs is gone", func() (bool, string, error) {
		on := 0
		allocs, _, err := m.Nomad().Jobs().Allocations("returns", false, nil)
		if err != nil {
			return false, "", err
		}
		for _, a := range allocs {
			if a.ClientStatus == "running" && strings.HasPrefix(a.NodeName, "spot-") {
				on++
			}
		}
		log, _ := m.AutoscalerLog()
		return on == 2 && len(m.told("returns")) == 6 && len(m.nodes("on-demand")) == 1 && len(m.nodes("spot")) == 2, fmt.Sprint(on, m.told("returns"), m.nodes("on-demand"), ParseScalings(log), m.plan()), m.Ended()
	}))
	m.goesOn("returns")
	must.Eq(t, stays, m.running("stays", 1))
	must.Len(t, 1, m.told("stays"))
	m.finish()
}
