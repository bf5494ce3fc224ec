// SPDX-License-Identifier: MPL-2.0

package process

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/user"
	"path/filepath"
	"strconv"
	"syscall"

	"github.com/nomad-gpu/nomad-gpu/driver/runtime"
)

// lookPath resolves the command in the task's own PATH, from its working directory.
func lookPath(spec runtime.Spec) (string, error) {
	if info, err := os.Stat(spec.Dir); err != nil || !info.IsDir() {
		return "", fmt.Errorf("work_dir: %q is no directory", spec.Dir)
	}
	if filepath.Base(spec.Command) != spec.Command {
		path := spec.Command
		if !filepath.IsAbs(path) {
			path = filepath.Join(spec.Dir, path)
		}
		return path, executable(spec.Command, path)
	}
	for _, e := range spec.Env {
		if list, ok := cutName(e, "PATH"); ok {
			for _, dir := range filepath.SplitList(list) {
				path := filepath.Join(dir, spec.Command)
				if filepath.IsAbs(path) && executable(spec.Command, path) == nil {
					return path, nil
				}
			}
			return "", fmt.Errorf("command: %q is not found in the task's PATH %q", spec.Command, list)
		}
	}
	return "", fmt.Errorf("command: %q is a name, and the task has no PATH; allowed is a path", spec.Command)
}

func executable(command, path string) error {
	info, err := os.Stat(path)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return fmt.Errorf("command: %q does not exist", command)
	case err != nil:
		return fmt.Errorf("command: %q: %w", command, err)
	case info.IsDir() || info.Mode()&0o111 == 0:
		return fmt.Errorf("command: %q is not executable", command)
	}
	return nil
}

func credential(name string) (*syscall.Credential, error) {
	u, err := user.Lookup(name)
	if err != nil {
		return nil, fmt.Errorf("user: %q: %w", name, err)
	}
	uid, _ := strconv.ParseUint(u.Uid, 10, 32)
	gid, _ := strconv.ParseUint(u.Gid, 10, 32)
	if int(uid) == os.Geteuid() {
		return nil, nil
	}
	if os.Geteuid() != 0 {
		return nil, fmt.Errorf("user: %q: the Nomad agent must run as root to run a task as another user", name)
	}
	c := &syscall.Credential{Uid: uint32(uid), Gid: uint32(gid)}
	ids, err := u.GroupIds()
	if err != nil {
		return nil, fmt.Errorf("user: groups of %q: %w", name, err)
	}
	for _, id := range ids {
		g, _ := strconv.ParseUint(id, 10, 32)
		c.Groups = append(c.Groups, uint32(g))
	}
	return c, nil
}
