// SPDX-License-Identifier: MPL-2.0

package story

import (
	"bytes"
	"encoding/json"
	"slices"
)

// Event is one line that a rank of the training programs prints.
type Event struct {
	Event      string   `json:"event"` // start, allreduce, resume, step, checkpoint, stopped, result
	Rank       int      `json:"rank"`
	Generation int      `json:"generation"`
	World      int      `json:"world"`
	PID        int      `json:"pid"`
	Address    string   `json:"address"`
	Master     string   `json:"master"`
	GPUs       []string `json:"gpus"`
	Step       int      `json:"step"`
	Loss       float64  `json:"loss"`
	FirstLoss  float64  `json:"first_loss"`
	LastLoss   float64  `json:"last_loss"`
	Digest     string   `json:"digest"`
	OK         bool     `json:"ok"`
}

// ParseEvents reads the events out of a task's output. Lines that are no
// event (warnings of a library, a line cut at the end of what was read) are
// left out.
func ParseEvents(output []byte) []Event {
	var events []Event
	for line := range bytes.Lines(output) {
		var e Event
		if json.Unmarshal(line, &e) == nil && e.Event != "" {
			events = append(events, e)
		}
	}
	return events
}

// Member is one allocation of the job with all that its task printed.
type Member struct {
	Alloc  string
	Node   string
	Class  string
	Status string // Nomad's client status: pending, running, complete, failed, lost
	Events []Event
}

// last returns the newest event of a kind in a generation; 0 means any.
func (m Member) last(kind string, generation int) (Event, bool) {
	for _, e := range slices.Backward(m.Events) {
		if e.Event == kind && (generation == 0 || e.Generation == generation) {
			return e, true
		}
	}
	return Event{}, false
}

// Generation is the newest generation any rank has started, or 0.
func Generation(members []Member) int {
	newest := 0
	for _, m := range members {
		for _, e := range m.Events {
			newest = max(newest, e.Generation)
		}
	}
	return newest
}

// Step is the newest step any rank has reported in a generation.
func Step(members []Member, generation int) int {
	newest := 0
	for _, m := range members {
		for _, e := range m.Events {
			if e.Generation == generation {
				newest = max(newest, e.Step)
			}
		}
	}
	return newest
}

// ByRank orders members by the rank of their newest start; those without one come last.
func ByRank(members []Member) []Member {
	rank := func(m Member) int {
		if e, ok := m.last("start", 0); ok {
			return e.Rank
		}
		return len(members)
	}
	sorted := slices.Clone(members)
	slices.SortStableFunc(sorted, func(a, b Member) int { return rank(a) - rank(b) })
	return sorted
}
