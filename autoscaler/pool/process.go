// SPDX-License-Identifier: MPL-2.0

package pool

import (
	"context"
	"os"
	"strings"
	"syscall"
	"time"

	"github.com/moby/sys/mountinfo"
	"github.com/prometheus/procfs"
	"golang.org/x/sys/unix"
)

// record is what the file of a node says.
type record struct {
	Process process   `json:"process"`
	Started time.Time `json:"started"`
	Ready   bool      `json:"ready"`
	Leaving bool      `json:"leaving"`
	// Moving: what runs there was asked to stop.
	Moving bool `json:"moving,omitempty"`
	// Ending: its process was asked to end; there is no way back.
	Ending bool   `json:"ending"`
	Reason string `json:"reason,omitempty"`
}

// process tells a process from all others, those after a restart of the
// machine included. No clock is in it that somebody can set: a clock that was
// put right must not make a node seem to have ended.
type process struct {
	PID   int    `json:"pid"`
	Ticks uint64 `json:"ticks"` // from the machine's start to the process's
	Boot  string `json:"boot"`  // the machine's start, by the kernel's own name of it
}

// processOf is the process that has a number now.
func processOf(pid int) (process, error) {
	boot, err := os.ReadFile("/proc/sys/kernel/random/boot_id")
	if err != nil {
		return process{}, err
	}
	stat, err := statOf(pid)
	return process{PID: pid, Ticks: stat.Starttime, Boot: strings.TrimSpace(string(boot))}, err
}

func statOf(pid int) (procfs.ProcStat, error) {
	proc, err := procfs.NewProc(pid)
	if err != nil {
		return procfs.ProcStat{}, err
	}
	return proc.Stat()
}

func (p process) alive() bool {
	now, err := processOf(p.PID)
	if err != nil || now != p {
		return false
	}
	stat, err := statOf(p.PID)
	return err == nil && stat.State != "Z" && stat.State != "X"
}

// end asks the client to end, waits ten seconds, and kills it and what it
// started: its plugins are in its process group.
func (p process) end(ctx context.Context) error {
	if !p.alive() {
		return nil
	}
	syscall.Kill(p.PID, syscall.SIGINT)
	kill := time.After(10 * time.Second)
	for p.alive() {
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-kill:
			syscall.Kill(-p.PID, syscall.SIGKILL)
		case <-time.After(50 * time.Millisecond):
		}
	}
	syscall.Kill(-p.PID, syscall.SIGKILL)
	return nil
}

// unmount takes away what a client has mounted below its directory.
func unmount(dir string) {
	mounts, err := mountinfo.GetMounts(mountinfo.PrefixFilter(dir))
	if err != nil {
		return
	}
	for i := len(mounts) - 1; i >= 0; i-- {
		unix.Unmount(mounts[i].Mountpoint, unix.MNT_DETACH)
	}
}
