// SPDX-License-Identifier: MPL-2.0

package plugin

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"sync"
	"syscall"
	"time"

	"github.com/nomad-gpu/nomad-gpu/driver/environ"
	"github.com/nomad-gpu/nomad-gpu/driver/gang"
	"github.com/nomad-gpu/nomad-gpu/driver/member"
	"github.com/nomad-gpu/nomad-gpu/driver/preflight"
	"github.com/nomad-gpu/nomad-gpu/driver/runtime"
	"github.com/nomad-gpu/nomad-gpu/driver/trace"
)

// runner makes each generation's process of one task, in a directory of its
// own below the task's.
type runner struct {
	runtime  runtime.Runtime
	dir      string // holds a directory for each generation
	spec     runtime.Spec
	settings environ.Settings
	check    *preflight.Check
	progress *follower // nil: not asked for
	exits    chan gang.Exit
	tracer   *trace.Tracer // nil: off
	spans    *trace.Member // nil: off
	// failureGrace is what the process gets to end where the stop is not planned.
	failureGrace time.Duration
	// locality: the processes run near their GPUs, on these cores of Nomad's
	// (a list; empty: all).
	locality bool
	cores    string

	mu         sync.Mutex
	signal     syscall.Signal
	grace      time.Duration
	generation uint64
	process    runtime.Process
	hang       string // why the process is being stopped, where it hangs
	watched    context.CancelFunc
}

var _ member.Runner = (*runner)(nil)

func (r *runner) generationDir(generation uint64) string {
	return filepath.Join(r.dir, strconv.FormatUint(generation, 10))
}

func (r *runner) Prepare(ctx context.Context, a gang.Assignment) error {
	if err := os.WriteFile(r.settings.Hostfile, environ.Hostfile(a), 0o644); err != nil {
		return fmt.Errorf("write the host file: %w", err)
	}
	if dir := r.settings.CheckpointDir; dir != "" {
		if info, err := os.Stat(dir); err == nil && !info.IsDir() {
			return fmt.Errorf("checkpoint.dir: %q is no directory", dir)
		}
	}
	settings := r.settings
	settings.TraceParent = r.tracer.Parent(a.Key, a.Self().Alloc, a.Generation)
	env := environ.Environment(a, settings)
	if r.progress != nil {
		env["GANG_PROGRESS_FILE"] = r.progress.path
	}
	began := time.Now()
	err := r.check.Run(ctx, a, env)
	r.spans.Preflight(began, time.Now(), a, err)
	if err != nil {
		return err
	}
	if r.progress != nil {
		if err := r.progress.prepare(a, r.dir); err != nil {
			return err
		}
	}
	p, err := r.runtime.Create(ctx, r.generationDir(a.Generation), r.specOf(a, env))
	if err != nil {
		return err
	}
	r.mu.Lock()
	old := r.generation
	r.generation, r.process = a.Generation, p
	r.mu.Unlock()
	if old != 0 && old != a.Generation {
		return os.RemoveAll(r.generationDir(old))
	}
	return nil
}

// specOf is what to run for this generation, in this environment.
func (r *runner) specOf(a gang.Assignment, env map[string]string) runtime.Spec {
	spec := r.spec
	spec.Env = environ.List(env)
	if r.settings.PerGPU {
		for _, rank := range environ.Ranks(a, r.settings) {
			spec.Ranks = append(spec.Ranks, runtime.Rank{Number: rank.Number, Env: environ.List(rank.Env)})
		}
	}
	if spec.Cgroup != nil {
		own := *spec.Cgroup
		own.Path += "." + strconv.FormatUint(a.Generation, 10)
		spec.Cgroup = &own
	}
	if r.locality {
		near, err := environ.Near(r.settings.Device, r.cores, len(spec.Ranks))
		if err != nil {
			spec.Warn("the processes are not bound to the CPUs near their GPUs: " + err.Error())
		}
		spec.CPUs, spec.MemoryNodes = near.CPUs, near.MemoryNodes
		for i, cpus := range near.Ranks {
			spec.Ranks[i].CPUs = cpus
		}
	}
	return spec
}

// attach takes up the process of a former life of the driver.
func (r *runner) attach(ctx context.Context, generation uint64) error {
	p, err := r.runtime.Attach(ctx, r.generationDir(generation))
	if err != nil {
		return err
	}
	r.mu.Lock()
	r.generation, r.process = generation, p
	r.mu.Unlock()
	return nil
}

func (r *runner) of(generation uint64) (runtime.Process, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.process == nil || r.generation != generation {
		return nil, fmt.Errorf("there is no process of generation %d", generation)
	}
	return r.process, nil
}

func (r *runner) Start(ctx context.Context, generation uint64) error {
	p, err := r.of(generation)
	if err != nil {
		return err
	}
	if err := p.Start(ctx); err != nil {
		return err
	}
	r.watch(generation, p, time.Now())
	return nil
}

// madeAt is when a generation's process was made: about when it began, for a
// driver that was not there.
func (r *runner) madeAt(generation uint64) time.Time {
	if info, err := os.Stat(r.generationDir(generation)); err == nil {
		return info.ModTime()
	}
	return time.Now()
}

// watch tells the process's exit once it is there.
func (r *runner) watch(generation uint64, p runtime.Process, began time.Time) {
	ctx, cancel := context.WithCancel(context.Background())
	r.mu.Lock()
	r.watched, r.hang = cancel, ""
	r.mu.Unlock()
	if r.progress != nil {
		go r.follow(ctx, generation, p, began)
	}
	go func() {
		defer cancel()
		x, err := p.Wait(ctx)
		if ctx.Err() != nil {
			return
		}
		if err != nil {
			x = gang.Exit{Err: err.Error()}
		}
		x.Generation, x.Ran = generation, time.Since(began).Round(time.Second)
		r.exits <- r.ended(x)
	}()
}

func (r *runner) Stop(ctx context.Context, generation uint64, planned bool) error {
	p, err := r.of(generation)
	if err != nil {
		return nil // it was never created, or its directory is gone with it
	}
	signal, grace := r.stopsWith()
	if !planned {
		grace = min(grace, r.failureGrace)
	}
	return p.Stop(ctx, signal, grace)
}

func (r *runner) Exited() <-chan gang.Exit { return r.exits }

// stopWith sets how the next stop goes.
func (r *runner) stopWith(signal syscall.Signal, grace time.Duration) {
	r.mu.Lock()
	r.signal, r.grace = signal, grace
	r.mu.Unlock()
}

func (r *runner) stopsWith() (syscall.Signal, time.Duration) {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.signal, r.grace
}

// current is the newest process; nil: none was created yet.
func (r *runner) current() runtime.Process {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.process
}

// lastExit is how the newest process ended; nil: it never ran, or nobody knows.
func (r *runner) lastExit(ctx context.Context) *gang.Exit {
	p := r.current()
	if p == nil || p.PID() == 0 {
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, time.Second)
	defer cancel()
	x, err := p.Wait(ctx)
	if err != nil {
		return nil
	}
	return &x
}

// detach stops watching; the process goes on.
func (r *runner) detach() {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.watched != nil {
		r.watched()
	}
}
