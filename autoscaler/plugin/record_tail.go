// SPDX-License-Identifier: MPL-2.0

package plugin

import (
	"bufio"
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"time"

	"github.com/nomad-gpu/nomad-gpu/autoscaler/demand"
)

// recordGPUs bounds a number of GPUs or nodes of a record: it may be damaged.
const recordGPUs = 1 << 20

// parseSample reads a line of a record.
func parseSample(line []byte) (s demand.Sample, err error) {
	err = json.Unmarshal(line, &s)
	whole := func(n int) bool { return n >= 0 && n <= recordGPUs }
	part := func(n float64) bool { return n >= 0 && n <= recordGPUs }
	ok := err == nil && s.Pool != "" && s.At.Year() >= 1970 && s.At.Year() < 2200 && whole(s.GPUs) && whole(s.Nodes) && whole(s.Queued) && part(s.QueuedShared) && whole(s.Coming)
	for _, h := range s.Used {
		ok = ok && whole(h.GPUs) && part(h.Shared)
	}
	if !ok {
		return s, fmt.Errorf("no sample: %.64q", line)
	}
	return s, nil
}

// momentOf is when a line that appendRecord wrote is of; false where it takes
// more to tell. It costs a twentieth of reading the line.
func momentOf(line []byte) (time.Time, bool) {
	rest, found := bytes.CutPrefix(line, []byte(`{"at":"`))
	text, _, whole := bytes.Cut(rest[:min(len(rest), 64)], []byte(`"`))
	at, err := time.Parse(time.RFC3339Nano, string(text))
	return at, found && whole && err == nil
}

// recordTail reads a record, and then only what was added to it.
type recordTail struct {
	path string

	file   os.FileInfo // that was read last
	offset int64       // bytes of it that were read
	long   bool        // in the middle of a line that is too long
}

// read calls each for every whole line that it has not seen, with where the
// line is; anew before it begins again, as the files are others than before.
// A record that is not there has no lines.
func (t *recordTail) read(anew func(), each func(line []byte, where string)) error {
	f, now, err := openRecord(t.path)
	if err != nil {
		return err
	}
	defer f.Close()
	if t.file != nil {
		if now == nil || os.SameFile(now, t.file) && now.Size() == t.file.Size() {
			return nil // nothing was added; or it was renamed, and the next is not there yet
		}
		if os.SameFile(now, t.file) && now.Size() > t.file.Size() {
			return t.follow(f, t.path, now, each)
		}
	}
	old, was, err := openRecord(t.path + ".1")
	if err != nil {
		return err
	}
	defer old.Close()
	switch {
	case t.file != nil && was != nil && os.SameFile(was, t.file) && was.Size() >= t.file.Size():
		if err := t.follow(old, t.path+".1", was, each); err != nil {
			return err
		}
	default:
		*t = recordTail{path: t.path}
		anew()
		// The same twice: it was renamed between.
		if was != nil && !(now != nil && os.SameFile(was, now)) {
			if err := t.follow(old, t.path+".1", was, each); err != nil {
				return err
			}
		}
	}
	if now == nil {
		return nil
	}
	t.offset, t.long = 0, false
	return t.follow(f, t.path, now, each)
}

// openRecord opens a file of a record; nil where it is not there. What is no
// file is not opened: a pipe would have it wait.
func openRecord(path string) (*os.File, os.FileInfo, error) {
	if info, err := os.Stat(path); errors.Is(err, os.ErrNotExist) {
		return nil, nil, nil
	} else if err != nil {
		return nil, nil, err
	} else if !info.Mode().IsRegular() {
		return nil, nil, fmt.Errorf("%s: allowed is a file", path)
	}
	f, err := os.Open(path)
	if errors.Is(err, os.ErrNotExist) {
		return nil, nil, nil
	} else if err != nil {
		return nil, nil, err
	}
	info, err := f.Stat()
	if err != nil {
		f.Close()
		return nil, nil, err
	}
	return f, info, nil
}

// follow reads a file from the offset to the size that it has now.
func (t *recordTail) follow(f *os.File, name string, info os.FileInfo, each func(line []byte, where string)) error {
	t.file = info
	lines := bufio.NewReaderSize(io.NewSectionReader(f, t.offset, info.Size()-t.offset), recordLine)
	for {
		line, err := lines.ReadSlice('\n')
		switch {
		case err == nil && t.long:
			t.long = false
		case err == nil:
			each(bytes.TrimSuffix(line, []byte("\n")), fmt.Sprintf("%s, byte %d", name, t.offset))
		case errors.Is(err, bufio.ErrBufferFull):
			if !t.long {
				each(line, fmt.Sprintf("%s, byte %d", name, t.offset))
			}
			t.long = true
		case errors.Is(err, io.EOF):
			return nil // what is left is being written
		default:
			return err
		}
		t.offset += int64(len(line))
	}
}
