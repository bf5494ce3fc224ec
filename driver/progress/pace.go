// SPDX-License-Identifier: MPL-2.0

package progress

import (
	"fmt"
	"slices"
	"time"
)

// Rule says when progress has stopped.
type Rule struct {
	// Factor times the usual step, but at least Floor, is how long a step may take.
	Factor float64
	Floor  time.Duration
	// First is how long the first step may take from the start; 0: no limit.
	First time.Duration
	// Alone: stopped progress is a hang by itself, whatever the witnesses say.
	Alone bool
}

// maxPaces is how many step times the usual one is made of, and fewPaces the
// least: before, a compilation or a warm-up would be the usual.
const (
	maxPaces = 64
	fewPaces = 3
)

// Pace follows the steps of one node.
type Pace struct {
	start time.Time
	// last is when anything was written last, by this node's clock.
	last    time.Time
	step    uint64
	stepped time.Time // when step was first seen
	seen    bool
	paces   []time.Duration
	files   map[int]Sample
}

// NewPace begins at the start of the processes.
func NewPace(start time.Time) *Pace { return &Pace{start: start, last: start, files: map[int]Sample{}} }

// Observe takes what was read at now. A file counts as written when it
// differs from what was read before, not by its own time: the clocks of a
// network file system need not be this node's.
func (p *Pace) Observe(now time.Time, samples []Sample) {
	var step uint64
	for _, s := range samples {
		before, known := p.files[s.Local]
		if !known || before != s {
			p.last = now
		}
		p.files[s.Local] = s
		step = max(step, s.Step)
	}
	switch {
	case len(samples) == 0:
		return
	case !p.seen:
		p.seen, p.step, p.stepped = true, step, now
	case step > p.step:
		// Several steps since the last look are averaged.
		p.add(now.Sub(p.stepped) / time.Duration(min(step-p.step, 1<<30)))
		p.step, p.stepped = step, now
	case step < p.step: // it went back to a checkpoint by itself
		p.step, p.stepped = step, now
	}
}

func (p *Pace) add(d time.Duration) {
	p.paces = append(p.paces, d)
	p.paces = p.paces[max(0, len(p.paces)-maxPaces):]
}

// Usual is the median time of a step; false before enough of them.
func (p *Pace) Usual() (time.Duration, bool) {
	if len(p.paces) < fewPaces {
		return 0, false
	}
	sorted := slices.Sorted(slices.Values(p.paces))
	return sorted[(len(sorted)-1)/2], true
}

// Step is the newest step; false before the first.
func (p *Pace) Step() (uint64, bool) { return p.step, p.seen }

// Stall is progress that has stopped.
type Stall struct {
	// Step is the last one, Started whether there was any.
	Step    uint64
	Started bool
	// For is how long nothing was written, Usual a step's usual time.
	For, Usual time.Duration
}

// String says it for people.
func (s Stall) String() string {
	if !s.Started {
		return fmt.Sprintf("no step within %s of the start", s.For.Round(time.Second))
	}
	return fmt.Sprintf("no progress for %s after step %d, a step usually takes %s", s.For.Round(time.Second), s.Step, s.Usual.Round(time.Millisecond))
}

// Stalled reports whether progress has stopped by a rule.
func (p *Pace) Stalled(now time.Time, r Rule) (Stall, bool) {
	s := Stall{Step: p.step, Started: p.seen, For: now.Sub(p.last)}
	if !p.seen {
		return s, r.First > 0 && s.For >= r.First
	}
	usual, known := p.Usual()
	s.Usual = usual
	limit := max(r.Floor, time.Duration(r.Factor*float64(usual)))
	return s, known && s.For >= limit
}
