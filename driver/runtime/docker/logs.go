// SPDX-License-Identifier: MPL-2.0

package docker

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"syscall"
	"time"

	cerrdefs "github.com/containerd/errdefs"
	"github.com/moby/moby/api/pkg/stdcopy"
	"github.com/moby/moby/api/types/container"
	"github.com/moby/moby/client"
	"golang.org/x/sys/unix"

	"github.com/nomad-gpu/nomad-gpu/driver/runtime"
)

// followArgument makes the driver's program the follower of one container's
// logs. Like the supervisor of a process of the host it outlives the driver:
// Nomad takes the end of a pipe's last writer for the end of the task's output.
const followArgument = "logs"

// Main does the follower's work where the program's arguments ask for it, and
// reports whether they did.
func Main(args []string) (asked bool, err error) {
	if len(args) == 3 && args[1] == followArgument {
		return true, follow(args[2], os.NewFile(3, "ready"))
	}
	return false, nil
}

// lockFile is locked by the follower while it lives, and holds its number.
const lockFile = "logs.lock"

// follow is the follower's whole life: it passes the output of the container
// of dir on to Nomad's named pipes, from where an earlier follower left off,
// until the container has ended. It closes ready once it holds the lock.
func follow(dir string, ready io.Closer) error {
	lock, err := os.OpenFile(filepath.Join(dir, lockFile), os.O_CREATE|os.O_RDWR, 0o600)
	if err != nil {
		return err
	}
	defer lock.Close()
	if err := unix.Flock(int(lock.Fd()), unix.LOCK_EX|unix.LOCK_NB); err != nil {
		return fmt.Errorf("another follower is there: %w", err)
	}
	if err := errors.Join(lock.Truncate(0), writePID(lock)); err != nil {
		return err
	}
	ready.Close()
	var a about
	if err := runtime.ReadFile(dir, aboutFile, &a); err != nil {
		return err
	}
	e, err := New(a.Engine)
	if err != nil {
		return err
	}
	ctx := context.Background()
	out := openOutput(ctx, a.Stdout, filepath.Join(dir, "stdout.at"))
	errs := openOutput(ctx, a.Stderr, filepath.Join(dir, "stderr.at"))
	for {
		err := e.passLogs(ctx, a.Name, out, errs)
		if err == nil || cerrdefs.IsNotFound(err) {
			return nil
		}
		fmt.Fprintln(os.Stderr, err)
		time.Sleep(askAgain / 4) // the engine is away
	}
}

func writePID(f *os.File) error {
	_, err := fmt.Fprintln(f, os.Getpid())
	return err
}

// follow makes sure that the container's follower lives.
func (p *generation) follow() error {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.follower() != 0 {
		return nil
	}
	ready, tell, err := os.Pipe()
	if err != nil {
		return err
	}
	defer ready.Close()
	defer tell.Close()
	log, err := os.OpenFile(filepath.Join(p.dir, "logs.log"), os.O_CREATE|os.O_WRONLY|os.O_APPEND, 0o600)
	if err != nil {
		return err
	}
	defer log.Close()
	cmd := exec.Command(p.program, followArgument, p.dir)
	cmd.Stdout, cmd.Stderr, cmd.ExtraFiles = log, log, []*os.File{tell}
	cmd.Env = []string{"PATH=" + os.Getenv("PATH")}
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	if err := cmd.Start(); err != nil {
		return fmt.Errorf("follow the logs: %w", err)
	}
	go cmd.Wait() // its exit says nothing
	tell.Close()
	_ = ready.SetReadDeadline(time.Now().Add(10 * time.Second))
	_, _ = ready.Read(make([]byte, 1)) // the end of the file, or of the waiting
	return nil
}

// follower is the number of the living follower's process, 0: there is none.
func (p *generation) follower() int {
	f, err := os.Open(filepath.Join(p.dir, lockFile))
	if err != nil {
		return 0
	}
	defer f.Close()
	if unix.Flock(int(f.Fd()), unix.LOCK_SH|unix.LOCK_NB) == nil {
		return 0
	}
	var pid int
	_, _ = fmt.Fscan(f, &pid)
	return max(pid, 1)
}

