// SPDX-License-Identifier: MPL-2.0

package nvml

import (
	"testing"

	"github.com/shoenig/test/must"

	"github.com/nomad-gpu/nomad-gpu/device/gpu"
)

func TestMIGInstancesAreDevicesOfTheirOwn(t *testing.T) {
	f := newFake(t, build(t, t.TempDir()))
	f.set("gpus 3", "links switch 18", "mig 1 3", "xid 1 94 1")
	m := f.machine()
	must.Len(t, 5, m.GPUs) // GPU 0, three instances of GPU 1, GPU 2
	second := m.GPUs[2]
	must.EqOp(t, "MIG-00000000-0000-0000-0003-000000000001", second.UUID)
	must.EqOp(t, "GPU-00000000-0000-0000-0000-000000000001", second.Parent)
	must.EqOp(t, "NVIDIA H100 80GB HBM3 MIG 1g.10gb", second.Model)
	must.EqOp(t, "1g.10gb", second.MIGProfile)
	must.EqOp(t, 9856, second.MemoryMiB)
	must.EqOp(t, "0000:11:00.0", second.BusID)
	must.EqOp(t, "hopper", second.Architecture)
	must.EqOp(t, 0, second.NVLinks)
	must.EqOp(t, 18, m.Paths[0][4].NVLinks)
	must.EqOp(t, gpu.Path{}, m.Paths[1][2])

	samples := f.ask("samples").Samples
	must.MapLen(t, 5, samples)
	must.EqOp(t, 16, *samples[second.UUID].MemoryUsedMiB)
	must.Nil(t, samples[second.UUID].UtilizationPercent)

	observations := f.ask("health").Health
	for i, want := range [][]uint64{nil, {94}, {94}, {94}, nil} { // what hits the GPU hits all of its instances
		must.Eq(t, want, observations[m.GPUs[i].UUID].Xids)
	}
}

func TestMIGInstancesFailWithTheirGPU(t *testing.T) {
	f := newFake(t, build(t, t.TempDir()))
	f.set("gpus 2", "mig 1 2")
	f.machine()
	f.set("gpus 2", "mig 1 2", "error nvmlDeviceGetHandleByIndex_v2 1 15")
	m := f.machine()
	must.Len(t, 3, m.GPUs)
	for _, g := range m.GPUs[1:] {
		must.EqOp(t, "NVML error 15: GPU is lost", g.Fault)
		must.EqOp(t, "1g.10gb", g.MIGProfile)
	}
}

func TestAGPUWithMIGOnAndNoInstanceOffersNothing(t *testing.T) {
	f := newFake(t, build(t, t.TempDir()))
	f.set("gpus 1", "mig 0 0")
	must.Len(t, 0, f.machine().GPUs)
}

func TestMIGInstancesComeAndGo(t *testing.T) {
	f := newFake(t, build(t, t.TempDir()))
	for _, c := range []struct {
		state string
		gpus  int
	}{{"mig 1 2", 3}, {"mig 1 1", 2}, {"mig 1 0", 1}, {"links none", 2}, {"mig 1 3", 4}} {
		f.set("gpus 2", c.state)
		m := f.machine()
		must.Len(t, c.gpus, m.GPUs, must.Sprint(c.state))
		for _, g := range m.GPUs {
			must.EqOp(t, "", g.Fault, must.Sprint(c.state))
		}
	}
}
