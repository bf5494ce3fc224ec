// SPDX-License-Identifier: MPL-2.0

package demand

import (
	"math"
	"testing"
	"time"

	"github.com/hashicorp/nomad/api"
	"github.com/shoenig/test/must"

	"github.com/nomad-gpu/nomad-gpu/autoscaler/plan"
)

// step is a task that asks for some MHz, MiB and cores at one point of its group's life.
func step(hook string, sidecar bool, mhz, memory, cores int) *api.Task {
	t := &api.Task{Driver: "raw_exec", Resources: &api.Resources{CPU: ptr(mhz), MemoryMB: ptr(memory), MemoryMaxMB: ptr(10 * memory), Cores: ptr(cores)}}
	if hook != "" {
		t.Lifecycle = &api.TaskLifecycle{Hook: hook, Sidecar: sidecar}
	}
	return t
}

func TestAGroupAsksForItsGreatestPhaseAndItsSidecars(t *testing.T) {
	for name, c := range map[string]struct {
		tasks                             []*api.Task
		mhz, memory, cores, charged, disk int
	}{
		"tasks side by side":                  {[]*api.Task{step("", false, 100, 10, 0), step("", false, 200, 20, 0)}, 300, 30, 0, 0, 0},
		"a task before the others":            {[]*api.Task{step("prestart", false, 500, 10, 0), step("", false, 200, 20, 0)}, 500, 20, 0, 0, 0},
		"several before, one after another":   {[]*api.Task{step("prestart", false, 150, 10, 0), step("prestart", false, 100, 15, 0), step("", false, 200, 20, 0)}, 250, 25, 0, 0, 0},
		"a sidecar":                           {[]*api.Task{step("prestart", true, 50, 5, 0), step("", false, 200, 20, 0)}, 250, 25, 0, 0, 0},
		"a task after the others":             {[]*api.Task{step("", false, 200, 20, 0), step("poststop", false, 100, 90, 0)}, 200, 90, 0, 0, 0},
		"one that Nomad does not count":       {[]*api.Task{step("", false, 200, 20, 0), step("poststart", false, 900, 900, 0)}, 200, 20, 0, 0, 0},
		"cores, and not the MHz beside them":  {[]*api.Task{step("", false, 200, 20, 4), step("", false, 100, 10, 0)}, 100, 30, 4, 4, 0},
		"cores of tasks one after the other":  {[]*api.Task{step("prestart", false, 0, 10, 2), step("", false, 0, 20, 4)}, 0, 20, 6, 4, 0},
		"less than nothing, and out of sense": {[]*api.Task{step("", false, -200, math.MaxInt, 0), step("", false, math.MaxInt, 10, 0)}, most, most + 10, 0, 0, 0},
	} {
		job := train()
		g := job.TaskGroups[0]
		g.Tasks = append(c.tasks, &api.Task{Resources: &api.Resources{Devices: g.Tasks[0].Resources.Devices}})
		r := read(job).Work[0].Request
		h := plan.Host{}
		if r.Host != nil {
			h = *r.Host
		}
		must.Eq(t, []int{c.mhz, c.memory, c.cores, c.charged, c.disk}, []int{r.CPU, r.Memory, h.Cores, h.Charged, h.Disk}, must.Sprint(name))
	}
	job := train()
	job.TaskGroups[0].EphemeralDisk = &api.EphemeralDisk{SizeMB: ptr(300)}
	must.Eq(t, &plan.Host{Disk: 300}, read(job).Work[0].Request.Host)
}

// host is a node of four cores with 1000 MHz each.
func host() *api.NodeListStub {
	return &api.NodeListStub{ID: "n1", Name: "node-1", Status: "ready", SchedulingEligibility: "eligible", NodeResources: &api.NodeResources{
		Cpu:    api.NodeCpuResources{CpuShares: 4000, TotalCpuCores: 4, ReservableCpuCores: []uint16{0, 1, 2, 3}},
		Memory: api.NodeMemoryResources{MemoryMB: 5000}, Disk: api.NodeDiskResources{DiskMB: 9000}}}
}

