// SPDX-License-Identifier: MPL-2.0

package process

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"sync"
	"syscall"
	"time"
)

// bufferSize is how much output waits for Nomad while nobody reads, in bytes.
const bufferSize = 1 << 20

// pump passes the streams of one or more processes on to a named pipe of
// Nomad. The reader goes and comes with the agent: the pipe is opened again
// then. The processes are held up only by a reader that is there and slow;
// while there is none, the oldest output gives way, and a line says how much.
type pump struct {
	path string

	mu      sync.Mutex
	change  *sync.Cond
	buffer  []byte
	dropped int
	open    bool // a reader is there
	sources int  // streams that a process may still write to
	done    chan struct{}
}

// newPump makes a pump for so many sources.
func newPump(path string, sources int) *pump {
	p := &pump{path: path, sources: sources, done: make(chan struct{})}
	p.change = sync.NewCond(&p.mu)
	go p.pass()
	return p
}

// add takes output for the pipe, as a whole.
func (p *pump) add(data []byte) {
	if len(data) == 0 {
		return
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	for len(p.buffer)+len(data) > bufferSize && len(p.buffer) > 0 && p.open {
		p.change.Wait()
	}
	p.buffer = append(p.buffer, data...)
	if over := len(p.buffer) - bufferSize; over > 0 && !p.open {
		p.dropped += over
		p.buffer = append(p.buffer[:0], p.buffer[over:]...)
	}
	p.change.Broadcast()
}

// end tells that one source will write no more.
func (p *pump) end() {
	p.mu.Lock()
	p.sources--
	p.change.Broadcast()
	p.mu.Unlock()
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
		for len(p.buffer) == 0 && p.sources > 0 {
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
	return p.sources == 0 && len(p.buffer) == 0
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
