// SPDX-License-Identifier: MPL-2.0

package pool

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"time"
)

// ledger is what is known of a pool whose machines another makes. It stands in
// one file, which the target writes and every plugin reads: each is a process
// of its own, and a restarted one goes on with it.
type ledger struct {
	Machines map[string]*entry `json:"machines"` // by the maker's id
	// Order is a purchase whose machines are not all listed yet.
	Order *order `json:"order,omitempty"`
	// Rest is since when and why nothing is bought.
	Rest *rest `json:"rest,omitempty"`
	// Interrupted is when nodes were taken away, within memory.
	Interrupted []time.Time `json:"interrupted,omitempty"`
	// Gone are the nodes, by Nomad's id, of machines that are gone: to be taken out of Nomad.
	Gone map[string]*gone `json:"gone,omitempty"`
	// Blind is since when and why the maker does not tell what it has.
	Blind *rest `json:"blind,omitempty"`
}

type gone struct {
	Node string    `json:"node"`
	At   time.Time `json:"at"`
	// Machine is the one that was destroyed; its maker may list it for a while. Empty: it vanished.
	Machine string `json:"machine,omitempty"`
}

// goneAge is how long the node of a machine that is gone is looked for, and
// maxGone bounds how many are.
const (
	goneAge = 24 * time.Hour
	maxGone = 1000
)

// part notes a machine's node, which Nomad has longer than its maker.
func (l *ledger) part(now time.Time, e *entry, destroyed string) {
	if e.NodeID == "" || len(l.Gone) >= maxGone {
		return
	}
	if l.Gone == nil {
		l.Gone = map[string]*gone{}
	}
	l.Gone[e.NodeID] = &gone{e.Node, now, destroyed}
}

// destroyed reports whether a machine was, a short while ago.
func (l *ledger) destroyed(machine string) bool {
	for _, g := range l.Gone {
		if g.Machine == machine {
			return true
		}
	}
	return false
}

func (l *ledger) rests(now time.Time) bool { return l.Rest != nil && now.Before(l.Rest.Until) }

// maxInterruptions bounds how many are remembered.
const maxInterruptions = 1000

// interrupt notes that a node was taken away.
func (l *ledger) interrupt(now time.Time) {
	l.Interrupted = slices.DeleteFunc(append(l.Interrupted, now), func(t time.Time) bool { return now.Sub(t) > memory })
	if over := len(l.Interrupted) - maxInterruptions; over > 0 {
		l.Interrupted = l.Interrupted[over:]
	}
}

type entry struct {
	Node    string    `json:"node,omitempty"` // Nomad's name, once it has one
	NodeID  string    `json:"node_id,omitempty"`
	Since   time.Time `json:"since"` // asked for, or first seen
	Ready   bool      `json:"ready"`
	Leaving bool      `json:"leaving"`
	Ending  bool      `json:"ending"`
	Doomed  bool      `json:"doomed"`
	Moving  bool      `json:"moving,omitempty"`  // what runs there was asked to stop
	Stuck   bool      `json:"stuck,omitempty"`   // it is doomed, and nothing is ready for its batch work
	AtRisk  bool      `json:"at_risk,omitempty"` // it may be taken away soon
	Pending bool      `json:"pending,omitempty"`
	Ordered bool      `json:"ordered,omitempty"` // it came of an order of this ledger
	Index   uint64    `json:"index,omitempty"`   // Nomad's state when it was ordered; 0: not known
	Late    bool      `json:"late,omitempty"`    // it did not come up in time, and is kept
}

type rest struct {
	Since  time.Time `json:"since"`
	Until  time.Time `json:"until"`
	Reason string    `json:"reason"`
}

// store keeps a ledger in a file.
type store struct{ dir, pool string }

func (s store) path() string { return filepath.Join(s.dir, s.pool+".json") }

func (s store) load() (*ledger, error) {
	l := &ledger{Machines: map[string]*entry{}}
	data, err := os.ReadFile(s.path())
	if errors.Is(err, os.ErrNotExist) {
		return l, nil
	}
	if err != nil {
		return nil, err
	}
	err = json.Unmarshal(data, l)
	for id, e := range l.Machines {
		if e == nil {
			err = errors.Join(err, fmt.Errorf("machines.%s: null; allowed is an object", id))
		}
	}
	for id, g := range l.Gone {
		if g == nil {
			err = errors.Join(err, fmt.Errorf("gone.%s: null; allowed is an object", id))
		}
	}
	if err != nil {
		return nil, fmt.Errorf("%s is no ledger of a pool: %w; what the pool has is asked for again once the file is taken away", s.path(), err)
	}
	if l.Machines == nil {
		l.Machines = map[string]*entry{}
	}
	return l, nil
}

func (s store) save(l *ledger) error {
	data, err := json.Marshal(l)
	if err != nil {
		return err
	}
	if err := os.MkdirAll(s.dir, 0o700); err != nil {
		return err
	}
	return replace(s.path(), data)
}
