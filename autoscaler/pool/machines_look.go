// SPDX-License-Identifier: MPL-2.0

package pool

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/hashicorp/nomad/api"

	"github.com/nomad-gpu/nomad-gpu/autoscaler/plan"
)

// sight is what one look at the maker and Nomad shows.
type sight struct {
	machines map[string]Machine
	nodes    []*api.NodeListStub
	// stubs are the machines' nodes, by the machine's id; taken the same by the node's.
	stubs map[string]*api.NodeListStub
	taken map[string]bool
	index uint64 // Nomad's, of its nodes
}

// reconcile brings the ledger up to what the maker has: it alone knows. Where
// only the ledger cannot be written it is returned with the error.
func (p *MachinePool) reconcile(ctx context.Context, now time.Time) (*ledger, *sight, error) {
	l, err := p.store.load()
	if err != nil {
		return nil, nil, err
	}
	machines, refused, err := p.maker.List(ctx)
	if err != nil {
		err = fmt.Errorf("pool %q: list machines: %w", p.definition.Name, err)
		if l.Blind == nil && ctx.Err() == nil {
			l.Blind = &rest{Since: now, Reason: err.Error()}
			p.store.save(l) // best effort: the error is told all the same
		}
		return nil, nil, err
	}
	l.Blind = nil
	s := &sight{machines: map[string]Machine{}}
	if s.nodes, s.index, err = p.nomad.listAt(ctx); err != nil {
		return nil, nil, err
	}
	for _, m := range machines {
		s.machines[m.ID] = m
	}
	p.match(l, s)
	came := 0 // of what was pending
	for id, e := range l.Machines {
		if _, there := s.machines[id]; e.Pending && !there {
			came++
		}
	}
	appeared := 0
	for _, m := range machines {
		stub := s.stubs[m.ID]
		e := l.Machines[m.ID]
		if e == nil {
			appeared++
			e = &entry{Since: now, Pending: m.Pending, Ordered: l.Order != nil || came > 0}
			if l.Order != nil {
				e.Index = l.Order.Index
			}
			// One that was marked to go by an earlier autoscaler elsewhere is still on its way out.
			// One whose end began before it was seen is none, nor is one that was just destroyed.
			e.Leaving = m.Interrupted && stub == nil ||
				!e.Ordered && (l.destroyed(m.ID) || stub != nil && stub.SchedulingEligibility == api.NodeSchedulingIneligible)
			l.Machines[m.ID] = e
		}
		e.Doomed, e.AtRisk = e.Doomed || m.Interrupted, m.AtRisk
		if stub != nil {
			e.Node, e.NodeID = stub.Name, stub.ID
			delete(l.Gone, stub.ID)
		}
	}
	p.forget(ctx, now, l, s)
	p.follow(now, l, max(appeared-came, 0))
	if refused != "" {
		l.Order = nil
		p.rest(l, now, refused)
		if err := p.giveUpPending(ctx, l, s.stubs); err != nil {
			return nil, nil, err
		}
	}
	return l, s, p.store.save(l)
}

// names reports whether a node is the one that a maker says a machine is.
func (m Machine) names(n *api.NodeListStub) bool {
	return m.Node != "" && n.Name == m.Node || m.Address != "" && n.Address == m.Address
}

// selects reports whether a node is in the pool's selection.
func (p *MachinePool) selects(n *api.NodeListStub) bool {
	return p.definition.Plan().Where.Selects(plan.Where{NodePool: n.NodePool, Class: n.NodeClass, Datacenter: n.Datacenter})
}

// match finds the machines' nodes: the youngest of that name or address in the
// pool's selection, as both are used again. A node that is down was a former
// machine's, unless it was this one's before. No node is two machines'.
func (p *MachinePool) match(l *ledger, s *sight) {
	s.stubs, s.taken = map[string]*api.NodeListStub{}, map[string]bool{}
	was := func(id string) string {
		if e := l.Machines[id]; e != nil {
			return e.NodeID
		}
		return ""
	}
	ids := slices.SortedFunc(maps.Keys(s.machines), func(a, b string) int {
		// Those whose node is known keep it.
		return cmp.Or(cmp.Compare(min(len(was(b)), 1), min(len(was(a)), 1)), cmp.Compare(a, b))
	})
	for _, id := range ids {
		m := s.machines[id]
		may := func(n *api.NodeListStub) bool {
			return !s.taken[n.ID] && p.selects(n) && (n.ID == was(id) || n.Status != api.NodeStatusDown && n.Status != nodeDisconnected)
		}
		n := newest(s.nodes, func(n *api.NodeListStub) bool { return may(n) && m.Node != "" && n.Name == m.Node })
		if n == nil {
			n = newest(s.nodes, func(n *api.NodeListStub) bool { return may(n) && m.names(n) })
		}
		if n == nil {
			n = newest(s.nodes, func(n *api.NodeListStub) bool { return may(n) && n.ID == was(id) })
		}
		if n != nil {
			s.stubs[id], s.taken[n.ID] = n, true
		}
	}
}

// nodeDisconnected is the status of a node whose work Nomad waits for
// (max_client_disconnect); the API has no name for it.
const nodeDisconnected = "disconnected"

// busy names a node with work that is a machine's, or may be: where a maker's
// names and addresses do not agree with Nomad's, one that no machine is and
// that came after this one was asked for. Empty: there is none.
func (p *MachinePool) busy(ctx context.Context, l *ledger, id string, s *sight) (string, error) {
	e, m := l.Machines[id], s.machines[id]
	if m.Pending {
		return "", nil
	}
	for _, n := range s.nodes {
		switch {
		case s.stubs[id] != nil:
			if n.ID != s.stubs[id].ID {
				continue
			}
		case s.taken[n.ID] || n.Status == api.NodeStatusDown:
			continue
		case m.names(n): // of another pool, or of none
		case e.NodeID != "" || !p.selects(n) || n.CreateIndex <= e.Index || l.Gone[n.ID] != nil:
			continue
		}
		work, err := p.nomad.work(ctx, n)
		if err != nil {
			return "", err
		}
		if len(work) > 0 {
			return n.Name, nil
		}
	}
	return "", nil
}

// forget takes machines that are gone out of the ledger, and their nodes out of
// Nomad once these are down: before, they would come back, open for work.
func (p *MachinePool) forget(ctx context.Context, now time.Time, l *ledger, s *sight) {
	for _, id := range slices.Sorted(maps.Keys(l.Machines)) {
		if _, there := s.machines[id]; there {
			continue
		}
		e := l.Machines[id]
		if !e.Leaving && !e.Pending {
			p.logger.Warn("a machine is gone that was not let go", "machine", id, "node", e.Node)
			l.interrupt(now)
		}
		delete(l.Machines, id)
		l.part(now, e, "")
	}
	for _, id := range slices.Sorted(maps.Keys(l.Gone)) {
		g := l.Gone[id]
		n := newest(s.nodes, func(n *api.NodeListStub) bool { return n.ID == id })
		switch {
		case n == nil && now.Sub(g.At) > watchGap, now.Sub(g.At) > goneAge:
			delete(l.Gone, id)
		case n != nil && n.Status == api.NodeStatusDown:
			if err := p.nomad.purge(ctx, n.ID, n.Name); err != nil {
				p.logger.Warn("the node of a machine that is gone stays in Nomad", "error", err)
				continue
			}
			delete(l.Gone, id)
		}
	}
}
