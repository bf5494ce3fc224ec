// SPDX-License-Identifier: MPL-2.0

package progress

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"syscall"
	"time"
)

// WholeNode stands for the file that speaks for all processes of a node.
const WholeNode = -1

// Sample is one file as it stands.
type Sample struct {
	// Local is the process's rank on its node, or WholeNode.
	Local int
	Line
	// Changed is when the file was last written. Writing it without a new
	// step is a sign of life too, such as while a checkpoint is saved.
	Changed time.Time
}

// tail is how much of a file's end is read.
const tail = 4 << 10

// Files are a node's: Name, and Name with a dot and the local rank for a
// process's own.
type Files struct {
	// Dir is a directory that the task cannot replace by another; Name is
	// relative to it, and does not lead out of it.
	Dir, Name string
	// Slots is the number of processes on the node.
	Slots int
}

// Read reads the files that are there. One that cannot be used is left out
// and named in the error; the samples count all the same.
func (f Files) Read() ([]Sample, error) {
	root, err := os.OpenRoot(f.Dir)
	if err != nil {
		return nil, fmt.Errorf("progress: %w", err)
	}
	defer root.Close()
	var all []Sample
	var errs []error
	for local := WholeNode; local < f.Slots; local++ {
		s, err := readFile(root, f.name(local))
		if errors.Is(err, fs.ErrNotExist) {
			continue
		}
		if err != nil {
			errs = append(errs, fmt.Errorf("progress: %s: %w", f.name(local), err))
			continue
		}
		s.Local = local
		all = append(all, s)
	}
	return all, errors.Join(errs...)
}

// Remove takes the files out, before the processes of a generation begin:
// what an earlier one wrote is no progress of theirs.
func (f Files) Remove() error {
	root, err := os.OpenRoot(f.Dir)
	if err != nil {
		return fmt.Errorf("progress: %w", err)
	}
	defer root.Close()
	var errs []error
	for local := WholeNode; local < f.Slots; local++ {
		if err := root.Remove(f.name(local)); err != nil && !errors.Is(err, fs.ErrNotExist) {
			errs = append(errs, fmt.Errorf("progress: %w", err))
		}
	}
	return errors.Join(errs...)
}

// LastStep is the highest step in the node's files; false where none has one.
func (f Files) LastStep() (uint64, bool) {
	samples, _ := f.Read() // what cannot be read tells no step
	var last uint64
	for _, s := range samples {
		last = max(last, s.Step)
	}
	return last, len(samples) > 0
}

func (f Files) name(local int) string {
	if local == WholeNode {
		return f.Name
	}
	return f.Name + "." + strconv.Itoa(local)
}

// LastStep is the last step in one file.
func LastStep(path string) (uint64, bool) {
	return Files{Dir: filepath.Dir(path), Name: filepath.Base(path)}.LastStep()
}

// readFile never blocks: a pipe or a device of that name is an error.
func readFile(root *os.Root, name string) (Sample, error) {
	f, err := root.OpenFile(name, os.O_RDONLY|syscall.O_NONBLOCK, 0)
	if err != nil {
		return Sample{}, err
	}
	defer f.Close()
	info, err := f.Stat()
	if err != nil {
		return Sample{}, err
	}
	if !info.Mode().IsRegular() {
		return Sample{}, errors.New("it is no regular file")
	}
	data, err := io.ReadAll(io.NewSectionReader(f, max(0, info.Size()-tail), tail))
	if err != nil {
		return Sample{}, err
	}
	if len(data) == 0 {
		return Sample{}, fs.ErrNotExist // about to be written
	}
	line, err := ParseLine(lastLine(data))
	return Sample{Line: line, Changed: info.ModTime()}, err
}
