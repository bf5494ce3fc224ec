// SPDX-License-Identifier: MPL-2.0

package main

import (
	"testing"
	"time"

	"github.com/shoenig/test/must"

	"github.com/nomad-gpu/nomad-gpu/autoscaler/demand"
	"github.com/nomad-gpu/nomad-gpu/autoscaler/plan"
)

var h100 = plan.Pool{Name: "h100", Max: 10, Shape: plan.Shape{GPUs: 8}}

func days(peaks ...int) (all []demand.Sample) {
	for day, gpus := range peaks {
		at := time.Date(2026, 1, 1+day, 12, 0, 0, 0, time.UTC)
		all = append(all, demand.Sample{At: at.Add(-time.Hour), Pool: "h100"}, demand.Sample{At: at, Pool: "other", Used: []demand.Held{{GPUs: 999}}},
			demand.Sample{At: at, Pool: "h100", Used: []demand.Held{{GPUs: gpus / 2}, {GPUs: gpus - gpus/2}}})
	}
	return all
}

func TestATrendTellsWhenThePoolsMaximumIsReached(t *testing.T) {
	for name, c := range map[string]struct {
		peaks  []int
		perDay float64
		full   string
	}{
		"growing":                  {[]int{40, 44, 48, 52, 56}, 4, "2026-01-11"},
		"one day out of line":      {[]int{40, 44, 0, 52, 56}, 4, "2026-01-11"},
		"already there":            {[]int{80, 80, 80}, 0, "2026-01-03"},
		"steady":                   {[]int{40, 40, 40, 40}, 0, ""},
		"falling":                  {[]int{48, 44, 40}, -4, ""},
		"so slow that nobody asks": {[]int{10, 10, 10, 10, 10, 10, 10, 11}, 0, ""},
	} {
		t.Run(name, func(t *testing.T) {
			got, ok := trendOf(days(c.peaks...), h100)
			must.True(t, ok)
			must.InDelta(t, c.perDay, got.PerDay, 1e-9)
			want := time.Time{}
			if c.full != "" {
				var err error
				want, err = time.Parse(time.DateOnly, c.full)
				must.NoError(t, err)
			}
			must.Eq(t, want, got.Full)
		})
	}
	_, ok := trendOf(days(1, 2), h100)
	must.False(t, ok)
}

func TestAnExtraNodeServesWhatWaitsWhileThePoolIsAtItsMaximum(t *testing.T) {
	begin := time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)
	at := func(minutes int) time.Time { return begin.Add(time.Duration(minutes) * time.Minute) }
	samples := []demand.Sample{
		{At: at(0), Pool: "h100", Nodes: 10, Queued: 64}, // no more than its 8 GPUs, for half an hour
		{At: at(0), Pool: "other", Nodes: 10, Queued: 64},
		{At: at(30), Pool: "h100", Nodes: 10},
		{At: at(40), Pool: "h100", Nodes: 9, Queued: 64}, // on its way anyway
		{At: at(60), Pool: "h100", Nodes: 10, Queued: 2}, // nobody looked after this one
	}
	must.InDelta(t, 8*0.5+2*1, unserved(samples, h100, begin, at(600), time.Hour), 1e-9)
	must.InDelta(t, 8*0.25, unserved(samples, h100, at(15), at(60), time.Hour), 1e-9)
}

func TestSlicesCountByTheirPartOfAGPU(t *testing.T) {
	begin := time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)
	shared := plan.Pool{Name: "shared", Max: 1, Shape: plan.Shape{Devices: []plan.Devices{{Type: plan.Slice, Count: 8, Of: 4}, {Type: plan.Slice, Count: 8, Of: 4}}}}
	samples := []demand.Sample{{At: begin, Pool: "shared", Nodes: 1, QueuedShared: 0.5, Used: []demand.Held{{Shared: 3.5}}}}
	must.InDelta(t, 0.5, unserved(samples, shared, begin, begin.Add(time.Hour), time.Hour), 1e-9)
	must.Eq(t, 3.5, usedOf(samples[0]))
	samples[0].QueuedShared = 99
	must.InDelta(t, 4, unserved(samples, shared, begin, begin.Add(time.Hour), time.Hour), 1e-9)
}
