// SPDX-License-Identifier: MPL-2.0

// Package replay runs the planner, and what it is compared with, over traces
// on a virtual clock. The same options and seed give the same report.
package replay

import (
	"bufio"
	"compress/gzip"
	"encoding/csv"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"time"

	"github.com/nomad-gpu/nomad-gpu/autoscaler/plan"
)

// Bounds of what a trace may hold: it comes from outside.
const (
	maxTasks  = 1 << 20
	maxGPUs   = 1 << 10 // of one task
	maxTime   = 20 * 365 * 24 * time.Hour
	maxValues = 1 << 20
	maxBytes  = 1 << 28
)

// Task is one request for GPUs: Count allocations, all at once where it is a gang.
type Task struct {
	Name      string
	Namespace string
	// Arrive is when it is submitted, from the trace's start; Run how long it computes.
	Arrive, Run time.Duration
	Count       int
	Request     plan.Shape // CPU in thousandths of a core, memory in MiB
	Spot        string
	Gang        bool
}

// GPUs is what all its allocations have together.
func (t Task) GPUs() int { return t.Count * t.Request.GPUs }

// Trace is a workload in order of arrival.
type Trace struct {
	// Name says where it is from, in the report.
	Name  string
	Tasks []Task
	// Skipped counts rows that are left out: they ask for no GPU, or never ran
	// and so have no known run time.
	Skipped int
}

// ReadTrace reads a pod list of the openb trace, plain or gzipped. A share of a
// GPU (gpu_milli under 1000) counts as a whole one: without sharing a device
// goes to one allocation.
func ReadTrace(path string) (Trace, error) {
	r, done, err := open(path)
	if err != nil {
		return Trace{}, fmt.Errorf("trace: %w", err)
	}
	defer done()
	t, err := parseTrace(r)
	if err != nil {
		return Trace{}, fmt.Errorf("trace %s: %w", path, err)
	}
	t.Name = filepath.Base(path)
	return t, nil
}

// open opens a file, gzipped or not.
func open(path string) (io.Reader, func() error, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, nil, err
	}
	b := bufio.NewReader(f)
	if magic, err := b.Peek(2); err == nil && magic[0] == 0x1f && magic[1] == 0x8b {
		z, err := gzip.NewReader(b)
		if err != nil {
			f.Close()
			return nil, nil, fmt.Errorf("%s: %w", path, err)
		}
		return io.LimitReader(z, maxBytes), f.Close, nil
	}
	return io.LimitReader(b, maxBytes), f.Close, nil
}

var columns = []string{"name", "cpu_milli", "memory_mib", "num_gpu", "creation_time", "deletion_time", "scheduled_time", "qos"}

func parseTrace(in io.Reader) (Trace, error) {
	r := csv.NewReader(in)
	r.ReuseRecord = true
	header, err := r.Read()
	if err != nil {
		return Trace{}, fmt.Errorf("header: %w", err)
	}
	at := map[string]int{}
	for _, c := range columns {
		i := slices.Index(header, c)
		if i < 0 {
			return Trace{}, fmt.Errorf("column %q: missing; needed are %q", c, columns)
		}
		at[c] = i
	}
	var t Trace
	for {
		row, err := r.Read()
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			return Trace{}, err
		}
		line, _ := r.FieldPos(0)
		number := func(c string, most int) (n int) {
			if err != nil {
				return 0
			}
			n, err = strconv.Atoi(row[at[c]])
			if err != nil || n < 0 || n > most {
				err = fmt.Errorf("line %d: %s: %q; allowed are whole numbers from 0 to %d", line, c, row[at[c]], most)
			}
			return n
		}
		gpus := number("num_gpu", maxGPUs)
		if err == nil && (gpus == 0 || row[at["scheduled_time"]] == "" || row[at["deletion_time"]] == "") {
			t.Skipped++
			continue
		}
		most := int(maxTime / time.Second)
		arrive, from, to := number("creation_time", most), number("scheduled_time", most), number("deletion_time", most)
		cpu, memory := number("cpu_milli", 1<<24), number("memory_mib", 1<<30)
		if err != nil {
			return Trace{}, err
		}
		if to <= from {
			return Trace{}, fmt.Errorf("line %d: deletion_time: %d; allowed is later than scheduled_time, %d", line, to, from)
		}
		if len(t.Tasks) == maxTasks {
			return Trace{}, fmt.Errorf("line %d: more than %d tasks", line, maxTasks)
		}
		t.Tasks = append(t.Tasks, Task{Name: row[at["name"]], Namespace: row[at["qos"]], Arrive: time.Duration(arrive) * time.Second,
			Run: time.Duration(to-from) * time.Second, Count: 1, Request: plan.Shape{GPUs: gpus, CPU: cpu, Memory: memory}, Spot: plan.Prefer})
	}
	slices.SortStableFunc(t.Tasks, func(a, b Task) int { return int(a.Arrive - b.Arrive) })
	return t, nil
}

// Availability is how many spot nodes of a zone could be had: one value each
// Gap, from the start again at its end.
type Availability struct {
	Name   string // says where it is from, in the report
	Gap    time.Duration
	Values []int
}

// At is how many can be had at a time after the start.
func (a Availability) At(t time.Duration) int { return a.Values[int(t/a.Gap)%len(a.Values)] }

// ReadAvailability reads a file of the spot-traces format.
func ReadAvailability(path string) (Availability, error) {
	r, done, err := open(path)
	if err != nil {
		return Availability{}, fmt.Errorf("spot: %w", err)
	}
	defer done()
	a, err := parseAvailability(r)
	if err != nil {
		return Availability{}, fmt.Errorf("spot %s: %w", path, err)
	}
	a.Name = filepath.Base(path)
	return a, nil
}

func parseAvailability(r io.Reader) (Availability, error) {
	var f struct {
		Metadata struct {
			Gap float64 `json:"gap_seconds"`
		}
		Data []int
	}
	if err := json.NewDecoder(r).Decode(&f); err != nil {
		return Availability{}, err
	}
	if f.Metadata.Gap < 1 || f.Metadata.Gap > 86400 {
		return Availability{}, fmt.Errorf("metadata.gap_seconds: %v; allowed are 1 to 86400", f.Metadata.Gap)
	}
	if len(f.Data) == 0 || len(f.Data) > maxValues {
		return Availability{}, fmt.Errorf("data: %d values; allowed are 1 to %d", len(f.Data), maxValues)
	}
	for i, n := range f.Data {
		if n < 0 || n > 1<<20 {
			return Availability{}, fmt.Errorf("data[%d]: %d; allowed are 0 to %d", i, n, 1<<20)
		}
	}
	return Availability{Gap: time.Duration(f.Metadata.Gap) * time.Second, Values: f.Data}, nil
}
