// SPDX-License-Identifier: MPL-2.0

package member

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"sync/atomic"
	"time"

	"github.com/nomad-gpu/nomad-gpu/driver/gang"
)

// candidates is how many members contend for the coordinator's lock at once:
// with each of a large gang, every change would be as many writes.
const candidates = 3

// place is where a member stands among those that may become the coordinator:
// its rank, or Nomad's index while it has none.
type place struct {
	at    atomic.Int64
	moved chan struct{}
}

func (p *place) move(a *gang.Assignment, self gang.Member) {
	at := int64(self.Index)
	if a != nil {
		at = int64(a.Rank)
	}
	if p.at.Swap(at) != at {
		select {
		case p.moved <- struct{}{}:
		default:
		}
	}
}

// patience is how long a member at a place waits before it looks for a free
// lock; zero: it watches it. The first ones have it watched; the next few look
// in now and then, and ever fewer further on, so that no more than a few
// contend at a time, and that a gang which lost its first nodes has another
// coordinator soon.
func patience(at int, ttl time.Duration) time.Duration {
	return min(time.Duration(at/candidates)*ttl/5, 3*ttl)
}

// await lets a member's patience pass, or its place change; false: ctx ended.
func (l *loop) await(ctx context.Context) bool {
	for {
		wait := patience(int(l.place.at.Load()), l.o.SessionTTL)
		if wait == 0 {
			return ctx.Err() == nil
		}
		t := time.NewTimer(wait + time.Duration(rand.Int64N(int64(min(wait, l.o.SessionTTL)))))
		select {
		case <-ctx.Done():
			t.Stop()
			return false
		case <-l.place.moved:
			t.Stop()
		case <-t.C:
			return true
		}
	}
}

// coordinate contends for the lock and, while this member holds it, decides for the gang.
func (l *loop) coordinate(ctx context.Context) {
	select {
	case <-ctx.Done():
		return
	case <-l.joined:
	}
	var index uint64
	// A former life of this member may have held the lock: then nobody else
	// takes it.
	for resumed := l.o.Resume != nil; resumed || l.await(ctx); resumed = false {
		if l.place.at.Load() >= candidates {
			index = 0 // look, do not watch
		}
		holder, next, err := l.o.Store.WatchLock(ctx, index)
		if err != nil {
			l.session.trouble(l.o, err)
			pause(ctx, time.Second)
			continue
		}
		index = next
		own := l.session.current()
		if own == "" {
			pause(ctx, 200*time.Millisecond)
			index = 0
			continue
		}
		if holder == "" {
			ok, err := l.o.Store.TryLock(ctx, own)
			if err != nil || !ok {
				pause(ctx, 200*time.Millisecond+time.Duration(rand.Int64N(int64(300*time.Millisecond))))
				index = 0
				continue
			}
			holder = own
		}
		// The holder may be a former life of this member, whose session goes on.
		if holder == own {
			l.term(ctx, own)
			index = 0
		}
	}
}

// term is this member's time as the coordinator; it ends with the lock. It
// looks at the members at most every 250 ms.
func (l *loop) term(ctx context.Context, session string) {
	c := gang.NewCoordinator(l.o.Spec)
	line := waitingLine{loop: l, session: session}
	var index uint64
	again := time.Time{}
	for ctx.Err() == nil {
		begin := time.Now()
		records, next, err := l.records(ctx, index, again)
		if err != nil {
			l.session.trouble(l.o, err)
			index = 0
			pause(ctx, time.Second)
		}
		head, headIndex, err := l.o.Store.WatchHead(ctx, 0)
		holder, _, lockErr := l.o.Store.WatchLock(ctx, 0)
		if lockErr == nil && holder != session {
			return
		}
		if err = errors.Join(err, lockErr); err != nil || head == nil || records == nil {
			if err != nil {
				l.session.trouble(l.o, err)
			}
			index = 0
			pause(ctx, 500*time.Millisecond)
			continue
		}
		view, err := l.view(ctx, *head)
		if err != nil {
			l.session.trouble(l.o, err)
			pause(ctx, time.Second)
			continue
		}
		index = next
		d := c.Decide(time.Now(), *head, view, records, line.place(ctx, c, *head))
		again = line.again(d.Again)
		if d.Head != nil {
			index, again = 0, time.Time{} // look again at once: one step can lead to the next
			line.before(ctx, *d.Head)
			if ok, err := l.o.Store.Decide(ctx, session, headIndex, d); err != nil {
				l.session.trouble(l.o, err)
				pause(ctx, time.Second)
			} else if ok {
				line.follow(ctx, *d.Head)
				if d.Head.State.Final() {
					return
				}
			}
		}
		if rest := 250*time.Millisecond - time.Since(begin); rest > 0 {
			pause(ctx, rest)
		}
	}
}

// records waits until a member changes or the time is there.
func (l *loop) records(ctx context.Context, index uint64, again time.Time) ([]gang.Record, uint64, error) {
	if !again.IsZero() {
		timed, cancel := context.WithDeadline(ctx, again)
		defer cancel()
		records, broken, next, err := l.o.Store.WatchRecords(timed, index)
		if err == nil || timed.Err() == nil || ctx.Err() != nil {
			l.tellBroken(broken)
			return records, next, err
		}
		index = 0 // the time is there: read without waiting
	}
	records, broken, next, err := l.o.Store.WatchRecords(ctx, index)
	l.tellBroken(broken)
	if records == nil && err == nil {
		records = []gang.Record{}
	}
	return records, next, err
}

func (l *loop) tellBroken(broken []error) {
	if len(broken) == 0 {
		return
	}
	if what := broken[0].Error(); what != l.lastBroken {
		l.lastBroken = what
		l.o.Report(Event{"Warning", fmt.Sprintf("%d members' records cannot be read and are left out: %v", len(broken), broken[0])})
	}
}
