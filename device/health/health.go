// SPDX-License-Identifier: MPL-2.0

// Package health judges GPUs: observations in, verdicts out. It has no clock
// and touches no hardware; time comes with each observation.
//
// Every rule that makes a GPU unhealthy says what cures it, and lifts by itself
// when the cure is seen: so that none stays unhealthy without anyone knowing
// why. Conditions that come and go (heat, links) have to be seen several times
// before they count and to be gone for a while before they do no more.
package health

import (
	"fmt"
	"slices"
	"time"
)

// State is a verdict's gravity; worse is greater.
type State int8

// The states. A degraded GPU still takes work; an unhealthy one does not.
const (
	Healthy State = iota
	Degraded
	Unhealthy
)

// String gives "healthy", "degraded" or "unhealthy".
func (s State) String() string {
	switch s {
	case Degraded:
		return "degraded"
	case Unhealthy:
		return "unhealthy"
	}
	return "healthy"
}

// MarshalText makes JSON show the word.
func (s State) MarshalText() ([]byte, error) { return []byte(s.String()), nil }

// Recovery is the driver's own word on what a GPU needs
// (NVML_FI_DEV_GET_GPU_RECOVERY_ACTION, driver 565 and newer).
type Recovery int8

// Recovery actions; the zero value is that the driver does not tell.
const (
	RecoveryUnknown Recovery = iota
	RecoveryNone
	RecoveryReset
	RecoveryReboot
	RecoveryDrain // drain peer-to-peer traffic, or drain and reset
)

// Observation is what was seen of one GPU at one time. Nil and zero fields are
// not known.
type Observation struct {
	At time.Time
	// Epoch changes when the GPU starts afresh: after a reset, a reload of the
	// driver or a restart of the machine. Empty where not known.
	Epoch string
	// Fault is why the GPU cannot be asked, empty if it can.
	Fault string
	// Xids are those reported since the observation before.
	Xids []uint64

	// Row remapping (A100 and newer) and page retirement (older).
	RemapPending, RemapFailed, RetirementPending bool
	// Remapped counts rows replaced because of errors that could not be
	// corrected.
	Remapped *uint64
	// Uncorrected and Corrected count ECC errors since the driver was loaded.
	Uncorrected, Corrected *uint64

	// NVLinksUp and NVLinksExpected: see [ExpectedLinks].
	NVLinksUp, NVLinksExpected uint
	// FabricFault is what is wrong with the GPU's place in its fabric of
	// switches; see [FabricFault].
	FabricFault string
	// Slowdowns the hardware imposes.
	ThermalSlowdown, PowerBrake bool

	// NVLinkRecoveries counts how often NVLinks were trained again since the
	// driver was loaded.
	NVLinkRecoveries *uint64
	// TemperatureC is the die's.
	TemperatureC *uint

	Recovery Recovery
}

// Verdict is what follows from a GPU's observations.
type Verdict struct {
	State State `json:"state"`
	// Code is the rule that decides, for machines: "xid", "remap_failed".
	Code string `json:"code,omitempty"`
	// Reason and Cure are for people.
	Reason string `json:"reason,omitempty"`
	Cure   string `json:"cure,omitempty"`
	// Since is when the deciding rule began to count.
	Since time.Time `json:"since,omitzero"`
}

// String is one line for Nomad: reason and cure.
func (v Verdict) String() string {
	if v.State == Healthy {
		return ""
	}
	return fmt.Sprintf("%s: %s (%s)", v.Code, v.Reason, v.Cure)
}

// finding is what a rule says of one observation.
type finding struct {
	state  State // Healthy: nothing found
	reason string
	cure   string
}

// Rule is one thing to look at.
type Rule struct {
	// Code names it in verdicts and in the configuration.
	Code string
	// Meaning is for the reference.
	Meaning string
	// Trips is how many observations in a row must show it before it counts.
	Trips int
	// Hold is how long it must be gone before it counts no more.
	Hold time.Duration

	look func(past *past, o Observation) finding
}

// AtOnce are the rules without hysteresis, for a single look: what would count
// if it stayed as it is.
func AtOnce(rules []Rule) []Rule {
	once := slices.Clone(rules)
	for n := range once {
		once[n].Trips = 1
	}
	return once
}

// past is what rules remember of a GPU.
type past struct {
	seen bool
	last Observation

	xid       finding // of the gravest Xid that is not cured
	epoch     string  // in which it came
	asked     bool    // the driver asked for recovery since
	corrected trend
	remapped  trend
	restarts  trend // Xids that hit programs
	links     trend // NVLinks trained again
	hot       bool  // held out until it has cooled
	recalled  bool  // the Xid is from a former process: its epoch is the next one seen
}

// trend counts increases within a window.
type trend struct{ times []time.Time }

func (t *trend) add(at time.Time, n uint64, window time.Duration, most int) int {
	for range min(n, uint64(most)) {
		t.times = append(t.times, at)
	}
	for len(t.times) > 0 && (at.Sub(t.times[0]) >= window || len(t.times) > most) {
		t.times = t.times[1:]
	}
	return len(t.times)
}

// standing is how a rule stands for a GPU.
type standing struct {
	tripped int // observations in a row that showed it
	counts  bool
	found   finding
	since   time.Time
	lastBad time.Time
}

// Judge follows one GPU.
type Judge struct {
	rules    []Rule
	standing []standing
	past     past
}

// NewJudge makes a judge with these rules: [Rules], or those of them that are
// switched on.
func NewJudge(rules []Rule) *Judge {
	return &Judge{rules: rules, standing: make([]standing, len(rules))}
}

// Observe takes one observation and gives the verdict after it: that of the
// gravest rule that counts, the first in order among equals. Observations come
// in the order of their times.
func (j *Judge) Observe(o Observation) Verdict {
	var verdict Verdict
	for n, rule := range j.rules {
		s := &j.standing[n]
		found := rule.look(&j.past, o)
		if found.state != Healthy {
			s.tripped++
			s.lastBad = o.At
			if s.tripped >= rule.Trips {
				if !s.counts {
					s.counts, s.since = true, o.At
				}
				s.found = found
			}
		} else {
			s.tripped = 0
			if s.counts && o.At.Sub(s.lastBad) >= rule.Hold {
				s.counts = false
			}
		}
		if s.counts && s.found.state > verdict.State {
			verdict = Verdict{State: s.found.state, Code: rule.Code, Reason: s.found.reason, Cure: s.found.cure, Since: s.since}
		}
	}
	j.past.seen, j.past.last = true, o
	return verdict
}
