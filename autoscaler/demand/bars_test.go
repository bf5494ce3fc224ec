// SPDX-License-Identifier: MPL-2.0

package demand

import (
	"fmt"
	"testing"
	"time"

	"github.com/hashicorp/nomad/api"
	"github.com/shoenig/test/must"

	"github.com/nomad-gpu/nomad-gpu/autoscaler/plan"
)

func TestConstraintsOnASingleNodeAreEvaluatedAsNomadDoes(t *testing.T) {
	n := &api.Node{ID: "id-1", Name: "node-1", NodeClass: "spot", NodePool: "gpu", Datacenter: "dc1", Attributes: map[string]string{"cpu.numcores": "96", "unique.hostname": "h", "os.version": "22.04", "cpu.flags": "avx,sse"},
		Meta: map[string]string{"rack": "7", "gpu.lifecycle": "spot"}, HostVolumes: map[string]*api.HostVolumeInfo{"data": {}, "models": {ReadOnly: true}}}
	for _, c := range []struct {
		left, operand, right string
		want                 string
	}{
		{"${meta.rack}", "=", "7", ""},
		{"${meta.rack}", "", "8", `its node node-1 with "7" does not meet ${meta.rack} 8`},
		{"${meta.gpu.lifecycle}", "!=", "spot", `its node node-1 with "spot" does not meet ${meta.gpu.lifecycle} != spot`},
		{"${meta.row}", "!=", "a", ""},
		{"${meta.row}", "=", "a", "its node node-1 has nothing to meet ${meta.row} = a"},
		{"${meta.row}", "!=", "", `its node node-1 has nothing to meet ${meta.row} !=`},
		{"${meta.row}", "is_set", "", "its node node-1 has nothing to meet ${meta.row} is_set"},
		{"${meta.row}", "is_not_set", "", ""},
		{"${meta.row}", "<", "5", "its node node-1 has nothing to meet ${meta.row} < 5"},
		{"${attr.cpu.numcores}", ">=", "100", `its node node-1 with "96" does not meet ${attr.cpu.numcores} >= 100`},
		{"${attr.cpu.numcores}", ">=", "9", ""},
		{"${attr.os.version}", "version", ">= 20.04", ""},
		{"${attr.cpu.flags}", "set_contains", "avx,neon", `its node node-1 with "avx,sse" does not meet ${attr.cpu.flags} set_contains avx,neon`},
		{"${attr.unique.hostname}", "regexp", "^h$", ""},
		{"${node.unique.name}", "=", "node-1", ""},
		{"${node.unique.id}", "=", "id-1", ""},
		{"spot", "=", "${meta.gpu.lifecycle}", ""},
		{"${node.class}", "=", "${meta.gpu.lifecycle}", ""},
		{"${meta.rack}", "=", "${node.pool}", `its node node-1 with "7" does not meet ${meta.rack} = ${node.pool}`},
		{"${meta.rack}", "=", "${env.RACK}", `its node node-1 with "7" does not meet ${meta.rack} = ${env.RACK}`},
		{"${meta.rack}", "like", "7", `its node node-1 with "7" does not meet ${meta.rack} like 7`},
	} {
		b := &bars{constraints: []*api.Constraint{{LTarget: c.left, Operand: c.operand, RTarget: c.right}}}
		must.Eq(t, c.want, b.refuses(n), must.Sprintf("%+v", c))
	}
	for _, c := range []struct {
		source   string
		readOnly bool
		want     string
	}{
		{"data", false, ""},
		{"models", true, ""},
		{"models", false, `host volume "models" of its node node-1 is read-only`},
		{"other", true, `its node node-1 has no host volume "other"`},
	} {
		must.Eq(t, c.want, (&bars{volumes: []*api.VolumeRequest{{Source: c.source, ReadOnly: c.readOnly}}}).refuses(n))
	}
}

func TestGroupsThatAskTheSameOfANodeShareIt(t *testing.T) {
	known := newCatalogue(nil, nil)
	rack, row := constraint("${meta.rack}", "=", "7"), constraint("${attr.row}", "=", "a")
	g := &api.TaskGroup{}
	must.Nil(t, known.barsFor(g, constraint("${node.class}", "=", "spot")), must.Sprint("a pool tells it"))
	must.Nil(t, known.barsFor(g, constraint("${node.unique.id}", "distinct_property", "")))
	must.Nil(t, known.barsFor(&api.TaskGroup{Volumes: map[string]*api.VolumeRequest{"v": {Type: "csi", Source: "v"}}}, nil))
	both := known.barsFor(g, append(rack, row...))
	must.True(t, both == known.barsFor(g, append(row, rack...)))
	must.False(t, both == known.barsFor(g, rack))
	must.NotNil(t, known.barsFor(&api.TaskGroup{Volumes: map[string]*api.VolumeRequest{"v": {Type: "host", Source: "v"}}}, nil))
}

