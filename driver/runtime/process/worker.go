// SPDX-License-Identifier: MPL-2.0

package process

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"slices"
	"sync/atomic"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/nomad-gpu/nomad-gpu/driver/gang"
	"github.com/nomad-gpu/nomad-gpu/driver/runtime"
)

// peerGrace is how long the other ranks of a node have after the signal once
// one has failed: they wait for it in vain, and have nothing left to save.
const peerGrace = 5 * time.Second

// lastWords is how long the end of the output is waited for.
const lastWords = 3 * time.Second

// worker is one process: the only one, or one rank of several.
type worker struct {
	cmd     *exec.Cmd
	name    string // "rank 5"; empty for the only one
	rank    *int   // nil for the only one
	sources []*source
	tail    *tail
	place   place
	over    atomic.Bool
}

// newWorkers checks the command and makes the processes, not started.
func newWorkers(spec runtime.Spec) ([]*worker, error) {
	ranks := spec.Ranks
	if len(ranks) == 0 {
		ranks = []runtime.Rank{{}}
	}
	var workers []*worker
	for _, r := range ranks {
		one := spec
		one.Env = slices.Concat(spec.Env, r.Env)
		w := &worker{tail: &tail{}}
		if len(spec.Ranks) > 0 {
			w.name, w.rank = fmt.Sprintf("rank %d", r.Number), &r.Number
		}
		command, err := lookPath(one)
		if err != nil {
			return nil, err
		}
		w.cmd = &exec.Cmd{Path: command, Args: append([]string{spec.Command}, spec.Args...), Env: one.Env, Dir: spec.Dir,
			// A process whose supervisor was killed ends too; its number is that
			// of its group, for signals to it and its children.
			SysProcAttr: &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGKILL}}
		if spec.User != "" {
			if w.cmd.SysProcAttr.Credential, err = credential(spec.User); err != nil {
				return nil, err
			}
		}
		if w.place, err = placeOf(spec, r); err != nil {
			return nil, err
		}
		workers = append(workers, w)
	}
	return workers, nil
}

// connect leads the process's output to the sinks.
func (w *worker) connect(out, errs sink) error {
	label := ""
	if w.name != "" {
		label = "[" + w.name + "] "
	}
	stdout, err := newSource(out, label, nil)
	if err != nil {
		return err
	}
	stderr, err := newSource(errs, label, w.tail)
	if err != nil {
		return err
	}
	w.sources = []*source{stdout, stderr}
	w.cmd.Stdout, w.cmd.Stderr = stdout.write, stderr.write
	return nil
}

// closeOutput gives up the supervisor's end; a process has its own copy.
func (w *worker) closeOutput() {
	for _, s := range w.sources {
		s.write.Close()
	}
}

// startAll starts the processes in rank order, on this thread.
func startAll(workers []*worker) error {
	var err error
	for _, w := range workers {
		if err == nil {
			if err = w.start(); err != nil && w.name != "" {
				err = fmt.Errorf("%s: %w", w.name, err)
			}
		}
		w.closeOutput()
	}
	return err
}

// start starts the process at its place, on this thread.
func (w *worker) start() error {
	var err error
	unbound := w.place.during(func() { err = w.cmd.Start() })
	if err == nil && unbound == nil && w.place.cpus.Size() > 0 {
		// Again from outside: before Linux 6.2 entering a cgroup of version 2
		// widened the affinity to all of the cgroup's CPUs.
		unbound = setAffinity(w.cmd.Process.Pid, w.place.cpus)
	}
	if unbound != nil && !errors.Is(unbound, unix.ESRCH) { // it has ended already
		fmt.Fprintln(os.Stderr, "supervisor:", unbound)
	}
	return err
}

// tryPlaces frees those whose place is not to be had, and says so.
func tryPlaces(workers []*worker) (warnings []string) {
	for _, w := range workers {
		if err := w.place.during(func() {}); err != nil {
			w.place = place{}
			warnings = append(warnings, "the process is not bound: "+err.Error())
		}
	}
	return warnings
}

// signalAll signals each process that still runs, without its children.
func signalAll(workers []*worker, sig syscall.Signal) error {
	var errs []error
	for _, w := range workers {
		if err := w.cmd.Process.Signal(sig); err != nil && !(errors.Is(err, os.ErrProcessDone) && len(workers) > 1) {
			errs = append(errs, err)
		}
	}
	return errors.Join(errs...)
}

// killGroups signals each process with its children.
func killGroups(workers []*worker, sig syscall.Signal) {
	for _, w := range workers {
		// A group whose leader has ended may go on; its number is not used anew
		// while it does (fork(2)), but may be once it is empty.
		if !w.over.Load() {
			syscall.Kill(-w.cmd.Process.Pid, sig)
		}
	}
}

// exit is how the process ended, without its last words.
func (w *worker) exit() gang.Exit {
	status, ok := w.cmd.ProcessState.Sys().(syscall.WaitStatus)
	var x gang.Exit
	switch {
	case !ok:
		x.Err = "its exit is unknown"
	case status.Signaled():
		x.Signal = int(status.Signal())
	default:
		x.Code = status.ExitStatus()
	}
	return x
}

// describe adds to the exit which process it is of and its last lines. It is
// called when nothing of the process is left.
func (w *worker) describe(x gang.Exit) gang.Exit {
	select {
	case <-w.sources[1].ended:
	case <-time.After(lastWords): // the log is not read
	}
	x.Tail = w.tail.lines()
	if w.name != "" && !x.OK() {
		how := x
		how.Tail = nil // Exit.String adds the last line itself
		x.Err, x.Rank = "failed: "+w.name+" "+how.String(), w.rank
	}
	return x
}
