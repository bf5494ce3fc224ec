// SPDX-License-Identifier: MPL-2.0

package process

import (
	"fmt"
	"os"
	"path/filepath"

	"github.com/containerd/cgroups/v3/cgroup2"
	"github.com/opencontainers/runtime-spec/specs-go"
)

// unifiedMountpoint is where cgroup version 2 is mounted on its own (cgroups(7)).
const unifiedMountpoint = "/sys/fs/cgroup"

// unified is a cgroup of version 2: one directory.
type unified struct {
	dir     string
	control *cgroup2.Manager
}

func newUnified(mountpoint, path string, r *specs.LinuxResources) (group, error) {
	control, err := cgroup2.NewManager(mountpoint, path, cgroup2.ToResources(r))
	if err != nil {
		return nil, err
	}
	return &unified{dir: filepath.Join(mountpoint, path), control: control}, nil
}

func loadUnified(mountpoint, path string) (group, error) {
	dir := filepath.Join(mountpoint, path)
	if _, err := os.Stat(dir); err != nil {
		return nil, err
	}
	control, err := cgroup2.Load(path, cgroup2.WithMountpoint(mountpoint))
	if err != nil {
		return nil, err
	}
	return &unified{dir: dir, control: control}, nil
}

// start has the kernel make each process in the cgroup (CLONE_INTO_CGROUP, clone(2)).
func (g *unified) start(workers []*worker, begin func() error) error {
	dir, err := os.Open(g.dir)
	if err != nil {
		return fmt.Errorf("enter the cgroup: %w", err)
	}
	defer dir.Close()
	for _, w := range workers {
		w.cmd.SysProcAttr.UseCgroupFD, w.cmd.SysProcAttr.CgroupFD = true, int(dir.Fd())
	}
	return begin()
}

func (g *unified) processes() ([]int, error) {
	all, err := g.control.Procs(true)
	pids := make([]int, len(all))
	for i, pid := range all {
		pids[i] = int(pid)
	}
	return pids, err
}

func (g *unified) oomKills() (uint64, error) {
	m, err := g.control.StatFiltered(cgroup2.StatMemoryEvents)
	if err != nil {
		return 0, err
	}
	return m.GetMemoryEvents().GetOomKill(), nil
}

func (g *unified) delete() error { return g.control.Delete() }
