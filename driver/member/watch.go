// SPDX-License-Identifier: MPL-2.0

package member

import (
	"context"
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
		l.place.move(seen.Assignment, l.o.Self)
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
