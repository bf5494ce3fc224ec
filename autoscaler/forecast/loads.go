// SPDX-License-Identifier: MPL-2.0

package forecast

import (
	"maps"
	"slices"
	"time"
)

// Loads are several loads of one season, by name.
type Loads struct {
	season Season
	models map[string]*Model
}

// NewLoads remembers nothing yet.
func NewLoads(s Season) (*Loads, error) {
	if err := s.Validate(); err != nil {
		return nil, err
	}
	return &Loads{season: s, models: map[string]*Model{}}, nil
}

// Add tells what was asked for between two moments, as Model.Add does. Of a load
// that is not named nothing is told.
func (l *Loads) Add(from, to time.Time, gpus map[string]int) {
	for name, n := range gpus {
		if l.models[name] == nil {
			l.models[name] = &Model{season: l.season}
		}
		l.models[name].Add(from, to, n)
	}
}

// Expect tells what will probably be asked for of each load, by name in order. Where
// too little is known, it is nothing.
func (l *Loads) Expect(now time.Time) (names []string, all []Expected) {
	names = slices.Sorted(maps.Keys(l.models))
	for _, name := range names {
		e, _ := l.models[name].Expect(now)
		all = append(all, e)
	}
	return names, all
}
