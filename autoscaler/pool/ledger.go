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
	// Order is a purchase that was begun and of which no answer is known yet.
	Order *order `json:"order,omitempty"`
	// Rest is since when and why nothing is bought.
	Rest *rest `json:"rest,omitempty"`
	// Interrupted is when nodes were taken away, within memory.
	Interrupted []time.Time `json:"interrupted,omitempty"`
}

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
	Since   time.Time `json:"since"`          // asked for, or first seen
	Ready   bool      `json:"ready"`
	Leaving bool      `json:"leaving"`
	Ending  bool      `json:"ending"`
	Doomed  bool      `json:"doomed"`
	Moving  bool      `json:"moving,omitempty"`  // what runs there was asked to stop
	AtRisk  bool      `json:"at_risk,omitempty"` // it may be taken away soon
	Pending bool      `json:"pending,omitempty"`
}

type order struct {
	Token string `json:"token"`
	Count int    `json:"count"`
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
