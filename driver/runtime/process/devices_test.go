// SPDX-License-Identifier: MPL-2.0

package process

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/opencontainers/runtime-spec/specs-go"
	"github.com/shoenig/test/must"

	"github.com/nomad-gpu/nomad-gpu/driver/runtime"
)

// devices makes a tree of plain files; a rule's number is the length of its name.
func devices(t *testing.T, nodes []string, information map[string]string) (deviceTree, *[]string) {
	t.Helper()
	tree := deviceTree{dev: t.TempDir(), gpus: t.TempDir()}
	for _, n := range nodes {
		path := filepath.Join(tree.dev, n)
		must.NoError(t, os.MkdirAll(filepath.Dir(path), 0o755))
		must.NoError(t, os.WriteFile(path, nil, 0o600))
	}
	for bus, text := range information {
		must.NoError(t, os.MkdirAll(filepath.Join(tree.gpus, bus), 0o755))
		must.NoError(t, os.WriteFile(filepath.Join(tree.gpus, bus, "information"), []byte(text), 0o600))
	}
	var asked []string
	tree.node = func(path string) (specs.LinuxDeviceCgroup, error) {
		if _, err := os.Stat(path); err != nil {
			return specs.LinuxDeviceCgroup{}, err
		}
		name, err := filepath.Rel(tree.dev, path)
		asked = append(asked, name)
		return specs.LinuxDeviceCgroup{Allow: true}, err
	}
	return tree, &asked
}

func TestOnlyTheReservedGPUsNodesAreAllowed(t *testing.T) {
	nodes := []string{"null", "sda", "nvidia0", "nvidia1", "nvidia2", "nvidiactl", "nvidia-uvm", "infiniband/uverbs0", "infiniband/rdma_cm"}
	info := map[string]string{
		"0000:01:00.0": "Model: \t\t NVIDIA H200\nGPU UUID: \t GPU-a\nDevice Minor: \t 2\n",
		"0000:02:00.0": "GPU UUID: GPU-b\nDevice Minor: 0\n",
	}
	usual := []string{"null", "nvidiactl", "nvidia-uvm", "infiniband/rdma_cm", "infiniband/uverbs0"}
	for name, c := range map[string]struct {
		allowed runtime.Devices
		want    []string
	}{
		"no GPU":               {runtime.Devices{}, nil},
		"one by its UUID":      {runtime.Devices{GPUs: []string{"GPU-a"}}, []string{"nvidia2"}},
		"two":                  {runtime.Devices{GPUs: []string{"GPU-a", "GPU-b"}}, []string{"nvidia2", "nvidia0"}},
		"one nobody knows":     {runtime.Devices{GPUs: []string{"GPU-a", "MIG-x"}}, []string{"nvidia0", "nvidia1", "nvidia2"}},
		"not the driver's own": {runtime.Devices{GPUs: []string{"0"}}, []string{"nvidia0", "nvidia1", "nvidia2"}},
	} {
		t.Run(name, func(t *testing.T) {
			tree, asked := devices(t, nodes, info)
			rules, err := tree.allow(c.allowed)
			must.NoError(t, err)
			must.Eq(t, append(usual[:len(usual):len(usual)], c.want...), *asked)
			must.Eq(t, "a", rules[0].Type, must.Sprint("everything else is refused first"))
			must.False(t, rules[0].Allow)
		})
	}
}

func TestADeviceNodeThatIsAskedForMustBeThere(t *testing.T) {
	_, err := hostDevices.allow(runtime.Devices{Nodes: []string{"/dev/no-such"}})
	must.ErrorContains(t, err, `"/dev/no-such" does not exist`)
	_, err = hostDevices.allow(runtime.Devices{Nodes: []string{"/etc/passwd"}})
	must.ErrorContains(t, err, `"/etc/passwd" is no device node`)
	rule, err := statNode("/dev/null")
	must.NoError(t, err)
	must.Eq(t, []int64{1, 3}, []int64{*rule.Major, *rule.Minor})
}

func TestWhatTheDriverSaysIsNotTakenUnread(t *testing.T) {
	for name, text := range map[string]string{
		"a path":   "GPU UUID: GPU-a\nDevice Minor: 0/../sda\n",
		"a hole":   "GPU UUID: GPU-a\n",
		"too long": "GPU UUID: GPU-a\nDevice Minor: 12345\n",
		"no UUID":  "Device Minor: 1\n",
	} {
		t.Run(name, func(t *testing.T) {
			tree, _ := devices(t, nil, map[string]string{"x": text})
			_, err := tree.allow(runtime.Devices{GPUs: []string{"GPU-a"}})
			must.ErrorContains(t, err, "expected are both")
		})
	}
}
