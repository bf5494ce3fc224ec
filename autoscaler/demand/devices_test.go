// SPDX-License-Identifier: MPL-2.0

package demand

import (
	"strings"
	"testing"
	"time"

	"github.com/hashicorp/nomad/api"
	"github.com/shoenig/test/must"

	"github.com/nomad-gpu/nomad-gpu/autoscaler/plan"
)

// h100 is a group as the device plugin tells it.
func h100(n int) *api.NodeDeviceResource {
	d := &api.NodeDeviceResource{Vendor: "nvidia", Type: "gpu", Name: "NVIDIA H100", Attributes: map[string]*api.Attribute{
		"memory":             {IntVal: ptr(int64(81559)), Unit: "MiB"},
		"compute_capability": {StringVal: ptr("9.0")},
		"driver_version":     {StringVal: ptr("550.54.15")},
		"architecture":       {StringVal: ptr("hopper")},
		"features":           {StringVal: ptr("nvlink, rdma")},
		"nvswitch":           {BoolVal: ptr(true)},
		"nvlink_bandwidth":   {FloatVal: ptr(450.0), Unit: "GB/s"},
		"cuda_major":         {IntVal: ptr(int64(12))},
	}}
	d.Instances = instances(n)
	return d
}

// instances are devices in order.
func instances(n int) (all []*api.NodeDevice) {
	for i := range n {
		all = append(all, &api.NodeDevice{ID: string(rune('a' + i)), Healthy: true})
	}
	return all
}

func nodeWith(devices ...*api.NodeDeviceResource) *api.NodeListStub {
	return &api.NodeListStub{ID: "n1", Name: "node-1", NodePool: "gpu", NodeClass: "h100", Datacenter: "dc1", Status: "ready", SchedulingEligibility: "eligible",
		NodeResources: &api.NodeResources{Devices: devices}}
}

// asks is the job with one device block.
func asks(device api.RequestedDevice) *api.Job {
	job := train()
	job.TaskGroups[0].Tasks[0].Resources.Devices = []*api.RequestedDevice{&device}
	return job
}

var h100Place = plan.Where{NodePool: "gpu", Class: "h100", Datacenter: "dc1"}

func TestConstraintsOnDeviceAttributesHoldAsInNomad(t *testing.T) {
	for _, c := range []struct {
		left, operand, right string
		want                 bool
	}{
		{"${device.attr.memory}", ">=", "40 GiB", true},
		{"${device.attr.memory}", ">=", "80 GiB", false}, // 79.6 GiB
		{"${device.attr.memory}", "<", "100000 MiB", true},
		{"${device.attr.memory}", ">=", "40", false},     // a unit does not compare with none
		{"${device.attr.memory}", ">=", "40 GHz", false}, // nor with another kind
		{"${device.attr.nvlink_bandwidth}", ">=", "0.3 TB/s", true},
		{"${device.attr.nvlink_bandwidth}", ">", "450 GB/s", false},
		{"${device.attr.compute_capability}", "version", ">= 8.0, < 10", true},
		{"${device.attr.driver_version}", "version", ">= 560", false},
		{"${device.attr.driver_version}", "semver", ">= 550.0.0", true},
		{"${device.attr.cuda_major}", "version", ">= 12", true},
		{"${device.attr.driver_version}", "version", "not a version", false},
		{"${device.attr.architecture}", "regexp", "^(hopper|blackwell)$", true},
		{"${device.attr.architecture}", "regexp", "(", false},
		{"${device.attr.memory}", "regexp", "8", false}, // a number is no text
		{"${device.attr.features}", "set_contains", "rdma,nvlink", true},
		{"${device.attr.features}", "set_contains", "rdma,infiniband", false},
		{"${device.attr.features}", "set_contains_any", "infiniband, rdma", true},
		{"${device.attr.nvswitch}", "=", "true", true},
		{"${device.attr.nvswitch}", "!=", "true", false},
		{"${device.attr.architecture}", "is", "ampere", false},
		{"${device.attr.none}", "is_set", "", false},
		{"${device.attr.none}", "is_not_set", "", true},
		{"${device.attr.none}", "!=", "x", true},
		{"${device.attr.none}", "=", "x", false},
		{"${device.model}", "regexp", "H100", true},
		{"${device.vendor}", "=", "amd", false},
		{"${device.type}", "=", "gpu", true},
		{"${device.attr.memory}", "near", "40 GiB", false},
	} {
		job := asks(api.RequestedDevice{Name: "nvidia/gpu", Constraints: []*api.Constraint{{LTarget: c.left, Operand: c.operand, RTarget: c.right}}})
		r := join(blocked("train"), map[string]*api.Job{"default/train": job}, nil, []*api.NodeListStub{nodeWith(h100(8))})
		must.Eq(t, c.want, r.Work[0].Allowed(h100Place), must.Sprintf("%+v", c))
	}
}

