// SPDX-License-Identifier: MPL-2.0

package plugin

import (
	"bytes"
	"errors"
	"fmt"
	"maps"
	"os"
	"slices"
	"strconv"
	"strings"

	"github.com/hashicorp/nomad/plugins/device"

	"github.com/nomad-gpu/nomad-gpu/device/gpu"
	"github.com/nomad-gpu/nomad-gpu/device/profile"
	"github.com/nomad-gpu/nomad-gpu/device/sharing"
	"github.com/nomad-gpu/nomad-gpu/device/topology"
)

// Environment variables of a reservation. Each is a comma-separated list of
// UUIDs in visible order.
const (
	// EnvNVIDIA is read by the NVIDIA container runtime.
	EnvNVIDIA = "NVIDIA_VISIBLE_DEVICES"
	// EnvCUDA is read by CUDA.
	EnvCUDA = "CUDA_VISIBLE_DEVICES"
	// EnvGroupPrefix begins a variable of each device group's own. Of several
	// device blocks in a task the last overwrites the common variables; a
	// driver can join these.
	EnvGroupPrefix = "GPU_DEVICES_"
)

// Reserve implements device.DevicePlugin.
func (d *Device) Reserve(deviceIDs []string) (*device.ContainerReservation, error) {
	c, source, err := d.configured()
	if err != nil {
		return nil, err
	}
	machine, err := d.known(source)
	if err != nil {
		return nil, fmt.Errorf("cannot reserve %s: the GPUs cannot be read: %w", strings.Join(deviceIDs, ", "), err)
	}
	if c.slots != nil {
		if err := c.slots.reserve(machine, c.grouping, deviceIDs); err != nil {
			return nil, err
		}
	}
	envs, err := reserve(machine, c.bound(), deviceIDs)
	if err != nil {
		return nil, err
	}
	if c.topoFile != "" {
		if _, err := os.Stat(c.topoFile); err == nil {
			envs[EnvTopology] = c.topoFile
		}
	}
	return &device.ContainerReservation{Envs: envs}, nil
}

// reserve gives the environment for the GPUs with these UUIDs. Everything is
// said in the environment: of a reservation, Nomad replays nothing else when
// its agent restarts.
func reserve(m *gpu.Machine, grouping Grouping, ids []string) (map[string]string, error) {
	if len(ids) == 0 {
		return nil, fmt.Errorf("cannot reserve: no device ID was given")
	}
	byID := make(map[string]sharing.Unit)
	for _, u := range grouping.units(m) {
		byID[u.ID] = u
	}
	group := make(map[int]string, len(ids)) // of each GPU
	var gpus []int
	var taken []sharing.Unit
	for _, id := range ids {
		u, ok := byID[id]
		if !ok || id == "" {
			return nil, fmt.Errorf("cannot reserve %q: this node has no such GPU", id)
		}
		if _, twice := group[u.GPU]; !twice {
			gpus = append(gpus, u.GPU)
		}
		group[u.GPU] = u.Group
		taken = append(taken, u)
	}
	var all []string
	groups := make(map[string][]string)
	order := topology.VisibleOrder(m, gpus)
	for _, i := range order {
		g := &m.GPUs[i]
		all = append(all, g.UUID)
		name := GroupVariable(group[i])
		groups[name] = append(groups[name], g.UUID)
	}
	envs := map[string]string{EnvNVIDIA: strings.Join(all, ","), EnvCUDA: strings.Join(all, ",")}
	for name, uuids := range groups {
		envs[name] = strings.Join(uuids, ",")
	}
	maps.Copy(envs, localityEnv(m, order))
	maps.Copy(envs, mpsEnv(m, taken, all, grouping.MPSDir))
	return envs, nil
}

// Environment variables of what is near the reserved GPUs.
const (
	// EnvHCA names the NICs nearest to them; the equals sign asks for exactly
	// these names (NCCL, "NCCL_IB_HCA").
	EnvHCA = "NCCL_IB_HCA"
	// EnvTopology is the path of the machine's topology for NCCL.
	EnvTopology = "NCCL_TOPO_FILE"
	// EnvCPUs and EnvNUMA are lists as in cpuset(7), for a driver that places
	// the task's processes.
	EnvCPUs = "GPU_CPU_SET"
	EnvNUMA = "GPU_NUMA_NODES"
	// EnvCPUSets is a list for each GPU, in visible order, with ";" between them.
	EnvCPUSets = "GPU_CPU_SETS"
)

// localityEnv, for GPUs in visible order, tells what is known; nothing where it is not. NICs and CPUs of a
// simulated machine are not there to be used.
func localityEnv(m *gpu.Machine, gpus []int) map[string]string {
	envs := make(map[string]string)
	if m.Simulated {
		return envs
	}
	var nics, cpus, each []string
	for _, k := range topology.NearestNICsOf(m, gpus) {
		nics = append(nics, m.NICs[k].Device)
	}
	slices.Sort(nics)
	if nics = slices.Compact(nics); len(nics) > 0 && !slices.Contains(nics, "") {
		envs[EnvHCA] = "=" + strings.Join(nics, ",")
	}
	var nodes []int
	for _, i := range gpus {
		g := &m.GPUs[i]
		each = append(each, g.CPUs)
		if !slices.Contains(cpus, g.CPUs) {
			cpus = append(cpus, g.CPUs)
		}
		if !slices.Contains(nodes, g.NUMANode) {
			nodes = append(nodes, g.NUMANode)
		}
	}
	slices.Sort(nodes)
	if !slices.Contains(cpus, "") {
		envs[EnvCPUs], envs[EnvCPUSets] = strings.Join(cpus, ","), strings.Join(each, ";")
	}
	if !slices.Contains(nodes, gpu.NoNUMA) {
		var list []string
		for _, n := range nodes {
			list = append(list, strconv.Itoa(n))
		}
		envs[EnvNUMA] = strings.Join(list, ",")
	}
	return envs
}

// GroupVariable is the name of a device group's own variable: the prefix and
// the group's name in upper case, with "_" for all but letters and digits.
func GroupVariable(group string) string {
	return EnvGroupPrefix + strings.Map(func(r rune) rune {
		switch {
		case r >= 'a' && r <= 'z':
			return r - 'a' + 'A'
		case r >= 'A' && r <= 'Z', r >= '0' && r <= '9':
			return r
		}
		return '_'
	}, group)
}

// writeTopology writes the file that tasks get as NCCL_TOPO_FILE, if it says
// something new. Where too little is known there is none.
func writeTopology(c config, m *gpu.Machine) error {
	if !c.writeTopo {
		return nil
	}
	text, err := profile.WriteNCCL(m)
	if err != nil {
		return errors.Join(err, os.RemoveAll(c.topoFile))
	}
	if old, err := os.ReadFile(c.topoFile); err == nil && bytes.Equal(old, text) {
		return nil
	}
	return replaceFile(c.topoFile, text, 0o644)
}
