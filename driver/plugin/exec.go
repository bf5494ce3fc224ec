// SPDX-License-Identifier: MPL-2.0

package plugin

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/hashicorp/nomad/plugins/drivers"

	"github.com/nomad-gpu/nomad-gpu/driver/runtime"
)

var _ drivers.ExecTaskStreamingDriver = (*Driver)(nil)

// keptOutput is how much of each stream of a script check is kept, in bytes: its end.
const keptOutput = 64 << 10

var errNotFormed = errors.New("the gang has not formed, no process runs yet")

// ExecTask runs a command beside the task's process to its end, such as a
// script check. Past the timeout (0: none) the command is killed.
func (d *Driver) ExecTask(id string, cmd []string, timeout time.Duration) (*drivers.ExecTaskResult, error) {
	ctx := d.ctx
	if timeout > 0 {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, timeout)
		defer cancel()
	}
	var stdout, stderr end
	code, err := d.execute(ctx, id, runtime.Command{Args: cmd, Stdout: &stdout, Stderr: &stderr})
	if errors.Is(err, context.DeadlineExceeded) {
		return nil, fmt.Errorf("exec: %q did not end within %s: %w", cmd, timeout, err)
	}
	if err != nil {
		return nil, err
	}
	return &drivers.ExecTaskResult{Stdout: stdout.kept.Bytes(), Stderr: stderr.kept.Bytes(), ExitResult: &drivers.ExitResult{ExitCode: code}}, nil
}

// ExecTaskStreaming runs a command for `nomad alloc exec`, until it or ctx ends.
func (d *Driver) ExecTaskStreaming(ctx context.Context, id string, o *drivers.ExecOptions) (*drivers.ExitResult, error) {
	// Nomad does not close the input when it sends no more, and whoever reads
	// it would wait for ever. It must be open until then: a key that is pressed
	// while the command ends is no error.
	context.AfterFunc(ctx, func() { o.Stdin.Close() })
	ended := make(chan struct{})
	defer close(ended)
	code, err := d.execute(ctx, id, runtime.Command{Args: o.Command, TTY: o.Tty, Stdin: o.Stdin, Stdout: o.Stdout, Stderr: o.Stderr,
		Sizes: sizes(o.ResizeCh, ended)})
	if err != nil {
		return nil, err
	}
	return &drivers.ExitResult{ExitCode: code}, nil
}

func (d *Driver) execute(ctx context.Context, id string, c runtime.Command) (int, error) {
	t, ok := d.tasks.get(id)
	if !ok {
		return 0, drivers.ErrTaskNotFound
	}
	p := t.runner.current()
	if p == nil {
		return 0, fmt.Errorf("exec: %w", errNotFormed)
	}
	e, ok := p.(runtime.Executor)
	if !ok {
		return 0, errors.New("exec: this task's runtime runs no further commands")
	}
	return e.Exec(ctx, c)
}

// sizes are a terminal's in this project's words, until ended is closed.
func sizes(in <-chan drivers.TerminalSize, ended <-chan struct{}) <-chan runtime.Size {
	out := make(chan runtime.Size)
	go func() {
		for {
			select {
			case <-ended:
				return
			case s, ok := <-in:
				if !ok {
					return
				}
				select {
				case <-ended:
					return
				case out <- runtime.Size{Rows: s.Height, Columns: s.Width}:
				}
			}
		}
	}()
	return out
}

// end keeps the last keptOutput bytes that are written to it.
type end struct{ kept bytes.Buffer }

func (e *end) Write(b []byte) (int, error) {
	n, _ := e.kept.Write(b)
	if over := e.kept.Len() - keptOutput; over > 0 {
		e.kept.Next(over)
	}
	return n, nil
}