// told is what a pools file tells of a place whose nodes have 8 GPUs.
func told(at plan.Where, model, attribute, value string) Offer {
	return OfferOf("pool", at, Told{Model: model, Count: 8, Attributes: map[string]string{attribute: value}})
}

func TestAPlaceWithoutNodesHasWhatItsPoolsFileTells(t *testing.T) {
	place := plan.Where{Class: "new"}
	memory := func(least string) *api.Job {
		return asks(api.RequestedDevice{Name: "nvidia/gpu", Constraints: []*api.Constraint{{LTarget: "${device.attr.memory}", Operand: ">=", RTarget: least}}})
	}
	for name, c := range map[string]struct {
		told []Offer
		job  *api.Job
		want bool
	}{
		"nothing told":           {nil, memory("40 GiB"), true},
		"enough told":            {[]Offer{told(place, "", "memory", "80 GiB")}, memory("40 GiB"), true},
		"too little told":        {[]Offer{told(place, "", "memory", "24 GiB")}, memory("40 GiB"), false},
		"another attribute told": {[]Offer{told(place, "", "architecture", "hopper")}, memory("40 GiB"), true},
		"another place told":     {[]Offer{told(h100Place, "", "memory", "24 GiB")}, memory("40 GiB"), true},
		"another model told":     {[]Offer{told(place, "T4", "memory", "16 GiB")}, asks(api.RequestedDevice{Name: "nvidia/gpu/A100"}), false},
	} {
		t.Run(name, func(t *testing.T) {
			r := join(blocked("train"), map[string]*api.Job{"default/train": c.job}, nil, []*api.NodeListStub{nodeWith(h100(8))}, c.told...)
			must.Eq(t, c.want, r.Work[0].Allowed(plan.Where{NodePool: "gpu", Class: "new"}) && r.Work[0].Allowed(place))
		})
	}
}

func TestMIGInstancesAreAskedForByTheirName(t *testing.T) {
	mig := &api.NodeDeviceResource{Vendor: "nvidia", Type: "gpu", Name: "NVIDIA A100-SXM4-40GB MIG 1g.5gb", Instances: instances(3)}
	whole := h100(2)
	a := alloc("running", "run", 1)
	a.AllocatedResources.Tasks["t"].Devices = []*api.AllocatedDeviceResource{{Vendor: "nvidia", Type: "gpu", Name: whole.Name, DeviceIDs: []string{"a"}}}
	nodes := []*api.NodeListStub{nodeWith(whole, mig)}
	r := join(nil, nil, []*api.AllocationListStub{a}, nodes)
	must.Eq(t, 4, r.Nodes[0].Free.GPUs)
	must.Eq(t, 5, r.TotalGPUs)
	// What one allocation asks for, and whether the node has it free, or once it is empty.
	for _, c := range []struct {
		name        string
		count       uint64
		free, whole bool
	}{
		{"nvidia/gpu/NVIDIA A100-SXM4-40GB MIG 1g.5gb", 3, true, true},
		{"nvidia/gpu/NVIDIA A100-SXM4-40GB MIG 1g.5gb", 4, false, false},
		{"nvidia/gpu/NVIDIA A100-SXM4-40GB MIG 3g.20gb", 1, false, false},
		{"nvidia/gpu/NVIDIA H100", 1, true, true},
		{"nvidia/gpu/NVIDIA H100", 2, false, true},
		{"nvidia/gpu/nvidia h100", 1, false, false},
		{"nvidia/gpu", 3, true, true},
		{"nvidia/gpu", 4, false, false}, // two names never serve one request
		{"gpu", 3, true, true},
		{"/gpu", 3, true, true},                 // as Nomad splits it: any vendor
		{"nvidia/", 3, true, true},              // any type
		{"nvidia//NVIDIA H100", 2, false, true}, // of this name
	} {
		r := join(blocked("train"), map[string]*api.Job{"default/train": asks(api.RequestedDevice{Name: c.name, Count: &c.count})}, []*api.AllocationListStub{a}, nodes)
		must.Len(t, 1, r.Work, must.Sprint(c.name))
		must.Eq(t, c.free, serves(r), must.Sprint(c))
		r.Nodes = join(nil, nil, nil, nodes).Nodes
		must.Eq(t, c.whole, serves(r), must.Sprint(c))
	}
	for _, name := range []string{"amd/gpu", "gpu/nvidia", "NVIDIA/gpu", "nvidia/GPU", "/", "//x", ""} {
		must.SliceEmpty(t, join(blocked("train"), map[string]*api.Job{"default/train": asks(api.RequestedDevice{Name: name})}, nil, nodes).Work, must.Sprint(name))
	}
}

