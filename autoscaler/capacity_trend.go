// SPDX-License-Identifier: MPL-2.0

package main

import (
	"maps"
	"slices"
	"time"

	"github.com/nomad-gpu/nomad-gpu/autoscaler/demand"
	"github.com/nomad-gpu/nomad-gpu/autoscaler/plan"
)

// trendDays is how many days a trend needs; trendYears how far ahead it is followed.
const (
	trendDays  = 3
	trendYears = 5
)

// trend is how the most GPUs in use on a day go.
type trend struct {
	// PerDay is what is added a day, by the median of the slopes between all
	// pairs of days (Theil and Sen): a few days out of line do not move it.
	PerDay float64
	// Full is when all that the pool may have is in use if it goes on so; zero:
	// not within five years.
	Full time.Time
}

// trendOf is false for a pool of which fewer than three days are recorded.
func trendOf(samples []demand.Sample, pool plan.Pool) (trend, bool) {
	peaks := map[int64]float64{}
	for _, s := range samples {
		if s.Pool == pool.Name {
			day := s.At.Unix() / 86400
			peaks[day] = max(peaks[day], usedOf(s))
		}
	}
	if len(peaks) < trendDays {
		return trend{}, false
	}
	days := slices.Sorted(maps.Keys(peaks))
	var slopes, levels []float64
	for i, a := range days {
		for _, b := range days[i+1:] {
			slopes = append(slopes, (peaks[b]-peaks[a])/float64(b-a))
		}
	}
	t := trend{PerDay: median(slopes)}
	last := days[len(days)-1]
	for _, d := range days {
		levels = append(levels, peaks[d]+t.PerDay*float64(last-d))
	}
	level, most := median(levels), float64(pool.Max)*pool.Shape.Size()
	left := 0.0
	if level < most {
		if t.PerDay <= 0 || (most-level)/t.PerDay > trendYears*365 {
			return t, true
		}
		left = (most - level) / t.PerDay
	}
	t.Full = time.Unix(last*86400, 0).UTC().Add(time.Duration(left * float64(24*time.Hour)))
	return t, true
}

// unserved is what one node more than a pool's maximum could have served between two
// moments: GPU hours of work that waited while the pool had all the nodes it
// may have. It is the most that it can be: a gang may lack more than one node.
func unserved(samples []demand.Sample, pool plan.Pool, from, to time.Time, gap time.Duration) (hours float64) {
	var before *demand.Sample
	add := func(until time.Time) {
		if before != nil && before.Nodes >= pool.Max {
			begin, end := latest(before.At, from), earliest(earliest(until, before.At.Add(gap)), to)
			hours += max(end.Sub(begin).Hours(), 0) * min(float64(before.Queued)+before.QueuedShared, pool.Shape.Size())
		}
	}
	for i := range samples {
		if samples[i].Pool == pool.Name {
			add(samples[i].At)
			before = &samples[i]
		}
	}
	add(to)
	return hours
}

func usedOf(s demand.Sample) (gpus float64) {
	for _, h := range s.Used {
		gpus += h.All()
	}
	return gpus
}

func median(all []float64) float64 {
	slices.Sort(all)
	n := len(all)
	return (all[(n-1)/2] + all[n/2]) / 2
}

func latest(a, b time.Time) time.Time {
	if a.After(b) {
		return a
	}
	return b
}

func earliest(a, b time.Time) time.Time {
	if a.Before(b) {
		return a
	}
	return b
}
