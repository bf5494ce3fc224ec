// SPDX-License-Identifier: MPL-2.0

package member

import (
	"context"
	"fmt"
	"time"

	"github.com/nomad-gpu/nomad-gpu/driver/gang"
)

// lineGap bounds how often the line is read: a forming gang past its timeout
// looks at it again and again.
const lineGap = 5 * time.Second

// lineAfter is how long a gang forms before it stands in line: one that has
// its nodes, as after a restart, forms faster and costs the store nothing.
const lineAfter = 5 * time.Second

// waitingLine is the gang's ticket during one term of the coordinator.
type waitingLine struct {
	loop    *loop
	session string
	forming time.Time // since when
	taken   bool
	last    gang.Line
	read    time.Time
}

// place takes a ticket while the gang forms, and reads where it stands once
// that decides something; nil where it does not, or is not known.
func (w *waitingLine) place(ctx context.Context, c *gang.Coordinator, head gang.Head) *gang.Line {
	o := w.loop.o
	if head.State != gang.Forming || o.Spec.FormTimeout == 0 {
		w.forming = time.Time{}
		return nil
	}
	now := time.Now()
	if w.forming.IsZero() {
		w.forming = now
	}
	if !w.taken && now.Sub(w.forming) < lineAfter && !c.WantsLine(now, head) {
		return nil
	}
	if !w.taken {
		k := o.Key
		t := gang.Ticket{Gang: fmt.Sprintf("%s/%s/%s", k.Namespace, k.Job, k.Group), Priority: o.Priority}
		if err := o.Store.TakeTicket(ctx, w.session, o.Pool, t); err != nil {
			w.loop.session.trouble(o, err)
			return nil
		}
		w.taken = true
	}
	if !c.WantsLine(now, head) {
		return nil
	}
	if w.read.IsZero() || now.Sub(w.read) >= lineGap {
		line, err := o.Store.ReadLine(ctx, o.Pool)
		if err != nil {
			w.taken = false // it may have gone with a session
			w.loop.session.trouble(o, err)
			return nil
		}
		w.last, w.read = line, now
	}
	return &w.last
}

// again is when the coordinator has to look again, at the latest.
func (w *waitingLine) again(decided time.Time) time.Time {
	if due := w.forming.Add(lineAfter); !w.forming.IsZero() && !w.taken && (decided.IsZero() || due.Before(decided)) {
		return due
	}
	return decided
}

// before keeps the age of a gang that is about to give its nodes back: once
// that is decided, this member's own end is near.
func (w *waitingLine) before(ctx context.Context, decided gang.Head) {
	if w.taken && decided.State == gang.Failed {
		w.leave(ctx, true)
	}
}

// follow takes the gang out of the line once it has its nodes.
func (w *waitingLine) follow(ctx context.Context, head gang.Head) {
	// A gang that formed at once may have given its nodes back before.
	first := head.State == gang.Preparing && head.Generation == 1 && w.loop.o.Spec.FormTimeout > 0
	if head.State != gang.Forming && (w.taken || first) {
		w.leave(ctx, false)
	}
}

func (w *waitingLine) leave(ctx context.Context, keepAge bool) {
	if err := w.loop.o.Store.LeaveLine(ctx, w.loop.o.Pool, keepAge); err != nil {
		w.loop.session.trouble(w.loop.o, err) // the ticket goes with the session
	}
	w.taken = false
}
