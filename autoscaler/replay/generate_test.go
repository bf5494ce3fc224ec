// SPDX-License-Identifier: MPL-2.0

package replay

import (
	"testing"
	"time"

	"github.com/shoenig/test/must"

	"github.com/nomad-gpu/nomad-gpu/autoscaler/forecast"
)

func TestPhillysGangsHaveTheSharesThatAreStated(t *testing.T) {
	g := Generate(Gangs{Model: Philly, Count: 20000, Every: time.Minute, Most: 8, GPUs: 1, Longest: 365 * 24 * time.Hour}, 1)
	sizes, long := map[int]float64{}, 0.0
	for _, x := range g.Tasks {
		sizes[x.Count] += 1.0 / 20000
		must.Between(t, 31*time.Minute, x.Run, 10001*time.Minute)
		if x.Run > 1000*time.Minute {
			long += 1.0 / 20000
		}
	}
	for size, want := range map[int]float64{1: 0.70, 2: 0.10, 4: 0.15, 8: 0.05} {
		must.InDelta(t, want, sizes[size], 0.01)
	}
	must.InDelta(t, 0.2, long, 0.01)
}

func TestADailySwingMovesArrivalsToTheAfternoon(t *testing.T) {
	day, all := 0, Generate(Gangs{Count: 5000, Every: 10 * time.Minute, Daily: 1, Most: 1, GPUs: 1, Longest: time.Hour}, 1).Tasks
	for _, x := range all {
		if h := x.Arrive % (24 * time.Hour); h >= 9*time.Hour && h < 21*time.Hour {
			day++
		}
	}
	// The mean of 1 + sin over the half of the day that is above it is 1 + 2/π.
	must.InDelta(t, (1+2/3.14159)/2, float64(day)/5000, 0.02)
	must.InDelta(t, 5000*10, all[4999].Arrive.Minutes(), 2500, must.Sprint("the mean rate is as it was"))
}

func TestAForecastPaysWhereWorkComesTogetherEachDay(t *testing.T) {
	o := small()
	o.Trace = Generate(Gangs{Count: 120, Burst: 4, Most: 1, GPUs: 1, Longest: 2 * time.Hour}, 1)
	for i := range o.Pools {
		o.Pools[i].Start = 10 * time.Minute
	}
	f, err := NewForecaster(forecast.Season{Period: 24 * time.Hour, Periods: 7, Share: 0.5, Ahead: 15 * time.Minute})
	must.NoError(t, err)
	with, err := Run(o, Planner{Forecast: f})
	must.NoError(t, err)
	without, err := Run(o, Planner{})
	must.NoError(t, err)
	must.Less(t, without.MeanWait/3, with.MeanWait)
	must.Less(t, 1.3*without.Cost, with.Cost)
}
