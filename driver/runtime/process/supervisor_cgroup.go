// SPDX-License-Identifier: MPL-2.0

package process

import (
	"fmt"
	"os"
	"path"

	"github.com/nomad-gpu/nomad-gpu/driver/gang"
	"github.com/nomad-gpu/nomad-gpu/driver/runtime"
)

// makeGroup makes the cgroup, or warns where the processes can do without.
func (s *supervisor) makeGroup(c runtime.Cgroup, own identity) error {
	sweepGroups(path.Dir(c.Path))
	c.Path = ownedPath(c.Path, own)
	if err := runtime.WriteFile(s.dir, cgroupFile, c.Path); err != nil {
		return err
	}
	g, warnings, err := createGroup(c)
	s.warnings = append(s.warnings, warnings...)
	if err != nil && !c.Required {
		s.warnings = append(s.warnings, "the processes run without limits of their own: "+err.Error())
		return nil
	}
	s.group, s.groupPath = g, c.Path
	return err
}

// dropGroup takes the cgroup away, with what is in it.
func (s *supervisor) dropGroup() {
	if s.group == nil {
		return
	}
	if err := removeGroup(s.group); err != nil {
		fmt.Fprintln(os.Stderr, "supervisor: remove the cgroup:", err)
	}
}

// sawOOM adds to the exit whether the kernel killed for memory. A process
// that was killed may be a child, whose parent then fails.
func (s *supervisor) sawOOM(x gang.Exit) gang.Exit {
	if s.group == nil || x.OK() {
		return x
	}
	n, err := s.group.oomKills()
	if err != nil {
		fmt.Fprintln(os.Stderr, "supervisor: look for memory kills:", err)
	}
	x.OOM = n > 0
	return x
}
