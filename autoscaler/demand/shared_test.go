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

const l40s = "NVIDIA L40S"

// slicesOn are the groups that the device plugin makes of a node's GPUs, each
// in so many slices: the first of all GPUs are one group, the second another.
func slicesOn(gpus, of int) (all []*api.NodeDeviceResource) {
	for n := range of {
		d := &api.NodeDeviceResource{Vendor: "nvidia", Type: "gpu-slice", Name: fmt.Sprintf("%s mps %d of %d", l40s, n+1, of), Attributes: map[string]*api.Attribute{
			"memory": {IntVal: ptr(int64(12288)), Unit: "MiB"}, "sharing": {StringVal: ptr("mps")}, "slices": {IntVal: ptr(int64(of))}}}
		for g := range gpus {
			d.Instances = append(d.Instances, &api.NodeDevice{ID: fmt.Sprintf("GPU-%d::%d", g, n+1), Healthy: true})
		}
		all = append(all, d)
	}
	return all
}

func holding(kind, name string, ids ...string) *api.AllocationListStub {
	a := alloc("running", "run", 1)
	a.JobID = "notebooks"
	a.AllocatedResources.Tasks["t"].Devices = []*api.AllocatedDeviceResource{{Vendor: "nvidia", Type: kind, Name: name, DeviceIDs: ids}}
	return a
}

func TestSlicesAreReadBesideGPUs(t *testing.T) {
	n := nodeWith(append(slicesOn(2, 4), h100(8))...)
	a := holding("gpu-slice", l40s+" mps 2 of 4", "GPU-0::2")
	a.AllocatedResources.Tasks["u"] = &api.AllocatedTaskResources{Devices: []*api.AllocatedDeviceResource{{Vendor: "nvidia", Type: "gpu", Name: "NVIDIA H100", DeviceIDs: []string{"a", "b"}}}}
	job := asks(api.RequestedDevice{Name: "nvidia/gpu-slice", Count: ptr(uint64(2))})
	r := join(blocked("train"), map[string]*api.Job{"default/train": job}, []*api.AllocationListStub{a}, []*api.NodeListStub{n})
	must.Eq(t, []int{2, 8, 1, 8}, []int{r.RunningGPUs, r.TotalGPUs, r.RunningSlices, r.TotalSlices})
	must.Eq(t, []Running{{"node-1", "default", "notebooks", 2, 0.25}}, r.Running)
	must.Eq(t, 2.25/10, r.Utilisation())
	w := r.Work[0]
	must.Eq(t, []int{0, 8}, []int{w.QueuedGPUs(), w.QueuedSlices()}, must.Sprint("four allocations of two"))
	must.Eq(t, 2.0, w.QueuedOn(r.Nodes[0].Whole))
	must.Eq(t, 6, r.Nodes[0].Free.GPUs)
	must.Eq(t, []int{2, 1, 2, 2, 6}, counts(r.Nodes[0].Free))
	must.Eq(t, []int{2, 2, 2, 2, 8}, counts(r.Nodes[0].Whole))
	must.Eq(t, 10.0, r.Nodes[0].Whole.Size())
}

func counts(s plan.Shape) (all []int) {
	for _, d := range s.Devices {
		all = append(all, d.Count)
	}
	return all
}

