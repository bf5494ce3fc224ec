// SPDX-License-Identifier: MPL-2.0

// Package forecast tells the recurring part of a load: what was in use at the
// same time of the day, or of the week, in the periods before. It is pure.
package forecast

import (
	"fmt"
	"math"
	"slices"
	"time"
)

// Step is how fine the past is kept; of each the most that was in use.
const Step = time.Minute

// Least is how many periods must be known before anything is expected.
const Least = 3

// patience is how long a load that is usual and does not come is waited for.
const patience = 15 * time.Minute

// around is how far from a moment is looked for what was asked for at it.
const around = 5 * time.Minute

// Season says what recurs.
type Season struct {
	// Period is what the load repeats after: 24h or 168h.
	Period time.Duration
	// Periods is how many of them are remembered, 3 to 60.
	Periods int
	// Share of the remembered periods, over 0 to 1, that needed no more than
	// what is usual. 0.5 is their median; 1 the most that ever was.
	Share float64
	// Ahead is how far is looked, over 0 to 24h: what is bought for a load has to
	// be ready when it begins.
	Ahead time.Duration
}

// Usual is the season of work that people start, where nothing else is said: a
// week, as its days differ.
var Usual = Season{Period: 7 * 24 * time.Hour, Periods: 4, Share: 0.5, Ahead: 15 * time.Minute}

// Validate names the field that is wrong.
func (s Season) Validate() error {
	switch {
	case s.Period != 24*time.Hour && s.Period != 7*24*time.Hour:
		return fmt.Errorf("period: %s; allowed are 24h and 168h", s.Period)
	case s.Periods < Least || s.Periods > 60:
		return fmt.Errorf("periods: %d; allowed are %d to 60", s.Periods, Least)
	case !(s.Share > 0 && s.Share <= 1):
		return fmt.Errorf("share: %g; allowed are over 0 to 1", s.Share)
	case s.Ahead <= 0 || s.Ahead > 24*time.Hour:
		return fmt.Errorf("ahead: %s; allowed are over 0 to 24h", s.Ahead)
	}
	return nil
}

// Model remembers a load. The zero value is of no use: see New.
type Model struct {
	season Season
	first  int64   // the oldest step that is remembered
	steps  []int32 // from first on; unknown where nobody looked
}

const unknown = int32(-1)

// New remembers nothing yet.
func New(s Season) (*Model, error) {
	if err := s.Validate(); err != nil {
		return nil, err
	}
	return &Model{season: s}, nil
}

// Add tells that so many GPUs were asked for between two moments. What is told
// twice counts with its greatest value; what is older than all that is
// remembered is left out. It costs no more than the remembered periods have steps.
func (m *Model) Add(from, to time.Time, gpus int) {
	if !from.Before(to) || gpus < 0 {
		return
	}
	load := int32(min(gpus, math.MaxInt32))
	begin, end := at(from), at(to.Add(-1))
	keep := m.keep()
	if len(m.steps) == 0 || end-m.first >= int64(len(m.steps))+keep {
		m.first, m.steps = max(begin, end-keep+1), m.steps[:0]
	}
	for int64(len(m.steps)) <= end-m.first {
		m.steps = append(m.steps, unknown)
	}
	for i := max(begin, m.first); i <= end; i++ {
		m.steps[i-m.first] = max(m.steps[i-m.first], load)
	}
	// Half as much again may be kept, so that letting go is rare.
	if over := int64(len(m.steps)) - keep; over > keep/2 {
		m.steps = slices.Delete(m.steps, 0, int(over))
		m.first += over
	}
}

// keep is how many steps are remembered: a period more, as a window may reach
// into the one before.
func (m *Model) keep() int64 {
	return int64(m.season.Periods+1) * int64(m.season.Period/Step)
}

// Expected is what a load will probably be.
type Expected struct {
	GPUs int
	// Usual is what the past alone says: GPUs is less where today's load is.
	Usual int
	// Known of the remembered periods tell of the window; Reached of them needed
	// as much as is usual, or more.
	Known, Reached int
	From, To       time.Time
	Period         time.Duration
}

// String says where the number comes from.
func (e Expected) String() string {
	if e.Known < Least {
		return fmt.Sprintf("nothing is expected yet: %d of the %d periods of %s that are needed are known", e.Known, Least, e.Period)
	}
	name := "days"
	if e.Period > 24*time.Hour {
		name = e.From.UTC().Weekday().String() + "s"
	}
	text := fmt.Sprintf("%d GPUs or more were asked for between %s and %s UTC on %d of the last %d %s",
		e.Usual, e.From.UTC().Format("15:04"), e.To.UTC().Format("15:04"), e.Reached, e.Known, name)
	if e.GPUs < e.Usual {
		text += fmt.Sprintf("; today's load is lower, %d are expected", e.GPUs)
	}
	return text
}

// Expect tells what will probably be asked for at the most between now and the
// season's time ahead. It is false, and tells how many periods are known, while
// they are fewer than three.
//
// A day that goes another way than others ends it: on top of what today's load
// was within patience no more is expected than it usually rose by since before that.
func (m *Model) Expect(now time.Time) (Expected, bool) {
	ahead := m.season.Ahead
	var peaks, rises []int32
	for k := 1; k <= m.season.Periods; k++ {
		from := now.Add(-time.Duration(k) * m.season.Period)
		peak := m.peak(from, from.Add(ahead))
		if peak == unknown {
			continue
		}
		peaks = append(peaks, peak)
		if before := m.peak(from.Add(-patience-around), from.Add(-patience)); before != unknown {
			rises = append(rises, max(peak-before, 0))
		}
	}
	e := Expected{Known: len(peaks), From: now, To: now.Add(ahead), Period: m.season.Period}
	if len(peaks) < Least {
		return e, false
	}
	usual := m.usual(peaks)
	e.GPUs, e.Usual = int(usual), int(usual)
	if today := m.peak(now.Add(-patience), now); today != unknown && len(rises) >= Least {
		e.GPUs = min(e.GPUs, int(today)+int(m.usual(rises)))
	}
	for _, p := range peaks {
		if p >= usual {
			e.Reached++
		}
	}
	return e, true
}

// usual is what the season's share of values does not exceed.
func (m *Model) usual(values []int32) int32 {
	slices.Sort(values)
	return values[max(int(math.Ceil(m.season.Share*float64(len(values))))-1, 0)]
}

// peak is the most between two moments, both included.
func (m *Model) peak(from, to time.Time) int32 {
	most := unknown
	for i := max(at(from), m.first); i <= min(at(to), m.first+int64(len(m.steps))-1); i++ {
		most = max(most, m.steps[i-m.first])
	}
	return most
}

func at(t time.Time) int64 { return t.UnixNano() / int64(Step) }
