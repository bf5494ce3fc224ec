// SPDX-License-Identifier: MPL-2.0

package docker

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"syscall"
	"time"

	cerrdefs "github.com/containerd/errdefs"
	"github.com/moby/moby/api/pkg/stdcopy"
	"github.com/moby/moby/client"
)

// logs passes a container's output on to Nomad's named pipes, from where a
// former life of the driver left off.
type logs struct {
	cancel context.CancelFunc
	done   chan struct{}
}

// follow begins. It ends with the container, or once drain is tired of waiting.
func (e *Engine) follow(a about, dir string) *logs {
	ctx, cancel := context.WithCancel(context.Background())
	l := &logs{cancel: cancel, done: make(chan struct{})}
	out := openOutput(a.Stdout, filepath.Join(dir, "stdout.at"))
	errs := openOutput(a.Stderr, filepath.Join(dir, "stderr.at"))
	go func() {
		defer close(l.done)
		defer cancel()
		defer out.close()
		defer errs.close()
		for ctx.Err() == nil {
			err := e.passLogs(ctx, a.Name, out, errs)
			if err == nil || cerrdefs.IsNotFound(err) {
				return
			}
			select { // the engine is away
			case <-ctx.Done():
			case <-time.After(askAgain):
			}
		}
	}()
	return l
}

// drain waits until all is passed on; ctx ends the waiting, and the passing on.
func (l *logs) drain(ctx context.Context) {
	select {
	case <-l.done:
	case <-ctx.Done():
		l.cancel()
		<-l.done
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
	out.ctx, errs.ctx = ctx, ctx
	// It calls Write once for each message of the engine's.
	if _, err = stdcopy.StdCopy(out, errs, stream); err != nil {
		return err
	}
	r, err := e.client.ContainerInspect(ctx, name, client.ContainerInspectOptions{})
	if err != nil {
		return err
	}
	if r.Container.State != nil && r.Container.State.Running {
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

func openOutput(path, mark string) *output {
	o := &output{path: path}
	if data, err := os.ReadFile(mark); err == nil {
		var text string
		if _, err := fmt.Sscanf(string(data), "%s %d", &text, &o.count); err == nil {
			o.at, _ = time.Parse(time.RFC3339Nano, text)
		}
	}
	o.mark, _ = os.OpenFile(mark, os.O_CREATE|os.O_WRONLY, 0o600)
	return o
}

func (o *output) close() {
	if o.pipe != nil {
		o.pipe.Close()
	}
	if o.mark != nil {
		o.mark.Close()
	}
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
