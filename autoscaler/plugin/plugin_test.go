// SPDX-License-Identifier: MPL-2.0

package plugin

import (
	"testing"
	"time"

	"github.com/hashicorp/go-hclog"
	"github.com/hashicorp/nomad-autoscaler/sdk"
	"github.com/shoenig/test/must"

	"github.com/nomad-gpu/nomad-gpu/autoscaler/demand"
	"github.com/nomad-gpu/nomad-gpu/autoscaler/plan"
	"github.com/nomad-gpu/nomad-gpu/autoscaler/pool"
)

func configured() *APM {
	return &APM{logger: hclog.NewNullLogger(), lookout: &Lookout{File: &pool.File{Pools: []pool.Definition{{Name: "spot"}}}}}
}

func TestAWrongQueryIsNamedWithWhatIsAllowed(t *testing.T) {
	for query, want := range map[string]string{
		"queued gpus":                     `query: "queued gpus"; allowed is a metric such as queued_gpus`,
		"queue_depth":                     `query: metric "queue_depth"; allowed are ["needed_nodes" "queued_gangs" "queued_gpus"`,
		`needed_nodes{pool="nope"}`:       `pool: "nope"; allowed are ["spot"]`,
		`needed_nodes{pod="spot"}`:        "allowed is a metric",
		"":                                "allowed is a metric",
		`queued_gpus{pool=""}`:            `query: pool: ""; allowed are ["spot"]`,
		`utilisation{pool="spot"}`:        `utilisation is of all pools, so no pool may be named; of one pool there are ["needed_nodes" "queued_gangs" "queued_gpus" "wanted_nodes"]`,
		`running_gpus{pool="spot"}`:       "running_gpus is of all pools",
		`unsatisfiable_gpus{pool="spot"}`: "unsatisfiable_gpus is of all pools",
	} {
		_, err := configured().Query(query, sdk.TimeRange{})
		must.ErrorContains(t, err, want)
	}
	_, err := (&APM{}).Query("queued_gpus", sdk.TimeRange{})
	must.ErrorContains(t, err, "not configured")
}

func TestEachMetric(t *testing.T) {
	gang := plan.Work{Gang: true, Count: 4, Placed: 1, Request: plan.Shape{GPUs: 8}}
	out := plan.Output{
		Waiting: []plan.Waiting{
			{Work: gang, Buys: map[string]int{"spot": 3}},
			{Work: plan.Work{Count: 5, Placed: 3, Request: plan.Shape{GPUs: 1}}},
			{Work: plan.Work{Count: 1, Request: plan.Shape{GPUs: 64}}, Unsatisfiable: true},
			{Work: plan.Work{Count: 2, Request: plan.Shape{Asks: []plan.Ask{{Type: plan.Slice, Count: 3}}}}},
			{Work: plan.Work{Count: 1, Request: plan.Shape{Asks: []plan.Ask{{Type: plan.Slice, Count: 99}}}}, Unsatisfiable: true},
		},
		Decisions: []plan.Decision{{Pool: "spot", Now: 1, Want: 4, Needed: 3}, {Pool: "other", Now: 2, Want: 2}},
	}
	r := demand.Reading{RunningGPUs: 6, TotalGPUs: 24, RunningSlices: 4, TotalSlices: 32, RunningShared: 1, TotalShared: 4}
	for query, want := range map[string]float64{
		"queued_gpus": 34, `queued_gpus{pool="spot"}`: 32, "queued_gangs": 1, "needed_nodes": 3, `wanted_nodes{ pool = "spot" }`: 4, "wanted_nodes": 6,
		"unsatisfiable_gpus": 64, "running_gpus": 6, "utilisation": 0.25,
		"queued_slices": 6, "unsatisfiable_slices": 99, "running_slices": 4,
	} {
		m, pool, err := configured().parse(query)
		must.NoError(t, err)
		must.Eq(t, want, m(r, out, pool), must.Sprint(query))
	}
}

