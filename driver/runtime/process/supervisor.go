// SPDX-License-Identifier: MPL-2.0

// Package process runs a generation as a process of the host, under a small
// supervisor that outlives the driver.
//
// The driver starts its own program again with the argument "supervise" and a
// directory. The supervisor leads a session of its own and adopts orphans
// among its descendants, so that it can end all of them. It answers on a
// socket in the directory, passes output on to Nomad's log pipes, and leaves
// the exit in a file, so that neither is lost while no driver runs.
//
//	driver ── socket "control" ──▶ supervisor ──▶ process ──▶ children
//	       ◀── file "exit.json" ──     │
//	Nomad's logs ◀── named pipes ──────┘
package process

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"os/exec"
	"os/user"
	"path/filepath"
	goruntime "runtime"
	"strconv"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/nomad-gpu/nomad-gpu/driver/gang"
	"github.com/nomad-gpu/nomad-gpu/driver/runtime"
)

// Argument makes the driver's program a supervisor.
const Argument = "supervise"

// request is what the driver asks on the socket; one a connection.
type request struct {
	Op     string         `json:"op"` // start, signal, stop, wait
	Signal syscall.Signal `json:"signal,omitempty"`
	Grace  time.Duration  `json:"grace,omitempty"`
}

type answer struct {
	Err  string     `json:"err,omitempty"`
	PID  int        `json:"pid,omitempty"`
	Exit *gang.Exit `json:"exit,omitempty"`
}

// identity tells a supervisor from another process that got its number later.
type identity struct {
	PID   int    `json:"pid"`
	Start uint64 `json:"start"` // since boot, in clock ticks (proc_pid_stat(5), field 22)
}

// Supervise is the supervisor's whole life. It tells on ready, an open file,
// that it can be asked, or why not.
func Supervise(dir string, ready *os.File) error {
	s, err := newSupervisor(dir)
	var listener *net.UnixListener
	if err == nil {
		listener, err = listen(dir)
	}
	if err != nil {
		json.NewEncoder(ready).Encode(answer{Err: err.Error()})
		ready.Close()
		return err
	}
	json.NewEncoder(ready).Encode(answer{})
	ready.Close()
	go s.serve(listener)
	s.run()
	listener.Close()
	return nil
}

type supervisor struct {
	dir     string
	cmd     *exec.Cmd
	output  []*pump
	tail    *tail
	start   chan chan error
	stop    chan request
	started chan struct{} // closed once the process runs
	over    chan struct{} // closed once exit stands
	exit    gang.Exit
}

func newSupervisor(dir string) (*supervisor, error) {
	// Orphans among the descendants become children of this process (PR_SET_CHILD_SUBREAPER, prctl(2)).
	if err := unix.Prctl(unix.PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0); err != nil {
		return nil, fmt.Errorf("adopt orphans: %w", err)
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
	s := &supervisor{dir: dir, tail: &tail{}, start: make(chan chan error), stop: make(chan request),
		started: make(chan struct{}), over: make(chan struct{})}
	command, err := lookPath(spec)
	if err != nil {
		return nil, err
	}
	s.cmd = &exec.Cmd{Path: command, Args: append([]string{spec.Command}, spec.Args...), Env: spec.Env, Dir: spec.Dir,
		// A process whose supervisor was killed ends too; its number is that
		// of its group, for signals to it and its children.
		SysProcAttr: &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGKILL}}
	if spec.User != "" {
		if s.cmd.SysProcAttr.Credential, err = credential(spec.User); err != nil {
			return nil, err
		}
	}
	out, err := newPump(spec.Stdout, nil)
	if err != nil {
		return nil, err
	}
	errs, err := newPump(spec.Stderr, s.tail)
	if err != nil {
		return nil, err
	}
	s.output = []*pump{out, errs}
	s.cmd.Stdout, s.cmd.Stderr = out.write, errs.write
	raiseLimits()
	own, err := identify(os.Getpid())
	if err != nil {
		return nil, err
	}
	return s, writeFile(dir, "supervisor.json", own)
}

// lookPath resolves the command in the task's own PATH, from its working directory.
func lookPath(spec runtime.Spec) (string, error) {
	if info, err := os.Stat(spec.Dir); err != nil || !info.IsDir() {
		return "", fmt.Errorf("work_dir: %q is no directory", spec.Dir)
	}
	if filepath.Base(spec.Command) != spec.Command {
		path := spec.Command
		if !filepath.IsAbs(path) {
			path = filepath.Join(spec.Dir, path)
		}
		return path, executable(spec.Command, path)
	}
	for _, e := range spec.Env {
		if list, ok := cutName(e, "PATH"); ok {
			for _, dir := range filepath.SplitList(list) {
				path := filepath.Join(dir, spec.Command)
				if filepath.IsAbs(path) && executable(spec.Command, path) == nil {
					return path, nil
				}
			}
			return "", fmt.Errorf("command: %q is not found in the task's PATH %q", spec.Command, list)
		}
	}
	return "", fmt.Errorf("command: %q is a name, and the task has no PATH; allowed is a path", spec.Command)
}

func executable(command, path string) error {
	info, err := os.Stat(path)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return fmt.Errorf("command: %q does not exist", command)
	case err != nil:
		return fmt.Errorf("command: %q: %w", command, err)
	case info.IsDir() || info.Mode()&0o111 == 0:
		return fmt.Errorf("command: %q is not executable", command)
	}
	return nil
}

