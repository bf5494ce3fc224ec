// SPDX-License-Identifier: MPL-2.0

package demand

import (
	"testing"
	"time"

	"github.com/hashicorp/nomad/api"
	"github.com/shoenig/test/must"

	"github.com/nomad-gpu/nomad-gpu/autoscaler/plan"
	"github.com/nomad-gpu/nomad-gpu/driver/notice"
)

func ptr[T any](v T) *T { return &v }

// train is a waiting batch job with one gang of 4 × 8 GPUs.
func train() *api.Job {
	return &api.Job{ID: ptr("train"), Namespace: ptr("default"), Type: ptr("batch"), Status: ptr("running"), Priority: ptr(60), NodePool: ptr("gpu"),
		Datacenters: []string{"dc*"}, Version: ptr(uint64(3)), CreateIndex: ptr(uint64(100)), SubmitTime: ptr(int64(5e9)),
		TaskGroups: []*api.TaskGroup{{Name: ptr("gang"), Count: ptr(4), Tasks: []*api.Task{{Name: "t", Driver: "nccl",
			Config:    map[string]any{"gang": []any{map[string]any{"nodes": 4}}},
			Resources: &api.Resources{CPU: ptr(500), MemoryMB: ptr(1000), Devices: []*api.RequestedDevice{{Name: "nvidia/gpu", Count: ptr(uint64(8))}}}}}}}}
}

func alloc(client, desired string, version uint64) *api.AllocationListStub {
	return &api.AllocationListStub{ID: client + desired, Namespace: "default", JobID: "train", TaskGroup: "gang", NodeID: "n1", NodeName: "node-1",
		ClientStatus: client, DesiredStatus: desired, JobVersion: version, CreateIndex: 200,
		AllocatedResources: &api.AllocatedResources{Tasks: map[string]*api.AllocatedTaskResources{"t": {
			Cpu: api.AllocatedCpuResources{CpuShares: 500}, Memory: api.AllocatedMemoryResources{MemoryMB: 1000},
			Devices: []*api.AllocatedDeviceResource{{Vendor: "nvidia", Type: "gpu", Name: "H100", DeviceIDs: []string{"a", "b", "c", "d", "e", "f", "g", "h"}}}}}}}
}

func blocked(job string) []*api.Evaluation {
	return []*api.Evaluation{{ID: "e", Namespace: "default", JobID: job, Status: "blocked", CreateTime: 7e9}}
}

func join(evals []*api.Evaluation, jobs map[string]*api.Job, allocs []*api.AllocationListStub, nodes []*api.NodeListStub, told ...Offer) Reading {
	return readingOf(time.Unix(100, 0), evals, jobs, allocs, nodes, newCatalogue(nodes, told))
}

func read(job *api.Job, allocs ...*api.AllocationListStub) Reading {
	return join(blocked(*job.ID), map[string]*api.Job{"default/" + *job.ID: job}, allocs, nil)
}

func TestAGangThatIsNotWholeIsReadWhole(t *testing.T) {
	r := read(train(), alloc("running", "run", 3))
	must.Len(t, 1, r.Work)
	w := r.Work[0]
	must.Eq(t, 32, w.QueuedGPUs())
	must.Eq(t, 8, r.RunningGPUs)
	must.True(t, w.Gang && w.Distinct)
	must.Eq(t, "8 GPUs", w.Request.String())
	must.Eq(t, []int{8, 500, 1000}, []int{w.Request.GPUs, w.Request.CPU, w.Request.Memory})
	must.Eq(t, []string{"node-1"}, w.PlacedOn)
	must.Eq(t, int64(7), w.Since.Unix(), must.Sprint("its evaluation, not when it was submitted"))
	must.True(t, w.Allowed(plan.Where{NodePool: "gpu", Datacenter: "dc7"}))
	must.False(t, w.Allowed(plan.Where{NodePool: "default", Datacenter: "dc7"}))
	must.False(t, w.Allowed(plan.Where{NodePool: "gpu", Datacenter: "west"}))
}