// serves reports whether the first node takes an allocation of the first work.
func serves(r Reading) bool {
	n := r.Nodes[0]
	n.Pool, n.Free.CPU, n.Free.Memory = "p", 1<<20, 1<<20
	w := r.Work[0]
	w.Count, w.Placed, w.Gang, w.PlacedOn = 1, 0, false, nil
	out := plan.Make(plan.Input{Work: []plan.Work{w}, Nodes: []plan.Node{n}, Pools: []plan.Pool{{Name: "p"}}})
	return strings.Contains(out.Waiting[0].Reason, "the nodes for the rest are ready")
}

func TestWorkThatNoPoolCouldTakeIsToldApartWithItsReason(t *testing.T) {
	job := asks(api.RequestedDevice{Name: "nvidia/gpu", Count: ptr(uint64(8)), Constraints: []*api.Constraint{{LTarget: "${device.attr.memory}", Operand: ">=", RTarget: "120 GiB"}}})
	pool := plan.Pool{Name: "h100", Max: 16, Where: h100Place, Shape: plan.Shape{GPUs: 8, CPU: 1 << 30, Memory: 1 << 30, Devices: []plan.Devices{{Type: plan.GPU, Count: 8, Kind: "pool"}}}}
	offer := told(h100Place, "", "memory", "80 GiB")
	r := join(blocked("train"), map[string]*api.Job{"default/train": job}, nil, nil, offer)
	out := plan.Make(plan.Input{Now: time.Unix(100, 0), Work: r.Work, Nodes: r.Nodes, Pools: []plan.Pool{pool}})
	must.Len(t, 1, out.Waiting)
	must.True(t, out.Waiting[0].Unsatisfiable)
	must.StrContains(t, out.Waiting[0].Reason, "no pool has nodes for it")
	must.Eq(t, 0, out.Decisions[0].Want)
	job.TaskGroups[0].Tasks[0].Resources.Devices[0].Constraints[0].RTarget = "79 GiB"
	r = join(blocked("train"), map[string]*api.Job{"default/train": job}, nil, nil, offer)
	out = plan.Make(plan.Input{Now: time.Unix(100, 0), Work: r.Work, Pools: []plan.Pool{pool}})
	must.False(t, out.Waiting[0].Unsatisfiable)
	must.Eq(t, 4, out.Decisions[0].Want)
}

func TestConstraintsOfNodesCompareNumbersAsNumbers(t *testing.T) {
	for _, c := range []struct {
		operand, left, right string
		want                 bool
	}{
		{">", "10", "9", true}, {">=", "b", "a", true}, {"<", "b", "a", false}, {"set_contains", "a,b", "b", true}, {"set_contains", "a", "a,b", false},
		{"version", "1.6.3", ">= 1.6", true}, {"regexp", "spot-1", "(", false}, {"unheard", "a", "a", false}, {"distinct_hosts", "a", "", true}, {"is_set", "a", "", true},
	} {
		must.Eq(t, c.want, holds(c.operand, c.left, c.right), must.Sprintf("%+v", c))
	}
}
