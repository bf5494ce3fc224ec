// SPDX-License-Identifier: MPL-2.0

package process

import (
	"bytes"
	"fmt"
	"os"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// stat is what proc_pid_stat(5) says of a process.
type stat struct {
	pid, parent int
	state       byte
	start       uint64
}

func readStat(pid int) (stat, error) {
	data, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return stat{}, err
	}
	// The command is in parentheses and may hold any byte, parentheses too.
	end := bytes.LastIndexByte(data, ')')
	fields := strings.Fields(string(data[end+1:]))
	if end < 0 || len(fields) < 20 {
		return stat{}, fmt.Errorf("/proc/%d/stat: %q", pid, data)
	}
	parent, _ := strconv.Atoi(fields[1])
	start, _ := strconv.ParseUint(fields[19], 10, 64)
	return stat{pid: pid, parent: parent, state: fields[0][0], start: start}, nil
}

func identify(pid int) (identity, error) {
	s, err := readStat(pid)
	return identity{PID: pid, Start: s.start}, err
}

// alive reports whether the very process is there and no zombie.
func (i identity) alive() bool {
	s, err := readStat(i.PID)
	return err == nil && s.start == i.Start && s.state != 'Z'
}

// descendants are the processes below pid, parents first. It costs one
// reading of /proc.
func descendants(pid int) []stat {
	entries, err := os.ReadDir("/proc")
	if err != nil {
		return nil
	}
	children := map[int][]stat{}
	for _, e := range entries {
		if n, err := strconv.Atoi(e.Name()); err == nil {
			if s, err := readStat(n); err == nil {
				children[s.parent] = append(children[s.parent], s)
			}
		}
	}
	var all []stat
	for next := []int{pid}; len(next) > 0; next = next[1:] {
		for _, s := range children[next[0]] {
			all = append(all, s)
			next = append(next, s.pid)
		}
	}
	return all
}

// adoptOrphans makes orphans among the descendants children of this process
// (PR_SET_CHILD_SUBREAPER, prctl(2)).
func adoptOrphans() error {
	if err := unix.Prctl(unix.PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0); err != nil {
		return fmt.Errorf("adopt orphans: %w", err)
	}
	return nil
}

// reapOrphans ends the entries of adopted processes that have ended: a
// training of weeks must not fill the table of processes. Children of its own
// are waited for elsewhere.
func reapOrphans(own func(pid int) bool) {
	for _, s := range descendants(os.Getpid()) {
		if s.state == 'Z' && s.parent == os.Getpid() && !own(s.pid) {
			syscall.Wait4(s.pid, nil, syscall.WNOHANG, nil)
		}
	}
}

// killDescendants ends everything below this process, which adopts orphans:
// it kills and reaps until nothing is left, however fast they fork.
func killDescendants(self int) {
	for {
		left := slices.DeleteFunc(descendants(self), func(s stat) bool { return s.state == 'Z' })
		// Stop all before killing, so that none forks away meanwhile.
		for _, sig := range []syscall.Signal{syscall.SIGSTOP, syscall.SIGKILL} {
			for _, s := range left {
				syscall.Kill(s.pid, sig)
			}
		}
		for {
			if pid, err := syscall.Wait4(-1, nil, syscall.WNOHANG, nil); pid <= 0 || err != nil {
				break
			}
		}
		if len(left) == 0 {
			return
		}
		time.Sleep(10 * time.Millisecond)
	}
}

// killMarked ends processes by a variable in their environment: what is left
// of a task whose supervisor was killed. It cannot see the environment of
// processes of other users, unless it is root.
func killMarked(entry string) {
	for range 100 {
		found := false
		entries, _ := os.ReadDir("/proc")
		for _, e := range entries {
			pid, err := strconv.Atoi(e.Name())
			if err != nil || pid == os.Getpid() {
				continue
			}
			env, err := os.ReadFile(fmt.Sprintf("/proc/%d/environ", pid))
			if err == nil && slices.Contains(strings.Split(string(env), "\x00"), entry) {
				found = syscall.Kill(pid, syscall.SIGKILL) == nil || found
			}
		}
		if !found {
			return
		}
		time.Sleep(10 * time.Millisecond)
	}
}

// Descendants are the numbers of the processes below pid, parents first.
func Descendants(pid int) []int {
	var pids []int
	for _, s := range descendants(pid) {
		pids = append(pids, s.pid)
	}
	return pids
}