func TestARequestForSlicesGetsNoGPUAndNoneForGPUsASlice(t *testing.T) {
	both := nodeWith(append(slicesOn(2, 4), h100(8))...)
	for _, c := range []struct {
		name       string
		count      uint64
		constraint *api.Constraint
		want       bool
	}{
		{"nvidia/gpu-slice", 1, nil, true},
		{"gpu-slice", 2, nil, true},
		{"nvidia/gpu-slice", 3, nil, false}, // there are eight, in groups of two
		{"nvidia/gpu", 8, nil, true},
		{"nvidia/gpu", 9, nil, false},
		{"nvidia/gpu-slice/NVIDIA L40S mps 3 of 4", 2, nil, true},
		{"nvidia/gpu-slice/NVIDIA L40S", 1, nil, false},
		{"nvidia/gpu/NVIDIA L40S mps 3 of 4", 1, nil, false},
		{"nvidia/gpu-slice", 1, &api.Constraint{LTarget: "${device.attr.memory}", Operand: ">=", RTarget: "12 GiB"}, true},
		{"nvidia/gpu-slice", 1, &api.Constraint{LTarget: "${device.attr.memory}", Operand: ">=", RTarget: "40 GiB"}, false},
		{"nvidia/gpu", 1, &api.Constraint{LTarget: "${device.attr.memory}", Operand: ">=", RTarget: "40 GiB"}, true},
		{"nvidia/gpu-slice", 1, &api.Constraint{LTarget: "${device.attr.sharing}", Operand: "=", RTarget: "time_slice"}, false},
		{"nvidia/gpu-slice", 1, &api.Constraint{LTarget: "${device.attr.slices}", Operand: "<=", RTarget: "4"}, true},
	} {
		request := api.RequestedDevice{Name: c.name, Count: &c.count}
		if c.constraint != nil {
			request.Constraints = []*api.Constraint{c.constraint}
		}
		r := join(blocked("train"), map[string]*api.Job{"default/train": asks(request)}, nil, []*api.NodeListStub{both})
		must.Eq(t, c.want, serves(r), must.Sprint(c.name, c.count, c.constraint))
	}
}

func TestWhatAnAllocationOfSlicesUsedIsItsPartOfGPUs(t *testing.T) {
	a := holding("gpu-slice", l40s+" mps of 8", "x::1", "x::2")
	a.TaskStates = map[string]*api.TaskState{"t": {StartedAt: hour(0), FinishedAt: hour(2)}}
	a.ClientStatus = "complete"
	u := UsageOfAllocs([]*api.AllocationListStub{a}, func(string) string { return "shared" }, hour(0), hour(10))
	must.Eq(t, map[Share]float64{{"shared", "default", "notebooks"}: 0.5}, u.Used)
	for name, want := range map[string]int{l40s + " mps of 8": 8, l40s + " time slice 3 of 4": 4, "of 4": 0, l40s: 0, l40s + " of many": 0, l40s + " of 9999": 0} {
		must.Eq(t, want, slicesOf("gpu-slice", name), must.Sprint(name))
		must.Eq(t, 0, slicesOf("gpu", name))
	}
}

// toldOf reads a job while its pool has the nodes that are given, and reports
// whether the pool's groups serve it.
func toldOf(device api.RequestedDevice, t Told, group plan.Devices, nodes ...*api.NodeListStub) bool {
	group.Kind, group.Count = "p 0", t.Count
	r := join(blocked("train"), map[string]*api.Job{"default/train": asks(device)}, nil, nodes, OfferOf("p 0", h100Place, t))
	pool := plan.Pool{Name: "p", Max: 1, Where: h100Place, Shape: plan.Shape{CPU: 1 << 20, Memory: 1 << 20, Devices: []plan.Devices{group}}}
	return r.Work[0].RunsOn(pool)
}

