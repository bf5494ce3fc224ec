// SPDX-License-Identifier: MPL-2.0

// Package metrics counts what the gangs' members on this node do, for
// Prometheus.
package metrics

import (
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/nomad-gpu/nomad-gpu/driver/gang"
	"github.com/nomad-gpu/nomad-gpu/driver/member"
)

const (
	// kept is how long the counters of a gang stay after its last member on
	// this node has ended, so that a scrape still sees the end.
	kept = time.Hour
	// maxGangs bounds the series: beyond, the gang that ended first goes.
	maxGangs = 1024
)

// Ledger is what the members on this node did. It reads no clock: times are
// passed in. It is safe for use by several goroutines.
type Ledger struct {
	mu    sync.Mutex
	gangs map[name]*account
	// troubled are the members that do not reach Consul, since when any.
	troubled map[string]bool
	since    time.Time
	trouble  time.Duration
}

// name is a gang as it is labelled; runs of one group share their series.
type name struct{ namespace, job, group string }

func nameOf(k gang.Key) name {
	valid := func(s string) string { return strings.ToValidUTF8(s, "?") }
	return name{valid(k.Namespace), valid(k.Job), valid(k.Group)}
}

// account is one gang's.
type account struct {
	members  map[string]*life
	spent    map[member.Stage]time.Duration
	restarts map[gang.Cause]uint64
	forms    formation
	// head is the newest that any member saw.
	head gang.Head
	last time.Time
}

// life is one member's.
type life struct {
	joined time.Time
	stage  member.Stage
	since  time.Time
	ran    time.Duration
	// formed is when the wait for the next generation began; zero: it runs.
	formed time.Time
}

// NewLedger is empty.
func NewLedger() *Ledger { return &Ledger{gangs: map[name]*account{}, troubled: map[string]bool{}} }

// Observe takes what one allocation's member saw.
func (l *Ledger) Observe(now time.Time, k gang.Key, alloc string, o member.Observation) {
	l.mu.Lock()
	defer l.mu.Unlock()
	a := l.account(now, k)
	m := a.members[alloc]
	stage := o.Stage()
	if m == nil {
		m = &life{joined: now, stage: stage, since: now, formed: now}
		a.members[alloc] = m
	}
	a.pass(m, now)
	if stage != m.stage {
		switch {
		case stage == member.Running && !m.formed.IsZero():
			a.forms.add(now.Sub(m.formed).Seconds())
			m.formed = time.Time{}
		case m.stage == member.Running:
			m.formed = now
		}
		m.stage = stage
	}
	if o.Head.Generation > a.head.Generation || o.Head.Generation == a.head.Generation && o.Head.State != a.head.State {
		if c := gang.EndOf(a.head, o.Head); c != "" {
			a.restarts[c]++
		}
		a.head = o.Head
	}
}

// Ended takes the end of an allocation's member.
func (l *Ledger) Ended(now time.Time, k gang.Key, alloc string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.reach(now, alloc, true)
	a := l.gangs[nameOf(k)]
	if a == nil || a.members[alloc] == nil {
		return
	}
	a.pass(a.members[alloc], now)
	delete(a.members, alloc)
	a.last = now
	if len(a.members) == 0 {
		a.head = gang.Head{} // the next run of the job begins anew
	}
}

// Reached takes whether a member reaches Consul.
func (l *Ledger) Reached(now time.Time, alloc string, yes bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.reach(now, alloc, yes)
}

func (l *Ledger) reach(now time.Time, alloc string, yes bool) {
	before := len(l.troubled)
	if yes {
		delete(l.troubled, alloc)
	} else {
		l.troubled[alloc] = true
	}
	switch after := len(l.troubled); {
	case before == 0 && after > 0:
		l.since = now
	case before > 0 && after == 0:
		l.trouble += now.Sub(l.since)
	}
}

// account finds or opens a gang's, within the bound.
func (l *Ledger) account(now time.Time, k gang.Key) *account {
	n := nameOf(k)
	a := l.gangs[n]
	if a != nil {
		return a
	}
	l.forget(now)
	a = &account{members: map[string]*life{}, spent: map[member.Stage]time.Duration{}, restarts: map[gang.Cause]uint64{}, last: now}
	l.gangs[n] = a
	return a
}

// forget drops the gangs that ended long ago, or first where there are too many.
func (l *Ledger) forget(now time.Time) {
	var ended []name
	for n, a := range l.gangs {
		if len(a.members) > 0 {
			continue
		}
		if now.Sub(a.last) >= kept {
			delete(l.gangs, n)
			continue
		}
		ended = append(ended, n)
	}
	slices.SortFunc(ended, func(x, y name) int { return l.gangs[x].last.Compare(l.gangs[y].last) })
	for _, n := range ended {
		if len(l.gangs) < maxGangs {
			return
		}
		delete(l.gangs, n)
	}
}

// pass adds the time since the last look to the stage it was spent in.
func (a *account) pass(m *life, now time.Time) {
	d := max(now.Sub(m.since), 0)
	a.spent[m.stage] += d
	if m.stage == member.Running {
		m.ran += d
	}
	m.since = now
}
