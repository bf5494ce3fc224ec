// SPDX-License-Identifier: MPL-2.0

package process

import (
	"errors"
	"fmt"
	"os"
	"slices"
	"syscall"
	"time"

	"github.com/containerd/cgroups/v3"
	"github.com/opencontainers/runtime-spec/specs-go"

	"github.com/nomad-gpu/nomad-gpu/driver/runtime"
)

// cgroupFile names the cgroup for the driver, which removes it where the
// supervisor was killed.
const cgroupFile = "cgroup.json"

// group is the cgroup of one generation's processes on this node. The
// supervisor is not in it.
type group interface {
	// start runs begin on this thread; what begin starts is in the group from
	// its first instruction.
	start(workers []*worker, begin func() error) error
	// processes are those in it and below it.
	processes() ([]int, error)
	// oomKills is how many of its processes the kernel has killed for memory.
	oomKills() (uint64, error)
	// delete removes the group, which must be empty.
	delete() error
}

// createGroup makes the cgroup, on whichever version the host runs. What a
// former one at the same place left is ended first.
func createGroup(c runtime.Cgroup) (group, []string, error) {
	var warnings []string
	r, err := resources(c)
	if err != nil {
		return nil, nil, err
	}
	if old, err := loadGroup(c.Path); err == nil {
		if err := removeGroup(old); err != nil {
			return nil, nil, fmt.Errorf("cgroup %s is there already: %w", c.Path, err)
		}
	}
	create := func() (group, error) {
		if cgroups.Mode() == cgroups.Unified {
			return newUnified(unifiedMountpoint, c.Path, r)
		}
		return newLegacy(c.Path, r)
	}
	g, err := create()
	if err != nil && len(r.Devices) > 0 {
		// Not every kernel and container lets devices be limited.
		allowed := r.Devices
		r.Devices = nil
		if again, other := create(); other == nil {
			if c.Required {
				return nil, nil, errors.Join(fmt.Errorf("cgroup: limit %d devices: %w", len(allowed), err), removeGroup(again))
			}
			g, warnings = again, append(warnings, fmt.Sprintf("cgroup: devices are not limited: %v", err))
			err = nil
		}
	}
	if err != nil {
		return nil, nil, fmt.Errorf("cgroup %s cannot be made: %w", c.Path, err)
	}
	return g, warnings, nil
}

// loadGroup finds a cgroup that is there.
func loadGroup(path string) (group, error) {
	if cgroups.Mode() == cgroups.Unified {
		return loadUnified(unifiedMountpoint, path)
	}
	return loadLegacy(path)
}

// resources are the limits in the form that container runtimes use.
func resources(c runtime.Cgroup) (*specs.LinuxResources, error) {
	r := &specs.LinuxResources{CPU: &specs.LinuxCPU{Cpus: c.CPUs}}
	if c.CPUShares > 0 {
		shares := min(max(c.CPUShares, 2), 262144) // what the kernel takes: sched(7), MIN_SHARES and MAX_SHARES
		r.CPU.Shares = &shares
	}
	if c.MemoryBytes > 0 {
		r.Memory = &specs.LinuxMemory{Limit: &c.MemoryBytes}
	}
	if c.PIDs > 0 {
		r.Pids = &specs.LinuxPids{Limit: &c.PIDs}
	}
	if c.Devices != nil {
		var err error
		if r.Devices, err = hostDevices.allow(*c.Devices); err != nil {
			return nil, err
		}
	}
	return r, nil
}

// removeGroup ends what is in the group, then takes it away.
func removeGroup(g group) error {
	for range 200 {
		left, err := g.processes()
		if err != nil {
			return err
		}
		left = slices.DeleteFunc(left, func(pid int) bool { return pid == os.Getpid() })
		if len(left) == 0 {
			return g.delete()
		}
		for _, sig := range []syscall.Signal{syscall.SIGSTOP, syscall.SIGKILL} {
			for _, pid := range left {
				syscall.Kill(pid, sig)
			}
		}
		time.Sleep(10 * time.Millisecond) // a killed process takes a moment to go
	}
	return errors.New("its processes do not end")
}