func TestWhatAPoolsFileTellsOfSlicesAndIslandsServesWhatNomadWould(t *testing.T) {
	sliced, island := Told{Model: l40s, Count: 8, Slices: 4}, Told{Model: "NVIDIA A100", Count: 4, Island: 4, Islands: 2}
	where := func(attribute, operand, value string) []*api.Constraint {
		return []*api.Constraint{{LTarget: "${device." + attribute + "}", Operand: operand, RTarget: value}}
	}
	for _, c := range []struct {
		request api.RequestedDevice
		told    Told
		want    bool
	}{
		{api.RequestedDevice{Name: "nvidia/gpu-slice"}, sliced, true},
		{api.RequestedDevice{Name: "nvidia/gpu"}, sliced, false},
		{api.RequestedDevice{Name: "nvidia/gpu-slice/NVIDIA L40S mps 2 of 4"}, sliced, true},
		{api.RequestedDevice{Name: "nvidia/gpu-slice/NVIDIA L40S time slice of 4"}, sliced, true},
		{api.RequestedDevice{Name: "nvidia/gpu-slice/NVIDIA L40S mps 2 of 8"}, sliced, false},
		{api.RequestedDevice{Name: "nvidia/gpu-slice/NVIDIA L40S"}, sliced, false},
		{api.RequestedDevice{Name: "nvidia/gpu-slice", Constraints: where("attr.slices", "<=", "2")}, sliced, false},
		{api.RequestedDevice{Name: "nvidia/gpu-slice", Constraints: where("model", "regexp", "L40S")}, sliced, true},
		{api.RequestedDevice{Name: "nvidia/gpu-slice", Constraints: where("model", "=", "NVIDIA L40S mps 1 of 4")}, sliced, true},
		{api.RequestedDevice{Name: "nvidia/gpu-slice", Constraints: where("model", "=", "NVIDIA L4 mps 1 of 4")}, sliced, false},
		{api.RequestedDevice{Name: "nvidia/gpu", Count: ptr(uint64(4))}, island, true},
		{api.RequestedDevice{Name: "nvidia/gpu", Count: ptr(uint64(5))}, island, false},
		{api.RequestedDevice{Name: "nvidia/gpu/NVIDIA A100 island 4"}, island, true},
		{api.RequestedDevice{Name: "nvidia/gpu/NVIDIA A100"}, island, false},
		{api.RequestedDevice{Name: "nvidia/gpu", Constraints: where("attr.nvlink_island_size", ">=", "4")}, island, true},
		{api.RequestedDevice{Name: "nvidia/gpu", Constraints: where("attr.nvlink_island_size", ">=", "8")}, island, false},
		{api.RequestedDevice{Name: "nvidia/gpu", Constraints: where("attr.count", ">=", "8")}, island, false},
		{api.RequestedDevice{Name: "nvidia/gpu/NVIDIA H100", Count: ptr(uint64(8))}, Told{Model: "NVIDIA H100", Count: 8, Island: 8, Islands: 1}, true},
		// Where all GPUs are one group, the attributes tell the island.
		{api.RequestedDevice{Name: "nvidia/gpu", Count: ptr(uint64(8))}, Told{Count: 8, Attributes: map[string]string{"nvlink_island_size": "4"}}, true},
		{api.RequestedDevice{Name: "nvidia/gpu", Constraints: where("attr.nvlink_island_size", ">=", "8")}, Told{Count: 8, Attributes: map[string]string{"nvlink_island_size": "4"}}, false},
		{api.RequestedDevice{Name: "nvidia/gpu", Constraints: where("attr.fabric_cluster", "=", "rack-7")}, Told{Count: 4, Attributes: map[string]string{"fabric_cluster": "rack-7"}}, true},
		{api.RequestedDevice{Name: "nvidia/gpu", Constraints: where("attr.fabric_cluster", "=", "rack-8")}, Told{Count: 4, Attributes: map[string]string{"fabric_cluster": "rack-7"}}, false},
		// The plugin tells it as a text: the file cannot know.
		{api.RequestedDevice{Name: "nvidia/gpu", Constraints: where("attr.compute_capability", "version", ">= 8.0")}, Told{Count: 4, Attributes: map[string]string{"compute_capability": "9.0"}}, true},
		{api.RequestedDevice{Name: "nvidia/gpu", Constraints: where("attr.compute_capability", "version", ">= 10")}, Told{Count: 4, Attributes: map[string]string{"compute_capability": "9.0"}}, false},
		// A model that is not told is none that is asked for.
		{api.RequestedDevice{Name: "nvidia/gpu/NVIDIA A100"}, Told{Count: 8}, false},
		{api.RequestedDevice{Name: "nvidia/gpu", Affinities: []*api.Affinity{{LTarget: "${device.model}", Operand: "=", RTarget: "NVIDIA B200", Weight: ptr(int8(100))}}}, island, true},
	} {
		group := plan.Devices{Type: plan.GPU, Model: c.told.Model}
		if c.told.Slices > 0 {
			group.Type, group.Of = plan.Slice, c.told.Slices
		}
		must.Eq(t, c.want, toldOf(c.request, c.told, group), must.Sprintf("%+v of %+v", c.request, c.told))
	}
}

