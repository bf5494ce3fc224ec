// SPDX-License-Identifier: MPL-2.0

package plugin

import (
	"context"
	"os"
	"syscall"
	"time"
)

// holdLog keeps one of Nomad's log pipes open for writing until ctx ends.
// Nomad takes the end of file for the end of the task: without a writer
// between two generations it would read nothing more. A pipe that Nomad made
// anew is opened anew.
func holdLog(ctx context.Context, path string) {
	var held *os.File
	defer func() {
		if held != nil {
			held.Close()
		}
	}()
	for {
		wait := 5 * time.Second
		if held == nil || !same(held, path) {
			// Without blocking the open fails while nobody reads.
			f, err := os.OpenFile(path, os.O_WRONLY|syscall.O_NONBLOCK, 0)
			if err != nil {
				wait = 100 * time.Millisecond
			} else {
				if held != nil {
					held.Close()
				}
				held = f
			}
		}
		select {
		case <-ctx.Done():
			return
		case <-time.After(wait):
		}
	}
}

func same(f *os.File, path string) bool {
	a, err := f.Stat()
	if err != nil {
		return false
	}
	b, err := os.Stat(path)
	return err != nil || os.SameFile(a, b)
}
