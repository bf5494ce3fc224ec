// SPDX-License-Identifier: MPL-2.0

package process

import (
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

func cutName(entry, name string) (string, bool) {
	return strings.CutPrefix(entry, name+"=")
}

func hasName(env []string, name string) bool {
	return slices.ContainsFunc(env, func(e string) bool {
		_, ok := cutName(e, name)
		return ok
	})
}
