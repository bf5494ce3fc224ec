// SPDX-License-Identifier: MPL-2.0

package process

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math"
	"net"
	"os"
	"sync"
	"syscall"
	"time"

	"github.com/creack/pty"

	"github.com/nomad-gpu/nomad-gpu/driver/runtime"
)

var _ runtime.Executor = (*process)(nil)

// killTime is how long a command that was killed may take to go.
const killTime = 10 * time.Second

// Exec runs a command as a descendant of the supervisor, which knows the
// environment. What the command leaves running when it ends is killed.
func (p *process) Exec(ctx context.Context, c runtime.Command) (int, error) {
	if len(c.Args) == 0 || c.Args[0] == "" {
		return 0, errors.New(`command: ""; allowed is a path or a name`)
	}
	path, release, err := socketPath(p.dir)
	if err != nil {
		return 0, fmt.Errorf("exec: the process does not run: %w", err)
	}
	general, err := new(net.Dialer).DialContext(ctx, "unix", path)
	release()
	if err != nil {
		return 0, fmt.Errorf("exec: the process does not run: %w", err)
	}
	conn := general.(*net.UnixConn)
	defer conn.Close()
	s, err := newStreams(c)
	if err != nil {
		return 0, fmt.Errorf("exec: %w", err)
	}
	defer s.close()
	data, err := json.Marshal(request{Op: "exec", Args: c.Args, TTY: c.TTY})
	if err == nil {
		err = pass(conn, data, s.theirs)
	}
	if err != nil {
		return 0, fmt.Errorf("exec: %w", err)
	}
	s.closeTheirs()
	stop := context.AfterFunc(ctx, func() {
		conn.CloseWrite() // the companion takes it for the wish to end
		conn.SetReadDeadline(time.Now().Add(killTime))
	})
	defer stop()
	copied := s.copy(c)
	var a answer
	err = json.NewDecoder(conn).Decode(&a)
	switch {
	case ctx.Err() != nil:
		return 0, fmt.Errorf("exec: %w", ctx.Err())
	case err != nil:
		return 0, errors.New("exec: the process ended, and the command with it")
	case a.Err != "":
		return 0, fmt.Errorf("exec: %s", a.Err)
	case a.Exit == nil:
		return 0, errors.New("exec: the command's exit is unknown")
	}
	select {
	case <-copied: // the rest of the output
	case <-ctx.Done():
		return 0, fmt.Errorf("exec: %w", ctx.Err())
	}
	if a.Exit.Signal > 0 {
		return 128 + a.Exit.Signal, nil // as a shell tells it
	}
	return a.Exit.Code, nil
}

// streams are both ends of a command's stdin, stdout and stderr, or of its terminal.
type streams struct {
	in, out, errs *os.File // the driver's; with a terminal in and out are one
	theirs        []*os.File
	done          chan struct{} // closed when the command has ended
}

func newStreams(c runtime.Command) (*streams, error) {
	s := &streams{done: make(chan struct{})}
	if c.TTY {
		mine, theirs, err := pty.Open()
		if err != nil {
			return nil, fmt.Errorf("make a terminal: %w", err)
		}
		s.in, s.out, s.theirs = mine, mine, []*os.File{theirs}
		return s, nil
	}
	s.theirs = make([]*os.File, mostFiles)
	var err [mostFiles]error
	s.theirs[0], s.in, err[0] = os.Pipe()
	s.out, s.theirs[1], err[1] = os.Pipe()
	s.errs, s.theirs[2], err[2] = os.Pipe()
	if err := errors.Join(err[:]...); err != nil {
		s.close()
		return nil, err
	}
	return s, nil
}

// copy passes on what the streams carry, and tells when the output is at its end.
func (s *streams) copy(c runtime.Command) <-chan struct{} {
	go s.fill(c)
	var outputs sync.WaitGroup
	outputs.Go(func() { drain(c.Stdout, s.out, c.TTY) })
	if c.TTY {
		go s.resize(c.Sizes)
	} else {
		outputs.Go(func() { drain(c.Stderr, s.errs, false) })
	}
	copied := make(chan struct{})
	go func() {
		outputs.Wait()
		close(copied)
	}()
	return copied
}

// fill passes the input on. It may wait for more input after the command has
// ended, until the giver closes it.
func (s *streams) fill(c runtime.Command) {
	var err error
	if c.Stdin != nil {
		_, err = io.Copy(s.in, c.Stdin)
	}
	switch {
	case !c.TTY:
		s.in.Close()
	case c.Stdin != nil && err == nil:
		s.in.Write([]byte{4}) // Ctrl-D: how a terminal tells the end of the input
	}
}

// drain passes one stream on. Where nobody takes it the command is told by
// SIGPIPE; one on a terminal goes on.
func drain(to io.Writer, from *os.File, tty bool) {
	if to == nil {
		to = io.Discard
	}
	if _, err := io.Copy(to, from); err != nil && !errors.Is(err, syscall.EIO) && tty { // EIO: its end, with a terminal
		io.Copy(io.Discard, from)
	}
	if !tty {
		from.Close()
	}
}

// resize follows the terminal's size.
func (s *streams) resize(sizes <-chan runtime.Size) {
	for {
		select {
		case <-s.done:
			return
		case size, ok := <-sizes:
			if !ok {
				return
			}
			_ = pty.Setsize(s.out, &pty.Winsize{Rows: characters(size.Rows), Cols: characters(size.Columns)}) // it may have ended
		}
	}
}

func characters(n int) uint16 { return uint16(min(max(n, 0), math.MaxUint16)) }

func (s *streams) closeTheirs() {
	for _, f := range s.theirs {
		f.Close()
	}
}

func (s *streams) close() {
	close(s.done)
	s.closeTheirs()
	for _, f := range []*os.File{s.in, s.out, s.errs} {
		f.Close() // nil, or closed already: an error that says nothing
	}
}
