// SPDX-License-Identifier: MPL-2.0

package docker

import (
	"context"
	"fmt"
	"io"
	"syscall"
	"time"

	"github.com/moby/moby/api/pkg/stdcopy"
	"github.com/moby/moby/client"

	"github.com/nomad-gpu/nomad-gpu/driver/runtime"
	"github.com/nomad-gpu/nomad-gpu/driver/runtime/process"
)

// Exec runs a command in the container, as its user.
func (p *generation) Exec(ctx context.Context, c runtime.Command) (int, error) {
	cli := p.engine.client
	made, err := cli.ExecCreate(ctx, p.about.Name, client.ExecCreateOptions{Cmd: c.Args, TTY: c.TTY,
		AttachStdin: c.Stdin != nil, AttachStdout: true, AttachStderr: !c.TTY})
	if err != nil {
		return 0, fmt.Errorf("run %q in container %s: %w", c.Args, p.about.Name, err)
	}
	conn, err := cli.ExecAttach(ctx, made.ID, client.ExecAttachOptions{TTY: c.TTY})
	if err != nil {
		return 0, fmt.Errorf("run %q in container %s: %w", c.Args, p.about.Name, err)
	}
	defer conn.Close()
	// The engine ends no command whose client goes: its processes are ended here.
	over := context.AfterFunc(ctx, func() {
		p.endExec(made.ID)
		conn.Close()
	})
	defer over()
	within, cancel := context.WithCancel(ctx)
	defer cancel()
	if c.TTY && c.Sizes != nil {
		go p.resize(within, made.ID, c.Sizes)
	}
	if c.Stdin != nil {
		go func() {
			_, _ = io.Copy(conn.Conn, c.Stdin)
			_ = conn.CloseWrite()
		}()
	}
	stdout, stderr := orDiscard(c.Stdout), orDiscard(c.Stderr)
	if c.TTY {
		_, err = io.Copy(stdout, conn.Reader)
	} else {
		_, err = stdcopy.StdCopy(stdout, stderr, conn.Reader)
	}
	if ctx.Err() != nil {
		return 0, ctx.Err()
	}
	if err != nil {
		return 0, fmt.Errorf("output of %q: %w", c.Args, err)
	}
	for { // the output may end before the command does
		r, err := cli.ExecInspect(ctx, made.ID, client.ExecInspectOptions{})
		if err != nil {
			return 0, err
		}
		if !r.Running {
			return r.ExitCode, nil
		}
		select {
		case <-ctx.Done():
			return 0, ctx.Err()
		case <-time.After(50 * time.Millisecond):
		}
	}
}

func orDiscard(w io.Writer) io.Writer {
	if w == nil {
		return io.Discard
	}
	return w
}

func (p *generation) resize(ctx context.Context, id string, sizes <-chan runtime.Size) {
	for {
		select {
		case <-ctx.Done():
			return
		case s, ok := <-sizes:
			if !ok {
				return
			}
			if s.Rows > 0 && s.Columns > 0 {
				_, _ = p.engine.client.ExecResize(ctx, id, client.ExecResizeOptions{Height: uint(s.Rows), Width: uint(s.Columns)})
			}
		}
	}
}

// endExec kills a command and its children.
func (p *generation) endExec(id string) {
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	defer cancel()
	r, err := p.engine.client.ExecInspect(ctx, id, client.ExecInspectOptions{})
	if err != nil || !r.Running || r.PID == 0 {
		return
	}
	for _, pid := range append([]int{r.PID}, process.Descendants(r.PID)...) {
		_ = syscall.Kill(pid, syscall.SIGKILL) // it has ended meanwhile
	}
}
