// SPDX-License-Identifier: MPL-2.0

package demand

import (
	"cmp"
	"slices"
	"time"

	"github.com/hashicorp/nomad/api"
)

// standing is what Nomad's scheduler has to do for a job, by its open evaluations.
type standing struct {
	// blocked is the newest that could not place all, nil: none.
	blocked *api.Evaluation
	// due: the scheduler has yet to look at one.
	due bool
	// later are those that it looks at later, by their id.
	later map[string]time.Time
}

// standingsOf are those of jobs, by namespace/name.
func standingsOf(evals []*api.Evaluation, now time.Time) map[string]*standing {
	all := map[string]*standing{}
	for _, e := range evals {
		if e == nil {
			continue
		}
		key := e.Namespace + "/" + e.JobID
		s := all[key]
		if s == nil {
			s = &standing{later: map[string]time.Time{}}
			all[key] = s
		}
		switch {
		case e.Status == api.EvalStatusBlocked:
			if s.blocked == nil || s.blocked.CreateIndex < e.CreateIndex {
				s.blocked = e // the older ones are about to be canceled
			}
		case e.WaitUntil.After(now):
			s.later[e.ID] = e.WaitUntil
		default:
			s.due = true
		}
	}
	return all
}

// told is how many allocations of a group Nomad could not place; false where no
// evaluation tells. A blocked evaluation keeps the number that it was made
// with, and what it places later bears its id.
func (s *standing) told(group string, allocs []*api.AllocationListStub) (missing int, ok bool) {
	if s == nil || s.blocked == nil || len(s.blocked.FailedTGAllocs) == 0 {
		return 0, false
	}
	failed := s.blocked.FailedTGAllocs[group]
	if failed == nil {
		return 0, true
	}
	missing = 1 + min(max(failed.CoalescedFailures, 0), maxCount)
	for _, a := range allocs {
		if a.EvalID == s.blocked.ID && a.EvalID != "" {
			missing--
		}
	}
	return max(missing, 0), true
}

// lack is what a group has and what it lacks.
type lack struct {
	// held are its allocations that stay.
	held []*api.AllocationListStub
	// now is how many Nomad would place if it could, later how many it tries
	// again from until on.
	now, later int
	until      time.Time
	// spent is how many have failed and are not tried again.
	spent int
}

// lacking follows Nomad's scheduler where its evaluations tell what it could
// not place: canaries, new versions of what runs, and replacements. Where one
// is due that it has not looked at, what is missing of the group's count is.
func lacking(job *api.Job, g *api.TaskGroup, allocs []*api.AllocationListStub, s *standing) (l lack) {
	batch := job.Type != nil && *job.Type == api.JobTypeBatch
	for _, a := range allocs {
		switch {
		case !terminal(a) && a.DesiredStatus == api.AllocDesiredStatusRun:
			l.held = append(l.held, a)
		// What a batch job has finished, or Nomad takes for finished, does not run again in this version of it.
		case batch && (a.ClientStatus == api.AllocClientStatusComplete && a.DesiredStatus == api.AllocDesiredStatusRun || lost(a)) && !older(a, job):
			l.held = append(l.held, a)
		case a.ClientStatus == api.AllocClientStatusFailed && a.DesiredStatus == api.AllocDesiredStatusRun && a.NextAllocation == "" && !purged(a, job):
			if s != nil && a.FollowupEvalID != "" && !s.later[a.FollowupEvalID].IsZero() {
				l.later++
				if at := s.later[a.FollowupEvalID]; l.until.IsZero() || at.Before(l.until) {
					l.until = at
				}
			} else if !older(a, job) && !triedAgain(a, g.ReschedulePolicy) {
				l.spent++
			}
		}
	}
	count := value(g.Count)
	missing, told := s.told(*g.Name, allocs)
	switch {
	case told:
		l.now = missing
	case s == nil || s.due || s.blocked != nil:
		l.now = max(count-len(l.held)-l.later-l.spent, 0)
	}
	// More than the count: what is missing comes beside what runs (a canary), or
	// in place of it (another version of it).
	if over := min(len(l.held)+l.now+l.later-count, len(l.held)); over > 0 && !placesCanaries(job, g, l.held) {
		slices.SortStableFunc(l.held, func(a, b *api.AllocationListStub) int {
			unknown := func(a *api.AllocationListStub) int {
				if a.ClientStatus == api.AllocClientStatusUnknown {
					return 0
				}
				return 1
			}
			return cmp.Or(cmp.Compare(unknown(a), unknown(b)), cmp.Compare(a.JobVersion, b.JobVersion), cmp.Compare(a.CreateIndex, b.CreateIndex))
		})
		l.held = l.held[over:]
	}
	return l
}

// placesCanaries reports whether a group's update has canaries that are not all placed.
func placesCanaries(job *api.Job, g *api.TaskGroup, held []*api.AllocationListStub) bool {
	wanted := 0
	for _, u := range []*api.UpdateStrategy{g.Update, job.Update} {
		if u != nil && u.Canary != nil && wanted == 0 {
			wanted = *u.Canary
		}
	}
	for _, a := range held {
		if a.DeploymentStatus != nil && a.DeploymentStatus.Canary && !older(a, job) {
			wanted--
		}
	}
	return wanted > 0
}

// triedAgain reports whether Nomad places an allocation that failed another
// time: its RescheduleEligible (nomad/structs/structs.go). Without a policy,
// which Nomad gives to each group, it does.
func triedAgain(a *api.AllocationListStub, p *api.ReschedulePolicy) bool {
	if p == nil || p.Unlimited != nil && *p.Unlimited {
		return true
	}
	if p.Attempts == nil || *p.Attempts <= 0 {
		return false
	}
	if a.RescheduleTracker == nil || p.Interval == nil {
		return true
	}
	failed := time.Unix(0, a.ModifyTime)
	for _, t := range a.TaskStates {
		if t != nil && t.FinishedAt.After(time.Time{}) {
			failed = t.FinishedAt
		}
	}
	tried := 0
	for _, e := range a.RescheduleTracker.Events {
		if e != nil && failed.Sub(time.Unix(0, e.RescheduleTime)) < *p.Interval {
			tried++
		}
	}
	return tried < *p.Attempts
}
