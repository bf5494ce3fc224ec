// SPDX-License-Identifier: MPL-2.0

package docker

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strconv"
	"sync"
	"syscall"
	"time"

	cerrdefs "github.com/containerd/errdefs"
	"github.com/moby/moby/api/types/container"
	"github.com/moby/moby/client"

	"github.com/nomad-gpu/nomad-gpu/driver/gang"
	"github.com/nomad-gpu/nomad-gpu/driver/runtime"
	"github.com/nomad-gpu/nomad-gpu/driver/runtime/process"
)

// Files in a generation's directory.
const (
	aboutFile = "container.json"
	endedFile = "ended.json"
	pidFile   = "pid.json"
)

// about is what another life of the driver must know of a container.
type about struct {
	Name   string `json:"name"`
	Stdout string `json:"stdout"`
	Stderr string `json:"stderr"`
	// Engine is for the follower of the logs.
	Engine Config `json:"engine"`
}

const (
	// lastWords is how long the end of the output is waited for.
	lastWords = 3 * time.Second
	// askAgain is how long an engine that does not answer is left alone.
	askAgain = time.Second
	// maxReport is the most that is read of what the container says of its end.
	maxReport = 64 << 10
)

// generation is one container.
type generation struct {
	engine  *Engine
	dir     string
	program string // the driver's, which follows the logs
	about   about

	mu  sync.Mutex // of the follower
	end sync.Mutex // of the end
}

var _ runtime.Process = (*generation)(nil)
var _ runtime.Executor = (*generation)(nil)

// Attach finds the container of a former life, or the exit that was kept.
func (r Runtime) Attach(_ context.Context, dir string) (runtime.Process, error) {
	program, err := r.program()
	if err != nil {
		return nil, err
	}
	p := &generation{engine: r.Engine, dir: dir, program: program}
	if err := runtime.ReadFile(dir, aboutFile, &p.about); err != nil {
		return nil, fmt.Errorf("find the container: %w", err)
	}
	return p, nil
}

func (p *generation) Start(ctx context.Context) error {
	if _, err := p.engine.client.ContainerStart(ctx, p.about.Name, client.ContainerStartOptions{}); err != nil {
		return fmt.Errorf("start container %s: %w", p.about.Name, err)
	}
	pid := -1 // unknown: it has ended already
	if s, err := p.inspect(ctx); err == nil && s.Pid != 0 {
		pid = s.Pid
	}
	if err := runtime.WriteFile(p.dir, pidFile, pid); err != nil {
		return err
	}
	return p.follow()
}

// Signal reaches the user's process with its children: the container's first
// process passes it on to all of them.
func (p *generation) Signal(sig syscall.Signal) error {
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	defer cancel()
	return p.signal(ctx, sig)
}

func (p *generation) signal(ctx context.Context, sig syscall.Signal) error {
	_, err := p.engine.client.ContainerKill(ctx, p.about.Name, client.ContainerKillOptions{Signal: strconv.Itoa(int(sig))})
	if err != nil {
		return fmt.Errorf("signal %d to container %s: %w", sig, p.about.Name, err)
	}
	return nil
}

// Stop does not use the engine's own stop, whose connection must last as long
// as the grace.
func (p *generation) Stop(ctx context.Context, sig syscall.Signal, grace time.Duration) error {
	if _, ended := p.ended(); ended {
		return nil
	}
	state, err := p.inspect(ctx)
	if err != nil && !cerrdefs.IsNotFound(err) {
		return err
	}
	if state != nil && state.Running {
		_ = p.signal(ctx, sig) // it has ended meanwhile, or the kill below shows what is wrong
		within, cancel := context.WithTimeout(ctx, grace)
		_, err := p.Wait(within)
		cancel()
		if err == nil {
			return nil
		}
		if ctx.Err() != nil {
			return ctx.Err()
		}
		if err := p.signal(ctx, syscall.SIGKILL); err != nil {
			// It may have ended meanwhile, which each engine says in its own way.
			if state, _ := p.inspect(ctx); state != nil && state.Running {
				return err
			}
		}
		_, err = p.Wait(ctx)
		return err
	}
	_, err = p.finish(ctx)
	return err
}

// Wait waits as long as the engine takes, also where it is away meanwhile.
func (p *generation) Wait(ctx context.Context) (gang.Exit, error) {
	for {
		if x, ended := p.ended(); ended {
			return x, nil
		}
		state, err := p.inspect(ctx)
		switch {
		case ctx.Err() != nil:
			return gang.Exit{}, ctx.Err()
		case cerrdefs.IsNotFound(err):
			return p.finish(ctx)
		case err != nil: // the engine is away; containers may outlive that
		case state.Running:
			if p.follow() != nil {
				break // a training is no worse for it: the output waits, and it is tried again
			}
			w := p.engine.client.ContainerWait(ctx, p.about.Name, client.ContainerWaitOptions{Condition: container.WaitConditionNotRunning})
			select {
			case <-w.Result:
				continue
			case <-w.Error:
			}
		case state.Status != container.StateCreated:
			return p.finish(ctx)
		}
		select {
		case <-ctx.Done():
			return gang.Exit{}, ctx.Err()
		case <-time.After(askAgain):
		}
	}
}

