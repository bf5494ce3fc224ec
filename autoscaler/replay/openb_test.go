// SPDX-License-Identifier: MPL-2.0

package replay

import (
	"testing"
	"time"

	"github.com/shoenig/test/must"

	"github.com/nomad-gpu/nomad-gpu/autoscaler/pool"
)

// openb is the recorded workload on the three recorded zones.
func openb(t testing.TB) Options {
	trace, err := ReadTrace("testdata/openb_pod_list_default.csv.gz")
	must.NoError(t, err)
	file, err := pool.ReadFile("testdata/pools.hcl")
	must.NoError(t, err)
	o := Options{Trace: trace, Seed: 1, Every: 10 * time.Second, Checkpoint: 15 * time.Minute, Restart: time.Minute}
	zones := map[string]string{"spot-east-2b": "us-east-2b", "spot-west-2a": "us-west-2a", "spot-west-2c": "us-west-2c"}
	for i := range file.Pools {
		p := Pool{Pool: file.Pools[i].Plan(), Start: 2 * time.Minute}
		p.Increment, p.Margin, p.Retry, p.Penalty = time.Minute, 10*time.Second, 10*time.Minute, 0.02
		if zone := zones[p.Name]; zone != "" {
			a, err := ReadAvailability("testdata/availability_16-node_aws-08-27-2023_" + zone + "_v100_1.json")
			must.NoError(t, err)
			p.Spot = &a
		}
		o.Pools = append(o.Pools, p)
	}
	return o
}

func TestThePlannerIsCheaperAndUsesMoreOfWhatItPaysThanTargetValue(t *testing.T) {
	o := openb(t)
	o.Trace.Tasks = o.Trace.Tasks[len(o.Trace.Tasks)-800:]
	first := o.Trace.Tasks[0].Arrive
	for i := range o.Trace.Tasks {
		o.Trace.Tasks[i].Arrive -= first
	}
	ours, err := Run(o, Planner{Move: true})
	must.NoError(t, err)
	theirs, err := Run(o, NewTargetValue(0.8))
	must.NoError(t, err)
	must.Eq(t, 800, ours.Done)
	must.Eq(t, 800, theirs.Done)
	must.Greater(t, 0, ours.Moved, must.Sprint("the pools' kind lets work move"))
	must.Less(t, theirs.Cost, ours.Cost)
	must.Greater(t, theirs.Used, ours.Used)
	must.GreaterEq(t, Bound(o).Any, ours.Cost)
}

func TestGangsThatReturnToSpotCostLess(t *testing.T) {
	o := openb(t)
	o.Trace = Generate(Gangs{Count: 300, Every: 2 * time.Hour, Most: 8, GPUs: 1, Longest: 48 * time.Hour}, 1)
	stay, err := Run(o, Planner{Move: true})
	must.NoError(t, err)
	move, err := Run(o, Planner{Move: true, Gangs: 10 * time.Minute})
	must.NoError(t, err)
	must.Eq(t, 300, move.Done)
	must.Greater(t, stay.Moved, move.Moved)
	must.Less(t, 0.9*stay.Cost, move.Cost)
	must.Less(t, 1000, move.MeanWait, must.Sprint("gangs wait while the pools have room"))
}
