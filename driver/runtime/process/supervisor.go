// SPDX-License-Identifier: MPL-2.0

// Package process runs a generation as one process of the host, or one for
// each GPU, under a small supervisor that outlives the driver.
//
// The driver starts its own program again with the argument "supervise" and a
// directory. The supervisor leads a session of its own and adopts orphans
// among its descendants, so that it can end all of them. It answers on a
// socket in the directory, passes output on to Nomad's log pipes, and leaves
// the exit in a file, so that neither is lost while no driver runs.
//
//	driver ── socket "control" ──▶ supervisor ──▶ processes ──▶ children
//	       ◀── file "exit.json" ──     │
//	Nomad's logs ◀── named pipes ──────┘
package process

import (
	"context"
	"encoding/json"
	"fmt"
	"net"
	"os"
	"path/filepath"
	goruntime "runtime"
	"slices"
	"syscall"
	"time"

	"github.com/nomad-gpu/nomad-gpu/driver/gang"
	"github.com/nomad-gpu/nomad-gpu/driver/runtime"
)

// processesFile holds the identities of the processes, once they run.
const processesFile = "processes.json"

// What makes the driver's program a supervisor, with a directory, a companion,
// or the first process of a container, with a directory.
const (
	superviseArgument = "supervise"
	accompanyArgument = "accompany"
	initArgument      = "init"
)

// InitCommand makes the driver's program the first process of a container,
// where dir is that which holds InitSpec.
func InitCommand(dir string) []string { return []string{initArgument, dir} }

// Main does a supervisor's or a companion's work where the program's arguments
// ask for it, and reports whether they did. The first process of a container
// exits by itself.
func Main(args []string) (asked bool, err error) {
	switch {
	case len(args) == 3 && args[1] == superviseArgument:
		return true, supervise(args[2], os.NewFile(3, "ready"))
	case len(args) == 2 && args[1] == accompanyArgument:
		return true, accompany()
	case len(args) == 3 && args[1] == initArgument:
		os.Exit(runFirst(args[2]))
	}
	return false, nil
}

// identity tells a supervisor from another process that got its number later.
type identity struct {
	PID   int    `json:"pid"`
	Start uint64 `json:"start"` // since boot, in clock ticks (proc_pid_stat(5), field 22)
}

// supervise is the supervisor's whole life. It tells on ready, an open file,
// that it can be asked, or why not.
func supervise(dir string, ready *os.File) error {
	// One thread starts the processes: a process's death signal comes when that
	// thread ends (PR_SET_PDEATHSIG, prctl(2)), and its cgroup, CPUs and memory
	// policy are what the process begins with.
	goruntime.LockOSThread()
	s, err := newSupervisor(dir)
	var listener *net.UnixListener
	if err == nil {
		listener, err = listen(dir)
	}
	if err != nil {
		if s != nil {
			s.dropGroup()
		}
		json.NewEncoder(ready).Encode(answer{Err: err.Error()})
		ready.Close()
		return err
	}
	json.NewEncoder(ready).Encode(answer{Warnings: s.warnings})
	ready.Close()
	go s.serve(listener)
	s.run()
	listener.Close()
	return nil
}

type supervisor struct {
	dir      string
	workers  []*worker
	output   []*pump
	group    group // nil: they have no cgroup of their own
	start    chan chan error
	stop     chan request
	starting chan struct{} // closed once the process is about to run
	started  chan struct{} // closed once the process runs
	over     chan struct{} // closed once exit stands
	exit     gang.Exit
	// spec is what commands beside the processes get their surroundings from.
	spec       runtime.Spec
	groupPath  string
	executions chan execution
	// warnings come up while it is made
	warnings []string
}