func TestNodesThatAreThereTellMoreThanAPoolsFile(t *testing.T) {
	eight := api.RequestedDevice{Name: "nvidia/gpu", Count: ptr(uint64(8))}
	told, group := Told{Model: "NVIDIA H100", Count: 8}, plan.Devices{Type: plan.GPU, Model: "NVIDIA H100"}
	island := func(first, count int) *api.NodeDeviceResource {
		d := h100(count)
		d.Name = fmt.Sprintf("NVIDIA H100 island %d", first)
		return d
	}
	must.True(t, toldOf(eight, told, group))
	must.True(t, toldOf(eight, told, group, nodeWith(h100(8))))
	must.False(t, toldOf(eight, told, group, nodeWith(island(0, 4), island(4, 4))), must.Sprint("its nodes have islands of four: no more are bought in vain"))
	must.True(t, toldOf(eight, told, group, nodeWith(h100(7))), must.Sprint("one that lacks a GPU has a fault"))
	must.False(t, toldOf(eight, told, group, nodeWith(slicesOn(8, 4)...)), must.Sprint("its nodes share all GPUs"))
	must.True(t, toldOf(eight, told, group, nodeWith()), must.Sprint("no device was told of yet"))
}

func TestAllBlocksOfAllTasksOfAGroupAreAskedFor(t *testing.T) {
	job := train()
	g := job.TaskGroups[0]
	g.Tasks[0].Resources.Devices = []*api.RequestedDevice{{Name: "gpu"}, {Name: "nvidia/gpu/NVIDIA H100", Count: ptr(uint64(2))}}
	g.Tasks = append(g.Tasks, &api.Task{Name: "cache", Driver: "docker", Resources: &api.Resources{CPU: ptr(100), MemoryMB: ptr(200), Devices: []*api.RequestedDevice{{Name: "nvidia/gpu-slice", Count: ptr(uint64(2))}, {Name: "intel/fpga"}}}})
	n := nodeWith(append(slicesOn(2, 4), h100(3))...)
	r := join(blocked("train"), map[string]*api.Job{"default/train": job}, nil, []*api.NodeListStub{n})
	w := r.Work[0]
	must.Eq(t, "2 GPUs NVIDIA H100 and 1 GPUs and 2 slices", w.Request.String(), must.Sprint("what any serves comes last"))
	must.Eq(t, []int{3, 600, 1200}, []int{w.Request.GPUs, w.Request.CPU, w.Request.Memory})
	must.Eq(t, []int{12, 8}, []int{w.QueuedGPUs(), w.QueuedSlices()})
	must.True(t, serves(r))
	for _, other := range []*api.NodeListStub{nodeWith(h100(3)), nodeWith(slicesOn(2, 4)...), nodeWith(append(slicesOn(2, 4), h100(2))...)} {
		r := join(blocked("train"), map[string]*api.Job{"default/train": job}, nil, []*api.NodeListStub{other})
		must.False(t, serves(r))
	}
}

func TestASysbatchJobKeepsItsNodeUntilItHasEnded(t *testing.T) {
	a := alloc("running", "run", 1)
	a.JobType = "sysbatch"
	must.True(t, join(nil, nil, []*api.AllocationListStub{a}, []*api.NodeListStub{nodeWith(h100(8))}).Nodes[0].Busy)
	a.ClientStatus = "complete"
	must.False(t, join(nil, nil, []*api.AllocationListStub{a}, []*api.NodeListStub{nodeWith(h100(8))}).Nodes[0].Busy)
}

