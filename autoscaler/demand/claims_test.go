// SPDX-License-Identifier: MPL-2.0

package demand

import (
	"strings"
	"testing"

	"github.com/hashicorp/nomad/api"
	"github.com/shoenig/test/must"

	"github.com/nomad-gpu/nomad-gpu/autoscaler/plan"
)

func constraint(target, operand, value string) []*api.Constraint {
	return []*api.Constraint{nil, {LTarget: target, Operand: operand, RTarget: value}}
}

func port(value int, network string) *api.NetworkResource {
	return &api.NetworkResource{ReservedPorts: []api.Port{{Label: "p", Value: value, HostNetwork: network}}}
}

func TestHowAllocationsKeepApart(t *testing.T) {
	for name, c := range map[string]struct {
		change   func(*api.Job, *api.TaskGroup)
		distinct bool
		perNode  int
		claims   string
	}{
		"they do not":                 {func(*api.Job, *api.TaskGroup) {}, false, 0, ""},
		"distinct hosts of the group": {func(_ *api.Job, g *api.TaskGroup) { g.Constraints = constraint("", "distinct_hosts", "") }, true, 0, ""},
		"said to be true":             {func(_ *api.Job, g *api.TaskGroup) { g.Constraints = constraint("", "distinct_hosts", "true") }, true, 0, ""},
		"said to be false":            {func(_ *api.Job, g *api.TaskGroup) { g.Constraints = constraint("", "distinct_hosts", "false") }, false, 0, ""},
		"said to be neither":          {func(_ *api.Job, g *api.TaskGroup) { g.Constraints = constraint("", "distinct_hosts", "often") }, true, 0, ""},
		"distinct hosts of the job":   {func(j *api.Job, _ *api.TaskGroup) { j.Constraints = constraint("", "distinct_hosts", "") }, false, 0, "job default/train"},
		"one for each node": {func(j *api.Job, _ *api.TaskGroup) {
			j.Constraints = constraint("${node.unique.id}", "distinct_property", "")
		}, false, 1, ""},
		"some for each node": {func(_ *api.Job, g *api.TaskGroup) {
			g.Constraints = constraint("${attr.unique.hostname}", "distinct_property", "3")
		}, false, 3, ""},
		"a property that nodes share": {func(_ *api.Job, g *api.TaskGroup) {
			g.Constraints = constraint("${meta.rack}", "distinct_property", "1")
		}, false, 0, ""},
		"a number that is none": {func(_ *api.Job, g *api.TaskGroup) {
			g.Constraints = constraint("${node.unique.id}", "distinct_property", "-1")
		}, false, 0, ""},
		"a static port": {func(_ *api.Job, g *api.TaskGroup) { g.Networks = []*api.NetworkResource{nil, port(80, "")} }, false, 0, "port 80"},
		"one of a task": {func(_ *api.Job, g *api.TaskGroup) {
			g.Tasks[0].Resources.Networks = []*api.NetworkResource{port(81, "default")}
		}, false, 0, "port 81"},
		"one of another network of the host": {func(_ *api.Job, g *api.TaskGroup) {
			g.Networks = []*api.NetworkResource{port(80, "fabric"), port(80, "fabric")}
		}, false, 0, "port 80 of fabric"},
		"a port that Nomad chooses": {func(_ *api.Job, g *api.TaskGroup) {
			g.Networks = []*api.NetworkResource{{DynamicPorts: []api.Port{{Label: "p"}}}}
		}, false, 0, ""},
	} {
		job := service(4, nil)
		c.change(job, job.TaskGroups[0])
		w := read(job).Work[0]
		must.Eq(t, c.distinct, w.Distinct, must.Sprint(name))
		must.Eq(t, c.perNode, w.PerNode, must.Sprint(name))
		must.Eq(t, c.claims, strings.Join(w.Claims, ", "), must.Sprint(name))
	}
}

func TestWhatOfANodeIsTakenThatWorkMustHaveAlone(t *testing.T) {
	job := service(1, func(g *api.TaskGroup) {
		g.Networks = []*api.NetworkResource{{ReservedPorts: []api.Port{{Value: 80}, {Value: 81}, {Value: 82}, {Value: 8080}, {Value: 22, HostNetwork: "fabric"}}}}
	})
	job.Constraints = constraint("", "distinct_hosts", "")
	n := host()
	n.ReservedResources = &api.NodeReservedResources{Networks: api.NodeReservedNetworkResources{ReservedHostPorts: "22, 8000-8100,x,5-"}}
	other, own, done := alloc("running", "run", 3), alloc("running", "run", 3), alloc("complete", "run", 3)
	other.JobID = "other"
	other.AllocatedResources.Shared.Networks = []*api.NetworkResource{nil, port(80, "default"), {DynamicPorts: []api.Port{{Value: 81}}}}
	done.AllocatedResources.Shared.Networks = []*api.NetworkResource{port(82, "")}
	taken := func(allocs ...*api.AllocationListStub) string {
		return strings.Join(join(blocked("train"), map[string]*api.Job{"default/train": job}, allocs, []*api.NodeListStub{n}).Nodes[0].Claims, ", ")
	}
	must.Eq(t, "port 22 of fabric, port 8080", taken())
	must.Eq(t, "job default/train, port 22 of fabric, port 80, port 8080, port 81", taken(other, own, done))
	other.AllocatedResources.Shared.Networks = nil
	other.AllocatedResources.Tasks["t"].Networks = []*api.NetworkResource{port(82, "")}
	must.Eq(t, "port 22 of fabric, port 8080, port 82", taken(other))
	must.SliceEmpty(t, join(nil, nil, []*api.AllocationListStub{own}, []*api.NodeListStub{n}).Nodes[0].Claims, must.Sprint("nobody asks"))
}

func TestTheGroupsOfAJobWithDistinctHostsKeepApart(t *testing.T) {
	job := service(1, func(g *api.TaskGroup) { g.Tasks[0].Resources.Devices[0].Count = ptr(uint64(1)) })
	job.Constraints = constraint("", "distinct_hosts", "")
	second := *job.TaskGroups[0]
	second.Name = ptr("second")
	job.TaskGroups = append(job.TaskGroups, &second)
	out := plan.Make(plan.Input{Work: read(job).Work, Pools: []plan.Pool{{Name: "p", Max: 9, Where: plan.Where{NodePool: "gpu"}, Shape: plan.Shape{GPUs: 8, CPU: 1 << 20, Memory: 1 << 20}}}})
	must.Eq(t, 2, out.Decisions[0].Want)
}
