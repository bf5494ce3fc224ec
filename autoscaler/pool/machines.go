// SPDX-License-Identifier: MPL-2.0

package pool

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/hashicorp/go-hclog"
	"github.com/hashicorp/nomad/api"
)

// Machine is one that a maker has, or has been asked for.
type Machine struct {
	ID string
	// Node is Nomad's name of it, Address its IP address in Nomad: one of them
	// tells which node it is. Both are empty until the maker knows.
	Node, Address string
	// Interrupted: it is taken away soon, whether it has work or not.
	Interrupted bool
	// AtRisk: it may be taken away soon, and is better replaced before.
	AtRisk bool
	// Pending: it stands for one that was asked for; its id is no machine's yet.
	Pending bool
}

// Maker makes machines: a cloud, or a program of the user's.
type Maker interface {
	// List tells all machines of the pool, those asked for and not there yet
	// included. Refused is why machines asked for do not come; empty where they may.
	List(ctx context.Context) (machines []Machine, refused string, err error)
	// Create asks for count more. A second call with the same token asks for no more than the first.
	Create(ctx context.Context, token string, count int) error
	// Destroy takes machines away; one that is gone is no error.
	Destroy(ctx context.Context, ids []string) error
}

// RefusedError is a maker's answer that it has made none: a quota, no capacity,
// or a failure. Another pool is to be tried.
type RefusedError struct{ Reason string }

func (e *RefusedError) Error() string { return e.Reason }

// evacuation is the time that work on an interrupted node has until it is
// asked to stop: clouds give notice of two minutes and less, and tasks need
// their kill_timeout for a checkpoint.
const evacuation = 5 * time.Second

// blindAge is how long a maker may not tell what it has until others are tried.
const blindAge = time.Minute

// MachinePool is a pool whose machines a maker makes.
type MachinePool struct {
	definition *Definition
	maker      Maker
	nomad      nomadNodes
	logger     hclog.Logger
	store      store
	mu         sync.Mutex // of what is known
	ordering   sync.Mutex // of what is asked for; taken before mu
	tended     time.Time
	contact    contact
}

var _ Pool = (*MachinePool)(nil)

// NewMachines is a pool over a maker; dir keeps what is known of its machines.
func NewMachines(d *Definition, maker Maker, dir string, client *api.Client, logger hclog.Logger) *MachinePool {
	return &MachinePool{definition: d, maker: maker, nomad: nomadNodes{client}, logger: logger.With("pool", d.Name), store: store{dir, d.Name}}
}

// Nodes reads the ledger.
func (p *MachinePool) Nodes() ([]Node, error) {
	l, err := p.store.load()
	if err != nil {
		return nil, err
	}
	var nodes []Node
	for _, id := range slices.Sorted(maps.Keys(l.Machines)) {
		e := l.Machines[id]
		nodes = append(nodes, Node{Name: cmp.Or(e.Node, id), Ready: e.Ready, Leaving: e.Leaving, Since: e.Since, AtRisk: e.AtRisk, Late: e.Late, Doomed: e.Doomed})
	}
	for i := range l.Order.outstanding() {
		nodes = append(nodes, Node{Name: fmt.Sprintf("%s-order-%d", p.definition.Name, i+1), Since: l.Order.Since})
	}
	return nodes, nil
}

// Resting reads the ledger.
func (p *MachinePool) Resting(now time.Time) (string, error) {
	l, err := p.store.load()
	if err != nil {
		return "", err
	}
	if l.Blind != nil && now.Sub(l.Blind.Since) >= blindAge {
		return l.Blind.Reason, nil
	}
	if l.Rest == nil || !now.Before(l.Rest.Until) {
		return "", nil
	}
	return l.Rest.Reason, nil
}

// History reads the ledger.
func (p *MachinePool) History(now time.Time) (h History, err error) {
	l, err := p.store.load()
	if err != nil {
		return h, err
	}
	if l.Rest != nil {
		h.Refused = l.Rest.Since
	}
	for _, t := range l.Interrupted {
		if now.Sub(t) <= memory {
			h.Interrupted++
		}
	}
	return h, nil
}

// rest lets others be tried. A reason that stands already is not said again.
func (p *MachinePool) rest(l *ledger, now time.Time, reason string) {
	if l.Rest != nil && l.Rest.Reason == reason && now.Before(l.Rest.Until) {
		l.Rest.Until = now.Add(p.definition.retry)
		return
	}
	l.Rest = &rest{Since: now, Until: now.Add(p.definition.retry), Reason: reason}
	p.logger.Warn("a pool rests; others are tried", "reason", reason, "until", l.Rest.Until)
}

// present is how many machines count: those on their way in, not those on their way out.
func present(l *ledger) int {
	n := l.Order.outstanding()
	for _, e := range l.Machines {
		if !e.Leaving {
			n++
		}
	}
	return n
}

