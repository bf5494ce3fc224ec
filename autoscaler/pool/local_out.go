// SPDX-License-Identifier: MPL-2.0

package pool

import (
	"context"
	"errors"
	"maps"
	"slices"
)

// Shrink lets go all but count nodes: only ones without work, the wanted
// first. It marks them; Tend does the rest.
func (p *LocalPool) Shrink(ctx context.Context, count int, wanted []string) error {
	unhold, err := hold(&p.mu, p.definition.Local.Dir, p.definition.Name)
	if err != nil {
		return err
	}
	defer unhold()
	var names []string
	records := map[string]*record{}
	for _, s := range p.definition.Local.Slots {
		r, err := p.load(s.Name)
		if err != nil {
			return err
		}
		if r != nil && !r.Leaving {
			names = append(names, s.Name)
			records[s.Name] = r
		}
	}
	idle := func(name string) (bool, error) {
		if !records[name].Ready {
			return false, nil // it starts for a gang that waits
		}
		return p.nomad.idle(ctx, name)
	}
	return release(names, count, wanted, idle, func(name string) error {
		r := records[name]
		// Noted first: a node that is closed and not known to go would stay for ever.
		r.Leaving, r.Reason = true, "not needed"
		p.logger.Info("lets a node go", "node", name)
		if err := p.save(name, r); err != nil {
			return err
		}
		return p.nomad.eligible(ctx, name, false)
	})
}

// Drain marks the nodes, then has Nomad drain them; Tend does the rest.
func (p *LocalPool) Drain(ctx context.Context, names []string) error {
	unhold, err := hold(&p.mu, p.definition.Local.Dir, p.definition.Name)
	if err != nil {
		return err
	}
	defer unhold()
	// All are marked before the first is drained: what is begun is done whole, by a later life too.
	all := map[string]*record{}
	for _, s := range p.definition.Local.Slots {
		r, err := p.load(s.Name)
		if err != nil {
			return err
		}
		if slices.Contains(names, s.Name) && r != nil && r.Ready && !r.Leaving {
			r.Leaving, r.Moving, r.Reason = true, true, "its work moves"
			all[s.Name] = r
			p.logger.Info("drains a node whose work has leave to move", "node", s.Name)
			if err := p.save(s.Name, r); err != nil {
				return err
			}
		}
	}
	return p.vacate(ctx, all)
}

// vacate drains nodes that are marked; those that stay are marked no more.
func (p *LocalPool) vacate(ctx context.Context, all map[string]*record) error {
	stay, err := p.nomad.vacate(ctx, slices.Sorted(maps.Keys(all)))
	errs := []error{err}
	for name, why := range stay {
		r := all[name]
		r.Leaving, r.Moving, r.Reason = false, false, ""
		errs = append(errs, why, p.save(name, r))
	}
	return errors.Join(errs...)
}
