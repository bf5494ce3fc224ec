// SPDX-License-Identifier: MPL-2.0

package main

import (
	"bufio"
	"bytes"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/shirou/gopsutil/v4/process"
	"github.com/shoenig/test/must"
	"github.com/vishvananda/netlink"

	"github.com/nomad-gpu/nomad-gpu/e2e/cluster"
	"github.com/nomad-gpu/nomad-gpu/e2e/peers"
)

// ofOthers reports whether a link or namespace is of another cluster, which
// still stands on this machine: its folder is there.
func ofOthers(name string) bool {
	folders, _ := filepath.Glob(filepath.Join(os.TempDir(), "nomad-gpu-*", "*"))
	return slices.ContainsFunc(folders, func(folder string) bool { return strings.HasPrefix(name, "ng"+filepath.Base(folder)) })
}

// networks are the links and namespaces of clusters that left them behind.
func networks() []string {
	var names []string
	links, _ := netlink.LinkList()
	for _, l := range links {
		names = append(names, l.Attrs().Name)
	}
	spaces, _ := filepath.Glob("/run/netns/*")
	for _, s := range spaces {
		names = append(names, filepath.Base(s))
	}
	return slices.DeleteFunc(names, func(name string) bool { return !strings.HasPrefix(name, "ng") || ofOthers(name) })
}

// leftovers are processes, mounts, files below a temporary directory, and the
// links and namespaces that were not there before.
func leftovers(tmp string, before []string) string {
	var left []string
	for _, name := range []string{"cmdline", "environ"} {
		found, _ := filepath.Glob("/proc/[0-9]*/" + name)
		for _, path := range found {
			if data, err := os.ReadFile(path); err == nil && bytes.Contains(data, []byte(tmp+"/nomad-gpu-")) {
				left = append(left, fmt.Sprintf("%s %q", path, bytes.ReplaceAll(data[:min(len(data), 120)], []byte{0}, []byte{' '})))
			}
		}
	}
	if mounts, err := os.ReadFile("/proc/self/mountinfo"); err == nil && bytes.Contains(mounts, []byte(tmp)) {
		left = append(left, "a mount")
	}
	dirs, _ := filepath.Glob(filepath.Join(tmp, "nomad-gpu-*"))
	left = append(left, dirs...)
	left = append(left, slices.DeleteFunc(networks(), func(name string) bool { return slices.Contains(before, name) })...)
	return strings.Join(left, "; ")
}

func TestAnInterruptedDemoLeavesNothing(t *testing.T) {
	demo := filepath.Join(peers.Root(), ".cache", "bin", "demo")
	for _, c := range []struct {
		name   string
		at     string // a part of the line it is interrupted at
		signal syscall.Signal
		inner  bool // the program itself gets the signal, not its guard
	}{
		{"at the first line", "starting Consul", syscall.SIGINT, false},
		{"while it starts", "starting the Nomad Autoscaler", syscall.SIGTERM, false},
		{"while nodes join", "autoscaler  0 to 3 nodes", syscall.SIGINT, false},
		{"while it trains", "step 5,", syscall.SIGINT, false},
		{"while it recovers", "Generation 1 stops", syscall.SIGHUP, false},
		{"when its guard is killed", "step 5,", syscall.SIGKILL, false},
		{"when the program itself is killed", "step 5,", syscall.SIGKILL, true},
	} {
		t.Run(c.name, func(t *testing.T) {
			tmp := t.TempDir()
			must.NoError(t, os.Chmod(filepath.Dir(tmp), 0o755))
			before := networks()
			cmd := exec.Command(demo)
			cmd.Env = append(os.Environ(), "TMPDIR="+tmp)
			out, err := cmd.StdoutPipe()
			must.NoError(t, err)
			must.NoError(t, cmd.Start())
			var said strings.Builder
			lines := bufio.NewScanner(out)
			reached := false
			for !reached && lines.Scan() {
				fmt.Fprintln(&said, lines.Text())
				reached = strings.Contains(lines.Text(), c.at)
			}
			must.True(t, reached, must.Sprint("it never said ", c.at, ":\n", said.String()))
			pid := cmd.Process.Pid
			if c.inner {
				guard, err := process.NewProcess(int32(pid))
				must.NoError(t, err)
				children, err := guard.Children()
				must.NoError(t, err)
				pid = int(children[0].Pid) // the oldest: the guard starts nothing else
			}
			must.NoError(t, syscall.Kill(pid, c.signal))
			go io.Copy(io.Discard, out)
			cmd.Process.Wait()
			must.NoError(t, cluster.WaitFor(t.Context(), time.Minute, "nothing is left", func() (bool, string, error) {
				left := leftovers(tmp, before)
				return left == "", left, nil
			}))
		})
	}
}
