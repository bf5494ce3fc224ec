// SPDX-License-Identifier: MPL-2.0

package preflight

import (
	"context"
	"fmt"
	"maps"
	"net"
	"slices"
	"sync"
	"time"

	"github.com/nomad-gpu/nomad-gpu/driver/gang"
)

// expected is one thing that must come in before the listener may close.
type expected struct {
	kind kind
	from int
}

// exchange is one member's calls, both ways, for one generation.
type exchange struct {
	a        gang.Assignment
	plan     plan
	view     view
	versions Versions
	// flowTime bounds the stream to the next neighbour; 0: no bandwidth check.
	flowTime time.Duration

	mu sync.Mutex
	// missing counts what has not come in yet; complete is closed with the last.
	missing  map[expected]int
	complete chan struct{}
	known    map[int]Versions
	pairs    map[int]Pair // by the sending rank
}

func newExchange(a gang.Assignment, p plan, own Versions, flowTime time.Duration) *exchange {
	x := &exchange{a: a, plan: p, view: viewOf(a), versions: own.clean(), flowTime: flowTime,
		missing: map[expected]int{}, complete: make(chan struct{}), known: map[int]Versions{}, pairs: map[int]Pair{}}
	x.known[a.Rank] = x.versions
	for _, rank := range p.called {
		x.missing[expected{hello, rank}] = 1
	}
	if flowTime > 0 {
		x.missing[expected{flow, p.before}] = flows
		x.missing[expected{tell, p.before}] = 1
		x.missing[expected{tell, p.next}] = 1
	}
	return x
}

// address is where a rank listens in this generation.
func (x *exchange) address(rank int) string {
	m := x.a.Members[rank]
	return net.JoinHostPort(m.Address.String(), fmt.Sprint(m.Ports[x.a.Generation%2]))
}

func (x *exchange) frame(k kind, to int, payload any) frame {
	f := frame{kind: k, from: x.a.Rank, to: to, generation: x.a.Generation, view: x.view}
	if payload != nil {
		f.payload = encodePayload(payload)
	}
	return f
}

// came notes what came in, with what it brought.
func (x *exchange) came(e expected, bring func()) {
	x.mu.Lock()
	defer x.mu.Unlock()
	if bring != nil {
		bring()
	}
	if x.missing[e] == 0 {
		return // told again
	}
	if x.missing[e]--; x.missing[e] == 0 {
		delete(x.missing, e)
	}
	if len(x.missing) == 0 {
		close(x.complete)
	}
}

// callers are the ranks that a kind of call has not come from.
func (x *exchange) callers(k kind) []int {
	x.mu.Lock()
	defer x.mu.Unlock()
	var ranks []int
	for e := range x.missing {
		if e.kind == k {
			ranks = append(ranks, e.from)
		}
	}
	slices.Sort(ranks)
	return ranks
}

func (x *exchange) learnt() (map[int]Versions, map[int]Pair) {
	x.mu.Lock()
	defer x.mu.Unlock()
	return maps.Clone(x.known), maps.Clone(x.pairs)
}

// greet calls every planned rank at once and returns what went wrong with
// each at the end of ctx.
func (x *exchange) greet(ctx context.Context) map[int]error {
	var mu sync.Mutex
	failed := map[int]error{}
	var all sync.WaitGroup
	for _, rank := range x.plan.calls {
		all.Go(func() {
			err := x.call(ctx, rank, x.frame(hello, rank, x.versions), func(_ net.Conn, answer func(kind) (frame, error)) error {
				f, err := answer(welcome)
				if err != nil {
					return err
				}
				var theirs Versions
				if err := f.decode(&theirs); err != nil {
					return err
				}
				x.mu.Lock()
				x.known[rank] = theirs.clean()
				x.mu.Unlock()
				return nil
			})
			if err != nil {
				mu.Lock()
				failed[rank] = err
				mu.Unlock()
			}
		})
	}
	all.Wait()
	return failed
}
