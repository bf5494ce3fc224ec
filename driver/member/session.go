// SPDX-License-Identifier: MPL-2.0

package member

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/nomad-gpu/nomad-gpu/driver/gang"
)

// session is this member's session, and whether the store can be reached.
type session struct {
	mu       sync.Mutex
	id       string
	lastGood time.Time // monotonic
	silent   bool      // out of reach, and told so
	changed  chan struct{}
}

func (s *session) current() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.id
}

func (s *session) set(id string) {
	s.mu.Lock()
	s.id = id
	s.mu.Unlock()
	select {
	case s.changed <- struct{}{}:
	default:
	}
}

// trouble says once that the store is out of reach.
func (s *session) trouble(o Options, err error) {
	if errors.Is(err, context.Canceled) {
		return
	}
	s.mu.Lock()
	first := !s.silent
	s.silent = true
	s.mu.Unlock()
	if first && o.Reached != nil {
		o.Reached(false)
	}
	if first {
		o.Report(Event{"Consul", fmt.Sprintf("Waiting for Consul, trying again each second; a process that runs goes on for up to %s: %v", o.ConsulGrace, err)})
	}
}

func (s *session) good(o Options) {
	s.mu.Lock()
	again := s.silent
	s.silent, s.lastGood = false, time.Now()
	s.mu.Unlock()
	if again && o.Reached != nil {
		o.Reached(true)
	}
	if again {
		o.Report(Event{"Consul", "Consul is reached again"})
	}
}

func (s *session) silentFor() time.Duration {
	s.mu.Lock()
	defer s.mu.Unlock()
	return time.Since(s.lastGood)
}

// keepSession opens a session, renews it each third of its TTL and opens a
// new one where it is gone. It does not use the client library's own renewal,
// which can take minutes to notice a loss.
func (l *loop) keepSession(ctx context.Context) {
	s := &l.session
	cut := false
	for {
		var err error
		if id := s.current(); id == "" {
			var fresh string
			if fresh, err = l.open(ctx); err == nil {
				s.set(fresh)
			}
		} else {
			err = l.o.Store.Renew(ctx, id)
		}
		wait := l.o.SessionTTL / 3
		switch {
		case errors.Is(err, gang.ErrSessionLost):
			s.set("")
			wait = 0
		case err != nil:
			s.trouble(l.o, err)
			wait = time.Second
			if silent := s.silentFor(); silent > l.o.ConsulGrace && !cut {
				cut = true
				l.tell(ctx, gang.CutOff{Reason: fmt.Sprintf("Consul was out of reach for %s, longer than consul_grace: the process is stopped", silent.Round(time.Second))})
			}
		default:
			s.good(l.o)
			cut = false
		}
		if wait > 0 && !pause(ctx, wait) || ctx.Err() != nil {
			return
		}
	}
}

// open is not cut short by the end of ctx: a session whose answer is not
// waited for would stay behind unknown.
func (l *loop) open(ctx context.Context) (string, error) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), 10*time.Second)
	defer cancel()
	return l.o.Store.Open(ctx)
}

// outbox holds the newest record that must stand in the store.
type outbox struct {
	mu      sync.Mutex
	record  *gang.Record
	changed chan struct{}
}

func (b *outbox) put(r gang.Record) {
	b.mu.Lock()
	b.record = &r
	b.mu.Unlock()
	select {
	case b.changed <- struct{}{}:
	default:
	}
}

// writeRecords brings the newest record into the store, and again whenever the session is a new one.
func (l *loop) writeRecords(ctx context.Context) {
	var written *gang.Record
	under := ""
	for {
		id := l.session.current()
		b := &l.record
		b.mu.Lock()
		want := b.record
		b.mu.Unlock()
		var err error
		if want != nil && id != "" && (want != written || id != under) {
			err = l.o.Store.PutRecord(ctx, id, *want)
		}
		switch {
		case errors.Is(err, gang.ErrSessionLost):
			if l.session.current() == id {
				l.session.set("")
			}
		case err != nil:
			l.session.trouble(l.o, err)
		case want != nil && id != "":
			if id != under {
				if err := l.o.Save(State{Session: id, Record: *want}); err != nil {
					l.o.Report(Event{"Warning", fmt.Sprintf("cannot keep the state for a restart of the driver: %v", err)})
				}
			}
			written, under = want, id
			l.once.Do(func() { close(l.joined) })
		}
		retry := time.Hour
		if err != nil || id == "" {
			retry = time.Second
		}
		select {
		case <-ctx.Done():
			return
		case <-b.changed:
		case <-l.session.changed:
		case <-time.After(retry):
		}
	}
}
