// SPDX-License-Identifier: MPL-2.0

package process

import (
	"errors"
	"fmt"
	"os"
	goruntime "runtime"

	"github.com/containerd/cgroups/v3/cgroup1"
	"github.com/opencontainers/runtime-spec/specs-go"
	"golang.org/x/sys/unix"
)

// legacy is a cgroup of version 1: a directory in each controller's hierarchy.
type legacy struct {
	control cgroup1.Cgroup
}

// controllers are those of the host that limit what is reserved. The others,
// systemd's own among them, are left alone.
func controllers() ([]cgroup1.Subsystem, error) {
	all, err := cgroup1.Default()
	if err != nil {
		return nil, err
	}
	var used []cgroup1.Subsystem
	for _, s := range all {
		switch s.Name() {
		case cgroup1.Cpu, cgroup1.Cpuacct, cgroup1.Cpuset, cgroup1.Memory, cgroup1.Pids, cgroup1.Devices,
			cgroup1.Freezer: // limits nothing; it is by this one that Nomad's tools tell a task's processes
			used = append(used, s)
		}
	}
	if len(used) == 0 {
		return nil, errors.New("no controller is mounted")
	}
	return used, nil
}

func newLegacy(path string, r *specs.LinuxResources) (group, error) {
	control, err := cgroup1.New(cgroup1.StaticPath(path), r, cgroup1.WithHierarchy(controllers))
	if err != nil {
		// It may be made in part.
		if part, other := loadLegacy(path); other == nil {
			err = errors.Join(err, part.delete())
		}
		return nil, err
	}
	return &legacy{control: control}, nil
}

func loadLegacy(path string) (group, error) {
	control, err := cgroup1.Load(cgroup1.StaticPath(path), cgroup1.WithHierarchy(controllers))
	if err != nil {
		return nil, err
	}
	return &legacy{control: control}, nil
}

// start moves this thread in and out again: a process begins in the cgroups of
// the thread that made it (cgroups(7)).
func (g *legacy) start(_ []*worker, begin func() error) error {
	goruntime.LockOSThread()
	defer goruntime.UnlockOSThread()
	own, err := cgroup1.Load(cgroup1.PidPath(os.Getpid()), cgroup1.WithHierarchy(controllers))
	if err != nil {
		return fmt.Errorf("find the supervisor's own cgroup: %w", err)
	}
	self := cgroup1.Process{Pid: unix.Gettid()}
	err = g.control.AddTask(self)
	if err == nil {
		err = begin()
	} else {
		err = fmt.Errorf("enter the cgroup: %w", err)
	}
	if back := own.AddTask(self); back != nil {
		err = errors.Join(err, fmt.Errorf("leave the cgroup: %w", back))
	}
	return err
}

func (g *legacy) processes() ([]int, error) {
	var pids []int
	for _, s := range g.control.Subsystems() {
		all, err := g.control.Processes(s.Name(), true)
		if errors.Is(err, os.ErrNotExist) {
			continue
		}
		if err != nil {
			return nil, err
		}
		for _, p := range all {
			pids = append(pids, p.Pid)
		}
	}
	return pids, nil
}

func (g *legacy) oomKills() (uint64, error) {
	m, err := g.control.Stat(cgroup1.IgnoreNotExist)
	if err != nil {
		return 0, err
	}
	return m.GetMemoryOomControl().GetOomKill(), nil
}

func (g *legacy) delete() error { return g.control.Delete() }
