// SPDX-License-Identifier: MPL-2.0

package process

import (
	"context"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"

	"github.com/containerd/cgroups/v3"
	"github.com/containerd/cgroups/v3/cgroup2"
	"github.com/shoenig/test/must"

	"github.com/nomad-gpu/nomad-gpu/driver/gang"
	"github.com/nomad-gpu/nomad-gpu/driver/runtime"
)

// cgroup names a cgroup of the bench's own, and expects it gone in the end. It
// is false where this host lets none be made.
func (b *bench) cgroup() (runtime.Cgroup, bool) {
	b.t.Helper()
	c := runtime.Cgroup{Path: "/nomad-nccl-test/" + strings.ReplaceAll(strings.TrimPrefix(filepath.Dir(b.dir), "/"), "/", "-"), Required: true}
	g, _, err := createGroup(c)
	if err != nil {
		must.True(b.t, os.Geteuid() != 0 || cgroups.Mode() == cgroups.Unavailable, must.Sprint(err))
		return c, false
	}
	must.NoError(b.t, g.delete())
	b.t.Cleanup(func() {
		for _, dir := range groupDirs(c.Path) {
			left, err := filepath.Glob(dir + "*")
			must.NoError(b.t, err)
			must.SliceEmpty(b.t, left, must.Sprint("the cgroup is left"))
		}
	})
	return c, true
}

// group is the cgroup of the bench's processes.
func (b *bench) group() (path string, g group, err error) {
	must.NoError(b.t, runtime.ReadFile(b.dir, cgroupFile, &path))
	g, err = loadGroup(path)
	return path, g, err
}

func (b *bench) runIn(c runtime.Cgroup, spec runtime.Spec) (runtime.Process, []string) {
	b.t.Helper()
	var warnings []string
	spec.Cgroup, spec.Warn = &c, func(w string) { warnings = append(warnings, w) }
	p, err := Runtime{Marker: "MARK=" + b.dir}.Create(b.t.Context(), b.dir, spec)
	must.NoError(b.t, err)
	must.NoError(b.t, p.Start(b.t.Context()))
	return p, warnings
}

func TestTheProcessesHaveACgroupOfTheirOwnAndNothingElseIsInIt(t *testing.T) {
	b := newBench(t)
	c, ok := b.cgroup()
	if !ok {
		return
	}
	defer b.read(".out")()
	c.CPUShares, c.MemoryBytes, c.PIDs, c.CPUs = 500, 64<<20, 100, "0"
	p, warnings := b.runIn(c, ranks(shell(b.dir, "setsid sleep 1000 & echo ready; wait"), 2))
	must.Eq(t, nil, warnings)
	for range 2 {
		must.StrHasSuffix(t, "ready", b.line())
	}
	at, g, err := b.group()
	must.NoError(t, err)
	in, err := g.processes()
	must.NoError(t, err)
	must.SliceContains(t, in, p.PID())
	must.SliceNotContains(t, in, p.(*process).supervisor.PID)
	u, err := p.Usage()
	must.NoError(t, err)
	must.Eq(t, 4, len(u.PIDs))
	for _, pid := range u.PIDs {
		must.SliceContains(t, in, pid)
	}
	if cgroups.Mode() != cgroups.Unified {
		for file, want := range map[string]string{
			"cpu%s/cpu.shares": "500", "memory%s/memory.limit_in_bytes": strconv.Itoa(64 << 20), "pids%s/pids.max": "100", "cpuset%s/cpuset.cpus": "0",
		} {
			path := "/sys/fs/cgroup/" + strings.Replace(file, "%s", at, 1)
			if _, err := os.Stat(filepath.Dir(filepath.Dir(path))); err == nil {
				data, err := os.ReadFile(path)
				must.NoError(t, err)
				must.Eq(t, want, strings.TrimSpace(string(data)), must.Sprint(path))
			}
		}
	}
	must.NoError(t, p.Stop(t.Context(), syscall.SIGTERM, 0))
	b.nobody()
}

func TestAKillForMemoryIsTold(t *testing.T) {
	b := newBench(t)
	c, ok := b.cgroup()
	if !ok {
		return
	}
	c.MemoryBytes = 16 << 20
	// The shell fills its own memory; the second rank waits in vain.
	p, _ := b.runIn(c, ranks(shell(b.dir, `[ $LOCAL_RANK = 1 ] && exec sleep 1000; x=0123456789abcdef; while true; do x=$x$x; done`), 2))
	x := b.exit(p)
	must.True(t, x.OOM)
	must.Eq(t, "failed: rank 4 was killed for memory", x.Err)
	must.False(t, x.OK())
	b.nobody()
}

