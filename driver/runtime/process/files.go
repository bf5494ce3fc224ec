// SPDX-License-Identifier: MPL-2.0

package process

import (
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"golang.org/x/sys/unix"
)

// socketPath names a socket in dir by a short path: a socket's address holds
// 108 bytes (unix(7)), and an allocation's directory is often longer.
func socketPath(dir string) (path string, release func(), err error) {
	fd, err := unix.Open(dir, unix.O_PATH|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		return "", nil, fmt.Errorf("open %s: %w", dir, err)
	}
	return fmt.Sprintf("/proc/self/fd/%d/control", fd), func() { unix.Close(fd) }, nil
}

func listen(dir string) (*net.UnixListener, error) {
	path, release, err := socketPath(dir)
	if err != nil {
		return nil, err
	}
	defer release()
	l, err := net.ListenUnix("unix", &net.UnixAddr{Name: path})
	if err != nil {
		return nil, fmt.Errorf("listen in %s: %w", dir, err)
	}
	l.SetUnlinkOnClose(false) // the short path means nothing by then
	return l, os.Chmod(filepath.Join(dir, "control"), 0o600)
}

// writeFile writes a value whole or not at all, and on the disk when it returns.
func writeFile(dir, name string, value any) error {
	data, err := json.Marshal(value)
	if err != nil {
		return err
	}
	f, err := os.CreateTemp(dir, name+".*")
	if err != nil {
		return err
	}
	_, err = f.Write(data)
	err = errors.Join(err, f.Sync(), f.Close())
	if err == nil {
		err = os.Rename(f.Name(), filepath.Join(dir, name))
	}
	if err != nil {
		os.Remove(f.Name())
		return fmt.Errorf("write %s: %w", filepath.Join(dir, name), err)
	}
	return nil
}

func readFile(dir, name string, value any) error {
	data, err := os.ReadFile(filepath.Join(dir, name))
	if err != nil {
		return err
	}
	if err := json.Unmarshal(data, value); err != nil {
		return fmt.Errorf("%s: %w", filepath.Join(dir, name), err)
	}
	return nil
}

func cutName(entry, name string) (string, bool) {
	return strings.CutPrefix(entry, name+"=")
}

func hasName(env []string, name string) bool {
	return slices.ContainsFunc(env, func(e string) bool {
		_, ok := cutName(e, name)
		return ok
	})
}
