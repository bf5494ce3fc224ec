// SPDX-License-Identifier: MPL-2.0

package pool

import (
	"context"
	"syscall"
	"time"

	"github.com/moby/sys/mountinfo"
	"github.com/shirou/gopsutil/v4/process"
	"golang.org/x/sys/unix"
)

// record is what the file of a node says.
type record struct {
	PID     int       `json:"pid"`
	Created int64     `json:"created"` // of the process, in ms since 1970: tells it from a later one with its number
	Started time.Time `json:"started"`
	Ready   bool      `json:"ready"`
	Leaving bool      `json:"leaving"`
	// Moving: what runs there was asked to stop.
	Moving bool `json:"moving,omitempty"`
	// Ending: its process was asked to end; there is no way back.
	Ending bool   `json:"ending"`
	Reason string `json:"reason,omitempty"`
}

func createdAt(pid int) (int64, error) {
	proc, err := process.NewProcess(int32(pid))
	if err != nil {
		return 0, err
	}
	return proc.CreateTime()
}

func (r *record) alive() bool {
	created, err := createdAt(r.PID)
	if err != nil || created != r.Created {
		return false
	}
	proc, err := process.NewProcess(int32(r.PID))
	if err != nil {
		return false
	}
	status, err := proc.Status()
	return err == nil && (len(status) == 0 || status[0] != process.Zombie)
}

// end asks the client to end, waits ten seconds, and kills it and what it
// started: its plugins are in its process group.
func (r *record) end(ctx context.Context) error {
	if !r.alive() {
		return nil
	}
	syscall.Kill(r.PID, syscall.SIGINT)
	kill := time.After(10 * time.Second)
	for r.alive() {
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-kill:
			syscall.Kill(-r.PID, syscall.SIGKILL)
		case <-time.After(50 * time.Millisecond):
		}
	}
	syscall.Kill(-r.PID, syscall.SIGKILL)
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