func TestTooManyProcessesAreRefused(t *testing.T) {
	b := newBench(t)
	c, ok := b.cgroup()
	if !ok {
		return
	}
	c.PIDs = 3
	p, _ := b.runIn(c, shell(b.dir, `for i in 1 2 3 4 5 6; do sleep 1000 & done; exit 0`))
	x := b.exit(p)
	must.NotEq(t, 0, x.Code)
	must.StrContains(t, strings.Join(x.Tail, " "), "fork")
	b.nobody()
}

func TestOnlyTheAllowedDevicesOpen(t *testing.T) {
	b := newBench(t)
	c, ok := b.cgroup()
	if !ok {
		return
	}
	// Two nodes that stand in for GPUs: /dev/null's and /dev/zero's numbers are
	// allowed anyway, those of /dev/kmsg (1:11) and /dev/mem (1:1) are not.
	mine, other := filepath.Join(t.TempDir(), "mine"), filepath.Join(t.TempDir(), "other")
	must.NoError(t, exec.Command("mknod", mine, "c", "1", "11").Run())
	must.NoError(t, exec.Command("mknod", other, "c", "1", "1").Run())
	defer b.read(".out")()
	c.Devices = &runtime.Devices{Nodes: []string{mine}}
	p, warnings := b.runIn(c, shell(b.dir, `for d in `+mine+` `+other+` /dev/null; do if (: < $d) 2>/dev/null; then echo open; else echo closed; fi; done`))
	must.Eq(t, nil, warnings)
	must.Eq(t, []string{"open", "closed", "open"}, []string{b.line(), b.line(), b.line()})
	must.True(t, b.exit(p).OK())
}

func TestAKilledSupervisorsCgroupIsRemoved(t *testing.T) {
	b := newBench(t)
	c, ok := b.cgroup()
	if !ok {
		return
	}
	defer b.read(".out")()
	// The child has neither the process's group nor the marker.
	p, _ := b.runIn(c, shell(b.dir, "setsid env -i /bin/sleep 1000 & echo ready; wait"))
	must.Eq(t, "ready", b.line())
	must.NoError(t, syscall.Kill(p.(*process).supervisor.PID, syscall.SIGKILL))
	must.StrContains(t, b.exit(p).Err, "lost its supervisor")
	_, _, err := b.group()
	must.Error(t, err)
}

func TestWhatAFormerCgroupOfTheSameNameLeftIsEnded(t *testing.T) {
	b := newBench(t)
	c, ok := b.cgroup()
	if !ok {
		return
	}
	old, _, err := createGroup(c)
	must.NoError(t, err)
	left := &worker{cmd: exec.Command("sleep", "1000")}
	left.cmd.SysProcAttr = &syscall.SysProcAttr{}
	must.NoError(t, old.start([]*worker{left}, left.cmd.Start))
	ended := make(chan error, 1)
	go func() { ended <- left.cmd.Wait() }()
	again, _, err := createGroup(c)
	must.NoError(t, err)
	must.ErrorContains(t, <-ended, "killed")
	must.NoError(t, again.delete())
}

func TestTheNextSupervisorRemovesWhatNobodyElseWill(t *testing.T) {
	b := newBench(t)
	c, ok := b.cgroup()
	if !ok {
		return
	}
	own, err := identify(os.Getpid())
	must.NoError(t, err)
	gone := identity{PID: own.PID, Start: own.Start + 1}
	mine, theirs, other := c, c, c
	mine.Path, theirs.Path, other.Path = ownedPath(c.Path, own), ownedPath(c.Path, gone), c.Path+".other"
	for _, one := range []runtime.Cgroup{mine, theirs, other} {
		_, _, err := createGroup(one)
		must.NoError(t, err)
	}
	p, _ := b.runIn(c, shell(b.dir, "exit 0"))
	must.True(t, b.exit(p).OK())
	_, err = loadGroup(theirs.Path)
	must.Error(t, err)
	for _, one := range []runtime.Cgroup{mine, other} {
		g, err := loadGroup(one.Path)
		must.NoError(t, err, must.Sprint(one.Path))
		must.NoError(t, g.delete())
	}
}

