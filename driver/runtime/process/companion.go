// SPDX-License-Identifier: MPL-2.0

package process

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	goruntime "runtime"
	"syscall"

	"golang.org/x/sys/unix"

	"github.com/nomad-gpu/nomad-gpu/driver/gang"
	"github.com/nomad-gpu/nomad-gpu/driver/runtime"
)

// A companion runs one command beside the processes: the program again, as the
// supervisor's child, with the argument "accompany". It adopts the command's
// orphans, so that it can end the command's tree and no more. It answers the
// driver on the connection that the request came on, whose end is the wish to
// end the command.
//
//	driver ── connection ──▶ companion ──▶ command ──▶ children
//	       ◀── exit ────────     │
//	supervisor ── starts, kills ─┘

var (
	errNotStarted = errors.New("it has not started")
	errStopping   = errors.New("it is being stopped")
)

// beside is what a companion runs.
type beside struct {
	// Spec's Command and Args are the command's.
	Spec runtime.Spec `json:"spec"`
	// Cgroup is the processes' own by its whole path; empty: they have none.
	Cgroup string `json:"cgroup,omitempty"`
	TTY    bool   `json:"tty,omitempty"`
}

// execution is a companion to be started.
type execution struct {
	cmd  *exec.Cmd
	done chan error
}

// execute has a companion started for the request and leaves the connection to it.
func (s *supervisor) execute(r request, c *net.UnixConn, files []*os.File) error {
	if err := s.running(); err != nil {
		return err
	}
	want := mostFiles
	if r.TTY {
		want = 1
	}
	if len(files) != want || len(r.Args) == 0 {
		return fmt.Errorf("exec: %d arguments, %d files; allowed are a command and %d files", len(r.Args), len(files), want)
	}
	spec := s.spec
	spec.Command, spec.Args, spec.Ranks = r.Args[0], r.Args[1:], nil
	b := beside{Spec: spec, TTY: r.TTY}
	if s.group != nil {
		b.Cgroup = s.groupPath
	}
	// The environment may hold secrets: it goes through a pipe.
	data, err := json.Marshal(b)
	if err != nil {
		return err
	}
	conn, err := c.File()
	if err != nil {
		return err
	}
	defer conn.Close()
	// This very program, also where its file was replaced meanwhile.
	e := execution{cmd: &exec.Cmd{Path: "/proc/self/exe", Args: []string{os.Args[0], accompanyArgument}, Env: []string{},
		Stdin: bytes.NewReader(data), Stderr: os.Stderr, ExtraFiles: append([]*os.File{conn}, files...),
		SysProcAttr: &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}}, done: make(chan error, 1)}
	select {
	case s.executions <- e:
		return <-e.done
	case <-s.over:
		return os.ErrProcessDone
	}
}

// companions are those of a supervisor.
type companions struct {
	running map[int]bool // by process number
	ended   chan int
}

// start starts one, and tells on ended when it has ended, unless that is over before.
func (c *companions) start(cmd *exec.Cmd, over <-chan struct{}) error {
	if err := cmd.Start(); err != nil {
		return err
	}
	c.running[cmd.Process.Pid] = true
	go func() {
		cmd.Wait() // its exit says nothing
		select {
		case c.ended <- cmd.Process.Pid:
		case <-over:
		}
	}()
	return nil
}

// accompany is a companion's whole life.
func accompany() error {
	goruntime.LockOSThread() // as in supervise
	if err := adoptOrphans(); err != nil {
		return err
	}
	unix.CloseOnExec(3)
	own := os.NewFile(3, "connection")
	general, err := net.FileConn(own)
	own.Close()
	if err != nil {
		return err
	}
	conn, ok := general.(*net.UnixConn)
	if !ok {
		return fmt.Errorf("a connection of kind %T; allowed is a Unix socket", general)
	}
	a := answer{}
	if x, err := runBeside(conn); err != nil {
		a.Err = err.Error()
	} else {
		a.Exit = &x
	}
	return errors.Join(json.NewEncoder(conn).Encode(a), conn.Close())
}

// runBeside runs the command until it ends or the connection does. Then nothing
// of it is left.
func runBeside(conn *net.UnixConn) (gang.Exit, error) {
	var b beside
	if err := json.NewDecoder(os.Stdin).Decode(&b); err != nil {
		return gang.Exit{}, err
	}
	workers, err := newWorkers(b.Spec)
	if err != nil {
		return gang.Exit{}, err
	}
	w := workers[0]
	files, err := w.attach(b.TTY)
	if err != nil {
		return gang.Exit{}, err
	}
	begin := w.start
	if b.Cgroup != "" {
		g, err := loadGroup(b.Cgroup)
		if err != nil {
			return gang.Exit{}, fmt.Errorf("cgroup %s: %w", b.Cgroup, err)
		}
		begin = func() error { return g.start(workers, w.start) }
	}
	err = begin()
	for _, f := range files {
		f.Close() // the end of the output is the end of the command's own copies
	}
	if err != nil {
		killDescendants(os.Getpid())
		return gang.Exit{}, fmt.Errorf("command: %w", err)
	}
	ended, hungUp := make(chan struct{}), make(chan struct{})
	go func() {
		w.cmd.Wait()
		close(ended)
	}()
	go func() {
		io.Copy(io.Discard, conn)
		close(hungUp)
	}()
	select {
	case <-ended:
		killDescendants(os.Getpid())
		return w.exit(), nil
	case <-hungUp:
		killDescendants(os.Getpid())
		return gang.Exit{Signal: int(syscall.SIGKILL)}, nil
	}
}

// attach gives the command the files that were passed on to this process, from
// number 4 on.
func (w *worker) attach(tty bool) ([]*os.File, error) {
	n := mostFiles
	if tty {
		n = 1
	}
	var files []*os.File
	for fd := 4; fd < 4+n; fd++ {
		unix.CloseOnExec(fd)
		files = append(files, os.NewFile(uintptr(fd), "stream"))
	}
	// A session of its own: no terminal but its own, and the number of its group.
	attr := w.cmd.SysProcAttr
	attr.Setpgid, attr.Setsid = false, true
	if !tty {
		w.cmd.Stdin, w.cmd.Stdout, w.cmd.Stderr = files[0], files[1], files[2]
		return files, nil
	}
	attr.Setctty = true // its stdin
	w.cmd.Stdin, w.cmd.Stdout, w.cmd.Stderr = files[0], files[0], files[0]
	if attr.Credential != nil {
		// As grantpt(3) would: programs open their terminal by its name.
		if err := files[0].Chown(int(attr.Credential.Uid), -1); err != nil {
			return nil, fmt.Errorf("give the terminal to the user: %w", err)
		}
	}
	if !hasName(w.cmd.Env, "TERM") {
		w.cmd.Env = append(w.cmd.Env, "TERM=xterm")
	}
	return files, nil
}
