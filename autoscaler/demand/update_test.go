// SPDX-License-Identifier: MPL-2.0

package demand

import (
	"math"
	"strings"
	"testing"
	"time"

	"github.com/hashicorp/nomad/api"
	"github.com/shoenig/test/must"

	"github.com/nomad-gpu/nomad-gpu/autoscaler/plan"
)

// service is a job of version 3 with a group of some allocations that are no gang.
func service(count int, change func(*api.TaskGroup)) *api.Job {
	j := train()
	j.Type = ptr("service")
	g := j.TaskGroups[0]
	g.Count, g.Tasks[0].Driver, g.Tasks[0].Config = ptr(count), "docker", nil
	if change != nil {
		change(g)
	}
	return j
}

// failed is a blocked evaluation that could not place some allocations of the group.
func failed(id string, index uint64, missing int) *api.Evaluation {
	e := &api.Evaluation{ID: id, Namespace: "default", JobID: "train", Status: "blocked", CreateIndex: index, FailedTGAllocs: map[string]*api.AllocationMetric{"other": {}}}
	if missing > 0 {
		e.FailedTGAllocs["gang"] = &api.AllocationMetric{CoalescedFailures: missing - 1}
	}
	return e
}

func on(node string, a *api.AllocationListStub, change ...func(*api.AllocationListStub)) *api.AllocationListStub {
	a.ID, a.NodeName = a.ID+node, node
	for _, c := range change {
		c(a)
	}
	return a
}

