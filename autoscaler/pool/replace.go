// SPDX-License-Identifier: MPL-2.0

package pool

import (
	"bytes"
	"errors"
	"os"
	"path/filepath"
)

// replace gives a file a new content, whole and on the disk when it returns: a
// reader never sees half of it, and neither does the next start of a machine
// that lost its power. A file that has the content already is left alone.
func replace(path string, data []byte) (err error) {
	if old, err := os.ReadFile(path); err == nil && bytes.Equal(old, data) {
		return nil
	}
	partial := path + ".partial"
	f, err := os.OpenFile(partial, os.O_CREATE|os.O_WRONLY|os.O_TRUNC, 0o600)
	if err != nil {
		return err
	}
	_, err = f.Write(data)
	if err := errors.Join(err, f.Sync(), f.Close()); err != nil {
		return err
	}
	if err := os.Rename(partial, path); err != nil {
		return err
	}
	// The name too must be on the disk.
	dir, err := os.Open(filepath.Dir(path))
	if err != nil {
		return err
	}
	return errors.Join(dir.Sync(), dir.Close())
}