func TestAGroupsMetaGoesOverItsJobs(t *testing.T) {
	job := train()
	job.Meta = map[string]string{"gpu.spot": "only", "gpu.duration": "1h", "gpu.move": "yes"}
	second := *job.TaskGroups[0]
	second.Name, second.Meta = ptr("second"), map[string]string{"gpu.spot": "never", "gpu.move": "no", "gpu.max_cost": "7"}
	job.TaskGroups = append(job.TaskGroups, &second)
	work := read(job).Work
	must.Eq(t, []string{plan.Only, plan.Never}, []string{work[0].Spot, work[1].Spot})
	must.Eq(t, []bool{true, false}, []bool{work[0].Move, work[1].Move})
	must.Eq(t, []time.Duration{time.Hour, time.Hour}, []time.Duration{work[0].Length, work[1].Length})
	must.Eq(t, []float64{0, 7}, []float64{work[0].MaxCost, work[1].MaxCost})
	must.MapLen(t, 3, job.Meta, must.Sprint("the job's own is left as it is"))
}

func TestADeviceThatIsAskedForByItsIDIsOnANodeThatIsThere(t *testing.T) {
	mine := api.RequestedDevice{Name: "nvidia/gpu", Constraints: []*api.Constraint{{LTarget: "${device.ids}", Operand: "set_contains", RTarget: "GPU-1"}}}
	told, group := Told{Model: "NVIDIA H100", Count: 8}, plan.Devices{Type: plan.GPU}
	must.False(t, toldOf(mine, told, group))
	must.False(t, toldOf(mine, told, group, nodeWith(h100(8))), must.Sprint("a new node has other ids"))
	must.True(t, serves(join(blocked("train"), map[string]*api.Job{"default/train": asks(mine)}, nil, []*api.NodeListStub{nodeWith(h100(8))})))
}

// A pool at zero whose file tells too little would else be bought for a work
// again and again that its nodes do not serve.
func TestWhatAPoolsNodesHadIsRememberedForAnHour(t *testing.T) {
	s, r := newStandIn(t)
	r.told = []Offer{OfferOf("p 0", h100Place, Told{Count: 8})}
	job := asks(api.RequestedDevice{Name: "nvidia/gpu", Constraints: []*api.Constraint{{LTarget: "${device.attr.memory}", Operand: ">=", RTarget: "120 GiB"}}})
	job.JobModifyIndex = ptr(uint64(5))
	s.set(t, "/v1/evaluations", []*api.Evaluation{waitingEval("default", "train", 5)})
	s.set(t, "/v1/job/train", job)
	pool := plan.Pool{Where: h100Place, Shape: plan.Shape{CPU: 1 << 20, Memory: 1 << 20, Devices: []plan.Devices{{Type: plan.GPU, Count: 8, Kind: "p 0"}}}}
	serves := func(at time.Duration, nodes ...*api.NodeListStub) bool {
		s.set(t, "/v1/nodes", append([]*api.NodeListStub{}, nodes...))
		got, err := r.Read(t.Context(), time.Unix(0, 0).Add(at))
		must.NoError(t, err)
		return got.Work[0].RunsOn(pool)
	}
	must.True(t, serves(0), must.Sprint("nothing is known"))
	must.False(t, serves(time.Minute, nodeWith(h100(8))))
	must.False(t, serves(2*time.Minute))
	must.False(t, serves(61*time.Minute))
	must.True(t, serves(62*time.Minute), must.Sprint("it may have others by now"))
	must.MapEmpty(t, r.had)
	greater := h100(8)
	greater.Attributes["memory"].IntVal = ptr(int64(141 << 10))
	must.False(t, serves(63*time.Minute, nodeWith(h100(8))))
	must.True(t, serves(64*time.Minute, nodeWith(greater)), must.Sprint("a node that is there prevails"))
	must.True(t, serves(65*time.Minute))
}
