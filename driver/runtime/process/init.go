// SPDX-License-Identifier: MPL-2.0

package process

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"os/signal"
	"path/filepath"
	goruntime "runtime"
	"slices"
	"strings"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/nomad-gpu/nomad-gpu/driver/gang"
	"github.com/nomad-gpu/nomad-gpu/driver/runtime"
)

// Files of a container's first process, in the directory it is given.
const (
	InitSpec = "spec.json"
	InitExit = "exit.json"
)

// exitNotRun is the exit code where the command could not be run, as a shell's.
const exitNotRun = 127

// runFirst is the whole life of a container's first process: it starts the
// processes that the file InitSpec names, in the environment and directory it
// has itself, passes signals on to them with their children, ends the
// processes that outlive their parents, and leaves how they ended in InitExit.
// It returns the exit code. What it leaves running ends with the container.
func runFirst(dir string) int {
	goruntime.LockOSThread() // for the death signal, as in supervise
	// Before anything is started: the first process of a container would not
	// see a signal that it does not catch.
	signals := make(chan os.Signal, 64)
	signal.Notify(signals)
	x := runAll(dir, signals)
	if err := runtime.WriteFile(dir, InitExit, x); err != nil {
		fmt.Fprintln(os.Stderr, "init:", err)
	}
	switch {
	case x.Signal != 0:
		return 128 + x.Signal
	case x.Code != 0:
		return x.Code
	case x.Err != "":
		return exitNotRun
	}
	return 0
}

// notPassedOn are signals that the kernel and Go's runtime send to the process itself.
var notPassedOn = []os.Signal{unix.SIGCHLD, unix.SIGURG, unix.SIGPIPE, unix.SIGTTIN, unix.SIGTTOU}

// runAll runs the processes to their end.
func runAll(dir string, signals <-chan os.Signal) gang.Exit {
	fail := func(err error) gang.Exit {
		fmt.Fprintln(os.Stderr, err)
		return gang.Exit{Err: "could not be started: " + err.Error()}
	}
	data, err := os.ReadFile(filepath.Join(dir, InitSpec))
	if err != nil {
		return fail(err)
	}
	var spec runtime.Spec
	if err := json.Unmarshal(data, &spec); err != nil {
		return fail(fmt.Errorf("%s: %w", InitSpec, err))
	}
	spec.Env = os.Environ()
	if spec.Dir, err = os.Getwd(); err != nil {
		return fail(err)
	}
	workers, err := newWorkers(spec)
	if err != nil {
		return fail(err)
	}
	out, errs := newStream(os.Stdout, len(workers)), newStream(os.Stderr, len(workers))
	for _, w := range workers {
		if err := w.connect(out, errs); err != nil {
			return fail(err)
		}
	}
	for _, warning := range tryPlaces(workers) {
		fmt.Fprintln(os.Stderr, "init:", warning)
	}
	if err := startAll(workers); err != nil {
		killDescendants(os.Getpid())
		return fail(fmt.Errorf("command: %w", err))
	}
	exit, failed := watchAll(workers, signals)
	killDescendants(os.Getpid())
	exit.OOM = !exit.OK() && ownOOMKills("/sys/fs/cgroup") > 0 // Podman 4 does not tell
	x := failed.describe(exit)
	ctx, cancel := context.WithTimeout(context.Background(), lastWords)
	defer cancel()
	out.drain(ctx)
	errs.drain(ctx)
	return x
}

// ownOOMKills is how often the kernel killed for memory in the cgroup whose
// files a container sees below root: memory.events with version 2,
// memory.oom_control with version 1 (cgroups(7)). 0 where it is not told.
func ownOOMKills(root string) (kills int) {
	for _, path := range []string{"memory.events", "memory/memory.oom_control"} {
		data, err := os.ReadFile(filepath.Join(root, path))
		if err != nil {
			continue
		}
		for line := range strings.Lines(string(data)) {
			if n, err := fmt.Sscanf(line, "oom_kill %d", &kills); n == 1 && err == nil {
				return kills
			}
		}
	}
	return 0
}

// watchAll passes signals on until all processes have ended; the first that
// failed is the cause.
func watchAll(workers []*worker, signals <-chan os.Signal) (gang.Exit, *worker) {
	ended := make(chan *worker)
	for _, w := range workers {
		go func() {
			w.cmd.Wait()
			ended <- w
		}()
	}
	reap := time.NewTicker(5 * time.Second)
	defer reap.Stop()
	var kill <-chan time.Time
	exit, failed := gang.Exit{}, workers[0]
	for left := len(workers); left > 0; {
		select {
		case <-reap.C:
			reapOrphans(func(pid int) bool {
				return slices.ContainsFunc(workers, func(w *worker) bool { return w.cmd.Process.Pid == pid })
			})
		case sig := <-signals:
			if number, ok := sig.(syscall.Signal); ok && !slices.Contains(notPassedOn, sig) {
				killGroups(workers, number)
			}
		case <-kill:
			killGroups(workers, syscall.SIGKILL)
		case w := <-ended:
			left--
			w.over.Store(true)
			if x := w.exit(); !x.OK() && exit.OK() {
				exit, failed = x, w
				killGroups(workers, syscall.SIGTERM)
				kill = time.After(peerGrace)
			}
		}
	}
	return exit, failed
}

// stream is a sink that writes to a file, whose reader is always there.
type stream struct {
	mu      sync.Mutex
	file    *os.File
	sources int
	done    chan struct{}
}

func newStream(f *os.File, sources int) *stream {
	return &stream{file: f, sources: sources, done: make(chan struct{})}
}

func (s *stream) add(data []byte) {
	if len(data) == 0 {
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	_, _ = s.file.Write(data) // the engine is gone: nobody reads any more
}

func (s *stream) end() {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.sources--; s.sources == 0 {
		close(s.done)
	}
}

// drain waits until all sources have ended, or ctx has.
func (s *stream) drain(ctx context.Context) {
	select {
	case <-s.done:
	case <-ctx.Done():
	}
}