func TestADecisionInTheAutoscalersWords(t *testing.T) {
	up := action(plan.Decision{Pool: "spot", Now: 1, Want: 4, Needed: 3, Reason: "why"}, plan.Output{}, 1)
	must.Eq(t, sdk.ScaleDirectionUp, up.Direction)
	must.Eq(t, 4, up.Count)
	must.Eq(t, "why", up.Reason)
	down := action(plan.Decision{Now: 3, Want: 1, Release: []string{"a", "b"}}, plan.Output{}, 3)
	must.Eq(t, sdk.ScaleDirectionDown, down.Direction)
	must.Eq(t, "a,b", down.Meta[releaseMeta].(string))
	drain := action(plan.Decision{Now: 3, Want: 2, Release: []string{"a"}, Drain: []string{"b"}}, plan.Output{}, 3)
	must.Eq(t, sdk.ScaleDirectionDown, drain.Direction)
	must.Eq(t, 1, drain.Count, must.Sprint("what is drained counts no more"))
	must.Eq(t, "b", drain.Meta[drainMeta].(string))
	first := action(plan.Decision{Now: 3, Want: 4, Needed: 1, Drain: []string{"b"}}, plan.Output{}, 3)
	must.Eq(t, sdk.ScaleDirectionUp, first.Direction, must.Sprint("what is needed comes before what moves"))
	must.Eq(t, sdk.ScaleDirectionNone, action(plan.Decision{Now: 2, Want: 2}, plan.Output{}, 2).Direction)
	wait := action(plan.Decision{Now: 2, Want: 5}, plan.Output{}, 3)
	must.Eq(t, sdk.ScaleDirectionNone, wait.Direction, must.Sprint("the target has acted meanwhile"))
	must.StrContains(t, wait.Reason, "deciding when both agree")
}

func TestAPluginWithoutAPoolsFileSaysSo(t *testing.T) {
	must.ErrorContains(t, NewAPM(hclog.NewNullLogger()).SetConfig(nil), "gpu-queue: pools_file: not set")
	must.ErrorContains(t, NewStrategy(hclog.NewNullLogger()).SetConfig(map[string]string{"pools_file": "/no/such/file"}), "/no/such/file")
	_, err := NewTarget(t.Context(), hclog.NewNullLogger()).Status(map[string]string{"pool": "spot"})
	must.ErrorContains(t, err, "not configured")
}

func TestAPoolThatRestsGivesWayToAnother(t *testing.T) {
	anywhere := func(plan.Where) bool { return true }
	shape := plan.Shape{GPUs: 8, CPU: 1 << 30, Memory: 1 << 30}
	spot := plan.Pool{Name: "spot", Lifecycle: plan.Spot, Max: 8, Shape: shape, Where: plan.Where{Class: "spot"}}
	onDemand := plan.Pool{Name: "on-demand", Lifecycle: plan.OnDemand, Price: 9, Max: 8, Shape: shape, Where: plan.Where{Class: "od"}}
	gang := plan.Work{Job: "train", Group: "g", Gang: true, Distinct: true, Count: 3, Request: plan.Shape{GPUs: 8}, Spot: plan.Prefer, Allowed: anywhere}
	wants := func(out plan.Output) (got [2]int) {
		for i, name := range []string{"spot", "on-demand"} {
			if d, ok := out.Of(name); ok {
				got[i] = d.Want
			}
		}
		return got
	}
	both := plan.Input{Now: time.Unix(1000, 0), Work: []plan.Work{gang}, Pools: []plan.Pool{spot, onDemand}}
	must.Eq(t, [2]int{3, 0}, wants(planAround(both, nil)))
	out := planAround(both, map[string]string{"spot": "capacity: none"})
	must.Eq(t, [2]int{0, 3}, wants(out))
	d, _ := out.Of("spot")
	must.StrContains(t, d.Reason, "the pool rests: capacity: none")

	gang.Spot = plan.Only
	only := both
	only.Work = []plan.Work{gang}
	out = planAround(only, map[string]string{"spot": "capacity: none"})
	must.Eq(t, [2]int{0, 0}, wants(out))
	must.False(t, out.Waiting[0].Unsatisfiable, must.Sprint("it waits for the pool"))
	must.Eq(t, "pool spot rests: capacity: none", out.Waiting[0].Reason)
	gang.Count = 99
	only.Work = []plan.Work{gang}
	must.True(t, planAround(only, map[string]string{"spot": "capacity: none"}).Waiting[0].Unsatisfiable)
}