// TestDemandIsWhatNomadWouldPlace checks now is 100 s.
func TestDemandIsWhatNomadWouldPlace(t *testing.T) {
	due := &api.Evaluation{ID: "due", Namespace: "default", JobID: "train", Status: "pending"}
	at := func(s int64) *api.Evaluation {
		return &api.Evaluation{ID: "later", Namespace: "default", JobID: "train", Status: "pending", WaitUntil: time.Unix(s, 0)}
	}
	by := func(id string) func(*api.AllocationListStub) {
		return func(a *api.AllocationListStub) { a.EvalID = id }
	}
	follows := func(a *api.AllocationListStub) { a.FollowupEvalID = "later" }
	canary := func(a *api.AllocationListStub) { a.DeploymentStatus = &api.AllocDeploymentStatus{Canary: true} }
	canaries := func(n int) func(*api.TaskGroup) {
		return func(g *api.TaskGroup) { g.Update = &api.UpdateStrategy{Canary: ptr(n)} }
	}
	never := func(g *api.TaskGroup) {
		g.ReschedulePolicy = &api.ReschedulePolicy{Attempts: ptr(0), Unlimited: ptr(false)}
	}
	once := func(g *api.TaskGroup) {
		g.ReschedulePolicy = &api.ReschedulePolicy{Attempts: ptr(1), Interval: ptr(time.Hour), Unlimited: ptr(false)}
	}
	triedAt := func(s int64) func(*api.AllocationListStub) {
		return func(a *api.AllocationListStub) {
			a.ModifyTime = 90e9
			a.RescheduleTracker = &api.RescheduleTracker{Events: []*api.RescheduleEvent{nil, {RescheduleTime: s * 1e9}}}
		}
	}
	wrong := failed("e", 5, 1)
	wrong.FailedTGAllocs["gang"].CoalescedFailures = math.MinInt
	type allocs = []*api.AllocationListStub
	type evals = []*api.Evaluation
	old, now := func(node string) *api.AllocationListStub { return on(node, alloc("running", "run", 2)) }, func(node string) *api.AllocationListStub { return on(node, alloc("running", "run", 3)) }
	broke := func(change ...func(*api.AllocationListStub)) *api.AllocationListStub {
		return on("b", alloc("failed", "run", 3), change...)
	}
	for name, c := range map[string]struct {
		job                    *api.Job
		evals                  evals
		allocs                 allocs
		missing, placed, count int
		on                     string
		later                  int
	}{
		"a canary beside what runs":                {service(1, canaries(1)), evals{failed("e", 5, 1)}, allocs{old("a")}, 1, 1, 2, "a", 0},
		"a canary more, one is placed":             {service(2, canaries(2)), evals{failed("e", 5, 1)}, allocs{old("a"), old("b"), on("c", now("c"), canary)}, 1, 3, 4, "a b c", 0},
		"a greater version of one of two":          {service(2, nil), evals{failed("e", 5, 1)}, allocs{old("a"), old("b")}, 1, 1, 2, "b", 0},
		"a greater version of what is left":        {service(2, nil), evals{failed("e", 5, 1)}, allocs{now("a"), old("b")}, 1, 1, 2, "a", 0},
		"the rest once canaries are promoted":      {service(2, canaries(1)), evals{failed("e", 5, 1)}, allocs{on("c", now("c"), canary), old("b")}, 1, 1, 2, "c", 0},
		"all of them at once":                      {service(2, nil), evals{failed("e", 5, 2)}, allocs{old("a"), old("b")}, 2, 0, 2, "", 0},
		"in place of one that is out of touch":     {service(1, nil), evals{failed("e", 5, 1)}, allocs{on("u", alloc("unknown", "run", 3))}, 1, 0, 1, "", 0},
		"fewer than the count, as Nomad says":      {service(8, nil), evals{failed("e", 5, 2)}, nil, 2, 0, 2, "", 0},
		"what it has placed since":                 {service(3, nil), evals{failed("e", 5, 3)}, allocs{on("a", now("a"), by("e")), on("b", now("b"), by("e"))}, 1, 2, 3, "a b", 0},
		"all is placed meanwhile":                  {service(1, nil), evals{failed("e", 5, 1)}, allocs{on("a", now("a"), by("e"))}, 0, 1, 1, "a", 0},
		"another group of the job":                 {service(2, nil), evals{failed("e", 5, 0)}, allocs{now("a")}, 0, 1, 1, "a", 0},
		"the newest of two that are blocked":       {service(2, nil), evals{failed("f", 9, 1), failed("e", 5, 2)}, allocs{now("a")}, 1, 1, 2, "a", 0},
		"less than nothing":                        {service(1, nil), evals{wrong}, nil, 1, 0, 1, "", 0},
		"one that tells nothing":                   {service(2, nil), evals{{ID: "e", Namespace: "default", JobID: "train", Status: "blocked"}}, allocs{now("a")}, 1, 1, 2, "a", 0},
		"one that is not looked at yet":            {service(2, nil), evals{due}, allocs{now("a")}, 1, 1, 2, "a", 0},
		"one that is, and says more":               {service(3, nil), evals{due, failed("e", 5, 1)}, allocs{now("a")}, 1, 1, 2, "a", 0},
		"one that failed and waits":                {service(1, nil), evals{at(200)}, allocs{broke(follows)}, 0, 0, 1, "", 1},
		"one that failed and has waited":           {service(1, nil), evals{at(100)}, allocs{broke(follows)}, 1, 0, 1, "", 0},
		"one that waits, another lacks a node":     {service(2, nil), evals{at(200), failed("e", 5, 1)}, allocs{broke(follows)}, 1, 0, 2, "", 1},
		"one that waits, no evaluation for others": {service(2, nil), evals{at(200)}, allocs{broke(follows)}, 0, 0, 1, "", 1},
		"one of a job purged since":                {service(1, nil), evals{at(200), due}, allocs{broke(follows, func(a *api.AllocationListStub) { a.CreateIndex = 50 })}, 1, 0, 1, "", 0},
		"one that failed for good":                 {service(2, never), evals{due}, allocs{broke(), now("a")}, 0, 1, 1, "a", 0},
		"one that has had its other try":           {service(1, once), evals{due}, allocs{broke(triedAt(80))}, 0, 0, 0, "", 0},
		"one whose other try is long ago":          {service(1, once), evals{due}, allocs{broke(triedAt(-9000))}, 1, 0, 1, "", 0},
		"one that has not had it":                  {service(1, once), evals{due}, allocs{broke()}, 1, 0, 1, "", 0},
		"one that another has replaced":            {service(1, never), evals{due}, allocs{broke(func(a *api.AllocationListStub) { a.NextAllocation = "n" })}, 1, 0, 1, "", 0},
		"a gang of which Nomad lacks one":          {train(), evals{failed("e", 5, 1)}, allocs{now("a"), now("b"), now("c")}, 1, 3, 4, "a b c", 0},
		"a gang of which one waits":                {train(), evals{at(200)}, allocs{now("a"), now("b"), now("c"), broke(follows)}, 0, 3, 4, "a b c", 1},
	} {
		t.Run(name, func(t *testing.T) {
			w := join(c.evals, map[string]*api.Job{"default/train": c.job}, c.allocs, nil).Work[0]
			must.Eq(t, []int{c.missing, c.placed, c.count, c.later}, []int{w.Missing(), w.Placed, w.Count, w.Later})
			must.Eq(t, c.on, strings.Join(w.PlacedOn, " "))
			if c.later > 0 {
				must.Eq(t, 200, w.Until.Unix())
			}
			queued := 8 * c.missing
			if w.Gang && c.missing > 0 {
				queued = 32
			}
			must.Eq(t, queued, w.QueuedGPUs())
		})
	}
}