func newSupervisor(dir string) (*supervisor, error) {
	if err := adoptOrphans(); err != nil {
		return nil, err
	}
	path := filepath.Join(dir, "spec.json")
	data, err := os.ReadFile(path)
	if err != nil {
		return nil, err
	}
	// The environment may hold secrets: it does not stay on the disk.
	if err := os.Remove(path); err != nil {
		return nil, err
	}
	var spec runtime.Spec
	if err := json.Unmarshal(data, &spec); err != nil {
		return nil, fmt.Errorf("%s: %w", path, err)
	}
	s := &supervisor{dir: dir, spec: spec, start: make(chan chan error), stop: make(chan request), executions: make(chan execution),
		starting: make(chan struct{}), started: make(chan struct{}), over: make(chan struct{})}
	if s.workers, err = newWorkers(spec); err != nil {
		return nil, err
	}
	out, errs := newPump(spec.Stdout, len(s.workers)), newPump(spec.Stderr, len(s.workers))
	s.output = []*pump{out, errs}
	for _, w := range s.workers {
		if err := w.connect(out, errs); err != nil {
			return nil, err
		}
	}
	warnings, err := ownLimits.apply(spec.Limits)
	if err != nil {
		return nil, err
	}
	s.warnings = append(warnings, tryPlaces(s.workers)...)
	own, err := identify(os.Getpid())
	if err != nil {
		return nil, err
	}
	if err := runtime.WriteFile(dir, "supervisor.json", own); err != nil {
		return nil, err
	}
	if spec.Cgroup != nil {
		return s, s.makeGroup(*spec.Cgroup, own) // last: it is the only thing that must be taken away again
	}
	return s, nil
}

// startAll starts the processes in rank order, on this thread, in their cgroup.
func (s *supervisor) startAll() error {
	begin := func() error { return startAll(s.workers) }
	if s.group == nil {
		return begin()
	}
	return s.group.start(s.workers, begin)
}

// run waits for the start, watches the processes and leaves the exit.
func (s *supervisor) run() {
	select {
	case done := <-s.start:
		close(s.starting)
		err := s.startAll()
		if err != nil {
			killDescendants(os.Getpid())
			done <- fmt.Errorf("command: %w", err)
			s.finish(gang.Exit{Err: fmt.Sprintf("could not be started: %v", err)})
			return
		}
		s.keepIdentities()
		close(s.started)
		done <- nil
	case <-s.stop:
		for _, w := range s.workers {
			w.closeOutput()
		}
		s.finish(gang.Exit{Signal: int(syscall.SIGKILL)})
		return
	}
	ended := make(chan *worker)
	for _, w := range s.workers {
		go func() {
			w.cmd.Wait()
			ended <- w
		}()
	}
	var kill <-chan time.Time
	stop := func(sig syscall.Signal, grace time.Duration) {
		if kill == nil {
			killGroups(s.workers, sig)
			kill = time.After(grace)
		}
	}
	side := companions{running: map[int]bool{}, ended: make(chan int)}
	reap := time.NewTicker(5 * time.Second)
	defer reap.Stop()
	exit, failed := gang.Exit{}, s.workers[0]
	for running := len(s.workers); running > 0; {
		select {
		case <-reap.C:
			reapOrphans(func(pid int) bool {
				return side.running[pid] || slices.ContainsFunc(s.workers, func(w *worker) bool { return w.cmd.Process.Pid == pid })
			})
		case e := <-s.executions:
			if kill != nil {
				e.done <- errStopping
			} else {
				e.done <- side.start(e.cmd, s.over)
			}
		case pid := <-side.ended:
			delete(side.running, pid)
		case r := <-s.stop:
			stop(r.Signal, r.Grace)
		case <-kill:
			killGroups(s.workers, syscall.SIGKILL)
			kill = time.After(time.Hour)
		case w := <-ended:
			running--
			w.over.Store(true)
			// The first that fails is the cause: the others fail for want of it.
			if x := w.exit(); !x.OK() && exit.OK() {
				exit, failed = s.sawOOM(x), w
				stop(syscall.SIGTERM, peerGrace)
			}
		}
	}
	killDescendants(os.Getpid())
	s.finish(failed.describe(exit))
}

// keepIdentities leaves the processes' numbers where the driver finds them.
func (s *supervisor) keepIdentities() {
	var all []identity
	for _, w := range s.workers {
		if own, err := identify(w.cmd.Process.Pid); err == nil {
			all = append(all, own)
		}
	}
	if err := runtime.WriteFile(s.dir, processesFile, all); err != nil {
		fmt.Fprintln(os.Stderr, "supervisor:", err)
	}
}

// finish passes the last output on, then leaves the exit where the driver finds it.
func (s *supervisor) finish(x gang.Exit) {
	ctx, cancel := context.WithTimeout(context.Background(), lastWords)
	defer cancel()
	for _, p := range s.output {
		p.drain(ctx)
	}
	s.dropGroup()
	s.exit = x
	if err := runtime.WriteFile(s.dir, "exit.json", x); err != nil {
		fmt.Fprintln(os.Stderr, "supervisor:", err)
	}
	close(s.over)
	time.Sleep(200 * time.Millisecond) // answers that are on their way; the file has it too
}
