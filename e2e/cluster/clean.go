// SPDX-License-Identifier: MPL-2.0

package cluster

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/moby/sys/mountinfo"
	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netns"
	"golang.org/x/sys/unix"
)

// clean removes all that was made below a guard's directory.
func clean(dir string) {
	endProcesses(dir)
	removeNetworks(dir)
	unmount(dir)
	// A process that was ending may have written once more.
	for range 20 {
		if os.RemoveAll(dir) == nil {
			return
		}
		endProcesses(dir)
		unmount(dir)
		time.Sleep(100 * time.Millisecond)
	}
	fmt.Fprintln(os.Stderr, "guard: cannot remove", dir)
}

// endProcesses ends every process that names the directory in its command
// line or environment: first by a word, after two seconds by force.
func endProcesses(dir string) {
	asked := map[int]bool{}
	force := time.Now().Add(2 * time.Second)
	for {
		found := processesOf(dir)
		for {
			if pid, err := syscall.Wait4(-1, nil, syscall.WNOHANG, nil); pid <= 0 || err != nil {
				break
			}
		}
		if len(found) == 0 {
			return
		}
		for _, pid := range found {
			if time.Now().After(force) {
				syscall.Kill(pid, syscall.SIGKILL)
			} else if !asked[pid] {
				asked[pid] = true
				syscall.Kill(pid, syscall.SIGTERM)
			}
		}
		if time.Since(force) > 20*time.Second {
			fmt.Fprintln(os.Stderr, "guard: processes that do not end:", found)
			return
		}
		time.Sleep(20 * time.Millisecond)
	}
}

// processesOf finds the processes of a directory, without this one and its parent.
func processesOf(dir string) []int {
	entries, err := os.ReadDir("/proc")
	if err != nil {
		return nil
	}
	var found []int
	for _, e := range entries {
		pid, err := strconv.Atoi(e.Name())
		if err != nil || pid == os.Getpid() || pid == os.Getppid() {
			continue
		}
		for _, name := range []string{"cmdline", "environ"} {
			data, err := os.ReadFile(filepath.Join("/proc", e.Name(), name))
			if err == nil && bytes.Contains(data, []byte(dir)) {
				found = append(found, pid)
				break
			}
		}
	}
	return found
}

// startTime tells a process from a later one with the same number.
func startTime(pid int) string {
	data, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return ""
	}
	fields := strings.Fields(string(data[bytes.LastIndexByte(data, ')')+1:]))
	if len(fields) < 20 {
		return ""
	}
	return fields[19]
}

// unmount takes away the mounts that Nomad makes below the directory.
func unmount(dir string) {
	mounts, err := mountinfo.GetMounts(mountinfo.PrefixFilter(dir))
	if err != nil {
		return
	}
	for _, m := range slices.Backward(mounts) {
		unix.Unmount(m.Mountpoint, unix.MNT_DETACH)
	}
}

// removeNetworks takes away the namespaces and the bridges that are noted below the directory.
func removeNetworks(dir string) {
	find := func(kind string) []string {
		all, _ := filepath.Glob(filepath.Join(dir, "*", kind, "*")) // a guard's directory
		one, _ := filepath.Glob(filepath.Join(dir, kind, "*"))      // a cluster's
		return append(all, one...)
	}
	for _, path := range find("links") {
		if l, err := netlink.LinkByName(filepath.Base(path)); err == nil {
			netlink.LinkDel(l)
		}
	}
	for _, path := range find("netns") {
		netns.DeleteNamed(filepath.Base(path))
	}
}
