// SPDX-License-Identifier: MPL-2.0

package preflight

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"syscall"
	"time"
)

const (
	dialTime  = 5 * time.Second
	firstWait = 50 * time.Millisecond
	mostWait  = time.Second
)

// call opens a connection to a rank with a frame and runs what follows, again
// and again until it works or ctx ends: members do not begin at the same
// moment. The error is that of the last try that told something.
func (x *exchange) call(ctx context.Context, rank int, open frame, follow func(c net.Conn, answer func(kind) (frame, error)) error) error {
	var last error
	for wait := firstWait; ; wait = min(2*wait, mostWait) {
		err := x.try(ctx, rank, open, follow)
		if err == nil {
			return nil
		}
		if last == nil || ctx.Err() == nil {
			last = err
		}
		if !pause(ctx, wait/2+rand.N(wait/2+1)) {
			return last
		}
	}
}

func (x *exchange) try(ctx context.Context, rank int, open frame, follow func(net.Conn, func(kind) (frame, error)) error) error {
	// From this member's own address, so that what is tried is the training
	// network and not whatever route is the nearest.
	own := &net.TCPAddr{IP: x.a.Self().Address.AsSlice(), Zone: x.a.Self().Address.Zone()}
	c, err := (&net.Dialer{Timeout: dialTime, LocalAddr: own, KeepAlive: -1}).DialContext(ctx, "tcp", x.address(rank))
	if err != nil {
		return err
	}
	defer c.Close()
	stop := context.AfterFunc(ctx, func() { c.SetDeadline(time.Now()) })
	defer stop()
	within(ctx, c, headTime)
	if _, err := c.Write(open.encode()); err != nil {
		return err
	}
	return follow(c, func(want kind) (frame, error) {
		f, err := readFrame(c)
		if err != nil {
			return f, err
		}
		if f.kind == refuse {
			var r refusal
			if err := f.decode(&r); err != nil {
				return f, err
			}
			return f, refused(r)
		}
		if f.kind != want || x.admit(f) != "" || f.from != rank {
			return f, errStranger
		}
		return f, nil
	})
}

type refused refusal

func (r refused) Error() string {
	switch r.Reason {
	case otherGeneration:
		return fmt.Sprintf("it is at generation %d", r.Generation)
	case otherView:
		return "it is in another gang, or was told other members"
	case otherRank:
		return "it has another rank"
	}
	return "it refuses"
}

// because says what a failed call means and what to look at.
func because(err error, address string) string {
	var r refused
	var n net.Error
	switch {
	case errors.As(err, &r):
		return fmt.Sprintf("%s answers, but %s: two tasks may have the same port, or one network's address is on two nodes", address, r)
	case errors.Is(err, syscall.ECONNREFUSED):
		return fmt.Sprintf("nothing listens at %s: a firewall may reject the group's gang ports, or that member's preflight has not begun (see its task's events)", address)
	case errors.Is(err, syscall.EHOSTUNREACH), errors.Is(err, syscall.ENETUNREACH):
		return fmt.Sprintf("no route to %s: look at both nodes' interface on the training network", address)
	case errors.Is(err, syscall.EADDRNOTAVAIL):
		return "this node has lost its address on the training network: look at its interface"
	case errors.Is(err, errStranger), errors.Is(err, io.EOF), errors.Is(err, io.ErrUnexpectedEOF), errors.Is(err, syscall.ECONNRESET):
		return fmt.Sprintf("something other than the member's preflight answers at %s: see `ss -ltnp` there", address)
	case errors.Is(err, context.DeadlineExceeded), errors.As(err, &n) && n.Timeout():
		return fmt.Sprintf("no answer from %s: a firewall may drop the group's gang ports, or an interface is in the wrong network or down", address)
	}
	return fmt.Sprintf("%s: %v", address, err)
}