func TestWhatOfAJobIsPlaced(t *testing.T) {
	cases := map[string]struct {
		kind   string
		allocs []*api.AllocationListStub
		want   int
	}{
		"running":                 {"batch", []*api.AllocationListStub{alloc("running", "run", 3)}, 1},
		"pending on its node":     {"batch", []*api.AllocationListStub{alloc("pending", "run", 3)}, 1},
		"being stopped":           {"batch", []*api.AllocationListStub{alloc("running", "stop", 3)}, 0},
		"failed":                  {"batch", []*api.AllocationListStub{alloc("failed", "run", 3)}, 0},
		"finished by a batch job": {"batch", []*api.AllocationListStub{alloc("complete", "run", 3)}, 1},
		"finished by a service, which runs again": {"service", []*api.AllocationListStub{alloc("complete", "run", 3)}, 0},
		"finished by the version before":          {"batch", []*api.AllocationListStub{alloc("complete", "run", 2)}, 0},
		"finished before the job was purged":      {"batch", []*api.AllocationListStub{func() *api.AllocationListStub { a := alloc("complete", "run", 3); a.CreateIndex = 50; return a }()}, 0},
		"of another group":                        {"batch", []*api.AllocationListStub{func() *api.AllocationListStub { a := alloc("running", "run", 3); a.TaskGroup = "x"; return a }()}, 0},
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			job := train()
			job.Type = ptr(c.kind)
			must.Eq(t, c.want, read(job, c.allocs...).Work[0].Placed)
		})
	}
}

func TestWhatIsNoDemand(t *testing.T) {
	for name, change := range map[string]func(*api.Job){
		"a dead job":             func(j *api.Job) { j.Status = ptr("dead") },
		"a stopped job":          func(j *api.Job) { j.Stop = ptr(true) },
		"a system job":           func(j *api.Job) { j.Type = ptr("system") },
		"a sysbatch job":         func(j *api.Job) { j.Type = ptr("sysbatch") },
		"a periodic job itself":  func(j *api.Job) { j.Periodic = &api.PeriodicConfig{} },
		"a job to be dispatched": func(j *api.Job) { j.ParameterizedJob = &api.ParameterizedJobConfig{} },
		"a job without GPUs":     func(j *api.Job) { j.TaskGroups[0].Tasks[0].Resources.Devices = nil },
		"another kind of device": func(j *api.Job) { j.TaskGroups[0].Tasks[0].Resources.Devices[0].Name = "intel/fpga" },
	} {
		t.Run(name, func(t *testing.T) {
			job := train()
			change(job)
			must.SliceEmpty(t, read(job).Work)
		})
	}
	dispatched := train()
	dispatched.ParameterizedJob, dispatched.Dispatched = &api.ParameterizedJobConfig{}, true
	must.Len(t, 1, read(dispatched).Work, must.Sprint("a dispatched job is demand"))
}

func TestHowDevicesAreAskedFor(t *testing.T) {
	cases := map[string]struct {
		device api.RequestedDevice
		gpus   int
		model  string
	}{
		"by type":              {api.RequestedDevice{Name: "gpu", Count: ptr(uint64(2))}, 2, ""},
		"one where none says":  {api.RequestedDevice{Name: "nvidia/gpu"}, 1, ""},
		"by model":             {api.RequestedDevice{Name: "nvidia/gpu/NVIDIA H100 80GB HBM3", Count: ptr(uint64(4))}, 4, "NVIDIA H100 80GB HBM3"},
		"model by constraint":  {api.RequestedDevice{Name: "nvidia/gpu", Constraints: []*api.Constraint{{LTarget: "${device.model}", RTarget: "A100", Operand: "="}}}, 1, "A100"},
		"another's constraint": {api.RequestedDevice{Name: "nvidia/gpu", Constraints: []*api.Constraint{{LTarget: "${device.model}", RTarget: "A100", Operand: "!="}}}, 1, ""},
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			job := train()
			job.TaskGroups[0].Tasks[0].Resources.Devices = []*api.RequestedDevice{&c.device}
			w := read(job).Work[0]
			must.Eq(t, c.gpus, w.Request.GPUs)
			must.Len(t, 1, w.Request.Asks)
			must.Eq(t, c.model, w.Request.Asks[0].Model)
		})
	}
}

