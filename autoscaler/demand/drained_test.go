// SPDX-License-Identifier: MPL-2.0

package demand

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/hashicorp/nomad/api"
	"github.com/shoenig/test/must"
)

// drainedAlloc was stopped at a time, and ended well.
func drainedAlloc(at int64) *api.AllocationListStub {
	a := alloc("complete", "stop", 3)
	a.JobType, a.ModifyTime = "batch", at
	a.TaskStates = map[string]*api.TaskState{"t": {State: "dead"}}
	return a
}

func batchAlloc(client, desired string, version uint64) *api.AllocationListStub {
	a := alloc(client, desired, version)
	a.JobType = "batch"
	return a
}

func TestWorkThatADrainTookAndNomadNeverPlacesAgainIsNamedAndBuysNothing(t *testing.T) {
	changed := func(change func(*api.AllocationListStub)) *api.AllocationListStub {
		a := drainedAlloc(9e9)
		change(a)
		return a
	}
	running := batchAlloc("running", "run", 3)
	for name, c := range map[string]struct {
		allocs []*api.AllocationListStub
		job    func(*api.Job)
		lost   int // 0: none is named
		over   bool
		queued int
	}{
		"one of four, the others run":           {[]*api.AllocationListStub{running, running, running, drainedAlloc(9e9)}, nil, 1, false, 0},
		"two, at different times":               {[]*api.AllocationListStub{running, running, drainedAlloc(8e9), drainedAlloc(9e9)}, nil, 2, false, 0},
		"all of them":                           {[]*api.AllocationListStub{drainedAlloc(9e9), drainedAlloc(9e9), drainedAlloc(9e9), drainedAlloc(9e9)}, func(j *api.Job) { j.Status = ptr("dead") }, 4, true, 0},
		"another is in its place":               {[]*api.AllocationListStub{running, running, running, running, changed(func(a *api.AllocationListStub) { a.NextAllocation = "other" })}, nil, 0, false, 0},
		"it still runs":                         {[]*api.AllocationListStub{running, running, running, changed(func(a *api.AllocationListStub) { a.ClientStatus = "running" })}, nil, 0, false, 32},
		"its task failed":                       {[]*api.AllocationListStub{running, running, running, changed(func(a *api.AllocationListStub) { a.TaskStates["t"].Failed = true })}, nil, 0, false, 32},
		"it never began":                        {[]*api.AllocationListStub{running, running, running, changed(func(a *api.AllocationListStub) { a.TaskStates = nil })}, nil, 0, false, 32},
		"the job has another version since":     {[]*api.AllocationListStub{running, running, running, changed(func(a *api.AllocationListStub) { a.JobVersion = 2 })}, nil, 0, false, 32},
		"the job was stopped":                   {[]*api.AllocationListStub{drainedAlloc(9e9)}, func(j *api.Job) { j.Stop = ptr(true) }, 0, false, 0},
		"the gang's others have finished":       {[]*api.AllocationListStub{batchAlloc("complete", "run", 3), drainedAlloc(9e9)}, func(j *api.Job) { j.Status = ptr("dead") }, 0, false, 0},
		"a service's come back":                 {[]*api.AllocationListStub{running, running, running, changed(func(a *api.AllocationListStub) { a.JobType = "service" })}, func(j *api.Job) { j.Type = ptr("service") }, 0, false, 32},
		"more were stopped than count, by name": {[]*api.AllocationListStub{running, running, running, running, drainedAlloc(9e9)}, nil, 0, false, 0},
	} {
		t.Run(name, func(t *testing.T) {
			job := train()
			if c.job != nil {
				c.job(job)
			}
			jobs := map[string]*api.Job{"default/train": job, "default/purged": nil}
			all := drainedOf(jobs, c.allocs, newCatalogue(nil, nil))
			if c.lost == 0 {
				must.SliceEmpty(t, all)
			} else {
				must.Len(t, 1, all)
				must.Eq(t, c.lost, all[0].Lost)
				must.Eq(t, c.over, all[0].Over)
				must.Eq(t, 4-c.lost, all[0].Work.Placed)
				must.Eq(t, 9, all[0].Since.Unix())
			}
			queued := 0
			for _, w := range join(blocked("train"), jobs, c.allocs, nil).Work {
				queued += w.QueuedGPUs()
			}
			must.Eq(t, c.queued, queued, must.Sprint("the GPUs that nodes are bought for"))
		})
	}
}

func TestJobsThatLostWorkAreReadAgainAfterAWhileAndAtMostSoMany(t *testing.T) {
	s, r := newStandIn(t)
	job := jobOf("default", "train", 5)
	s.set(t, "/v1/job/train", job)
	s.set(t, "/v1/allocations", []*api.AllocationListStub{batchAlloc("running", "run", 3), drainedAlloc(9e9)})
	for _, step := range []struct {
		at       int64
		calls    int
		drained  int
		rerun    bool
		describe string
	}{{100, 5, 1, false, "at once"}, {101, 4, 1, false, "known"}, {131, 5, 1, false, "after a while"}, {132, 4, 1, true, "not yet seen"}, {170, 5, 0, false, "stopped"}} {
		if step.rerun {
			job.Stop = ptr(true)
			s.set(t, "/v1/job/train", job)
		}
		got, err := r.Read(t.Context(), time.Unix(step.at, 0))
		must.NoError(t, err)
		must.Len(t, step.drained, got.Drained, must.Sprint(step.describe))
		must.SliceEmpty(t, got.Work)
		must.Len(t, step.calls, s.taken(), must.Sprint(step.describe))
	}
	var allocs []*api.AllocationListStub
	for i := range 300 {
		a := drainedAlloc(int64(i) * 1e9)
		a.JobID = fmt.Sprintf("job-%03d", i)
		allocs = append(allocs, a)
	}
	s.set(t, "/v1/allocations", allocs)
	_, err := r.Read(t.Context(), time.Unix(200, 0))
	must.NoError(t, err)
	calls := s.taken()
	must.Len(t, 4+100, calls)
	must.StrContains(t, strings.Join(calls, "\n"), "/v1/job/job-299")
	must.StrNotContains(t, strings.Join(calls, "\n"), "/v1/job/job-199")
}
