// SPDX-License-Identifier: MPL-2.0

package notice

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"

	"golang.org/x/sys/unix"
)

// file reads a notice that an operator or another program writes: it stands
// while the file is there, and its first line says why.
type file struct{ path string }

func (f file) Read(context.Context) (*Notice, error) {
	// A pipe at the path would hold an opener up.
	in, err := os.OpenFile(f.path, os.O_RDONLY|unix.O_NONBLOCK, 0)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("read the notice: %w", err)
	}
	defer in.Close()
	if info, err := in.Stat(); err != nil || !info.Mode().IsRegular() {
		return nil, fmt.Errorf("read the notice: %s is no regular file", f.path)
	}
	data, err := io.ReadAll(io.LimitReader(in, 4<<10))
	if err != nil {
		return nil, fmt.Errorf("read the notice: %w", err)
	}
	why := line(string(data))
	if why == "" {
		why = f.path + " is there"
	}
	return &Notice{What: why}, nil
}