func credential(name string) (*syscall.Credential, error) {
	u, err := user.Lookup(name)
	if err != nil {
		return nil, fmt.Errorf("user: %q: %w", name, err)
	}
	uid, _ := strconv.ParseUint(u.Uid, 10, 32)
	gid, _ := strconv.ParseUint(u.Gid, 10, 32)
	if int(uid) == os.Geteuid() {
		return nil, nil
	}
	if os.Geteuid() != 0 {
		return nil, fmt.Errorf("user: %q: the Nomad agent must run as root to run a task as another user", name)
	}
	c := &syscall.Credential{Uid: uint32(uid), Gid: uint32(gid)}
	ids, err := u.GroupIds()
	if err != nil {
		return nil, fmt.Errorf("user: groups of %q: %w", name, err)
	}
	for _, id := range ids {
		g, _ := strconv.ParseUint(id, 10, 32)
		c.Groups = append(c.Groups, uint32(g))
	}
	return c, nil
}

// raiseLimits gives what training needs as far as the host allows: open files,
// locked memory for RDMA, and a stack of 64 MiB.
func raiseLimits() {
	for resource, want := range map[int]uint64{unix.RLIMIT_NOFILE: 1 << 20, unix.RLIMIT_MEMLOCK: unix.RLIM_INFINITY, unix.RLIMIT_STACK: 64 << 20} {
		var now unix.Rlimit
		if unix.Getrlimit(resource, &now) != nil || now.Cur >= want {
			continue
		}
		if unix.Setrlimit(resource, &unix.Rlimit{Cur: want, Max: max(want, now.Max)}) != nil {
			unix.Setrlimit(resource, &unix.Rlimit{Cur: min(want, now.Max), Max: now.Max})
		}
	}
}

// serve answers the driver.
func (s *supervisor) serve(l *net.UnixListener) {
	for {
		c, err := l.AcceptUnix()
		if err != nil {
			return
		}
		go func() {
			defer c.Close()
			var r request
			if json.NewDecoder(c).Decode(&r) == nil {
				json.NewEncoder(c).Encode(s.handle(r))
			}
		}()
	}
}

func (s *supervisor) handle(r request) answer {
	switch r.Op {
	case "start":
		done := make(chan error, 1)
		select {
		case s.start <- done:
			if err := <-done; err != nil {
				return answer{Err: err.Error()}
			}
			return answer{PID: s.cmd.Process.Pid}
		case <-s.started:
			return answer{PID: s.cmd.Process.Pid}
		case <-s.over:
			return answer{Err: "it was stopped before it started"}
		}
	case "signal":
		select {
		case <-s.over:
			return answer{Err: os.ErrProcessDone.Error()}
		case <-s.started:
			if err := s.cmd.Process.Signal(r.Signal); err != nil {
				return answer{Err: err.Error()}
			}
			return answer{}
		default:
			return answer{Err: "it has not started"}
		}
	case "stop":
		select {
		case s.stop <- r:
			<-s.over
		case <-s.over:
		}
		return answer{Exit: &s.exit}
	case "wait":
		<-s.over
		return answer{Exit: &s.exit}
	}
	return answer{Err: fmt.Sprintf("op %q; allowed are start, signal, stop, wait", r.Op)}
}

// run waits for the start, watches the process and leaves its exit. It keeps
// one thread: the process's death signal comes when the thread that started it
// ends (PR_SET_PDEATHSIG, prctl(2)).
func (s *supervisor) run() {
	goruntime.LockOSThread()
	select {
	case done := <-s.start:
		err := s.cmd.Start()
		for _, p := range s.output {
			p.write.Close() // the process has its own copy
		}
		if err != nil {
			done <- fmt.Errorf("command: %w", err)
			s.finish(gang.Exit{Err: fmt.Sprintf("could not be started: %v", err)})
			return
		}
		close(s.started)
		done <- nil
	case <-s.stop:
		for _, p := range s.output {
			p.write.Close()
		}
		s.finish(gang.Exit{Signal: int(syscall.SIGKILL)})
		return
	}
	pid := s.cmd.Process.Pid
	if own, err := identify(pid); err == nil {
		writeFile(s.dir, "process.json", own)
	}
	ended := make(chan error, 1)
	go func() { ended <- s.cmd.Wait() }()
	var kill <-chan time.Time
	reap := time.NewTicker(5 * time.Second)
	defer reap.Stop()
	for {
		select {
		case <-reap.C:
			reapOrphans(pid)
		case r := <-s.stop:
			if kill == nil {
				syscall.Kill(-pid, r.Signal)
				kill = time.After(r.Grace)
			}
		case <-kill:
			syscall.Kill(-pid, syscall.SIGKILL)
			kill = time.After(time.Hour)
		case <-ended:
			killDescendants(os.Getpid())
			s.finish(exitOf(s.cmd.ProcessState))
			return
		}
	}
}

func exitOf(state *os.ProcessState) gang.Exit {
	status, ok := state.Sys().(syscall.WaitStatus)
	if !ok {
		return gang.Exit{Err: "its exit is unknown"}
	}
	if status.Signaled() {
		return gang.Exit{Signal: int(status.Signal())}
	}
	return gang.Exit{Code: status.ExitStatus()}
}

// finish passes the last output on, then leaves the exit where the driver finds it.
func (s *supervisor) finish(x gang.Exit) {
	ctx, cancel := context.WithTimeout(context.Background(), 3*time.Second)
	defer cancel()
	for _, p := range s.output {
		p.drain(ctx)
	}
	x.Tail = s.tail.lines()
	s.exit = x
	if err := writeFile(s.dir, "exit.json", x); err != nil {
		fmt.Fprintln(os.Stderr, "supervisor:", err)
	}
	close(s.over)
	time.Sleep(200 * time.Millisecond) // answers that are on their way; the file has it too
}
