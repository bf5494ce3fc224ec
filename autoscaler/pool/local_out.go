// SPDX-License-Identifier: MPL-2.0

package pool

import (
	"context"
	"errors"
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
	idle := func(name string) (bool, error) { return p.nomad.idle(ctx, name) }
	return release(names, count, wanted, idle, func(name string) error {
		r := records[name]
		// Noted first: a node that is closed and not known to go would stay for ever.
		r.Leaving, r.Reason = true, "not needed"
		p.logger.Info("lets a node go", "node", name)
		if err := p.save(name, r); err != nil || !r.Ready {
			return err
		}
		return p.nomad.eligible(ctx, name, false)
	})
}

// Drain marks the nodes and has Nomad drain them; Tend does the rest.
func (p *LocalPool) Drain(ctx context.Context, names []string) error {
	unhold, err := hold(&p.mu, p.definition.Local.Dir, p.definition.Name)
	if err != nil {
		return err
	}
	defer unhold()
	var errs []error
	for _, s := range p.definition.Local.Slots {
		if !slices.Contains(names, s.Name) {
			continue
		}
		r, err := p.load(s.Name)
		if err == nil && r != nil && r.Ready && !r.Leaving {
			r.Leaving, r.Moving, r.Reason = true, true, "its work moves"
			p.logger.Info("drains a node whose work has leave to move", "node", s.Name)
			if err = p.save(s.Name, r); err == nil {
				err = p.vacate(ctx, s.Name, r)
			}
		}
		errs = append(errs, err)
	}
	return errors.Join(errs...)
}

// vacate drains a node that is marked; one that stays is marked no more.
func (p *LocalPool) vacate(ctx context.Context, name string, r *record) error {
	err := p.nomad.vacate(ctx, name)
	var stays *staysError
	if errors.As(err, &stays) {
		r.Leaving, r.Moving, r.Reason = false, false, ""
		return errors.Join(err, p.save(name, r))
	}
	return err
}