// drain waits until the follower has passed all on; when ctx ends it is ended.
func (p *generation) drain(ctx context.Context) {
	for {
		pid := p.follower()
		if pid == 0 {
			return
		}
		select {
		case <-ctx.Done():
			if pid > 1 {
				_ = syscall.Kill(pid, syscall.SIGKILL) // nobody reads the pipes
			}
			return
		case <-time.After(20 * time.Millisecond):
		}
	}
}

// passLogs returns nil when the container has ended and all is passed on.
func (e *Engine) passLogs(ctx context.Context, name string, out, errs *output) error {
	since := out.at
	if errs.at.Before(since) {
		since = errs.at
	}
	o := client.ContainerLogsOptions{ShowStdout: true, ShowStderr: true, Follow: true, Timestamps: true}
	if !since.IsZero() {
		o.Since = since.Format(time.RFC3339Nano)
	}
	out.skip, errs.skip = out.count, errs.count
	stream, err := e.client.ContainerLogs(ctx, name, o)
	if err != nil {
		return err
	}
	defer stream.Close()
	// It calls Write once for each message of the engine's.
	if _, err = stdcopy.StdCopy(out, errs, stream); err != nil {
		return err
	}
	r, err := e.client.ContainerInspect(ctx, name, client.ContainerInspectOptions{})
	if err != nil {
		return err
	}
	if r.Container.State != nil && (r.Container.State.Running || r.Container.State.Status == container.StateCreated) {
		return errors.New("the stream of the logs ended before the container")
	}
	return nil
}

// output is one stream on its way to a named pipe. The place up to which it is
// written is the time of the last message, and how many of that time there
// were; the engine's times of one stream never go back.
type output struct {
	path string
	pipe *os.File
	mark *os.File // holds the place; nil: it cannot be kept
	ctx  context.Context

	at    time.Time
	count int
	skip  int // messages of the time at that are written already
}

func openOutput(ctx context.Context, path, mark string) *output {
	o := &output{path: path, ctx: ctx}
	if data, err := os.ReadFile(mark); err == nil {
		var text string
		if _, err := fmt.Sscanf(string(data), "%s %d", &text, &o.count); err == nil {
			o.at, _ = time.Parse(time.RFC3339Nano, text)
		}
	}
	o.mark, _ = os.OpenFile(mark, os.O_CREATE|os.O_WRONLY, 0o600)
	// Held open from the start: Nomad must not meet a pipe without a writer.
	o.pipe, _ = os.OpenFile(path, os.O_WRONLY|syscall.O_NONBLOCK, 0)
	return o
}

// Write takes one message: a time, a space, and a line or a part of one.
func (o *output) Write(message []byte) (int, error) {
	stamp, text, found := bytes.Cut(message, []byte(" "))
	at, err := time.Parse(time.RFC3339Nano, string(stamp))
	if !found || err != nil {
		at, text = o.at, message // the engine gave no time
	}
	switch {
	case at.Before(o.at):
		return len(message), nil
	case at.Equal(o.at) && o.skip > 0:
		o.skip--
		return len(message), nil
	}
	if err := o.pass(text); err != nil {
		return 0, err
	}
	if at.Equal(o.at) {
		o.count++
	} else {
		o.at, o.count = at, 1
	}
	o.skip = 0
	if o.mark != nil {
		_, _ = o.mark.WriteAt(fmt.Appendf(nil, "%s %-8d\n", o.at.UTC().Format("2006-01-02T15:04:05.000000000Z07:00"), o.count), 0)
	}
	return len(message), nil
}

// pass writes to the pipe, as soon as somebody reads it.
func (o *output) pass(text []byte) error {
	for len(text) > 0 {
		if o.pipe == nil {
			// Without blocking the open fails while nobody reads (ENXIO, fifo(7)).
			f, err := os.OpenFile(o.path, os.O_WRONLY|syscall.O_NONBLOCK, 0)
			if err != nil {
				select {
				case <-o.ctx.Done():
					return o.ctx.Err()
				case <-time.After(100 * time.Millisecond):
				}
				continue
			}
			o.pipe = f
		}
		stop := context.AfterFunc(o.ctx, func() { o.pipe.SetWriteDeadline(time.Now()) })
		n, err := o.pipe.Write(text)
		stop()
		text = text[n:]
		if err != nil {
			if o.ctx.Err() != nil {
				return o.ctx.Err()
			}
			o.pipe.Close() // the reader went; another may come
			o.pipe = nil
		}
	}
	return nil
}

var _ io.Writer = (*output)(nil)
