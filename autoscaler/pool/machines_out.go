// SPDX-License-Identifier: MPL-2.0

package pool

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/hashicorp/nomad/api"
)

// Shrink marks nodes to go; Tend does the rest.
func (p *MachinePool) Shrink(ctx context.Context, count int, wanted []string) error {
	unhold, err := hold(&p.mu, p.store.dir, p.store.pool)
	if err != nil {
		return err
	}
	defer unhold()
	l, err := p.store.load()
	if err != nil {
		return err
	}
	var names []string
	byName := map[string]*entry{}
	for _, id := range slices.Sorted(maps.Keys(l.Machines)) {
		if e := l.Machines[id]; !e.Leaving {
			name := cmp.Or(e.Node, id)
			names, byName[name] = append(names, name), e
		}
	}
	return release(names, max(count-l.Order.outstanding(), 0), wanted, func(name string) (bool, error) {
		if !byName[name].Ready {
			return false, nil // it starts for a gang that waits
		}
		return p.nomad.idle(ctx, name)
	}, func(name string) error {
		// Noted first: a node that is closed and not known to go would stay for ever.
		byName[name].Leaving = true
		if err := p.store.save(l); err != nil {
			return err
		}
		p.logger.Info("lets a node go", "node", name)
		return p.nomad.eligible(ctx, name, false)
	})
}

// Drain marks the nodes, then has Nomad drain them; Tend does the rest.
func (p *MachinePool) Drain(ctx context.Context, names []string) error {
	unhold, err := hold(&p.mu, p.store.dir, p.store.pool)
	if err != nil {
		return err
	}
	defer unhold()
	l, err := p.store.load()
	if err != nil {
		return err
	}
	var all []*entry
	for _, id := range slices.Sorted(maps.Keys(l.Machines)) {
		if e := l.Machines[id]; e.Ready && !e.Leaving && slices.Contains(names, e.Node) {
			e.Leaving, e.Moving = true, true
			all = append(all, e)
			p.logger.Info("drains a node whose work has leave to move", "node", e.Node)
		}
	}
	// All are marked before the first is drained: what is begun is done whole, by a later life too.
	if err := p.store.save(l); err != nil {
		return err
	}
	return p.vacate(ctx, l, all)
}

// vacate drains nodes that are marked; those that stay are marked no more.
func (p *MachinePool) vacate(ctx context.Context, l *ledger, all []*entry) error {
	var names []string
	for _, e := range all {
		names = append(names, e.Node)
	}
	stay, err := p.nomad.vacate(ctx, names)
	errs := []error{err}
	for _, e := range all {
		if why := stay[e.Node]; why != nil {
			e.Leaving, e.Moving = false, false
			errs = append(errs, why)
		}
	}
	return errors.Join(append(errs, p.store.save(l))...)
}

// giveUpPending takes back what was asked for and has no node: it would come
// when another pool has served already.
func (p *MachinePool) giveUpPending(ctx context.Context, l *ledger, stubs map[string]*api.NodeListStub) error {
	var ids []string
	for _, id := range slices.Sorted(maps.Keys(l.Machines)) {
		if e := l.Machines[id]; !e.Ready && e.Node == "" && stubs[id] == nil {
			ids = append(ids, id)
		}
	}
	if len(ids) == 0 {
		return nil
	}
	if err := p.maker.Destroy(ctx, ids); err != nil {
		return fmt.Errorf("pool %q: take back %q: %w", p.definition.Name, ids, err)
	}
	for _, id := range ids {
		delete(l.Machines, id)
	}
	return nil
}

// destroy is not undone: the ledger says so before the maker is asked.
func (p *MachinePool) destroy(ctx context.Context, now time.Time, l *ledger, id string, n *api.NodeListStub) error {
	if err := p.nomad.close(ctx, n, true); err != nil {
		return err
	}
	l.Machines[id].Leaving, l.Machines[id].Ending = true, true
	if err := p.store.save(l); err != nil {
		return err
	}
	if err := p.maker.Destroy(ctx, []string{id}); err != nil {
		return fmt.Errorf("pool %q: destroy %s: %w", p.definition.Name, id, err)
	}
	p.logger.Info("a machine is gone", "machine", id, "node", l.Machines[id].Node)
	// Its node stays, closed, until it is down: taken out of Nomad before, it would
	// come back open for work.
	l.part(now, l.Machines[id], id)
	delete(l.Machines, id)
	return nil
}
