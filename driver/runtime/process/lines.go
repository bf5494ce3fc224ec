// SPDX-License-Identifier: MPL-2.0

package process

import (
	"bytes"
	"errors"
	"io"
	"os"
	"strings"
	"sync"
	"time"
)

const (
	tailLines = 20
	tailWidth = 300
	// lineWidth is the longest line that is held back to get its prefix as a
	// whole, in bytes.
	lineWidth = 16 << 10
	// partWait is how long the beginning of a line is held back.
	partWait = time.Second
)

// sink takes the output of a number of sources.
type sink interface {
	// add takes output as a whole; it may block.
	add([]byte)
	// end tells that one source will write no more.
	end()
}

// source is one stream of one process on its way to a sink.
type source struct {
	read  *os.File
	write *os.File // for the process
	lines *prefixer
	tail  *tail
	sink  sink
	ended chan struct{}
}

// newSource makes a stream; with a label each of its lines begins with it.
func newSource(to sink, label string, t *tail) (*source, error) {
	r, w, err := os.Pipe()
	if err != nil {
		return nil, err
	}
	s := &source{read: r, write: w, tail: t, sink: to, ended: make(chan struct{})}
	if label != "" {
		s.lines = &prefixer{prefix: []byte(label)}
	}
	go s.fill()
	return s, nil
}

// fill reads from the process until it and all that inherited the stream have
// closed it.
func (s *source) fill() {
	defer s.sink.end()
	defer close(s.ended)
	defer s.read.Close()
	chunk := make([]byte, 64<<10)
	for {
		if s.lines != nil {
			// A beginning without an end, such as a progress bar, is passed on
			// after a while: the lines of many ranks share one log.
			var until time.Time
			if s.lines.waiting() {
				until = time.Now().Add(partWait)
			}
			_ = s.read.SetReadDeadline(until) // a pipe takes deadlines
		}
		n, err := s.read.Read(chunk)
		if s.tail != nil {
			s.tail.add(chunk[:n])
		}
		switch {
		case s.lines == nil:
			s.sink.add(chunk[:n])
		case errors.Is(err, os.ErrDeadlineExceeded):
			s.sink.add(s.lines.flush())
			continue
		default:
			s.sink.add(s.lines.add(chunk[:n]))
		}
		if err != nil {
			if s.lines != nil {
				s.sink.add(s.lines.flush())
			}
			if !errors.Is(err, io.EOF) && s.tail != nil {
				s.tail.add([]byte("output is lost: " + err.Error() + "\n"))
			}
			return
		}
	}
}

// prefixer puts a prefix before each line. It gives whole lines only, so that
// the lines of several streams do not mix; any byte but the newline is passed
// on as it is. A line longer than lineWidth comes in pieces, each a line.
type prefixer struct {
	prefix []byte
	part   []byte // of a line whose end has not come, at most lineWidth
}

// add returns the lines that data completes, each with the prefix.
func (p *prefixer) add(data []byte) []byte {
	var out []byte
	for line := range bytes.Lines(data) {
		for len(line) > 0 {
			if len(p.part) == lineWidth && line[0] != '\n' {
				out = append(out, p.flush()...)
			}
			n := max(1, min(len(line), lineWidth-len(p.part))) // 1: the newline of a line that just fits
			p.part = append(p.part, line[:n]...)
			line = line[n:]
			if p.part[len(p.part)-1] == '\n' {
				out = append(out, p.flush()...)
			}
		}
	}
	return out
}

// flush returns what is held back as a line.
func (p *prefixer) flush() []byte {
	if len(p.part) == 0 {
		return nil
	}
	out := append(bytes.Clone(p.prefix), p.part...)
	if out[len(out)-1] != '\n' {
		out = append(out, '\n')
	}
	p.part = p.part[:0]
	return out
}

func (p *prefixer) waiting() bool { return len(p.part) > 0 }

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
