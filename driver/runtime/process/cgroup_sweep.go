// SPDX-License-Identifier: MPL-2.0

package process

import (
	"fmt"
	"os"
	"path"
	"path/filepath"
	"regexp"
	"strconv"

	"github.com/containerd/cgroups/v3"
)

// ownedPath names the supervisor in the cgroup's name: where it, and every
// driver that knew it, was killed, the next supervisor on the host sees that
// nobody will take the cgroup away. Its ending is that of all tasks' cgroups of
// version 2 in Nomad.
func ownedPath(base string, owner identity) string {
	return fmt.Sprintf("%s.%d-%d.scope", base, owner.PID, owner.Start)
}

var ownerInName = regexp.MustCompile(`\.([0-9]{1,9})-([0-9]{1,18})\.scope$`)

// abandoned reports whether the name is of a supervisor that is no more.
func abandoned(name string) bool {
	found := ownerInName.FindStringSubmatch(name)
	if found == nil {
		return false
	}
	pid, _ := strconv.Atoi(found[1])
	start, _ := strconv.ParseUint(found[2], 10, 64)
	return !identity{PID: pid, Start: start}.alive()
}

// sweepGroups removes abandoned cgroups below parent. One with processes in it
// stays: its driver ends them.
func sweepGroups(parent string) {
	for _, dir := range groupDirs(parent) {
		entries, _ := os.ReadDir(dir)
		for _, e := range entries {
			if !e.IsDir() || !abandoned(e.Name()) {
				continue
			}
			if g, err := loadGroup(path.Join(parent, e.Name())); err == nil {
				_ = g.delete() // refused while it is not empty
			}
		}
	}
}

// groupDirs are the directories that a cgroup has: one for each controller
// with version 1.
func groupDirs(group string) []string {
	if cgroups.Mode() == cgroups.Unified {
		return []string{filepath.Join(unifiedMountpoint, group)}
	}
	var dirs []string
	used, _ := controllers()
	for _, s := range used {
		if p, ok := s.(interface{ Path(string) string }); ok {
			dirs = append(dirs, p.Path(group))
		}
	}
	return dirs
}
