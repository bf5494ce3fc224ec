// SPDX-License-Identifier: MPL-2.0

// Package mps runs NVIDIA's MPS control daemon, through which several
// processes share a GPU at the same time. The daemon outlives the plugin: its
// clients would fail with it. What a former life started is taken up again.
//
// Source: NVIDIA, Multi-Process Service, release 560.
package mps

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/shirou/gopsutil/v4/process"
)

// Program is the daemon, which is also the command that talks to it.
const Program = "nvidia-cuda-mps-control"

// Limit is what the daemon grants clients on a GPU that ask for nothing else;
// none gets more.
type Limit struct {
	UUID      string
	Threads   int // percent
	MemoryMiB uint64
}

// Daemon is the one daemon of this node.
type Daemon struct {
	program string
	dir     string
	now     func() time.Time

	failures int
	retry    time.Time
	failure  error
}

// New makes a daemon that is not started yet. Program is its path or a name in
// the PATH; dir is its own, for pipes, logs and what is kept of it.
func New(program, dir string) *Daemon {
	return &Daemon{program: program, dir: dir, now: time.Now}
}

// PipeDirectory and LogDirectory are those that clients have to name.
func PipeDirectory(dir string) string { return filepath.Join(dir, "pipe") }

// LogDirectory is where daemon and servers write.
func LogDirectory(dir string) string { return filepath.Join(dir, "log") }

// Times between attempts to start the daemon: doubled with each failure.
const (
	firstRetry   = 10 * time.Second
	longestRetry = 5 * time.Minute
)

// kept is what a later life of the plugin needs.
type kept struct {
	PID int `json:"pid"`
	// Created is in milliseconds since 1970: a process that got the number
	// later is another.
	Created int64   `json:"created"`
	Limits  []Limit `json:"limits"`
}

// Ensure sees to it that the daemon runs for these GPUs; it is called again and
// again. The error says why it does not.
func (d *Daemon) Ensure(ctx context.Context, limits []Limit) error {
	now := d.now()
	state, running := d.recorded()
	if running && slices.Equal(state.Limits, limits) {
		d.failures, d.failure = 0, nil
		return nil
	}
	if d.failure != nil && now.Before(d.retry) {
		return d.failure
	}
	if running {
		if err := d.stop(state); err != nil {
			return err
		}
	}
	if err := d.start(ctx, limits); err != nil {
		d.retry = now.Add(min(firstRetry<<min(d.failures, 10), longestRetry))
		d.failures++
		d.failure = fmt.Errorf("the MPS control daemon does not run: %w; tried again at %s", err, d.retry.Format(time.TimeOnly))
		return d.failure
	}
	return nil
}

// Stop ends a daemon that a former configuration had started; there may be none.
func (d *Daemon) Stop() error {
	state, running := d.recorded()
	if running {
		if err := d.stop(state); err != nil {
			return err
		}
	}
	if err := os.Remove(d.statePath()); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	return nil
}

func (d *Daemon) statePath() string { return filepath.Join(d.dir, "daemon.json") }

// recorded is the daemon that was started last, and whether it runs.
func (d *Daemon) recorded() (kept, bool) {
	var state kept
	data, err := os.ReadFile(d.statePath())
	if err != nil || json.Unmarshal(data, &state) != nil || state.PID <= 1 {
		return kept{}, false
	}
	p, err := process.NewProcess(int32(state.PID))
	if err != nil {
		return state, false
	}
	created, err := p.CreateTime()
	if err != nil || created != state.Created {
		return state, false
	}
	status, err := p.Status()
	return state, err == nil && !slices.Contains(status, process.Zombie)
}

func (d *Daemon) environment(limits []Limit) []string {
	uuids := make([]string, len(limits))
	for i, l := range limits {
		uuids[i] = l.UUID
	}
	return []string{
		"PATH=" + os.Getenv("PATH"),
		"CUDA_MPS_PIPE_DIRECTORY=" + PipeDirectory(d.dir),
		"CUDA_MPS_LOG_DIRECTORY=" + LogDirectory(d.dir),
		"CUDA_VISIBLE_DEVICES=" + strings.Join(uuids, ","),
	}
}

// start runs the daemon in the foreground of a session of its own.
func (d *Daemon) start(ctx context.Context, limits []Limit) error {
	for _, dir := range []string{PipeDirectory(d.dir), LogDirectory(d.dir)} {
		if err := os.MkdirAll(dir, 0o755); err != nil {
			return err
		}
	}
	log, err := os.OpenFile(filepath.Join(LogDirectory(d.dir), "plugin.log"), os.O_CREATE|os.O_WRONLY|os.O_TRUNC, 0o644)
	if err != nil {
		return err
	}
	defer log.Close()
	cmd := exec.Command(d.program, "-f")
	cmd.Env, cmd.Stdout, cmd.Stderr = d.environment(limits), log, log
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	if err := cmd.Start(); err != nil {
		return err
	}
	ended := make(chan error, 1)
	go func() { ended <- cmd.Wait() }()
	if err := d.keep(cmd.Process.Pid, limits); err != nil {
		cmd.Process.Kill()
		return err
	}
	return d.limit(ctx, limits, ended)
}

func (d *Daemon) keep(pid int, limits []Limit) error {
	state := kept{PID: pid, Limits: limits}
	p, err := process.NewProcess(int32(pid))
	if err != nil {
		return err
	}
	if state.Created, err = p.CreateTime(); err != nil {
		return err
	}
	data, err := json.Marshal(state)
	if err != nil {
		return err
	}
	partial := d.statePath() + ".partial"
	if err := os.WriteFile(partial, data, 0o600); err != nil {
		return err
	}
	return os.Rename(partial, d.statePath())
}

// patience bounds the wait for a daemon that was started to answer.
const patience = 10 * time.Second

// limit tells the daemon its limits, once it answers.
func (d *Daemon) limit(ctx context.Context, limits []Limit, ended <-chan error) error {
	var script strings.Builder
	for i, l := range limits {
		if i == 0 && l.Threads > 0 {
			fmt.Fprintf(&script, "set_default_active_thread_percentage %d\n", l.Threads)
		}
		if l.MemoryMiB > 0 {
			fmt.Fprintf(&script, "set_default_device_pinned_mem_limit %d %dM\n", i, l.MemoryMiB)
		}
	}
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	for {
		cmd := exec.CommandContext(ctx, d.program)
		cmd.Env, cmd.Stdin = d.environment(limits), strings.NewReader(script.String())
		out, err := cmd.CombinedOutput()
		if err == nil {
			return nil
		}
		select {
		case exit := <-ended:
			return fmt.Errorf("%s ended: %v; see %s", d.program, exit, LogDirectory(d.dir))
		case <-ctx.Done():
			return fmt.Errorf("%s does not answer: %w: %s", d.program, err, strings.TrimSpace(string(out[:min(len(out), 200)])))
		case <-time.After(100 * time.Millisecond):
		}
	}
}

// stop asks, then kills: the servers below the daemon end with it.
func (d *Daemon) stop(state kept) error {
	p, err := process.NewProcess(int32(state.PID))
	if err != nil {
		return nil // it is gone
	}
	if err := p.Terminate(); err != nil && !errors.Is(err, os.ErrProcessDone) {
		return fmt.Errorf("stop the MPS control daemon, process %d: %w", state.PID, err)
	}
	for end := time.Now().Add(patience); time.Now().Before(end); time.Sleep(50 * time.Millisecond) {
		if _, running := d.recorded(); !running {
			return nil
		}
	}
	return p.Kill()
}