// finish keeps how the container ended and removes it. It does not run any more.
func (p *generation) finish(ctx context.Context) (gang.Exit, error) {
	p.end.Lock()
	defer p.end.Unlock()
	if x, ended := p.ended(); ended {
		return x, nil
	}
	state, err := p.inspect(ctx)
	if err != nil && !cerrdefs.IsNotFound(err) {
		return gang.Exit{}, err
	}
	x := exitOf(state, p.report())
	if state != nil && state.Status != container.StateCreated {
		_ = p.follow() // without it the last words are lost, and the exit is not
		drained, cancel := context.WithTimeout(ctx, lastWords)
		p.drain(drained)
		cancel()
	}
	if err := runtime.WriteFile(p.dir, endedFile, x); err != nil {
		return x, err
	}
	return x, p.engine.remove(context.WithoutCancel(ctx), p.about.Name)
}

// exitOf joins what the engine and the container's first process say. The
// latter knows more, where it lived to tell; its word is the user's.
func exitOf(state *container.State, report *gang.Exit) gang.Exit {
	switch {
	case state == nil:
		return gang.Exit{Err: "its container was removed by somebody else"}
	case state.Status == container.StateCreated:
		return gang.Exit{Signal: int(syscall.SIGKILL)} // stopped before it began
	}
	var x gang.Exit
	switch {
	case report != nil:
		x = gang.Exit{Code: report.Code, Signal: report.Signal, OOM: report.OOM, Err: report.Err, Tail: report.Tail}
	case state.ExitCode > 128 && state.ExitCode <= 128+64:
		x.Signal = state.ExitCode - 128
	default:
		x.Code = state.ExitCode
		x.Err = state.Error
	}
	x.OOM = (x.OOM || state.OOMKilled) && !x.OK()
	return x
}

// report is what the container's first process left; nil: nothing that can be
// read. The user's code may write there too: the file is one of the directory,
// plain and small, or it is not taken.
func (p *generation) report() *gang.Exit {
	root, err := os.OpenRoot(filepath.Join(p.dir, taskDir))
	if err != nil {
		return nil
	}
	defer root.Close()
	f, err := root.OpenFile(process.InitExit, os.O_RDONLY|syscall.O_NONBLOCK, 0)
	if err != nil {
		return nil
	}
	defer f.Close()
	if info, err := f.Stat(); err != nil || !info.Mode().IsRegular() || info.Size() > maxReport {
		return nil
	}
	data, err := io.ReadAll(io.LimitReader(f, maxReport))
	var x gang.Exit
	if err != nil || json.Unmarshal(data, &x) != nil || x.Signal < 0 || x.Signal > 64 || x.Code < 0 || x.Code > 255 {
		return nil
	}
	return &x
}

// ended is the exit that was kept.
func (p *generation) ended() (gang.Exit, bool) {
	var x gang.Exit
	err := runtime.ReadFile(p.dir, endedFile, &x)
	return x, err == nil
}

func (p *generation) inspect(ctx context.Context) (*container.State, error) {
	r, err := p.engine.client.ContainerInspect(ctx, p.about.Name, client.ContainerInspectOptions{})
	if err != nil {
		return nil, err
	}
	if r.Container.State == nil {
		return nil, errors.New("the engine tells no state of container " + p.about.Name)
	}
	return r.Container.State, nil
}

// PID is that of the container's first process, also once it has ended.
func (p *generation) PID() int {
	var pid int
	if runtime.ReadFile(p.dir, pidFile, &pid) != nil {
		return 0
	}
	return pid
}

// Usage costs two calls of the engine and one reading of /proc.
func (p *generation) Usage() (runtime.Usage, error) {
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	defer cancel()
	r, err := p.engine.client.ContainerStats(ctx, p.about.Name, client.ContainerStatsOptions{})
	if err != nil {
		return runtime.Usage{}, err
	}
	defer r.Body.Close()
	var s container.StatsResponse
	if err := json.NewDecoder(io.LimitReader(r.Body, 1<<20)).Decode(&s); err != nil {
		return runtime.Usage{}, err
	}
	u := runtime.Usage{User: time.Duration(s.CPUStats.CPUUsage.UsageInUsermode), System: time.Duration(s.CPUStats.CPUUsage.UsageInKernelmode)}
	if rest := time.Duration(s.CPUStats.CPUUsage.TotalUsage) - u.User - u.System; rest > 0 && u.User+u.System == 0 {
		u.User = rest // an engine that does not tell them apart
	}
	// What can be given back at once is not what the task needs: "rss" is of
	// cgroup version 1, "anon" of version 2.
	u.RSS = max(s.MemoryStats.Stats["rss"], s.MemoryStats.Stats["anon"])
	if u.RSS == 0 {
		u.RSS = s.MemoryStats.Usage
	}
	if state, err := p.inspect(ctx); err == nil && state.Running {
		u.PIDs = process.Descendants(state.Pid)
	}
	return u, nil
}
