// SPDX-License-Identifier: MPL-2.0

package demand

import (
	"strings"
	"testing"
	"time"
	"unicode/utf8"

	"github.com/hashicorp/nomad/api"
	"github.com/shoenig/test/must"

	"github.com/nomad-gpu/nomad-gpu/autoscaler/plan"
)

func TestAGangThatIsPlacedWholeAndWaitsInItsDriverIsNamed(t *testing.T) {
	said := func(words ...string) *api.AllocationListStub {
		a := alloc("running", "run", 3)
		s := &api.TaskState{State: "running", Events: []*api.TaskEvent{{Type: "Started", Time: 99e9}}}
		for i, w := range words {
			kind, text, _ := strings.Cut(w, ": ")
			s.Events = append(s.Events, &api.TaskEvent{Type: "Driver", Time: int64(i+1) * 1e9, DriverMessage: text, Details: map[string]string{"kind": kind}})
		}
		a.TaskStates = map[string]*api.TaskState{"t": s}
		return a
	}
	const line = "Waiting: in line behind gang other/gang"
	ended := said(line)
	ended.ClientStatus = "complete"
	for name, c := range map[string]struct {
		allocs []*api.AllocationListStub
		queued bool // Nomad has yet to place some of it
		want   string
	}{
		"in line":                         {[]*api.AllocationListStub{said(line), said(line)}, false, "in line behind gang other/gang"},
		"the newest word counts":          {[]*api.AllocationListStub{said("Waiting: 1 of 4 members", line), said("Waiting: 1 of 4 members")}, false, "in line behind gang other/gang"},
		"it started since":                {[]*api.AllocationListStub{said(line, "Started: Generation 1"), said(line)}, false, ""},
		"another warning is no word":      {[]*api.AllocationListStub{said(line, "Warning: kill_timeout")}, false, "in line behind gang other/gang"},
		"it never said anything":          {[]*api.AllocationListStub{said()}, false, ""},
		"an allocation that ended":        {[]*api.AllocationListStub{ended}, false, ""},
		"it waits for Nomad too":          {[]*api.AllocationListStub{said(line)}, true, ""},
		"no more is taken than is of use": {[]*api.AllocationListStub{said("Waiting: " + strings.Repeat("ä", 4000))}, false, strings.Repeat("ä", 250)},
	} {
		t.Run(name, func(t *testing.T) {
			groups := formingGroups(c.allocs)
			jobs := map[string]*api.Job{"default/train": train()}
			var work []plan.Work
			if c.queued {
				work = []plan.Work{{Namespace: "default", Job: "train", Group: "gang", Count: 4, Placed: 1}}
			}
			got := formingOf(jobs, groups, c.allocs, work, newCatalogue(nil, nil))
			if c.want == "" {
				must.SliceEmpty(t, got)
				return
			}
			must.Len(t, 1, formingJobs(c.allocs, groups))
			must.Len(t, 1, got)
			w := got[0].Waiting()
			must.Eq(t, plan.Forming, w.Cause)
			must.Eq(t, 0, w.Work.QueuedGPUs())
			must.StrHasSuffix(t, "the driver says: "+c.want, w.Reason)
			must.True(t, utf8.ValidString(w.Reason))
			must.True(t, !w.Work.Since.Before(time.Unix(1, 0)) && w.Work.Since.Before(time.Unix(3, 0)))
		})
	}
}
