// SPDX-License-Identifier: MPL-2.0

package health

import (
	"fmt"
	"time"
)

// Memory is what a judge knows that cannot be read from the GPU again: it
// outlives the process that judges. The zero value knows nothing.
type Memory struct {
	// Xid is the gravest that is not cured.
	Xid *Ailment `json:"xid,omitempty"`
	// Remapped, Links and Restarts are the times of what the trend rules count.
	Remapped []time.Time `json:"remapped,omitempty"`
	Links    []time.Time `json:"links,omitempty"`
	Restarts []time.Time `json:"restarts,omitempty"`
}

// Ailment is a finding that waits for its cure.
type Ailment struct {
	State  string `json:"state"`
	Reason string `json:"reason"`
	Cure   string `json:"cure"`
	Asked  bool   `json:"asked,omitempty"`
}

// Bounds of what is believed of a memory that comes from a file.
const (
	maxRemembered = 1000
	maxWords      = 500
)

// Validate checks a memory that anybody may have written.
func (m Memory) Validate() error {
	if m.Xid != nil {
		if m.Xid.State != Degraded.String() && m.Xid.State != Unhealthy.String() {
			return fmt.Errorf("xid.state %q: allowed are %q and %q", m.Xid.State, Degraded, Unhealthy)
		}
		if len(m.Xid.Reason) > maxWords || len(m.Xid.Cure) > maxWords || m.Xid.Reason == "" || m.Xid.Cure == "" {
			return fmt.Errorf("xid: reason and cure must have 1 to %d bytes", maxWords)
		}
	}
	for name, times := range map[string][]time.Time{"remapped": m.Remapped, "links": m.Links, "restarts": m.Restarts} {
		if len(times) > maxRemembered {
			return fmt.Errorf("%s: %d times; allowed are %d", name, len(times), maxRemembered)
		}
	}
	return nil
}

// Empty reports whether there is nothing to remember.
func (m Memory) Empty() bool {
	return m.Xid == nil && len(m.Remapped)+len(m.Links)+len(m.Restarts) == 0
}

// Memory is what the judge knows now.
func (j *Judge) Memory() Memory {
	recent := func(t trend) []time.Time { return t.times[max(0, len(t.times)-maxRemembered):] }
	m := Memory{Remapped: recent(j.past.remapped), Links: recent(j.past.links), Restarts: recent(j.past.restarts)}
	if x := j.past.xid; x.state != Healthy {
		m.Xid = &Ailment{State: x.state.String(), Reason: x.reason, Cure: x.cure, Asked: j.past.asked}
	}
	return m
}

// Recall gives a new judge a memory of the same start of the machine. Epochs
// are counted anew by each process, so the first one seen is taken for the one
// the Xid came in: a reset in between is not noticed.
func (j *Judge) Recall(m Memory) {
	j.past.remapped.times, j.past.links.times, j.past.restarts.times = m.Remapped, m.Links, m.Restarts
	if m.Xid == nil {
		return
	}
	state := Degraded
	if m.Xid.State == Unhealthy.String() {
		state = Unhealthy
	}
	j.past.xid = finding{state, m.Xid.Reason, m.Xid.Cure}
	j.past.asked, j.past.recalled = m.Xid.Asked, true
}
