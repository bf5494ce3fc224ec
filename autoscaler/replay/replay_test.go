// SPDX-License-Identifier: MPL-2.0

package replay

import (
	"bytes"
	"strings"
	"testing"
	"time"

	"github.com/shoenig/test/must"

	"github.com/nomad-gpu/nomad-gpu/autoscaler/plan"
)

func small(tasks ...Task) Options {
	pool := func(name, lifecycle string, price float64) Pool {
		return Pool{Start: time.Minute, Pool: plan.Pool{Name: name, Lifecycle: lifecycle, Price: price, Max: 4, Where: plan.Where{Class: name},
			Shape: plan.Shape{GPUs: 1, CPU: 1000, Memory: 1000}, IdleTime: time.Minute, Retry: 10 * time.Minute}}
	}
	return Options{Trace: Trace{Tasks: tasks}, Every: 10 * time.Second, Checkpoint: 10 * time.Minute, Samples: 10,
		Pools: []Pool{pool("spot", plan.Spot, 1), pool("od", plan.OnDemand, 3)}}
}

func task(arrive, run time.Duration, count int) Task {
	return Task{Name: "t", Arrive: arrive, Run: run, Count: count, Gang: count > 1, Request: plan.Shape{GPUs: 1}, Spot: plan.Prefer}
}

func TestATaskWaitsForItsNodeToStartAndTheNodeIsPaidUntilItIsLetGo(t *testing.T) {
	o := small(task(0, time.Hour, 1), task(2*time.Hour, time.Minute, 1))
	r, err := Run(o, Planner{})
	must.NoError(t, err)
	must.Eq(t, 60.0, r.MeanWait)
	must.Eq(t, 2, r.Bought)
	must.InDelta(t, 61.0/60, r.UsedGPUHours, 1e-9)
	// One hour with a minute of start and a minute idle; the replay ends with the second task.
	must.InDelta(t, 64.0/60, r.PaidGPUHours, 1e-9)
	must.InDelta(t, r.PaidGPUHours, r.Cost, 1e-9, must.Sprint("all of it is spot at 1"))
}

func TestAGangFallsBackWholeToItsLastCheckpointWhenANodeIsTaken(t *testing.T) {
	o := small(task(0, time.Hour, 2))
	o.Pools[0].Spot = &Availability{Gap: 26 * time.Minute, Values: []int{2, 0}}
	r, err := Run(o, Planner{})
	must.NoError(t, err)
	must.Eq(t, 1, r.Done)
	must.Eq(t, 2, r.Interruptions)
	// It ran 25 minutes on two nodes, of which 20 were kept.
	must.InDelta(t, 2*5.0/60, r.LostGPUHours, 1e-9)
	must.InDelta(t, 2, r.UsedGPUHours, 1e-9)
	must.Greater(t, 0, r.Refused)
}

func TestANodeThatHasNoticeLosesNothing(t *testing.T) {
	o := small(task(0, time.Hour, 2))
	o.Pools[0].Spot = &Availability{Gap: 26 * time.Minute, Values: []int{2, 0}}
	o.Notice = 2 * time.Minute
	r, err := Run(o, Planner{})
	must.NoError(t, err)
	must.Eq(t, 1, r.Done)
	must.Eq(t, 2, r.Interruptions)
	must.Eq(t, 0, r.LostGPUHours)
	must.Eq(t, 60+60+10, r.P95Wait, must.Sprint("the start of its nodes, that of those bought in their stead, and an evaluation in which spot refuses"))
}

func TestWhatTheCostWasForAddsUpToIt(t *testing.T) {
	o := small()
	o.Trace = Generate(Gangs{Count: 60, Every: 20 * time.Minute, Most: 4, GPUs: 1, Longest: 6 * time.Hour}, 5)
	o.Restart = time.Minute
	for i := range o.Pools {
		o.Pools[i].Increment = 7 * time.Minute
	}
	o.Pools[0].Spot = &Availability{Gap: 30 * time.Minute, Values: []int{4, 2, 0, 3}}
	for _, p := range []Policy{Planner{Move: true}, Threshold{}} {
		r, err := Run(o, p)
		must.NoError(t, err)
		s := r.Spent
		must.InDelta(t, r.Cost, s.Work+s.Lost+s.Start+s.Idle+s.Unfilled+s.Billing, 1e-6)
		must.Greater(t, 0, s.Lost)
		must.Greater(t, 0, s.Start)
		must.Greater(t, 0, s.Idle)
		must.Greater(t, 0, s.Billing)
		must.InDelta(t, 0, s.Unfilled, 1e-6, must.Sprint("a node has one GPU"))
	}
}

func TestABillIsInWholeIncrements(t *testing.T) {
	o := small(task(0, time.Minute, 1))
	o.Pools[0].Increment = time.Hour
	r, err := Run(o, Planner{})
	must.NoError(t, err)
	must.Eq(t, 1.0, r.PaidGPUHours)
}

func TestBounds(t *testing.T) {
	o := small(task(0, time.Hour, 3))
	must.Eq(t, Bounds{NoWait: 3, Any: 3, GPUHours: 3}, Bound(o))
	o.Pools[0].Spot = &Availability{Gap: 30 * time.Minute, Values: []int{2, 0}}
	// Half an hour with 2 on spot and 1 on demand, half an hour with 3 on demand.
	must.Eq(t, Bounds{NoWait: 0.5*(2*1+1*3) + 0.5*3*3, Any: 3, GPUHours: 3}, Bound(o))
}

