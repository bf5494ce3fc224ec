// SPDX-License-Identifier: MPL-2.0

package member

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"time"

	"github.com/nomad-gpu/nomad-gpu/driver/gang"
)

// watchHead tells the machine each head, with this member's assignment.
func (l *loop) watchHead(ctx context.Context) {
	select {
	case <-ctx.Done():
		return
	case <-l.joined: // a head without this member's record in place would be acted on too early
	}
	var index uint64
	for ctx.Err() == nil {
		head, next, err := l.o.Store.WatchHead(ctx, index)
		if err != nil {
			l.session.trouble(l.o, err)
			index = 0
			pause(ctx, time.Second)
			continue
		}
		if head == nil {
			l.tell(ctx, gang.HeadGone{})
			index = 0
			// The head is created now; a blocking query on a missing key
			// would wake at each write of any key.
			pause(ctx, 200*time.Millisecond)
			continue
		}
		if next == index {
			continue // the query's time was up
		}
		seen := gang.HeadSeen{Head: *head}
		view, err := l.view(ctx, *head)
		if err != nil {
			l.session.trouble(l.o, err)
			pause(ctx, time.Second)
			continue
		}
		if rank := slices.IndexFunc(view, func(m gang.Member) bool { return m.Alloc == l.o.Self.Alloc }); rank >= 0 {
			seen.Assignment = &gang.Assignment{Key: l.o.Key, Generation: head.Generation, Restarts: head.Restarts, Rank: rank, Members: view}
		}
		index = next
		l.tell(ctx, seen)
	}
}

// view reads a generation's members once.
func (l *loop) view(ctx context.Context, h gang.Head) ([]gang.Member, error) {
	l.viewsMu.Lock()
	defer l.viewsMu.Unlock()
	if view, ok := l.views[h.View]; ok {
		return view, nil
	}
	view, err := l.o.Store.ReadView(ctx, h)
	if err != nil {
		return nil, err
	}
	if len(view) > 0 {
		clear(l.views)
		l.views[h.View] = view
	}
	return view, nil
}

// candidates is how many members contend for the coordinator's lock at once;
// the others only where it stays free for long.
const candidates = 3

// coordinate contends for the lock and, while this member holds it, decides for the gang.
func (l *loop) coordinate(ctx context.Context) {
	select {
	case <-ctx.Done():
		return
	case <-l.joined:
	}
	first := l.o.Self.Index < candidates
	var index uint64
	for ctx.Err() == nil {
		if !first {
			jitter := time.Duration(rand.Int64N(int64(l.o.SessionTTL)))
			if !pause(ctx, 3*l.o.SessionTTL+jitter) {
				return
			}
			index = 0
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
