// SPDX-License-Identifier: MPL-2.0

package progress

import (
	"context"
	"fmt"
	"strings"
	"time"
)

// Verdict is what a witness says to the suspicion that the training hangs.
type Verdict int

const (
	// Silent: it cannot tell.
	Silent Verdict = iota
	// Agrees: as far as it sees nothing moves.
	Agrees
	// Denies: it sees work being done; the step is only slow.
	Denies
)

// Opinion is a witness's verdict with its reason.
type Opinion struct {
	Verdict Verdict
	// Reason is for people, such as "NCCL RAS: rank 3 is 1 collective behind".
	Reason string
}

// Witness sees something of the training beside its progress file.
type Witness interface {
	// Observe is called now and then; progressing says whether steps are made.
	Observe(ctx context.Context, now time.Time, progressing bool)
	// Ask is called while progress has stopped, again and again.
	Ask(ctx context.Context, now time.Time) Opinion
}

// Decide reports whether stopped progress is a hang: at least one witness
// agrees and none denies, or the user's rule is progress alone. why holds the
// reasons of those that counted.
func Decide(r Rule, opinions []Opinion) (hang bool, why string) {
	var reasons []string
	agreed, denied := false, false
	for _, o := range opinions {
		switch o.Verdict {
		case Agrees:
			agreed = true
			reasons = append(reasons, o.Reason)
		case Denies:
			denied = true
		}
	}
	if r.Alone {
		return true, strings.Join(reasons, "; ")
	}
	return agreed && !denied, strings.Join(reasons, "; ")
}

// Meter is a witness on a figure that falls when the work stops, such as the
// power of the GPUs: a collective that waits keeps a GPU "used", but draws
// far less than the training did.
type Meter struct {
	// What names the figure, with its unit in Unit.
	What, Unit string
	// Read takes the figure; false where it cannot be had.
	Read func(ctx context.Context, now time.Time) (float64, bool)

	usual []float64
}

const (
	// A figure under standing of its usual value agrees with a hang, one
	// above working denies it.
	standing = 0.6
	working  = 0.8
)

// Observe learns what is usual while steps are made.
func (m *Meter) Observe(ctx context.Context, now time.Time, progressing bool) {
	value, ok := m.Read(ctx, now)
	if !ok || !progressing {
		return
	}
	m.usual = append(m.usual, value)
	m.usual = m.usual[max(0, len(m.usual)-maxPaces):]
}

// Ask compares with what is usual.
func (m *Meter) Ask(ctx context.Context, now time.Time) Opinion {
	value, ok := m.Read(ctx, now)
	usual := median(m.usual)
	if !ok || usual <= 0 {
		return Opinion{}
	}
	reason := fmt.Sprintf("%s %.3g %s, usually %.3g", m.What, value, m.Unit, usual)
	switch {
	case value <= standing*usual:
		return Opinion{Agrees, reason}
	case value >= working*usual:
		return Opinion{Denies, reason}
	}
	return Opinion{Silent, reason}
}
