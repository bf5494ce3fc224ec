// SPDX-License-Identifier: MPL-2.0

package demand

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"sync"

	"github.com/hashicorp/nomad/api"
	"golang.org/x/sync/errgroup"

	"github.com/nomad-gpu/nomad-gpu/autoscaler/rights"
)

// wanted is a job to be read.
type wanted struct {
	namespace, id string
	changed       bool // since it was read
	waits         bool
	priority      int
}

func (w wanted) key() string { return w.namespace + "/" + w.id }

// readJobs reads the jobs that have an open evaluation or may be moved: those
// not known from an earlier reading, or changed since. Unread is how many that
// wait are left out.
func (r *Reader) readJobs(ctx context.Context, evals []*api.Evaluation, movable []*api.JobListStub) (jobs map[string]*api.Job, unread int, err error) {
	want := map[string]wanted{}
	note := func(w wanted, index uint64, judged bool) {
		known, before := r.jobs[w.key()], want[w.key()]
		w.changed = before.changed || known == nil || !judged && (index == 0 || known.JobModifyIndex == nil || *known.JobModifyIndex < index)
		w.waits = w.waits || before.waits
		want[w.key()] = w
	}
	for _, e := range evals {
		if e != nil && e.JobID != "" {
			index, judged := r.judged[e.ID]
			note(wanted{namespace: e.Namespace, id: e.JobID, waits: true, priority: e.Priority}, e.JobModifyIndex, judged && index == e.JobModifyIndex)
		}
	}
	for _, j := range movable {
		note(wanted{namespace: j.Namespace, id: j.ID, priority: j.Priority}, j.JobModifyIndex, j.JobModifyIndex == 0)
	}
	jobs = make(map[string]*api.Job, len(want))
	var lacking []wanted
	for key, w := range want {
		if !w.changed {
			jobs[key] = r.jobs[key]
			continue
		}
		lacking = append(lacking, w)
	}
	// What was counted on comes first, then what waits, by priority.
	first := func(yes bool) int {
		if yes {
			return 0
		}
		return 1
	}
	slices.SortFunc(lacking, func(a, b wanted) int {
		return cmp.Or(cmp.Compare(first(r.jobs[a.key()] != nil), first(r.jobs[b.key()] != nil)), cmp.Compare(first(a.waits), first(b.waits)),
			cmp.Compare(b.priority, a.priority), cmp.Compare(a.key(), b.key()))
	})
	if r.MostJobs > 0 && len(lacking) > r.MostJobs {
		for _, w := range lacking[r.MostJobs:] {
			if w.waits {
				unread++
			}
		}
		lacking = lacking[:r.MostJobs]
	}
	var mu sync.Mutex
	calls, ctx := errgroup.WithContext(ctx)
	calls.SetLimit(jobCalls)
	for _, w := range lacking {
		calls.Go(func() error {
			job, err := r.readJob(ctx, w)
			if job == nil {
				return err
			}
			mu.Lock()
			defer mu.Unlock()
			jobs[w.key()] = job
			return nil
		})
	}
	err = calls.Wait()
	r.jobs, r.judged = jobs, make(map[string]uint64, len(evals)) // also what was read before an error: the next reading goes on from there
	for _, e := range evals {
		if e != nil && jobs[e.Namespace+"/"+e.JobID] != nil {
			r.judged[e.ID] = e.JobModifyIndex
		}
	}
	return jobs, unread, err
}

// readJob reads a job; nil: it was purged after it was listed.
func (r *Reader) readJob(ctx context.Context, w wanted) (*api.Job, error) {
	if err := ctx.Err(); err != nil {
		return nil, fmt.Errorf("read job %s: %w", w.key(), err)
	}
	job, _, err := r.client.Jobs().Info(w.id, (&api.QueryOptions{Namespace: w.namespace}).WithContext(ctx))
	var answer api.UnexpectedResponseError
	if errors.As(err, &answer) && answer.StatusCode() == http.StatusNotFound {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("read job %s: %w", w.key(), rights.Explain(err, rights.ReadJobs))
	}
	return job, nil
}
