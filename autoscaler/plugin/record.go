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
	"slices"
	"time"

	"github.com/nomad-gpu/nomad-gpu/autoscaler/demand"
	"github.com/nomad-gpu/nomad-gpu/autoscaler/plan"
)

// configRecord is the setting with the file that keeps what the pools had and
// what was used of it: Nomad forgets its allocations. One plugin keeps it.
const configRecord = "record_file"

// Bounds of the record: a line for each pool a minute, and two files of this size.
const (
	recordPeriod = time.Minute
	recordSize   = 64 << 20 // bytes
	recordLine   = 1 << 20  // bytes
)

// RecordGap is how long a sample stands where no other follows.
const RecordGap = 5 * recordPeriod

// samples are the pools at a moment: nodes that Nomad has, and who holds them.
func samples(at time.Time, pools []plan.Pool, nodes []plan.Node, running []demand.Running) []demand.Sample {
	poolOf := map[string]string{}
	var all []demand.Sample
	for _, p := range pools {
		s := demand.Sample{At: at.UTC(), Pool: p.Name}
		for _, n := range nodes {
			if n.Pool == p.Name && !n.Starting {
				s.Nodes++
				poolOf[n.Name] = p.Name
			}
		}
		s.GPUs = int(float64(s.Nodes) * p.Shape.Size())
		all = append(all, s)
	}
	for _, r := range running {
		i := slices.IndexFunc(all, func(s demand.Sample) bool { return s.Pool == poolOf[r.Node] })
		if i < 0 {
			continue
		}
		held := &all[i].Used
		if j := slices.IndexFunc(*held, func(h demand.Held) bool { return h.Namespace == r.Namespace && h.Job == r.Job }); j >= 0 {
			(*held)[j].GPUs += r.GPUs
			(*held)[j].Shared += r.Shared
		} else {
			*held = append(*held, demand.Held{Namespace: r.Namespace, Job: r.Job, GPUs: r.GPUs, Shared: r.Shared})
		}
	}
	return all
}

// queue adds to samples what waits for the pools and may still run.
func queue(all []demand.Sample, pools []plan.Pool, waiting []plan.Waiting) []demand.Sample {
	for i, p := range pools {
		for _, w := range waiting {
			if !w.Unsatisfiable && w.Work.RunsOn(p) {
				whole := w.Work.QueuedGPUs()
				all[i].Queued += whole
				all[i].QueuedShared += w.Work.QueuedOn(p.Shape) - float64(whole)
			}
			all[i].Coming += w.Places[p.Name]
		}
	}
	return all
}

// appendRecord adds samples to a record. A full file becomes PATH.1, whose
// former content is let go.
func appendRecord(path string, all []demand.Sample) error {
	if info, err := os.Stat(path); err == nil && info.Size() > recordSize {
		if err := os.Rename(path, path+".1"); err != nil {
			return err
		}
	}
	f, err := os.OpenFile(path, os.O_CREATE|os.O_RDWR|os.O_APPEND, 0o600)
	if err != nil {
		return err
	}
	var lines bytes.Buffer
	e := json.NewEncoder(&lines)
	for _, s := range all {
		if err := e.Encode(s); err != nil {
			return errors.Join(err, f.Close())
		}
	}
	// In one write, so that who reads meanwhile sees all pools of a moment.
	err = cutTorn(f)
	if err == nil {
		_, err = f.Write(lines.Bytes())
	}
	return errors.Join(err, f.Close())
}

// cutTorn cuts off a last line that is not whole: what wrote it has crashed.
func cutTorn(f *os.File) error {
	size, err := f.Seek(0, io.SeekEnd)
	if err != nil || size == 0 {
		return err
	}
	last := make([]byte, 1)
	if _, err := f.ReadAt(last, size-1); err != nil || last[0] == '\n' {
		return err
	}
	tail := make([]byte, min(size, recordLine))
	if _, err := f.ReadAt(tail, size-int64(len(tail))); err != nil {
		return err
	}
	return f.Truncate(size - int64(len(tail)) + int64(bytes.LastIndexByte(tail, '\n')+1))
}

// ReadRecord reads a record, oldest first. A last line that is not whole was
// being written; any other fault is named with its line.
func ReadRecord(path string) ([]demand.Sample, error) {
	var all []demand.Sample
	for _, name := range []string{path + ".1", path} {
		f, err := os.Open(name)
		if errors.Is(err, os.ErrNotExist) && name != path {
			continue
		}
		if err != nil {
			return nil, err
		}
		lines := bufio.NewScanner(f)
		lines.Buffer(nil, recordLine)
		var fault error
		for n := 1; lines.Scan(); n++ {
			if fault != nil {
				f.Close()
				return nil, fault
			}
			s, err := parseSample(lines.Bytes())
			if err != nil {
				fault = fmt.Errorf("%s:%d: %w", name, n, err)
				continue
			}
			all = append(all, s)
		}
		if err := errors.Join(lines.Err(), f.Close()); err != nil {
			return nil, fmt.Errorf("%s: %w", name, err)
		}
	}
	return all, nil
}
