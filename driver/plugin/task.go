// SPDX-License-Identifier: MPL-2.0

package plugin

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"github.com/hashicorp/nomad/plugins/drivers"

	"github.com/nomad-gpu/nomad-gpu/driver/gang"
	"github.com/nomad-gpu/nomad-gpu/driver/member"
)

// task is one Nomad task: a member of a gang, from StartTask to DestroyTask.
type task struct {
	cfg     *drivers.TaskConfig
	runner  *runner
	options member.Options
	state   *stateFile
	started time.Time
	over    func(member.Result) // tells the end to whoever watches

	leaving atomic.Bool // it was asked to
	leave   chan gang.LeaveAsked
	done    chan struct{} // closed once result stands
	result  member.Result
	ended   time.Time
}

// run is the member's life.
func (t *task) run(ctx context.Context) {
	logs, cancel := context.WithCancel(ctx)
	defer cancel()
	go holdLog(logs, t.cfg.StdoutPath)
	go holdLog(logs, t.cfg.StderrPath)
	r := member.Run(ctx, t.options)
	t.runner.detach()
	t.over(r)
	if r.Detached {
		return
	}
	if r.State == "" { // it left: the exit of a process that was stopped for it may come late
		if x := t.runner.lastExit(ctx); x != nil {
			r.Exit = x
		}
	}
	t.result, t.ended = r, time.Now()
	if err := os.RemoveAll(t.runner.dir); err != nil {
		t.options.Report(member.Event{Kind: "Warning", Message: fmt.Sprintf("cannot remove the generations' files: %v", err)})
	}
	close(t.done)
}

// exit is the task's end as Nomad takes it.
func (t *task) exit() *drivers.ExitResult {
	r := &drivers.ExitResult{}
	switch {
	case t.result.State == "done":
	case t.result.State == "failed":
		r.ExitCode, r.Err = 1, errors.New(t.result.Reason)
		if x := t.result.Exit; x != nil && !x.OK() {
			r.ExitCode, r.Signal, r.OOMKilled = max(x.Code, 1), x.Signal, x.OOM
		}
	case t.result.Cause != gang.CauseLeave: // Nomad did not ask for the end, so it places another
		r.ExitCode, r.Err = 1, errors.New(t.result.Reason)
	case t.result.Exit != nil: // it left as it was asked to
		r.ExitCode, r.Signal = t.result.Exit.Code, t.result.Exit.Signal
	}
	return r
}

// askLeave makes the member leave its gang, once. A cause makes the task's end
// a failure with that reason; without one it is Nomad's own wish.
func (t *task) askLeave(why gang.LeaveAsked) {
	if t.leaving.CompareAndSwap(false, true) {
		t.leave <- why
	}
}

// status is what `nomad alloc status` and the driver's own list show.
func (t *task) status() *drivers.TaskStatus {
	s := &drivers.TaskStatus{ID: t.cfg.ID, Name: t.cfg.Name, State: drivers.TaskStateRunning, StartedAt: t.started,
		DriverAttributes: map[string]string{}}
	if state, err := t.state.load(); err == nil && state != nil {
		s.DriverAttributes["generation"] = strconv.FormatUint(state.Record.Generation, 10)
		s.DriverAttributes["phase"] = string(state.Record.Phase)
	}
	if p := t.runner.current(); p != nil && p.PID() != 0 {
		s.DriverAttributes["pid"] = strconv.Itoa(p.PID())
	}
	select {
	case <-t.done:
		s.State, s.CompletedAt, s.ExitResult = drivers.TaskStateExited, t.ended, t.exit()
	default:
	}
	return s
}

// stateFile keeps a member's state for the driver's next life.
type stateFile struct {
	mu   sync.Mutex
	path string
}

func (f *stateFile) save(s member.State) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	data, err := json.Marshal(s)
	if err != nil {
		return err
	}
	if err := os.MkdirAll(filepath.Dir(f.path), 0o700); err != nil {
		return err
	}
	partial := f.path + ".partial"
	if err := os.WriteFile(partial, data, 0o600); err != nil {
		return err
	}
	return os.Rename(partial, f.path)
}

// load returns nil where nothing was saved.
func (f *stateFile) load() (*member.State, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	data, err := os.ReadFile(f.path)
	if errors.Is(err, os.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	var s member.State
	if err := json.Unmarshal(data, &s); err != nil {
		return nil, fmt.Errorf("%s: %w", f.path, err)
	}
	return &s, nil
}
