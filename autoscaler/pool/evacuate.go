// SPDX-License-Identifier: MPL-2.0

package pool

import (
	"context"
	"maps"
	"slices"

	"github.com/hashicorp/nomad/api"
)

// mostSearched bounds how many nodes are looked at for one without work.
const mostSearched = 50

// evacuate lets a node that will be taken away take no more work, and has what
// runs there stop at a checkpoint. Batch work is asked only once an idle node of
// the pool can take it: Nomad 1.6 takes a batch allocation that a drain ended for
// finished where it finds no other place (shouldFilter in its
// scheduler/reconcile_util.go), while one that is lost with its node is placed
// again. A gang's driver that knows of the notice has it leave meanwhile.
func (p *MachinePool) evacuate(ctx context.Context, l *ledger, id string, s *sight) error {
	e, n := l.Machines[id], s.stubs[id]
	if n == nil {
		e.Stuck = false
		return nil
	}
	work, err := p.nomad.work(ctx, n)
	if err != nil {
		return err
	}
	e.Stuck = slices.ContainsFunc(work, isBatch)
	if e.Stuck {
		haven, err := p.haven(ctx, l, s)
		if err != nil {
			return err
		}
		if !haven {
			return p.nomad.close(ctx, n, true)
		}
		e.Stuck = false
		p.logger.Info("drains a node that will be taken away: another is ready for its work", "node", n.Name)
	}
	if err := p.nomad.drain(ctx, n.Name, evacuation); err != nil {
		return err
	}
	n.Drain = true // the next one of this look needs another
	return nil
}

func isBatch(a *api.Allocation) bool {
	return a.Job != nil && a.Job.Type != nil && *a.Job.Type == api.JobTypeBatch
}

// haven reports whether the pool has more idle nodes than others that are
// drained need.
func (p *MachinePool) haven(ctx context.Context, l *ledger, s *sight) (bool, error) {
	free, searched := 0, 0
	for _, e := range l.Machines {
		if n := s.nodeOf(e); e.Doomed && n != nil && n.Drain {
			free--
		}
	}
	for _, id := range slices.Sorted(maps.Keys(l.Machines)) {
		e, n := l.Machines[id], s.stubs[id]
		if e.Leaving || e.Doomed || n == nil || n.Status != api.NodeStatusReady || n.SchedulingEligibility != api.NodeSchedulingEligible {
			continue
		}
		if searched++; searched > mostSearched {
			break
		}
		work, err := p.nomad.work(ctx, n)
		if err != nil {
			return false, err
		}
		if len(work) == 0 {
			if free++; free > 0 {
				return true, nil
			}
		}
	}
	return false, nil
}

// nodeOf is the node of an entry; nil where Nomad has none.
func (s *sight) nodeOf(e *entry) *api.NodeListStub {
	for _, n := range s.nodes {
		if n.ID == e.NodeID {
			return n
		}
	}
	return nil
}