func TestANodeHasWhatItsAllocationsLeave(t *testing.T) {
	devices := &api.NodeDeviceResource{Vendor: "nvidia", Type: "gpu", Name: "H100"}
	for i := range 16 {
		devices.Instances = append(devices.Instances, &api.NodeDevice{ID: string(rune('a' + i)), Healthy: i != 15})
	}
	n := &api.NodeListStub{ID: "n1", Name: "node-1", NodePool: "gpu", NodeClass: "spot", Datacenter: "dc1", Status: "ready", SchedulingEligibility: "eligible",
		NodeResources: &api.NodeResources{Cpu: api.NodeCpuResources{CpuShares: 10000}, Memory: api.NodeMemoryResources{MemoryMB: 5000}, Devices: []*api.NodeDeviceResource{devices}}}
	down := &api.NodeListStub{ID: "n2", Name: "node-2", Status: "down"}
	r := join(nil, nil, []*api.AllocationListStub{alloc("running", "run", 1), alloc("complete", "run", 1)}, []*api.NodeListStub{n, down})
	must.Len(t, 1, r.Nodes)
	free := r.Nodes[0].Free
	must.Eq(t, []int{7, 9500, 4000}, []int{free.GPUs, free.CPU, free.Memory}, must.Sprint("an unhealthy GPU is none"))
	must.Eq(t, []plan.Devices{{Type: "gpu", Model: "H100", Count: 7, Kind: free.Devices[0].Kind}}, free.Devices)
	must.True(t, r.Nodes[0].Busy)
	must.Eq(t, 15, r.TotalGPUs)
	devices.Instances[0].Healthy = false
	r = join(nil, nil, []*api.AllocationListStub{alloc("running", "run", 1)}, []*api.NodeListStub{n})
	must.Eq(t, 7, r.Nodes[0].Free.GPUs, must.Sprint("one that is in use and out of order takes nothing from the others"))
	logs := alloc("running", "run", 0)
	logs.JobType = "system"
	must.False(t, join(nil, nil, []*api.AllocationListStub{logs}, []*api.NodeListStub{n}).Nodes[0].Busy, must.Sprint("a system job keeps no node"))
	n.SchedulingEligibility = "ineligible"
	must.True(t, join(nil, nil, nil, []*api.NodeListStub{n}).Nodes[0].Closed)
}

func TestConstraintsOnWhatAPoolTells(t *testing.T) {
	spot := plan.Where{NodePool: "gpu", Class: "spot", Datacenter: "dc1"}
	for _, c := range []struct {
		left, operand, right string
		want                 bool
	}{
		{"${node.class}", "=", "spot", true},
		{"${node.class}", "=", "on-demand", false},
		{"${node.class}", "!=", "spot", false},
		{"${node.class}", "regexp", "^sp", true},
		{"${node.class}", "set_contains_any", "on-demand, spot", true},
		{"${node.datacenter}", "=", "dc2", false},
		{"${node.pool}", "is", "gpu", true},
		{"${node.class}", "is_not_set", "", false},
		{"${attr.kernel.name}", "=", "plan9", true}, // not told by a pool: taken to hold
	} {
		job := train()
		job.Constraints = []*api.Constraint{{LTarget: c.left, Operand: c.operand, RTarget: c.right}}
		must.Eq(t, c.want, read(job).Work[0].Allowed(spot), must.Sprintf("%+v", c))
	}
}

func TestANodeWhoseDriverRefusesGangsOffersNothing(t *testing.T) {
	nodeWith := func(drivers map[string]*api.DriverInfo) plan.Node {
		n := &api.NodeListStub{ID: "n1", Name: "n1", Status: api.NodeStatusReady, SchedulingEligibility: api.NodeSchedulingEligible, Drivers: drivers,
			NodeResources: &api.NodeResources{Devices: []*api.NodeDeviceResource{{Vendor: "nvidia", Type: "gpu", Name: "H100",
				Instances: []*api.NodeDevice{{ID: "a", Healthy: true}, {ID: "b", Healthy: true}}}}}}
		node, total := nodeOf(n, nil, newCatalogue([]*api.NodeListStub{n}, nil))
		must.Eq(t, held{gpus: 2}, total)
		must.False(t, node.Closed, must.Sprint("it is still in its pool"))
		return node
	}
	offers := func(drivers map[string]*api.DriverInfo) plan.Shape { return nodeWith(drivers).Free }
	whole := offers(nil)
	must.Eq(t, 2, whole.GPUs)
	must.Eq(t, whole, offers(map[string]*api.DriverInfo{"nccl": {Detected: true, Healthy: true}}))
	must.Eq(t, whole, offers(map[string]*api.DriverInfo{"nccl": {Detected: false}, "docker": {Detected: true}}))
	must.Eq(t, plan.Shape{}, offers(map[string]*api.DriverInfo{"nccl": {Detected: true, Healthy: false}}))
	must.False(t, nodeWith(map[string]*api.DriverInfo{"nccl": {Detected: true, HealthDescription: "Consul is away"}}).AtRisk)

	told := notice.Notice{What: "AWS: rebalance recommendation"}
	n := nodeWith(map[string]*api.DriverInfo{"nccl": {Detected: true, HealthDescription: told.String() + "; " + notice.NoNewGangs}})
	must.True(t, n.AtRisk)
	must.Eq(t, "spot notice: AWS: rebalance recommendation", n.Replace)
}
