// SPDX-License-Identifier: MPL-2.0

package replay

import (
	"time"

	"github.com/nomad-gpu/nomad-gpu/autoscaler/forecast"
	"github.com/nomad-gpu/nomad-gpu/autoscaler/plan"
)

// foresee is how often what is expected is looked at where nothing happens.
const foresee = 5 * time.Minute

// Forecaster learns the load as the replay goes.
type Forecaster struct {
	loads *forecast.Loads
	since time.Time
	gpus  map[string]int // asked for since then, by model
}

// NewForecaster knows nothing yet.
func NewForecaster(s forecast.Season) (*Forecaster, error) {
	loads, err := forecast.NewLoads(s)
	if err != nil {
		return nil, err
	}
	return &Forecaster{loads: loads}, nil
}

// expect is what a plan is told to expect.
func (f *Forecaster) expect(now time.Time) (all []plan.Ahead) {
	if f.gpus != nil {
		f.loads.Add(f.since, now, f.gpus)
	}
	models, expected := f.loads.Expect(now)
	for i, e := range expected {
		all = append(all, plan.Ahead{Model: models[i], GPUs: e.GPUs, Why: e.String()})
	}
	return all
}

// learn notes what is asked for from now on: what runs, and what has nodes to run on.
func (f *Forecaster) learn(in plan.Input, out plan.Output) {
	f.since, f.gpus = in.Now, map[string]int{}
	models := map[string]string{}
	for _, p := range in.Pools {
		models[p.Name] = p.Shape.Model
		f.gpus[p.Shape.Model] += 0 // that it is nothing is known, too
	}
	for _, n := range in.Nodes {
		for _, t := range n.Tenants {
			f.gpus[models[n.Pool]] += t.Work.Request.GPUs
		}
	}
	for _, w := range out.Waiting {
		for pool, gpus := range w.Places {
			f.gpus[models[pool]] += gpus
		}
	}
}