func TestNodesAreReadInFullForConstraintsThatTheyAloneTell(t *testing.T) {
	s, r := newStandIn(t)
	job := jobOf("default", "a", 5)
	job.Constraints = constraint("${meta.rack}", "=", "7")
	s.set(t, "/v1/job/a", job)
	s.set(t, "/v1/evaluations", []*api.Evaluation{waitingEval("default", "a", 5)})
	stub := func(id, pool string) *api.NodeListStub {
		return &api.NodeListStub{ID: id, Name: "name-" + id, NodePool: pool, Datacenter: "dc1", Status: "ready", SchedulingEligibility: "eligible", ModifyIndex: 5}
	}
	s.set(t, "/v1/nodes", []*api.NodeListStub{stub("n1", "gpu"), stub("n2", "gpu"), stub("n3", "cpu")})
	s.set(t, "/v1/node/n1", &api.Node{ID: "n1", Name: "name-n1", ModifyIndex: 5, StatusUpdatedAt: 100, Meta: map[string]string{"rack": "7"}})
	s.set(t, "/v1/node/n2", &api.Node{ID: "n2", Name: "name-n2", ModifyIndex: 5, StatusUpdatedAt: 200})
	verdicts := func(at int64) (all []string) {
		got, err := r.Read(t.Context(), time.Unix(at, 0))
		must.NoError(t, err)
		must.Nil(t, got.Told, must.Sprint("no node is in maintenance"))
		for _, n := range []string{"name-n1", "name-n2", "name-n3"} {
			why, known := got.Work[0].Bars.Of(n)
			all = append(all, fmt.Sprint(known, why))
		}
		return all
	}
	must.Eq(t, []string{"true", "false", "false"}, verdicts(250), must.Sprint("the second is ready for too short a time"))
	must.Len(t, 4+1+2, s.taken(), must.Sprint("the third is of no pool that the work may run in"))
	must.Eq(t, []string{"true", "trueits node name-n2 has nothing to meet ${meta.rack} = 7", "false"}, verdicts(320))
	must.Len(t, 4, s.taken())

	var many []*api.NodeListStub
	for i := range 300 {
		id := fmt.Sprint("m", i)
		many = append(many, stub(id, "gpu"))
		s.set(t, "/v1/node/"+id, &api.Node{ID: id, Name: "name-" + id, ModifyIndex: 5})
	}
	s.set(t, "/v1/nodes", many)
	for _, calls := range []int{200, 100, 0} {
		verdicts(400)
		must.Len(t, 4+calls, s.taken(), must.Sprint("so many in one reading"))
	}
	job.Constraints = nil
	job.JobModifyIndex = ptr(uint64(9))
	s.set(t, "/v1/job/a", job)
	s.set(t, "/v1/evaluations", []*api.Evaluation{waitingEval("default", "a", 9)})
	got, err := r.Read(t.Context(), time.Unix(400, 0))
	must.NoError(t, err)
	must.Nil(t, got.Work[0].Bars)
	must.MapEmpty(t, r.inspected)
}

func TestAWorkThatNoNodeOfAPoolAdmitsBuysNoMoreOfThem(t *testing.T) {
	job := service(1, nil)
	job.Constraints = constraint("${meta.rack}", "=", "7")
	known := newCatalogue(nil, nil)
	r := readingOf(time.Unix(100, 0), blocked("train"), map[string]*api.Job{"default/train": job}, nil, nil, known)
	known.inspected["n"] = &api.Node{Name: "n"}
	pool := plan.Pool{Name: "p", Max: 9, Where: plan.Where{NodePool: "gpu"}, Shape: plan.Shape{GPUs: 8, CPU: 1 << 20, Memory: 1 << 20}}
	out := plan.Make(plan.Input{Work: r.Work, Pools: []plan.Pool{pool}, Nodes: []plan.Node{{Name: "n", Pool: "p", Where: pool.Where, Free: pool.Shape, Whole: pool.Shape}}})
	must.True(t, out.Waiting[0].Unsatisfiable)
	must.StrContains(t, out.Waiting[0].Reason, "pool p: its node n has nothing to meet ${meta.rack} = 7")
	must.Eq(t, 0, out.Decisions[0].Needed)
}