func TestAJobIsReadAgainForAnEvaluationThatDoesNotTellItsIndex(t *testing.T) {
	s, r := newStandIn(t)
	calls := func(evals ...*api.Evaluation) int {
		s.set(t, "/v1/evaluations", evals)
		_, err := r.Read(t.Context(), time.Unix(100, 0))
		must.NoError(t, err)
		return len(s.taken()) - 4
	}
	watcher, delayed := waitingEval("default", "a", 0), waitingEval("default", "a", 9)
	watcher.ID, delayed.ID = "watcher", "delayed"
	s.set(t, "/v1/job/a", jobOf("default", "a", 5))
	must.Eq(t, 1, calls(waitingEval("default", "a", 5)))
	must.Eq(t, 1, calls(watcher), must.Sprint("of the deployment watcher: it tells none"))
	must.Eq(t, 0, calls(watcher))
	must.Eq(t, 1, calls(delayed), must.Sprint("a delayed one tells another"))
	must.Eq(t, 0, calls(delayed))
	s.status["/v1/job/a"] = 500
	s.set(t, "/v1/evaluations", []*api.Evaluation{watcher})
	_, err := r.Read(t.Context(), time.Unix(100, 0))
	must.ErrorContains(t, err, "read job default/a")
	s.status, s.calls = map[string]int{}, nil
	must.Eq(t, 1, calls(watcher), must.Sprint("it was not read"))
}

func TestWhatHasFailedBuysNothingBeforeItsNextTry(t *testing.T) {
	w := join([]*api.Evaluation{{ID: "later", Namespace: "default", JobID: "train", Status: "pending", WaitUntil: time.Unix(3600, 0)}},
		map[string]*api.Job{"default/train": service(1, nil)},
		[]*api.AllocationListStub{on("a", alloc("failed", "run", 3), func(a *api.AllocationListStub) { a.FollowupEvalID = "later" })}, nil).Work
	out := plan.Make(plan.Input{Now: time.Unix(100, 0), Work: w, Pools: []plan.Pool{{Name: "p", Max: 4, Where: plan.Where{NodePool: "gpu"}, Shape: plan.Shape{GPUs: 8, CPU: 1 << 20, Memory: 1 << 20}}}})
	must.Len(t, 1, out.Waiting)
	must.Eq(t, "1 of 1 failed; Nomad tries again at 1970-01-01T01:00:00Z, and nothing is bought before", out.Waiting[0].Reason)
	must.Eq(t, 0, out.Decisions[0].Want)
}

func TestWorkWaitsSinceNomadCouldNotPlaceIt(t *testing.T) {
	s, r := newStandIn(t)
	job := jobOf("default", "a", 5)
	job.SubmitTime, job.Meta = ptr(int64(5e9)), map[string]string{"gpu.deadline": "00:01"}
	s.set(t, "/v1/job/a", job)
	wait := func(id string, created int64) plan.Work {
		e := waitingEval("default", "a", 5)
		e.ID, e.CreateTime = id, created
		s.set(t, "/v1/evaluations", []*api.Evaluation{e})
		got, err := r.Read(t.Context(), time.Unix(3600, 0))
		must.NoError(t, err)
		return got.Work[0]
	}
	w := wait("first", 70e9)
	must.Eq(t, []int64{70, 60}, []int64{w.Since.Unix(), w.Deadline.Unix()}, must.Sprint("a deadline counts from the submission"))
	must.Eq(t, 70, wait("next", 90e9).Since.Unix(), must.Sprint("it waits still"))
	var gang []*api.AllocationListStub
	for _, node := range []string{"a", "b", "c", "d"} {
		gang = append(gang, on(node, alloc("running", "run", 3), func(a *api.AllocationListStub) { a.JobID = "a" }))
	}
	s.set(t, "/v1/allocations", gang)
	must.Eq(t, 0, wait("next", 90e9).Missing())
	s.set(t, "/v1/allocations", "[]")
	must.Eq(t, 3600, wait("ahead", 9000e9).Since.Unix(), must.Sprint("it ran in between, and another machine's clock is ahead"))
}
