// SPDX-License-Identifier: MPL-2.0

package preflight

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"sync"
	"syscall"
	"time"
)

const (
	// headTime bounds the wait for a caller's first frame, and for its end
	// after the answer.
	headTime = 10 * time.Second
	// settleTime bounds the wait for callers that have their answer.
	settleTime = time.Second
	// maxCallers bounds the connections at a time: the planned ones and some strangers.
	maxCallers = 2*fullMesh + 16
)

// listener answers the other members on this generation's port.
type listener struct {
	x     *exchange
	l     net.Listener
	conns sync.WaitGroup
	ctx   context.Context
	end   context.CancelFunc
}

// listen takes the port; a port that is still taken is tried until ctx ends.
func (x *exchange) listen(ctx context.Context) (*listener, error) {
	address := x.address(x.a.Rank)
	for {
		l, err := (&net.ListenConfig{KeepAlive: -1}).Listen(ctx, "tcp", address)
		if err == nil {
			s := &listener{x: x, l: l}
			s.ctx, s.end = context.WithCancel(ctx)
			s.conns.Go(s.accept)
			return s, nil
		}
		if !errors.Is(err, syscall.EADDRINUSE) || !pause(ctx, 200*time.Millisecond) {
			switch {
			case errors.Is(err, syscall.EADDRINUSE):
				err = fmt.Errorf("port %s is reserved for this task, but another process holds it: see `ss -ltnp`", address)
			case errors.Is(err, syscall.EADDRNOTAVAIL):
				err = fmt.Errorf("no interface of this node has the address of %s: see network.interface, network.cidr and network.address in the driver's configuration", address)
			default:
				err = fmt.Errorf("listen for the other members: %w", err)
			}
			return nil, err
		}
	}
}

// close gives the port back; no connection is left open.
func (s *listener) close() {
	s.end()
	s.l.Close()
	s.conns.Wait()
}

// settle lets callers that have their answer hang up first, so that what is
// left of their connections stays on their side and not on this port.
func (s *listener) settle() {
	cut := time.AfterFunc(settleTime, s.end)
	defer cut.Stop()
	s.l.Close()
	s.conns.Wait()
	s.end()
}

func (s *listener) accept() {
	slots := make(chan struct{}, maxCallers)
	for {
		c, err := s.l.Accept()
		if errors.Is(err, net.ErrClosed) {
			return
		}
		if err != nil { // such as too many open files
			if !pause(s.ctx, 50*time.Millisecond) {
				return
			}
			continue
		}
		select {
		case slots <- struct{}{}:
		default:
			hangUp(c) // a member calls again
			continue
		}
		s.conns.Go(func() {
			defer func() { <-slots }()
			stop := context.AfterFunc(s.ctx, func() { c.SetDeadline(time.Now()) })
			defer stop()
			if err := s.answer(c); err != nil {
				hangUp(c)
				return
			}
			c.Close()
		})
	}
}

// hangUp closes without leaving the port in the kernel's wait for late segments.
func hangUp(c net.Conn) {
	if t, ok := c.(*net.TCPConn); ok {
		t.SetLinger(0)
	}
	c.Close()
}

// within sets a deadline that the end of ctx, set before or after it, overrides.
func within(ctx context.Context, c net.Conn, d time.Duration) {
	c.SetDeadline(time.Now().Add(d))
	if ctx.Err() != nil {
		c.SetDeadline(time.Now())
	}
}

// refusal is the payload of refuse.
type refusal struct {
	Reason     string `json:"reason"`
	Generation uint64 `json:"generation"`
}

const (
	otherGeneration = "generation"
	otherView       = "view"
	otherRank       = "rank"
)

// admit finds out whether a caller is who the plan expects.
func (x *exchange) admit(f frame) string {
	switch {
	case f.generation != x.a.Generation:
		return otherGeneration
	case f.view != x.view:
		return otherView
	case f.to != x.a.Rank || f.from < 0 || f.from >= len(x.a.Members) || f.from == x.a.Rank:
		return otherRank
	}
	return ""
}

func (s *listener) answer(c net.Conn) error {
	x := s.x
	within(s.ctx, c, headTime)
	f, err := readFrame(c)
	if err != nil {
		return err
	}
	if reason := x.admit(f); reason != "" {
		_, err := c.Write(x.frame(refuse, f.from, refusal{Reason: reason, Generation: x.a.Generation}).encode())
		return errors.Join(err, drain(c))
	}
	reply := func(k kind, payload any) error {
		_, err := c.Write(x.frame(k, f.from, payload).encode())
		return err
	}
	e := expected{f.kind, f.from}
	switch f.kind {
	case hello:
		var theirs Versions
		if err := f.decode(&theirs); err != nil {
			return err
		}
		if err := reply(welcome, x.versions); err != nil {
			return err
		}
		x.came(e, func() { x.known[f.from] = theirs.clean() })
	case flow:
		if x.flowTime == 0 || f.from != x.plan.before {
			return fmt.Errorf("rank %d streams to rank %d, which is not its neighbour", f.from, x.a.Rank)
		}
		within(s.ctx, c, x.flowTime+headTime)
		n, err := receive(c)
		if err != nil {
			return err
		}
		within(s.ctx, c, headTime)
		if err := reply(count, n); err != nil {
			return err
		}
		x.came(e, nil)
	case tell:
		var p Pair
		if err := f.decode(&p); err != nil {
			return err
		}
		if err := p.validate(f.from, len(x.a.Members)); err != nil {
			return err
		}
		if err := reply(heard, nil); err != nil {
			return err
		}
		x.came(e, func() { x.pairs[p.From] = p })
	default:
		return fmt.Errorf("rank %d opens with a frame of kind %d", f.from, f.kind)
	}
	return drain(c)
}

// drain waits for the caller to hang up.
func drain(c net.Conn) error {
	_, err := io.Copy(io.Discard, io.LimitReader(c, headerSize))
	return err
}

func pause(ctx context.Context, d time.Duration) bool {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-ctx.Done():
		return false
	case <-t.C:
		return true
	}
}
