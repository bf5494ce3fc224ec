// SPDX-License-Identifier: MPL-2.0

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
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"time"

	gopsutil "github.com/shirou/gopsutil/v4/process"

	"github.com/nomad-gpu/nomad-gpu/driver/gang"
	"github.com/nomad-gpu/nomad-gpu/driver/runtime"
)

// Runtime runs processes of the host.
type Runtime struct {
	// Program is one whose main function calls Main; empty: this one.
	Program string
	// Marker is a NAME=value that the environment of the task's processes
	// holds and no other's: what a killed supervisor leaves is found by it.
	Marker string
}

var _ runtime.Runtime = Runtime{}

// Create starts a supervisor that has checked the command and waits.
func (r Runtime) Create(ctx context.Context, dir string, s runtime.Spec) (runtime.Process, error) {
	program := r.Program
	if program == "" {
		var err error
		if program, err = os.Executable(); err != nil {
			return nil, fmt.Errorf("find the driver's own program: %w", err)
		}
	}
	if err := os.RemoveAll(dir); err != nil {
		return nil, err
	}
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return nil, err
	}
	if err := runtime.WriteFile(dir, "spec.json", s); err != nil {
		return nil, err
	}
	ready, tell, err := os.Pipe()
	if err != nil {
		return nil, err
	}
	defer ready.Close()
	log, err := os.OpenFile(filepath.Join(dir, "supervisor.log"), os.O_CREATE|os.O_WRONLY|os.O_APPEND, 0o600)
	if err != nil {
		tell.Close()
		return nil, err
	}
	cmd := exec.Command(program, superviseArgument, dir)
	cmd.Stdout, cmd.Stderr = log, log
	cmd.ExtraFiles = []*os.File{tell}
	cmd.Env = []string{"PATH=" + os.Getenv("PATH")}
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	err = cmd.Start()
	tell.Close()
	log.Close()
	if err != nil {
		return nil, fmt.Errorf("start the supervisor: %w", err)
	}
	reaped := make(chan struct{})
	go func() {
		cmd.Wait() // its exit says nothing
		close(reaped)
	}()
	stop := context.AfterFunc(ctx, func() { ready.SetReadDeadline(time.Now()) })
	defer stop()
	var a answer
	if err := json.NewDecoder(ready).Decode(&a); err != nil {
		cmd.Process.Kill()
		<-reaped
		return nil, fmt.Errorf("start the supervisor: %w", errors.Join(ctx.Err(), err, dropLeftGroup(dir)))
	}
	if a.Err != "" {
		return nil, errors.New(a.Err)
	}
	if s.Warn != nil && len(a.Warnings) > 0 {
		s.Warn(strings.Join(a.Warnings, "; ")) // Nomad keeps few events of a task
	}
	return r.Attach(ctx, dir)
}

// Attach finds the supervisor of a former life, or the exit that it left.
func (r Runtime) Attach(_ context.Context, dir string) (runtime.Process, error) {
	p := &process{dir: dir, marker: r.Marker}
	if err := runtime.ReadFile(dir, "supervisor.json", &p.supervisor); err != nil {
		return nil, fmt.Errorf("find the supervisor: %w", err)
	}
	return p, nil
}

type process struct {
	dir        string
	marker     string
	supervisor identity
	sweep      sync.Once
}

// ask sends one request; it waits as long as ctx allows.
func (p *process) ask(ctx context.Context, r request) (answer, error) {
	var a answer
	path, release, err := socketPath(p.dir)
	if err != nil {
		return a, err
	}
	defer release()
	c, err := new(net.Dialer).DialContext(ctx, "unix", path)
	if err != nil {
		return a, err
	}
	defer c.Close()
	stop := context.AfterFunc(ctx, func() { c.SetDeadline(time.Now()) })
	defer stop()
	if err := json.NewEncoder(c).Encode(r); err != nil {
		return a, err
	}
	if err := json.NewDecoder(c).Decode(&a); err != nil {
		return a, errors.Join(ctx.Err(), err)
	}
	if a.Err != "" {
		return a, errors.New(a.Err)
	}
	return a, nil
}

func (p *process) Start(ctx context.Context) error {
	if _, err := p.ask(ctx, request{Op: "start"}); err != nil {
		return fmt.Errorf("start: %w", err)
	}
	return nil
}

func (p *process) Signal(sig syscall.Signal) error {
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	defer cancel()
	if _, err := p.ask(ctx, request{Op: "signal", Signal: sig}); err != nil {
		return fmt.Errorf("signal %d: %w", sig, err)
	}
	return nil
}

func (p *process) Stop(ctx context.Context, sig syscall.Signal, grace time.Duration) error {
	if _, err := p.ask(ctx, request{Op: "stop", Signal: sig, Grace: grace}); err == nil {
		return nil
	}
	// The supervisor has ended, or was killed: its exit says which.
	_, err := p.Wait(ctx)
	return err
}

func (p *process) Wait(ctx context.Context) (gang.Exit, error) {
	for {
		if a, err := p.ask(ctx, request{Op: "wait"}); err == nil && a.Exit != nil {
			return *a.Exit, nil
		}
		if ctx.Err() != nil {
			return gang.Exit{}, ctx.Err()
		}
		alive := p.supervisor.alive() // before the file: it is written before the end
		var x gang.Exit
		err := runtime.ReadFile(p.dir, "exit.json", &x)
		if err == nil {
			return x, nil
		}
		if !errors.Is(err, fs.ErrNotExist) {
			return x, err
		}
		if !alive {
			return p.orphaned(), nil
		}
		select {
		case <-ctx.Done():
		case <-time.After(100 * time.Millisecond):
		}
	}
}

// orphaned ends what a killed supervisor leaves.
func (p *process) orphaned() gang.Exit {
	var left error
	p.sweep.Do(func() {
		for _, own := range p.processes() {
			syscall.Kill(-own.PID, syscall.SIGKILL)
		}
		if p.marker != "" {
			killMarked(p.marker)
		}
		left = dropLeftGroup(p.dir)
	})
	x := gang.Exit{Err: "lost its supervisor, which was killed"}
	if left != nil {
		x.Err += ": " + left.Error()
	}
	return x
}

// dropLeftGroup takes away the cgroup that a killed supervisor left, with what
// is in it; none may be there.
func dropLeftGroup(dir string) error {
	var path string
	if runtime.ReadFile(dir, cgroupFile, &path) != nil {
		return nil
	}
	g, err := loadGroup(path)
	if err != nil {
		return nil
	}
	if err := removeGroup(g); err != nil {
		return fmt.Errorf("remove cgroup %s: %w", path, err)
	}
	return nil
}

func (p *process) PID() int {
	if all := p.processes(); len(all) > 0 {
		return all[0].PID
	}
	return 0
}

// processes are those started, in rank order; none before the start.
func (p *process) processes() []identity {
	var all []identity
	if runtime.ReadFile(p.dir, processesFile, &all) != nil {
		return nil
	}
	return all
}

func (p *process) Usage() (runtime.Usage, error) {
	var u runtime.Usage
	for _, s := range descendants(p.supervisor.PID) {
		one, err := gopsutil.NewProcess(int32(s.pid))
		if err != nil {
			continue // it ended meanwhile
		}
		times, err := one.Times()
		if err != nil {
			continue
		}
		memory, err := one.MemoryInfo()
		if err != nil {
			continue
		}
		u.User += time.Duration(times.User * float64(time.Second))
		u.System += time.Duration(times.System * float64(time.Second))
		u.RSS += memory.RSS
		u.PIDs = append(u.PIDs, s.pid)
	}
	return u, nil
}