func TestANodeOffersWhatItsClientDoesNotKeepForOthers(t *testing.T) {
	n := host()
	must.Eq(t, plan.Shape{CPU: 4000, Memory: 5000, Devices: []plan.Devices{}, Host: &plan.Host{Cores: 4, MHz: 1000, Disk: 9000}}, join(nil, nil, nil, []*api.NodeListStub{n}).Nodes[0].Whole)
	n.ReservedResources = &api.NodeReservedResources{Cpu: api.NodeReservedCpuResources{CpuShares: 500}, Memory: api.NodeReservedMemoryResources{MemoryMB: 1000},
		Disk: api.NodeReservedDiskResources{DiskMB: 2000}}
	n.NodeResources.Cpu.ReservableCpuCores = []uint16{1, 2, 3}
	want := plan.Shape{CPU: 3500, Memory: 4000, Devices: []plan.Devices{}, Host: &plan.Host{Cores: 3, MHz: 1000, Disk: 7000}}
	node := join(nil, nil, nil, []*api.NodeListStub{n}).Nodes[0]
	must.Eq(t, want, node.Whole)
	must.Eq(t, want, node.Free)
	n.ReservedResources.Memory.MemoryMB = math.MaxUint64
	must.Less(t, 0, join(nil, nil, nil, []*api.NodeListStub{n}).Nodes[0].Free.Memory)
}

func TestWhatAllocationsTakeIsCountedAsNomadCountsIt(t *testing.T) {
	s, r := newStandIn(t)
	s.set(t, "/v1/nodes", []*api.NodeListStub{host()})
	s.set(t, "/v1/allocations", `[{"ID":"a","Namespace":"default","JobID":"j","TaskGroup":"g","NodeID":"n1","NodeName":"node-1","ClientStatus":"running","DesiredStatus":"run","AllocatedResources":{
		"Shared":{"DiskMB":300},
		"TaskLifecycles":{"pull":{"Hook":"prestart","Sidecar":false},"logs":{"Hook":"prestart","Sidecar":true},"main":null},
		"Tasks":{
			"pull":{"Cpu":{"CpuShares":1000,"ReservedCores":[0]},"Memory":{"MemoryMB":2000}},
			"main":{"Cpu":{"CpuShares":2000,"ReservedCores":[1,2]},"Memory":{"MemoryMB":1000,"MemoryMaxMB":4000},"Devices":[{"Vendor":"nvidia","Type":"gpu","Name":"H100","DeviceIDs":["x","y"]}]},
			"logs":{"Cpu":{"CpuShares":100},"Memory":{"MemoryMB":50}}}}},
		{"ID":"b","Namespace":"default","JobID":"j","TaskGroup":"h","NodeID":"n1","NodeName":"node-1","ClientStatus":"running","DesiredStatus":"run","AllocatedResources":{
		"Shared":{"DiskMB":100},"Tasks":{"t":{"Cpu":{"CpuShares":10},"Memory":{"MemoryMB":20}},"u":{"Cpu":{"CpuShares":1},"Memory":{"MemoryMB":2}}}}},
		null]`)
	got, err := r.Read(t.Context(), time.Unix(100, 0))
	must.NoError(t, err)
	free := got.Nodes[0].Free
	must.Eq(t, []int{4000 - 2100 - 11, 5000 - 2050 - 22}, []int{free.CPU, free.Memory})
	must.Eq(t, plan.Host{Cores: 2, MHz: 1000, Disk: 8600}, *free.Host)
	must.Eq(t, plan.Host{Cores: 4, MHz: 1000, Disk: 9000}, *got.Nodes[0].Whole.Host)
	must.Eq(t, 2, got.RunningGPUs)
	moved := got.Nodes[0].Tenants[0].Work.Request
	must.Eq(t, []int{2, 2100, 2050, 2, 300}, []int{moved.GPUs, moved.CPU, moved.Memory, moved.Host.Cores, moved.Host.Disk})
}
