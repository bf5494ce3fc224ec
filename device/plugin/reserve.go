// SPDX-License-Identifier: MPL-2.0

package plugin

import (
	"fmt"
	"strings"

	"github.com/hashicorp/nomad/plugins/device"

	"github.com/nomad-gpu/nomad-gpu/device/gpu"
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
	envs, err := reserve(machine, c.grouping, deviceIDs)
	if err != nil {
		return nil, err
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
	position := make(map[string]int, len(m.GPUs))
	names := grouping.names(m)
	for i, name := range names {
		if name != "" {
			position[m.GPUs[i].UUID] = i
		}
	}
	var chosen []int
	for _, id := range ids {
		i, ok := position[id]
		if !ok {
			return nil, fmt.Errorf("cannot reserve %q: this node has no such GPU", id)
		}
		chosen = append(chosen, i)
	}
	var all []string
	groups := make(map[string][]string)
	for _, i := range topology.VisibleOrder(m, chosen) {
		g := &m.GPUs[i]
		all = append(all, g.UUID)
		name := GroupVariable(names[i])
		groups[name] = append(groups[name], g.UUID)
	}
	envs := map[string]string{EnvNVIDIA: strings.Join(all, ","), EnvCUDA: strings.Join(all, ",")}
	for name, uuids := range groups {
		envs[name] = strings.Join(uuids, ",")
	}
	return envs, nil
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
