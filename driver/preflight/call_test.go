// SPDX-License-Identifier: MPL-2.0

package preflight

import (
	"context"
	"fmt"
	"io"
	"net"
	"testing"
	"time"

	"github.com/shoenig/test/must"
)

// impostor answers at rank 1's port; each call is given to the next of the
// answers, the last one over and over.
func (b *bench) impostor(answers ...func(c net.Conn, f frame)) {
	l, err := net.Listen("tcp", fmt.Sprintf("%s:21000", b.members[1].Address))
	must.NoError(b.t, err)
	b.t.Cleanup(func() { l.Close() })
	go func() {
		for n := 0; ; n++ {
			c, err := l.Accept()
			if err != nil {
				return
			}
			answer := answers[min(n, len(answers)-1)]
			go func() {
				defer c.Close()
				if f, err := readFrame(c); err == nil {
					answer(c, f)
				}
			}()
		}
	}()
}

// member is an honest one's frames.
func (b *bench) member(rank int) *exchange {
	return newExchange(b.assignment(rank), planFor(rank, len(b.members), true), nil, 20*time.Millisecond)
}

func (b *bench) greets() error {
	ctx, cancel := context.WithTimeout(b.t.Context(), 1500*time.Millisecond)
	defer cancel()
	x := b.member(0)
	x.plan.calls = []int{1}
	return x.greet(ctx)[1]
}

func TestAnAnswerCountsOnlyFromTheMemberThatWasCalled(t *testing.T) {
	send := func(x *exchange, k kind) func(net.Conn, frame) {
		return func(c net.Conn, _ frame) { c.Write(x.frame(k, 0, Versions{}).encode()) }
	}
	for name, answer := range map[string]func(b *bench) func(net.Conn, frame){
		"an echo":              func(*bench) func(net.Conn, frame) { return func(c net.Conn, f frame) { c.Write(f.encode()) } },
		"another kind":         func(b *bench) func(net.Conn, frame) { return send(b.member(1), heard) },
		"another member":       func(b *bench) func(net.Conn, frame) { return send(b.member(2), welcome) },
		"another gang's reply": func(b *bench) func(net.Conn, frame) { x := b.member(1); x.view = view{1}; return send(x, welcome) },
	} {
		t.Run(name, func(t *testing.T) {
			b := newBench(t, 3)
			b.impostor(answer(b))
			must.ErrorIs(t, b.greets(), errStranger)
		})
	}
	b := newBench(t, 3)
	b.impostor(send(b.member(1), welcome))
	must.NoError(t, b.greets())
}

func TestTheReasonIsThatOfTheLastTryThatCameToAnEnd(t *testing.T) {
	b := newBench(t, 2)
	b.impostor(func(c net.Conn, _ frame) {
		c.Write(b.member(1).frame(refuse, 0, refusal{Reason: otherGeneration, Generation: 9}).encode())
	}, func(c net.Conn, _ frame) { io.Copy(io.Discard, c) })
	must.ErrorContains(t, b.greets(), "it is at generation 9")
}

func TestAStreamThatArrivesOtherwiseThanSentIsNoMeasurement(t *testing.T) {
	for _, claim := range []counted{{Bytes: 1, Nanos: 1}, {}} {
		b := newBench(t, 2)
		b.impostor(func(c net.Conn, _ frame) {
			io.Copy(io.Discard, c)
			c.Write(b.member(1).frame(count, 0, claim).encode())
		})
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		_, err := b.member(0).measure(ctx)
		cancel()
		must.ErrorContains(t, err, fmt.Sprintf("bytes were sent, %d arrived in %d ns", claim.Bytes, claim.Nanos))
	}
}
