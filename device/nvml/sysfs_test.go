// SPDX-License-Identifier: MPL-2.0

package nvml

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/shoenig/test/must"

	"github.com/nomad-gpu/nomad-gpu/device/gpu"
	"github.com/nomad-gpu/nomad-gpu/device/topology"
)

// fakeSysfs lays out a PCI tree as the kernel does: devices below
// /sys/devices, and links to them.
type fakeSysfs struct {
	t    *testing.T
	root string
}

func (s fakeSysfs) write(file, text string) {
	must.NoError(s.t, os.MkdirAll(filepath.Dir(file), 0o700))
	must.NoError(s.t, os.WriteFile(file, []byte(text), 0o600))
}

func (s fakeSysfs) link(to, from string) {
	must.NoError(s.t, os.MkdirAll(filepath.Dir(from), 0o700))
	must.NoError(s.t, os.Symlink(to, from))
}

func (s fakeSysfs) device(path, numa string) string {
	dir := filepath.Join(s.root, "devices", path)
	s.write(filepath.Join(dir, "numa_node"), numa+"\n")
	s.write(filepath.Join(dir, "local_cpulist"), "0-55,112-167\n")
	s.link(dir, filepath.Join(s.root, "bus/pci/devices", filepath.Base(path)))
	return dir
}

func (s fakeSysfs) nic(name, path, numa string) {
	dir := s.device(path, numa)
	class := filepath.Join(s.root, "class/infiniband", name)
	s.write(filepath.Join(class, "ports/1/rate"), "400 Gb/sec (4X NDR)\n")
	s.link(dir, filepath.Join(class, "device"))
}

func TestPlacesOnThePCIBus(t *testing.T) {
	s := fakeSysfs{t, t.TempDir()}
	s.device("pci0000:15/0000:15:01.0/0000:16:00.0/0000:17:00.0/0000:1b:00.0", "0")
	s.device("pci0000:37/0000:37:01.0/0000:43:00.0", "0")
	s.device("pci0000:97/0000:97:01.0/0000:9d:00.0", "-1")
	s.nic("mlx5_10", "pci0000:15/0000:15:01.0/0000:16:00.0/0000:17:01.0/0000:18:00.0/0000:19:00.0/0000:1a:00.0", "0")
	s.nic("mlx5_2", "pci0000:15/0000:15:01.0/0000:16:00.0/0000:17:02.0/0000:1d:00.0", "0")
	s.nic("mlx5_3", "pci0000:15/0000:15:05.0/0000:29:00.0", "0")
	s.nic("mlx5_4", "pci0000:99/0000:99:01.0/0000:aa:00.0", "0")
	s.nic("mlx5_5", "pci0000:9b/0000:9b:01.0/0000:ab:00.0", "1")
	s.write(filepath.Join(s.root, "class/infiniband/rxe0/node_type"), "1: CA\n") // software RDMA, on no bus

	m := &gpu.Machine{GPUs: []gpu.GPU{
		{BusID: "0000:1b:00.0"}, {BusID: "0000:43:00.0"}, {BusID: "0000:9d:00.0"}, {BusID: "../../etc"}, {BusID: "0000:ff:00.0"},
	}, Paths: gpu.NewPaths(5)}
	pciTree{s.root}.place(m)

	var names []string
	for _, nic := range m.NICs {
		names = append(names, nic.Name)
	}
	must.Eq(t, []string{"rxe0", "mlx5_2", "mlx5_3", "mlx5_4", "mlx5_5", "mlx5_10"}, names)
	must.Eq(t, gpu.NIC{Name: "mlx5_2", Device: "mlx5_2", BusID: "0000:1d:00.0", NUMANode: 0, SpeedMbps: 400000, RDMA: true}, m.NICs[1])
	must.Eq(t, []gpu.Level{gpu.NoLevel, gpu.PIX, gpu.PHB, gpu.NODE, gpu.SYS, gpu.PXB}, m.NICPaths[0])
	must.Eq(t, []gpu.Level{gpu.NoLevel, gpu.SYS, gpu.SYS, gpu.SYS, gpu.SYS, gpu.SYS}, m.NICPaths[2])
	must.Eq(t, make([]gpu.Level, 6), m.NICPaths[3])
	must.EqOp(t, 0, m.GPUs[0].NUMANode)
	must.EqOp(t, "0-55,112-167", m.GPUs[0].CPUs)
	must.EqOp(t, gpu.NoNUMA, m.GPUs[2].NUMANode)
	must.EqOp(t, gpu.NoNUMA, m.GPUs[4].NUMANode)
	must.Eq(t, topology.Nearest{Level: gpu.PIX, NICs: []int{1}}, topology.NearestNICs(m)[0])
}

func TestAHostWithoutSysfsHasNoNICs(t *testing.T) {
	m := &gpu.Machine{GPUs: []gpu.GPU{{BusID: "0000:1b:00.0"}}, Paths: gpu.NewPaths(1)}
	pciTree{t.TempDir()}.place(m)
	must.Len(t, 0, m.NICs)
	must.Len(t, 1, m.NICPaths)
	must.EqOp(t, gpu.NoNUMA, m.GPUs[0].NUMANode)
}