func TestASupervisorThatIsKilledWhileItBeginsLeavesNoCgroup(t *testing.T) {
	b := newBench(t)
	c, ok := b.cgroup()
	if !ok {
		return
	}
	spec := shell(b.dir, "exit 0")
	spec.Cgroup = &c
	// This supervisor makes the cgroup and does not answer.
	program := filepath.Join(t.TempDir(), "supervisor")
	must.NoError(t, os.WriteFile(program, []byte("#!/bin/sh\nMAKE_CGROUP_AND_DIE=$2 exec "+os.Args[0]+"\n"), 0o700))
	_, err := Runtime{Program: program}.Create(t.Context(), b.dir, spec)
	must.ErrorContains(t, err, "start the supervisor")
	_, _, err = b.group()
	must.Error(t, err)
}

func TestWithoutRightsTheProcessRunsWithAWarningUnlessTheCgroupWasAskedFor(t *testing.T) {
	b := newBench(t)
	c := runtime.Cgroup{Path: "/nomad-nccl-test/refused", CPUs: "9999"} // no host has that core
	p, warnings := b.runIn(c, shell(b.dir, "exit 0"))
	must.True(t, b.exit(p).OK())
	must.Len(t, 1, warnings)
	must.StrHasPrefix(t, "the processes run without limits of their own: cgroup /nomad-nccl-test/refused", warnings[0])
	c.Required = true
	spec := shell(b.dir, "exit 0")
	spec.Cgroup = &c
	_, err := Runtime{}.Create(context.Background(), b.dir, spec)
	must.ErrorContains(t, err, "cannot be made")
	_, _, err = b.group()
	must.Error(t, err, must.Sprint("a part of it is left"))
	b.nobody()
}

// The unified hierarchy is tried on plain files: what the library writes is there to read.
func TestTheUnifiedHierarchyGetsTheSameLimits(t *testing.T) {
	root := t.TempDir()
	parent := filepath.Join(root, "nomad-nccl")
	must.NoError(t, os.Mkdir(parent, 0o755))
	for _, dir := range []string{root, parent} {
		must.NoError(t, os.WriteFile(filepath.Join(dir, "cgroup.subtree_control"), nil, 0o600))
	}
	r, err := resources(runtime.Cgroup{CPUShares: 1024, CPUs: "2-3", MemoryBytes: 1 << 30, PIDs: 77})
	must.NoError(t, err)
	g, err := newUnified(root, "/nomad-nccl/x", r)
	must.NoError(t, err)
	dir := filepath.Join(parent, "x")
	for file, want := range map[string]string{
		"cpu.weight": strconv.FormatUint(cgroup2.ConvertCPUSharesToCgroupV2Value(1024), 10), "cpuset.cpus": "2-3",
		"memory.max": strconv.Itoa(1 << 30), "pids.max": "77", "../cgroup.subtree_control": "+cpu +cpuset +memory +pids",
	} {
		data, err := os.ReadFile(filepath.Join(dir, file))
		must.NoError(t, err)
		must.Eq(t, want, string(data), must.Sprint(file))
	}
	must.NoError(t, os.WriteFile(filepath.Join(dir, "memory.events"), []byte("low 0\nhigh 0\nmax 9\noom 2\noom_kill 2\n"), 0o600))
	n, err := g.oomKills()
	must.NoError(t, err)
	must.Eq(t, 2, n)

	again, err := loadUnified(root, "/nomad-nccl/x")
	must.NoError(t, err)
	w := &worker{cmd: exec.Command("true")}
	w.cmd.SysProcAttr = &syscall.SysProcAttr{}
	must.NoError(t, again.start([]*worker{w}, func() error {
		must.True(t, w.cmd.SysProcAttr.UseCgroupFD)
		target, err := os.Readlink("/proc/self/fd/" + strconv.Itoa(w.cmd.SysProcAttr.CgroupFD))
		must.NoError(t, err)
		must.Eq(t, dir, target)
		return nil
	}))

	child := exec.Command("sleep", "1000")
	must.NoError(t, child.Start())
	procs := filepath.Join(dir, "cgroup.procs")
	must.NoError(t, os.WriteFile(procs, []byte(strconv.Itoa(child.Process.Pid)+"\n"), 0o600))
	must.Error(t, again.delete(), must.Sprint("it is not empty"))
	go func() {
		child.Wait()
		os.WriteFile(procs, nil, 0o600) // as the kernel would
	}()
	must.NoError(t, removeGroup(again))
	must.Eq(t, -1, child.ProcessState.ExitCode())
	_, err = loadUnified(root, "/nomad-nccl/x")
	must.Error(t, err)
}

func TestAnExitWithoutACgroupIsNoKillForMemory(t *testing.T) {
	s := &supervisor{}
	must.False(t, s.sawOOM(gang.Exit{Code: 1}).OOM)
}
