// SPDX-License-Identifier: MPL-2.0

// Package forecast tells the recurring part of a load: what was in use at the
// same time of the day, or of the week, in the periods before. It is pure.
package forecast

import (
	"errors"
	"fmt"
	"math"
	"slices"
	"time"
)

// Step is how fine the past is kept; of each the most that was in use.
const Step = 5 * time.Minute

// least is how many periods must be known before anything is expected.
const least = 3

// Season says what recurs.
type Season struct {
	// Period is what the load repeats after: 24h or 168h.
	Period time.Duration
	// Periods is how many of them are remembered, 3 to 60.
	Periods int
	// Share of the remembered periods, over 0 to 1, that needed no more than
	// what is expected. 0.5 is their median; 1 the most that ever was.
	Share float64
}

// Validate names the field that is wrong.
func (s Season) Validate() error {
	switch {
	case s.Period != 24*time.Hour && s.Period != 7*24*time.Hour:
		return fmt.Errorf("period: %s; allowed are 24h and 168h", s.Period)
	case s.Periods < least || s.Periods > 60:
		return fmt.Errorf("periods: %d; allowed are %d to 60", s.Periods, least)
	case !(s.Share > 0 && s.Share <= 1):
		return fmt.Errorf("share: %g; allowed are over 0 to 1", s.Share)
	}
	return nil
}

// Model remembers a load. The zero value is of no use: see New.
type Model struct {
	season Season
	first  int64 // the oldest step that is remembered
	steps  []int // from first on; unknown where nobody looked
}

const unknown = -1

// New remembers nothing yet.
func New(s Season) (*Model, error) {
	if err := s.Validate(); err != nil {
		return nil, err
	}
	return &Model{season: s}, nil
}

var errOrder = errors.New("forecast: a load that begins before what is remembered")

// Add tells that so many GPUs were in use between two moments. What is told
// twice counts with its greatest value; what is older than all remembered
// periods is forgotten.
func (m *Model) Add(from, to time.Time, gpus int) error {
	if !from.Before(to) {
		return nil
	}
	begin, end := at(from), at(to.Add(-1))
	keep := int64(m.season.Periods)*m.perPeriod() + m.perPeriod() // a window may reach into the next period
	begin = max(begin, end-keep+1)
	if len(m.steps) == 0 {
		m.first = begin
	}
	if begin < m.first {
		return errOrder
	}
	for int64(len(m.steps)) <= end-m.first {
		m.steps = append(m.steps, unknown)
	}
	for i := begin; i <= end; i++ {
		m.steps[i-m.first] = max(m.steps[i-m.first], gpus)
	}
	// Half as much again may be kept, so that letting go is rare.
	if over := int64(len(m.steps)) - keep; over > keep/2 {
		m.steps = slices.Delete(m.steps, 0, int(over))
		m.first += over
	}
	return nil
}

// Expected is what a load will probably be.
type Expected struct {
	GPUs int
	// Known of the remembered periods tell of the window; Within of them needed no more.
	Known, Within int
	From, To      time.Time
	Period        time.Duration
}

// String says where the number comes from.
func (e Expected) String() string {
	name := "days"
	if e.Period > 24*time.Hour {
		name = "weeks"
	}
	return fmt.Sprintf("at most %d GPUs were in use between %s and %s in %d of the last %d %s", e.GPUs, e.From.UTC().Format("15:04"), e.To.UTC().Format("15:04"), e.Within, e.Known, name)
}

// Expect tells what will probably be in use at the most between now and a time
// ahead. It is false while fewer than three periods are known.
func (m *Model) Expect(now time.Time, ahead time.Duration) (Expected, bool) {
	var peaks []int
	for k := 1; k <= m.season.Periods; k++ {
		from := now.Add(-time.Duration(k) * m.season.Period)
		if peak := m.peak(at(from), at(from.Add(ahead))); peak != unknown {
			peaks = append(peaks, peak)
		}
	}
	if len(peaks) < least {
		return Expected{}, false
	}
	slices.Sort(peaks)
	i := int(math.Ceil(m.season.Share*float64(len(peaks)))) - 1
	e := Expected{GPUs: peaks[max(i, 0)], Known: len(peaks), From: now, To: now.Add(ahead), Period: m.season.Period}
	for _, p := range peaks {
		if p <= e.GPUs {
			e.Within++
		}
	}
	return e, true
}

func (m *Model) peak(from, to int64) int {
	most := unknown
	for i := from; i <= to; i++ {
		if j := i - m.first; j >= 0 && j < int64(len(m.steps)) {
			most = max(most, m.steps[j])
		}
	}
	return most
}

func (m *Model) perPeriod() int64 { return int64(m.season.Period / Step) }

func at(t time.Time) int64 { return t.UnixNano() / int64(Step) }
