// SPDX-License-Identifier: MPL-2.0

package gang

import (
	"context"
	"errors"
)

// ErrSessionLost: the member's session is gone, and its record and lock with it.
var ErrSessionLost = errors.New("the session is gone")

// Store is where a gang's state stands. Every method can fail for want of
// the store; the caller tries again. Watches return at once where the index
// given is not the newest, and otherwise within about a minute.
type Store interface {
	// Open makes a session; the records and the lock it holds go with it.
	Open(ctx context.Context) (session string, err error)
	// Renew keeps a session; ErrSessionLost where it is gone.
	Renew(ctx context.Context, session string) error
	// Close ends a session.
	Close(ctx context.Context, session string) error

	// AgreeSpec stores the first comer's spec, and returns the one that stands.
	AgreeSpec(ctx context.Context, s Spec) (Spec, error)
	// PutRecord writes a member's record under its session.
	PutRecord(ctx context.Context, session string, r Record) error
	// DeleteRecord takes a member's record out.
	DeleteRecord(ctx context.Context, alloc string) error
	// WatchRecords reads all members. A record that cannot be read is left
	// out and named in broken.
	WatchRecords(ctx context.Context, index uint64) (records []Record, broken []error, next uint64, err error)

	// CreateHead writes a head where there is none.
	CreateHead(ctx context.Context, h Head) error
	// WatchHead reads the head; nil where there is none.
	WatchHead(ctx context.Context, index uint64) (h *Head, next uint64, err error)
	// ReadView reads the members of a head's generation in rank order.
	ReadView(ctx context.Context, h Head) ([]Member, error)

	// WatchLock reads which session holds the coordinator's lock; empty: none.
	WatchLock(ctx context.Context, index uint64) (holder string, next uint64, err error)
	// TryLock takes the lock for a session, if it is free.
	TryLock(ctx context.Context, session string) (bool, error)
	// Decide writes a coordinator's decision, made when the head stood at
	// index: false where the lock or the head has changed since. It gives a new
	// view its name.
	Decide(ctx context.Context, session string, index uint64, d Decision) (bool, error)

	// TakeTicket puts the gang in line for a pool's nodes, under the
	// coordinator's session; the age is the store's to fill in.
	TakeTicket(ctx context.Context, session, pool string, t Ticket) error
	// ReadLine reads where the gang's ticket stands.
	ReadLine(ctx context.Context, pool string) (Line, error)
	// LeaveLine takes the gang out of the line. With keepAge it stands where it
	// stood when it comes back within a day.
	LeaveLine(ctx context.Context, pool string, keepAge bool) error

	// Remove takes all keys of the gang out, if it has no member.
	Remove(ctx context.Context) error
}