func TestTheBoundPaysATaskOnlyAtPoolsThatTakeIt(t *testing.T) {
	o := small(task(0, time.Hour, 1), task(0, time.Hour, 1), task(0, time.Hour, 1))
	o.Trace.Tasks[1].Spot = plan.Never
	o.Trace.Tasks[2].Request.GPUs = 2 // no pool's node has two
	must.Eq(t, Bounds{NoWait: 1 + 3, Any: 1 + 3, GPUHours: 4}, Bound(o))
}

func TestTheSameSeedGivesTheSameReport(t *testing.T) {
	report := func(seed uint64) string {
		o := small()
		o.Trace = Generate(Gangs{Count: 60, Every: 20 * time.Minute, Most: 4, GPUs: 1, Longest: 6 * time.Hour}, seed)
		o.Seed = seed
		o.Pools[0].Spot = &Availability{Gap: 30 * time.Minute, Values: []int{4, 2, 0, 3}}
		r, err := Compare(o, []Policy{Planner{}, Threshold{}, NewTargetValue(0.8), Fixed{map[string]int{"od": 4}}})
		must.NoError(t, err)
		for _, x := range r.Results {
			must.LessEq(t, 1, x.Used)
			if x.Unfinished > 0 {
				// A gang that waits does not raise utilisation, so target-value may never serve it.
				must.StrContains(t, x.Policy, "target-value")
				continue
			}
			must.Eq(t, 60, x.Done)
			must.GreaterEq(t, r.Bounds.Any, x.Cost)
			must.InDelta(t, r.Bounds.GPUHours, x.UsedGPUHours, 1e-6)
		}
		var b bytes.Buffer
		r.Table(&b)
		must.NoError(t, r.HTML(&b))
		return b.String()
	}
	one := report(7)
	must.Eq(t, one, report(7))
	must.NotEq(t, one, report(8))
}

func TestThePageNeedsNothingElse(t *testing.T) {
	o := small(task(0, time.Hour, 2))
	o.Trace.Tasks[0].Name = "<script>"
	r, err := Compare(o, []Policy{Planner{Label: "<b>"}})
	must.NoError(t, err)
	var b bytes.Buffer
	must.NoError(t, r.HTML(&b))
	must.StrNotContains(t, b.String(), "<b>")
	must.StrNotContains(t, b.String(), "<script")
	must.StrNotContains(t, b.String(), "src=")
	must.StrNotContains(t, b.String(), "href=\"http")
	must.Eq(t, len(curves), strings.Count(b.String(), "<svg"))
}

func TestWrongTracesAreRefusedWithFieldAndValue(t *testing.T) {
	const header = "name,cpu_milli,memory_mib,num_gpu,creation_time,deletion_time,scheduled_time,qos\n"
	for name, c := range map[string]struct{ text, want string }{
		"no column":          {"name\n", `column "cpu_milli"`},
		"a negative number":  {header + "a,1,1,-1,0,1,0,BE\n", `line 2: num_gpu: "-1"`},
		"an end before":      {header + "a,1,1,1,0,5,9,BE\n", "line 2: deletion_time: 5"},
		"too late":           {header + "a,1,1,1,999999999999,5,0,BE\n", "line 2: creation_time"},
		"a row of two parts": {header + "a,1\n", "wrong number of fields"},
	} {
		t.Run(name, func(t *testing.T) {
			_, err := parseTrace(strings.NewReader(c.text))
			must.ErrorContains(t, err, c.want)
		})
	}
	for name, c := range map[string]struct{ text, want string }{
		"no gap":        {`{"data":[1]}`, "metadata.gap_seconds: 0"},
		"no data":       {`{"metadata":{"gap_seconds":300}}`, "data: 0 values"},
		"less than one": {`{"metadata":{"gap_seconds":300},"data":[-1]}`, "data[0]: -1"},
	} {
		t.Run(name, func(t *testing.T) {
			_, err := parseAvailability(strings.NewReader(c.text))
			must.ErrorContains(t, err, c.want)
		})
	}
}

func TestTheRecordedTraceIsRead(t *testing.T) {
	o := openb(t)
	must.Len(t, 6203, o.Trace.Tasks)
	must.Eq(t, 8152-6203, o.Trace.Skipped)
	must.Eq(t, 300*time.Second, o.Pools[0].Spot.Gap)
}

func TestOptionsAreChecked(t *testing.T) {
	for want, change := range map[string]func(*Options){
		"trace: no task":            func(o *Options) { o.Trace.Tasks = nil },
		"pools: none":               func(o *Options) { o.Pools = nil },
		"evaluation interval: 0s":   func(o *Options) { o.Every = 0 },
		"checkpoint interval: -1ns": func(o *Options) { o.Checkpoint = -1 },
		"samples: -1":               func(o *Options) { o.Samples = -1 },
	} {
		o := small(task(0, time.Hour, 1))
		change(&o)
		_, err := Run(o, Planner{})
		must.ErrorContains(t, err, want)
	}
}
