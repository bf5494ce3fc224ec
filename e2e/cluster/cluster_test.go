// SPDX-License-Identifier: MPL-2.0

package cluster_test

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/hashicorp/nomad/api"
	"github.com/shoenig/test/must"
	"github.com/vishvananda/netlink"

	"github.com/nomad-gpu/nomad-gpu/e2e/cluster"
)

func TestMain(m *testing.M) {
	os.Exit(cluster.Guard(func(context.Context) int { return m.Run() }))
}

// leftovers are processes, links, namespaces, mounts and files that name a cluster's directory.
func leftovers(dir string) []string {
	var left []string
	found, _ := filepath.Glob("/proc/[0-9]*/cmdline")
	for _, path := range found {
		if data, err := os.ReadFile(path); err == nil && strings.Contains(string(data), dir) {
			left = append(left, strings.ReplaceAll(string(data), "\x00", " "))
		}
	}
	links, _ := netlink.LinkList()
	for _, l := range links {
		if strings.HasPrefix(l.Attrs().Name, "ng"+filepath.Base(dir)) {
			left = append(left, l.Attrs().Name)
		}
	}
	spaces, _ := filepath.Glob("/run/netns/ng" + filepath.Base(dir) + "*")
	left = append(left, spaces...)
	if mounts, err := os.ReadFile("/proc/self/mountinfo"); err == nil && strings.Contains(string(mounts), dir) {
		left = append(left, "a mount below "+dir)
	}
	if _, err := os.Stat(dir); err == nil {
		left = append(left, dir)
	}
	return left
}

func TestAClusterRunsAJobAndLeavesNothing(t *testing.T) {
	for _, loopback := range []bool{true, false} {
		t.Run(fmt.Sprintf("loopback %t", loopback), func(t *testing.T) {
			if !loopback && os.Geteuid() != 0 {
				t.Skip("needs root: hosts in network namespaces")
			}
			c, err := cluster.Start(t.Context(), cluster.Options{Loopback: loopback})
			must.NoError(t, err)
			defer c.Stop()
			must.NoError(t, c.AddClients(t.Context(), cluster.Client{Name: "one", NodeClass: "a"}, cluster.Client{Name: "two", NodeClass: "b"}))
			job := api.NewBatchJob("hello", "hello", "global", 50)
			job.Datacenters = []string{"*"}
			task := api.NewTask("t", "raw_exec").SetConfig("command", "/bin/sleep").SetConfig("args", []string{"1000"})
			group := api.NewTaskGroup("g", 2).AddTask(task)
			group.Constrain(api.NewConstraint("", "distinct_hosts", ""))
			job.AddTaskGroup(group)
			_, _, err = c.Nomad().Jobs().Register(job, nil)
			must.NoError(t, err)
			must.NoError(t, cluster.WaitFor(t.Context(), time.Minute, "both allocations run", func() (bool, string, error) {
				allocs, _, err := c.Nomad().Jobs().Allocations("hello", false, nil)
				running := 0
				for _, a := range allocs {
					if a.ClientStatus == "running" {
						running++
					}
				}
				return running == 2, fmt.Sprint(running, " run"), err
			}), must.Sprint(c.Words(10)))
			dir := c.Dir()
			must.SliceNotEmpty(t, leftovers(dir))
			c.Stop()
			must.SliceEmpty(t, leftovers(dir), must.Sprint(leftovers(dir)))
		})
	}
}

func TestAWaitThatFailsSaysWhatItSawLast(t *testing.T) {
	err := cluster.WaitFor(t.Context(), time.Millisecond, "pigs fly", func() (bool, string, error) { return false, "one pig walks", nil })
	must.ErrorContains(t, err, "waiting until pigs fly")
	must.ErrorContains(t, err, "last seen: one pig walks")
}
