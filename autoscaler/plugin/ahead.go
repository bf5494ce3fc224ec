// SPDX-License-Identifier: MPL-2.0

package plugin

import (
	"errors"
	"fmt"
	"os"
	"time"

	"github.com/nomad-gpu/nomad-gpu/autoscaler/forecast"
	"github.com/nomad-gpu/nomad-gpu/autoscaler/plan"
	"github.com/nomad-gpu/nomad-gpu/autoscaler/pool"
)

// foresight expects what a record tells to recur.
type foresight struct {
	season forecast.Season
	models map[string]string // of the pools' GPUs, by pool
	tail   recordTail
	loads  *forecast.Loads

	moment  time.Time      // of the lines that were read last: those of one look have the same
	gpus    map[string]int // asked for at the moment, by model
	newest  time.Time
	damaged int // lines
	first   string
}

// newForesight is nil where the file forecasts nothing.
func newForesight(file *pool.File) (*foresight, error) {
	if file.Forecast == nil {
		return nil, nil
	}
	f := &foresight{season: file.Forecast.Season(), models: map[string]string{}, tail: recordTail{path: file.Forecast.Record}}
	for i := range file.Pools {
		f.models[file.Pools[i].Name] = file.Pools[i].Shape.Model
	}
	return f, f.forget()
}

// forget begins anew.
func (f *foresight) forget() (err error) {
	f.loads, err = forecast.NewLoads(f.season)
	f.moment, f.gpus, f.newest, f.damaged, f.first = time.Time{}, nil, time.Time{}, 0, ""
	return err
}

// expect reads what was added to the record, and tells what it has recur. Faults
// are what is wrong with the record: what can be read of it counts.
func (f *foresight) expect(now time.Time) (all []plan.Ahead, faults []string) {
	if f == nil {
		return nil, nil
	}
	// The clock went back: what was taken to be the present was not.
	if f.newest.Sub(now) > RecordGap {
		f.tail = recordTail{path: f.tail.path}
	}
	var fault error
	err := f.tail.read(func() { fault = f.forget() }, func(line []byte, where string) { f.note(line, where, now) })
	f.stand(now)
	if err := errors.Join(err, fault); err != nil {
		faults = append(faults, fmt.Sprintf("forecast.record: %v", err))
	}
	if f.damaged > 0 {
		faults = append(faults, fmt.Sprintf("forecast.record: %d lines are left out, the first at %s", f.damaged, f.first))
	}
	models, expected := f.loads.Expect(now)
	for i, e := range expected {
		all = append(all, plan.Ahead{Model: models[i], GPUs: e.GPUs, Why: e.String()})
	}
	return all, faults
}

// note takes one line of the record. What is from the future, or older than all
// that is remembered, is left out.
func (f *foresight) note(line []byte, where string, now time.Time) {
	oldest := now.Add(-time.Duration(f.season.Periods+1) * f.season.Period)
	if at, ok := momentOf(line); ok && at.Before(oldest) {
		return
	}
	s, err := parseSample(line)
	if err == nil && s.At.Sub(now) > RecordGap {
		err = fmt.Errorf("it is from the future: %s", s.At.Format(time.RFC3339))
	}
	if err != nil {
		if f.damaged++; f.damaged == 1 {
			f.first = fmt.Sprintf("%s: %v", where, err)
		}
		return
	}
	model, ours := f.models[s.Pool]
	if !ours || s.At.Before(oldest) {
		return
	}
	if !s.At.Equal(f.moment) {
		f.stand(s.At)
		f.moment, f.gpus = s.At, map[string]int{}
	}
	if s.At.After(f.newest) {
		f.newest = s.At
	}
	// Used and coming are asked for by somebody; nodes are not: what was bought
	// ahead is no load.
	gpus := s.Coming
	for _, h := range s.Used {
		gpus += h.GPUs
	}
	f.gpus[model] += gpus
}

// stand has the moment's figures hold until a time, but no longer than the gap.
func (f *foresight) stand(until time.Time) {
	if f.moment.IsZero() {
		return
	}
	least, most := f.moment.Add(time.Second), f.moment.Add(RecordGap)
	switch {
	case until.Before(least):
		until = least
	case until.After(most):
		until = most
	}
	f.loads.Add(f.moment, until, f.gpus)
}

// keepRecord has the strategy keep the record that the forecast is made from.
func (l *Lookout) keepRecord() error {
	if l.File.Forecast == nil {
		return nil
	}
	path := l.File.Forecast.Record
	if l.record != "" && l.record != path {
		return fmt.Errorf("%s: %q; with the pools file's forecast allowed is its record, %q, or none", configRecord, l.record, path)
	}
	l.record = path
	f, err := os.OpenFile(path, os.O_CREATE|os.O_WRONLY|os.O_APPEND, 0o600)
	if err != nil {
		return fmt.Errorf("forecast.record: %w", err)
	}
	return f.Close()
}

// expected is how many GPUs a plan expects to be asked for.
func expected(o plan.Output) (gpus int) {
	for _, a := range o.Ahead {
		gpus += a.GPUs
	}
	return gpus
}
