// SPDX-License-Identifier: MPL-2.0

package pool

import (
	"fmt"
	"os"
	"path/filepath"
	"sync"

	"golang.org/x/sys/unix"
)

// hold gives one caller alone what is known of a pool: among the goroutines of
// this process, and among the targets of this machine. Two of those live at
// once where an autoscaler was killed, or lost its leadership, and the next one
// began: what both read, changed and wrote would be lost in part.
func hold(mu *sync.Mutex, dir, pool string) (unhold func(), err error) {
	mu.Lock()
	defer func() {
		if err != nil {
			mu.Unlock()
		}
	}()
	unlock, err := lock(dir, pool)
	if err != nil {
		return nil, err
	}
	return func() { unlock(); mu.Unlock() }, nil
}

// lock is the machine's part of hold.
func lock(dir, name string) (unlock func(), err error) {
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return nil, err
	}
	f, err := os.OpenFile(filepath.Join(dir, name+".lock"), os.O_CREATE|os.O_RDWR, 0o600)
	if err != nil {
		return nil, err
	}
	for {
		// The kernel lets go of it when the process ends, however it ends.
		err = unix.Flock(int(f.Fd()), unix.LOCK_EX)
		if err == nil {
			return func() { f.Close() }, nil
		}
		if err != unix.EINTR {
			f.Close()
			return nil, fmt.Errorf("lock %s: %w", f.Name(), err)
		}
	}
}
