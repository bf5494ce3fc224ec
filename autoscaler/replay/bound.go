// SPDX-License-Identifier: MPL-2.0

package replay

import (
	"cmp"
	"maps"
	"slices"
	"time"

	"github.com/nomad-gpu/nomad-gpu/autoscaler/plan"
)

// Bounds that know the future, for the cost of the work's GPU hours.
type Bounds struct {
	// NoWait: no policy that starts each task when it arrives and runs it
	// without a stop pays less. At each moment the GPUs asked for are paid to
	// the second at the cheapest pools that have them then; nodes start at
	// once, have no idle part, and moving between them is free and loses
	// nothing. A task is paid only at pools whose nodes take it; tasks that fit
	// different sets of pools are bounded each for itself, as if the others were
	// not there.
	NoWait float64 `json:"no_wait"`
	// Any: no policy at all pays less, however long it lets work wait: every
	// GPU hour at the price of the cheapest pool that takes its task.
	Any      float64 `json:"any_wait"`
	GPUHours float64 `json:"gpu_hours"`
}

// Bound computes both.
func Bound(o Options) (b Bounds) {
	classes := map[string]*Options{}
	for _, t := range o.Trace.Tasks {
		b.GPUHours += t.Run.Hours() * float64(t.GPUs())
		key, pools := "", []Pool(nil)
		for _, p := range o.Pools {
			if fits(t.Request, p.Shape) && !(t.Spot == plan.Never && p.Lifecycle == plan.Spot) && !(t.Spot == plan.Only && p.Lifecycle != plan.Spot) {
				pools = append(pools, p)
				key += p.Name + "\x00"
			}
		}
		if len(pools) == 0 {
			continue // it never runs, and costs nothing
		}
		if classes[key] == nil {
			classes[key] = &Options{Pools: pools}
		}
		classes[key].Trace.Tasks = append(classes[key].Trace.Tasks, t)
	}
	for _, key := range slices.Sorted(maps.Keys(classes)) {
		one := boundOne(*classes[key])
		b.NoWait += one.NoWait
		b.Any += one.Any
	}
	return b
}

// boundOne bounds tasks that fit all pools.
func boundOne(o Options) Bounds {
	type change struct {
		at   time.Duration
		gpus int
	}
	var changes []change
	var b Bounds
	for _, t := range o.Trace.Tasks {
		changes = append(changes, change{t.Arrive, t.GPUs()}, change{t.Arrive + t.Run, -t.GPUs()})
		b.GPUHours += t.Run.Hours() * float64(t.GPUs())
	}
	end := time.Duration(0)
	for _, c := range changes {
		end = max(end, c.at)
	}
	for _, p := range o.Pools {
		if p.Spot != nil {
			for t := time.Duration(0); t < end; t += p.Spot.Gap {
				changes = append(changes, change{at: t})
			}
		}
	}
	slices.SortFunc(changes, func(a, b change) int { return cmp.Compare(a.at, b.at) })
	pools := slices.Clone(o.Pools)
	slices.SortStableFunc(pools, func(a, b Pool) int { return cmp.Compare(perGPU(a), perGPU(b)) })
	b.Any = b.GPUHours * perGPU(pools[0])
	gpus, from := 0, time.Duration(0)
	for _, c := range changes {
		if c.at > from {
			b.NoWait += rate(pools, gpus, from) * (c.at - from).Hours()
			from = c.at
		}
		gpus += c.gpus
	}
	return b
}

func perGPU(p Pool) float64 { return p.Price / float64(p.Shape.GPUs) }

// rate is the least price of an hour for so many GPUs. What exceeds
// all pools cannot start when it arrives, so that no policy is in this bound's
// class; it is charged at the dearest.
func rate(pools []Pool, gpus int, at time.Duration) (price float64) {
	for _, p := range pools {
		have := p.Max
		if p.Lifecycle == plan.Spot && p.Spot != nil {
			have = min(have, p.Spot.At(at))
		}
		n := min(gpus, have*p.Shape.GPUs)
		price += float64(n) * perGPU(p)
		gpus -= n
	}
	return price + float64(gpus)*perGPU(pools[len(pools)-1])
}
