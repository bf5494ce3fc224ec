// SPDX-License-Identifier: MPL-2.0

package gang

import (
	"cmp"
	"encoding/json"
	"fmt"
	"strings"
)

// Ticket is the place of a forming gang in the line for a pool's nodes. Of
// several gangs that each hold a part of what the others need, the first in
// line keeps what it has, and the others give theirs back in the end.
type Ticket struct {
	V int `json:"v"`
	// Gang names the gang for people: namespace/job/group.
	Gang string `json:"gang"`
	// Priority is the job's, 1 to 100: higher comes first.
	Priority int `json:"priority"`
	// Age orders gangs of one priority: lower comes first. It is the store's
	// index at which the gang was first seen, so that no clock is compared.
	Age uint64 `json:"age"`
}

// MaxPriority is the highest priority a ticket can have, as Nomad's jobs.
const MaxPriority = 100

const maxTicket = 1024

// EncodeTicket writes a ticket.
func EncodeTicket(t Ticket) ([]byte, error) {
	t.V = version
	t.Gang = shorten(t.Gang, maxReason/2)
	return json.Marshal(t)
}

// DecodeTicket reads a ticket that anybody may have written.
func DecodeTicket(data []byte) (Ticket, error) {
	var t Ticket
	if len(data) > maxTicket {
		return t, fmt.Errorf("ticket: %d bytes, allowed are %d", len(data), maxTicket)
	}
	if err := json.Unmarshal(data, &t); err != nil {
		return t, fmt.Errorf("ticket: %w", err)
	}
	if err := checkVersion("ticket", t.V); err != nil {
		return t, err
	}
	if t.Priority < 1 || t.Priority > MaxPriority {
		return t, fmt.Errorf("ticket: priority %d; allowed are 1 to %d", t.Priority, MaxPriority)
	}
	t.Gang = shorten(t.Gang, maxReason/2)
	return t, nil
}

// Before orders tickets: higher priority, then greater age, then the gang's name.
func (t Ticket) Before(other Ticket) bool {
	return cmp.Or(cmp.Compare(other.Priority, t.Priority), cmp.Compare(t.Age, other.Age), strings.Compare(t.Gang, other.Gang)) < 0
}

// Place is where a ticket stands among all of its pool; whether it is one of
// them does not matter.
func (t Ticket) Place(all []Ticket) Line {
	l := Line{Position: 1}
	var first Ticket
	for _, other := range all {
		if !other.Before(t) {
			continue
		}
		if l.Position == 1 || other.Before(first) {
			first = other
		}
		l.Position++
	}
	l.Ahead = first.Gang
	return l
}
