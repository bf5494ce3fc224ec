// SPDX-License-Identifier: MPL-2.0

package process

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"strings"
	"sync"
	"syscall"
	"time"
)

const (
	// bufferSize is how much output waits for Nomad while nobody reads.
	bufferSize = 1 << 20
	tailLines  = 20
	tailWidth  = 300
)

// pump passes one stream on to a named pipe of Nomad. The reader goes and
// comes with the agent: the pipe is opened again then. The process is held up
// only by a reader that is there and slow; while there is none, the oldest
// output gives way, and a line says how much.
type pump struct {
	path  string
	read  *os.File
	write *os.File // for the process
	tail  *tail

	mu      sync.Mutex
	change  *sync.Cond
	buffer  []byte
	dropped int
	open    bool // a reader is there
	ended   bool // the process closed the stream
	done    chan struct{}
}

func newPump(path string, t *tail) (*pump, error) {
	r, w, err := os.Pipe()
	if err != nil {
		return nil, err
	}
	p := &pump{path: path, read: r, write: w, tail: t, done: make(chan struct{})}
	p.change = sync.NewCond(&p.mu)
	go p.fill()
	go p.pass()
	return p, nil
}

// fill reads from the process.
func (p *pump) fill() {
	chunk := make([]byte, 64<<10)
	for {
		n, err := p.read.Read(chunk)
		if n > 0 {
			if p.tail != nil {
				p.tail.add(chunk[:n])
			}
			p.mu.Lock()
			for len(p.buffer)+n > bufferSize && p.open {
				p.change.Wait()
			}
			p.buffer = append(p.buffer, chunk[:n]...)
			if over := len(p.buffer) - bufferSize; over > 0 {
				p.dropped += over
				p.buffer = append(p.buffer[:0], p.buffer[over:]...)
			}
			p.change.Broadcast()
			p.mu.Unlock()
		}
		if err != nil {
			p.mu.Lock()
			p.ended = true
			p.change.Broadcast()
			p.mu.Unlock()
			return
		}
	}
}

// pass writes to Nomad. It holds the pipe open from the start, with or without
// output: Nomad takes the end of the last writer for the end of the task.
func (p *pump) pass() {
	defer close(p.done)
	var out *os.File
	defer func() {
		if out != nil {
			out.Close()
		}
	}()
	for {
		if out == nil {
			// Without blocking, the open fails while nobody reads (ENXIO, fifo(7)).
			if f, err := os.OpenFile(p.path, os.O_WRONLY|syscall.O_NONBLOCK, 0); err == nil {
				out = f
				p.setOpen(true)
			} else if p.isOver() {
				return
			} else {
				time.Sleep(100 * time.Millisecond)
				continue
			}
		}
		p.mu.Lock()
		for len(p.buffer) == 0 && !p.ended {
			p.change.Wait()
		}
		if len(p.buffer) == 0 {
			p.mu.Unlock()
			return
		}
		if p.dropped > 0 {
			notice := fmt.Appendf(nil, "[%d bytes of output are lost: nobody read the log]\n", p.dropped)
			p.buffer = append(notice, p.buffer...)
			p.dropped = 0
		}
		chunk := bytes.Clone(p.buffer[:min(len(p.buffer), 64<<10)])
		p.mu.Unlock()
		n, err := out.Write(chunk)
		p.mu.Lock()
		p.buffer = append(p.buffer[:0], p.buffer[n:]...)
		p.change.Broadcast()
		p.mu.Unlock()
		if err != nil && !errors.Is(err, syscall.EAGAIN) {
			out.Close()
			out = nil
			p.setOpen(false)
		}
	}
}

// isOver reports whether nothing is left to pass on.
func (p *pump) isOver() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.ended && len(p.buffer) == 0
}

func (p *pump) setOpen(open bool) {
	p.mu.Lock()
	p.open = open
	p.change.Broadcast()
	p.mu.Unlock()
}

// drain waits until all is passed on, or ctx ends.
func (p *pump) drain(ctx context.Context) {
	select {
	case <-p.done:
	case <-ctx.Done():
	}
}

// tail keeps the last lines of a stream.
type tail struct {
	mu   sync.Mutex
	kept []string
	part []byte
}

func (t *tail) add(data []byte) {
	t.mu.Lock()
	defer t.mu.Unlock()
	for line := range bytes.Lines(data) {
		whole := bytes.HasSuffix(line, []byte("\n"))
		if len(t.part) < tailWidth {
			t.part = append(t.part, line[:min(len(line), tailWidth)]...)
		}
		if whole {
			t.keep()
		}
	}
}

func (t *tail) keep() {
	if line := strings.TrimSpace(strings.ToValidUTF8(string(t.part), "?")); line != "" {
		t.kept = append(t.kept[max(0, len(t.kept)-tailLines+1):], line)
	}
	t.part = t.part[:0]
}

func (t *tail) lines() []string {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.keep()
	return t.kept
}