// Tend asks the maker and Nomad, at most once a period, and moves each machine on.
func (p *MachinePool) Tend(ctx context.Context, now time.Time) error {
	unhold, err := hold(&p.mu, p.store.dir, p.store.pool)
	if err != nil {
		return err
	}
	defer unhold()
	if now.Sub(p.tended) < p.definition.period {
		return nil
	}
	p.tended = now
	l, s, err := p.reconcile(ctx, now)
	if l != nil && err != nil {
		return errors.Join(err, p.warn(ctx, l, s))
	}
	if err != nil {
		return err
	}
	p.contact.look(now, p.definition.period)
	var errs []error
	var unheard []*entry
	for _, id := range slices.Sorted(maps.Keys(l.Machines)) {
		e := l.Machines[id]
		what, err := p.tend(ctx, now, l, id, s)
		if err != nil {
			errs = append(errs, err)
		} else if what == ask {
			unheard = append(unheard, e)
		}
	}
	errs = append(errs, p.vacate(ctx, l, unheard), p.store.save(l))
	if l.Order.unanswered() && !l.rests(now) {
		p.askAgain(ctx, now)
	}
	return errors.Join(errs...)
}

// warn drains what is taken away while nothing can be noted, because a disk is
// full: that is the one thing that cannot wait.
func (p *MachinePool) warn(ctx context.Context, l *ledger, s *sight) error {
	var errs []error
	for _, id := range slices.Sorted(maps.Keys(l.Machines)) {
		if e, n := l.Machines[id], s.stubs[id]; e.Doomed && !e.Leaving && n != nil && !n.Drain {
			errs = append(errs, p.evacuate(ctx, l, id, s))
		}
	}
	return errors.Join(errs...)
}

// tend moves one machine on; ask is left to the caller, who asks all at once.
func (p *MachinePool) tend(ctx context.Context, now time.Time, l *ledger, id string, s *sight) (move, error) {
	e, n := l.Machines[id], s.stubs[id]
	name := cmp.Or(e.Node, id)
	if err := p.nomad.close(ctx, n, e.Leaving && !e.Ending); err != nil {
		return stay, err
	}
	if e.Leaving && e.Stuck {
		if err := p.evacuate(ctx, l, id, s); err != nil {
			return stay, err
		}
	}
	up := n != nil && n.Status == api.NodeStatusReady
	what, err := next(situation{Exists: true, Ready: e.Ready, Up: up, Leaving: e.Leaving, Ending: e.Ending, Doomed: e.Doomed, Moving: e.Moving, Draining: n != nil && n.Drain,
		Age: now.Sub(e.Since), Start: p.definition.start, Lost: p.contact.lost(id, up || !e.Ready), Patience: p.definition.down}, func() (bool, error) {
		busy, err := p.busy(ctx, l, id, s)
		return busy == "", err
	})
	if err != nil {
		return stay, err
	}
	switch what {
	case evacuate:
		p.logger.Warn("a node will be taken away; it takes no more work and is replaced where it is needed", "node", name)
		if err := p.evacuate(ctx, l, id, s); err != nil {
			return stay, err
		}
		e.Leaving = true
		l.interrupt(now)
	case keep:
		p.logger.Info("keeps a node: work was placed on it meanwhile", "node", name)
		if err := p.nomad.eligible(ctx, name, true); err != nil {
			return stay, err
		}
		e.Leaving, e.Ending = false, false
	case welcome:
		if e.Ordered && n.SchedulingEligibility == api.NodeSchedulingIneligible {
			// Nomad has closed it in a former life of the machine.
			if err := p.nomad.eligible(ctx, name, true); err != nil {
				return stay, err
			}
		}
		e.Ready, e.Late = true, false
		p.logger.Info("a node is ready", "node", name, "after", now.Sub(e.Since).Round(time.Second))
	case giveUp:
		busy, err := p.busy(ctx, l, id, s)
		if err != nil {
			return stay, err
		}
		if busy != "" {
			// Better paid for nothing than the end of what runs there.
			e.Late = true
			p.rest(l, now, fmt.Sprintf("machine %s was not ready within %s: its maker tells of node %q, address %q; %s has work and may be it, so it is kept", id, p.definition.start, s.machines[id].Node, s.machines[id].Address, busy))
			return stay, nil
		}
		p.rest(l, now, fmt.Sprintf("node %s was not ready within %s", name, p.definition.start))
		return what, p.destroy(ctx, now, l, id, n)
	case lose:
		p.logger.Warn("gives a machine up: its node is out of Nomad's contact for longer than down_timeout", "machine", id, "node", name, "down_timeout", p.definition.down)
		if !e.Leaving {
			l.interrupt(now)
		}
		return what, p.destroy(ctx, now, l, id, n)
	case remove:
		return what, p.destroy(ctx, now, l, id, n)
	}
	return what, nil
}
