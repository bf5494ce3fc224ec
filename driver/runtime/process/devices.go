// SPDX-License-Identifier: MPL-2.0

package process

import (
	"bufio"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"github.com/opencontainers/runtime-spec/specs-go"
	"golang.org/x/sys/unix"

	"github.com/nomad-gpu/nomad-gpu/driver/runtime"
)

// deviceTree is where device nodes and the NVIDIA driver's files are.
type deviceTree struct {
	dev  string // "/dev"
	gpus string // a directory for each GPU, with a file "information"
	node func(path string) (specs.LinuxDeviceCgroup, error)
}

var hostDevices = deviceTree{dev: "/dev", gpus: "/proc/driver/nvidia/gpus", node: statNode}

// usualNodes are what programs expect of any host, and what CUDA, NCCL and RDMA
// open beside the GPUs themselves; those that exist are allowed.
var usualNodes = []string{
	"null", "zero", "full", "random", "urandom", "tty", "ptmx", "fuse",
	"nvidiactl", "nvidia-uvm", "nvidia-uvm-tools", "nvidia-modeset", "nvidia-caps/*", "nvidia-caps-imex-channels/*",
	"infiniband/*", "gdrdrv",
}

// allow gives the rules of the devices controller; a later rule wins.
func (t deviceTree) allow(d runtime.Devices) ([]specs.LinuxDeviceCgroup, error) {
	any := int64(-1)
	pts := int64(136) // pseudo-terminals: admin-guide/devices.txt of the kernel
	rules := []specs.LinuxDeviceCgroup{
		{Type: "a", Major: &any, Minor: &any, Access: "rwm"},
		// Making a node is not opening it.
		{Allow: true, Type: "c", Major: &any, Minor: &any, Access: "m"},
		{Allow: true, Type: "b", Major: &any, Minor: &any, Access: "m"},
		{Allow: true, Type: "c", Major: &pts, Minor: &any, Access: "rwm"},
	}
	for _, name := range usualNodes {
		found, _ := filepath.Glob(filepath.Join(t.dev, name)) // the patterns are sound
		for _, path := range found {
			if rule, err := t.node(path); err == nil {
				rules = append(rules, rule)
			}
		}
	}
	paths, err := t.gpuNodes(d.GPUs)
	if err != nil {
		return nil, err
	}
	for _, path := range append(paths, d.Nodes...) {
		rule, err := t.node(path)
		if err != nil {
			return nil, fmt.Errorf("cgroup: device node: %w", err)
		}
		rules = append(rules, rule)
	}
	return rules, nil
}

// gpuNodes are the nodes of GPUs by UUID, as the NVIDIA driver tells. Where it
// does not tell (a part of a GPU under MIG, a simulated GPU, another plugin's
// names) all GPU nodes are allowed: CUDA_VISIBLE_DEVICES still keeps to the
// reserved ones.
func (t deviceTree) gpuNodes(uuids []string) ([]string, error) {
	if len(uuids) == 0 {
		return nil, nil
	}
	minors := map[string]string{}
	infos, _ := filepath.Glob(filepath.Join(t.gpus, "*", "information"))
	for _, path := range infos {
		uuid, minor, err := readInformation(path)
		if err != nil {
			return nil, err
		}
		minors[uuid] = minor
	}
	var nodes []string
	for _, uuid := range uuids {
		minor, ok := minors[uuid]
		if !ok {
			return filepath.Glob(filepath.Join(t.dev, "nvidia[0-9]*"))
		}
		nodes = append(nodes, filepath.Join(t.dev, "nvidia"+minor))
	}
	return nodes, nil
}

// readInformation reads what the NVIDIA driver says of one GPU:
// lines such as "GPU UUID: GPU-…" and "Device Minor: 0".
func readInformation(path string) (uuid, minor string, err error) {
	f, err := os.Open(path)
	if err != nil {
		return "", "", err
	}
	defer f.Close()
	for lines := bufio.NewScanner(f); lines.Scan(); {
		name, value, _ := strings.Cut(lines.Text(), ":")
		switch value = strings.TrimSpace(value); strings.TrimSpace(name) {
		case "GPU UUID":
			uuid = value
		case "Device Minor":
			minor = value
		}
	}
	if uuid == "" || strings.Trim(minor, "0123456789") != "" || len(minor) == 0 || len(minor) > 4 {
		return "", "", fmt.Errorf("%s: GPU UUID %q, Device Minor %q; expected are both, the latter a number", path, uuid, minor)
	}
	return uuid, minor, nil
}

// statNode is the rule that allows a device node.
func statNode(path string) (specs.LinuxDeviceCgroup, error) {
	var s unix.Stat_t
	if err := unix.Stat(path, &s); err != nil {
		if errors.Is(err, fs.ErrNotExist) {
			return specs.LinuxDeviceCgroup{}, fmt.Errorf("%q does not exist", path)
		}
		return specs.LinuxDeviceCgroup{}, fmt.Errorf("%q: %w", path, err)
	}
	rule := specs.LinuxDeviceCgroup{Allow: true, Access: "rwm"}
	switch s.Mode & unix.S_IFMT {
	case unix.S_IFCHR:
		rule.Type = "c"
	case unix.S_IFBLK:
		rule.Type = "b"
	default:
		return rule, fmt.Errorf("%q is no device node", path)
	}
	major, minor := int64(unix.Major(uint64(s.Rdev))), int64(unix.Minor(uint64(s.Rdev)))
	rule.Major, rule.Minor = &major, &minor
	return rule, nil
}

// GPUNodes are the device nodes that CUDA opens for GPUs by UUID: their own and
// those for control. root is where /dev and /proc of the NVIDIA driver stand.
// A GPU that the driver does not name gets all GPU nodes, as in a cgroup.
func GPUNodes(root string, uuids []string) ([]string, error) {
	t := deviceTree{dev: filepath.Join(root, "dev"), gpus: filepath.Join(root, "proc/driver/nvidia/gpus")}
	nodes, err := t.gpuNodes(uuids)
	if err != nil || len(nodes) == 0 {
		return nil, err
	}
	for _, name := range []string{"nvidiactl", "nvidia-uvm", "nvidia-uvm-tools", "nvidia-modeset"} {
		if path := filepath.Join(t.dev, name); unix.Access(path, unix.F_OK) == nil {
			nodes = append(nodes, path)
		}
	}
	return nodes, nil
}
