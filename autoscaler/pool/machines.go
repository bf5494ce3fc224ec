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

	"github.com/google/uuid"
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

// RefusedError is a maker's answer that it has none to give: a quota, or no
// capacity. Another pool is to be tried.
type RefusedError struct{ Reason string }

func (e *RefusedError) Error() string { return e.Reason }

// evacuation is the time that work on an interrupted node has until it is
// asked to stop: clouds give notice of two minutes and less, and tasks need
// their kill_timeout for a checkpoint.
const evacuation = 5 * time.Second

// MachinePool is a pool whose machines a maker makes.
type MachinePool struct {
	definition *Definition
	maker      Maker
	nomad      nomadNodes
	logger     hclog.Logger
	store      store
	mu         sync.Mutex
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
		nodes = append(nodes, Node{Name: cmp.Or(e.Node, id), Ready: e.Ready, Leaving: e.Leaving, Since: e.Since, AtRisk: e.AtRisk})
	}
	return nodes, nil
}

// Resting reads the ledger.
func (p *MachinePool) Resting(now time.Time) (string, error) {
	l, err := p.store.load()
	if err != nil || l.Rest == nil || !now.Before(l.Rest.Until) {
		return "", err
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

// reconcile brings the ledger up to what the maker has: it alone knows.
func (p *MachinePool) reconcile(ctx context.Context, now time.Time) (*ledger, map[string]*api.NodeListStub, error) {
	l, err := p.store.load()
	if err != nil {
		return nil, nil, err
	}
	machines, refused, err := p.maker.List(ctx)
	if err != nil {
		return nil, nil, fmt.Errorf("pool %q: list machines: %w", p.definition.Name, err)
	}
	nodes, err := p.nomad.list(ctx)
	if err != nil {
		return nil, nil, err
	}
	there := map[string]bool{}
	stubs := map[string]*api.NodeListStub{}
	for _, m := range machines {
		there[m.ID] = true
		stub := newest(nodes, func(n *api.NodeListStub) bool {
			return m.Node != "" && n.Name == m.Node || m.Node == "" && m.Address != "" && n.Address == m.Address
		})
		e := l.Machines[m.ID]
		if e == nil {
			// One that was marked to go by an earlier autoscaler elsewhere is still on its way out.
			// One whose end began before it was seen is none.
			e = &entry{Since: now, Pending: m.Pending, Leaving: m.Interrupted && stub == nil || stub != nil && stub.SchedulingEligibility == api.NodeSchedulingIneligible}
			l.Machines[m.ID] = e
		}
		e.Doomed, e.AtRisk = e.Doomed || m.Interrupted, m.AtRisk
		e.Node = cmp.Or(m.Node, e.Node)
		if stub != nil {
			e.Node, stubs[m.ID] = stub.Name, stub
		}
	}
	for _, id := range slices.Sorted(maps.Keys(l.Machines)) {
		if e := l.Machines[id]; !there[id] {
			if !e.Leaving && !e.Pending {
				p.logger.Warn("a machine is gone that was not let go", "machine", id, "node", e.Node)
				l.interrupt(now)
			}
			delete(l.Machines, id)
			if stub := newest(nodes, func(n *api.NodeListStub) bool { return e.Node != "" && n.Name == e.Node }); stub != nil && stub.Status == api.NodeStatusDown {
				if err := p.nomad.purge(ctx, stub.ID, stub.Name); err != nil {
					p.logger.Warn("the node of a machine that is gone stays in Nomad", "error", err)
				}
			}
		}
	}
	if refused != "" {
		p.rest(l, now, refused)
		if err := p.giveUpPending(ctx, l, stubs); err != nil {
			return nil, nil, err
		}
	}
	return l, stubs, p.store.save(l)
}

func (p *MachinePool) rest(l *ledger, now time.Time, reason string) {
	l.Rest = &rest{Since: now, Until: now.Add(p.definition.retry), Reason: reason}
	p.logger.Warn("a pool rests; others are tried", "reason", reason, "until", l.Rest.Until)
}

func present(l *ledger) int {
	n := 0
	for _, e := range l.Machines {
		if !e.Leaving {
			n++
		}
	}
	return n
}

// Grow keeps nodes on their way out, then asks the maker. What the maker has
// is read first, so that a purchase of an earlier life is counted.
func (p *MachinePool) Grow(ctx context.Context, now time.Time, count int) error {
	unhold, err := hold(&p.mu, p.store.dir, p.store.pool)
	if err != nil {
		return err
	}
	defer unhold()
	l, _, err := p.reconcile(ctx, now)
	if err != nil {
		return err
	}
	for _, id := range slices.Sorted(maps.Keys(l.Machines)) {
		e := l.Machines[id]
		if present(l) >= count || !e.Leaving || e.Ending || e.Doomed || e.Moving {
			continue
		}
		if err := p.nomad.eligible(ctx, e.Node, true); err != nil {
			p.logger.Warn("a node on its way out cannot be kept", "node", e.Node, "error", err)
			continue
		}
		e.Leaving = false
	}
	missing := min(count, p.definition.Max) - present(l)
	if missing <= 0 {
		return p.store.save(l)
	}
	if l.Rest != nil && now.Before(l.Rest.Until) {
		return fmt.Errorf("pool %q rests until %s: %s", p.definition.Name, l.Rest.Until.Format(time.RFC3339), l.Rest.Reason)
	}
	// An order without an answer is given again with its token: it may have been taken.
	if l.Order == nil || l.Order.Count != missing {
		l.Order = &order{Token: uuid.NewString(), Count: missing}
	}
	if err := p.store.save(l); err != nil {
		return err
	}
	err = p.maker.Create(ctx, l.Order.Token, l.Order.Count)
	var refused *RefusedError
	if errors.As(err, &refused) {
		l.Order = nil
		p.rest(l, now, refused.Reason)
		return errors.Join(fmt.Errorf("pool %q: create %d machines: %w", p.definition.Name, missing, err), p.store.save(l))
	}
	if err != nil {
		return fmt.Errorf("pool %q: create %d machines: %w", p.definition.Name, missing, err)
	}
	l.Order, l.Rest = nil, nil
	p.logger.Info("asks for machines", "count", missing)
	if err := p.store.save(l); err != nil {
		return err
	}
	_, _, err = p.reconcile(ctx, now)
	return err
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
	l, stubs, err := p.reconcile(ctx, now)
	if err != nil {
		return err
	}
	p.contact.look(now, p.definition.period)
	var errs []error
	var unheard []*entry
	for _, id := range slices.Sorted(maps.Keys(l.Machines)) {
		e := l.Machines[id]
		what, err := p.tend(ctx, now, l, id, stubs[id])
		if err != nil {
			errs = append(errs, err)
		} else if what == ask {
			unheard = append(unheard, e)
		}
	}
	errs = append(errs, p.vacate(ctx, l, unheard))
	return errors.Join(append(errs, p.store.save(l))...)
}

// tend moves one machine on; ask is left to the caller, who asks all at once.
func (p *MachinePool) tend(ctx context.Context, now time.Time, l *ledger, id string, n *api.NodeListStub) (move, error) {
	e := l.Machines[id]
	name := cmp.Or(e.Node, id)
	if err := p.nomad.close(ctx, n, e.Leaving && !e.Ending); err != nil {
		return stay, err
	}
	up := n != nil && n.Status == api.NodeStatusReady
	what, err := next(situation{Exists: true, Ready: e.Ready, Up: up, Leaving: e.Leaving, Ending: e.Ending, Doomed: e.Doomed, Moving: e.Moving, Draining: n != nil && n.Drain,
		Age: now.Sub(e.Since), Start: p.definition.start, Lost: p.contact.lost(id, up || !e.Ready), Patience: p.definition.down}, func() (bool, error) { return p.nomad.idle(ctx, name) })
	if err != nil {
		return stay, err
	}
	switch what {
	case evacuate:
		p.logger.Warn("a node will be taken away; it takes no more work and is replaced where it is needed", "node", name)
		if err := p.nomad.drain(ctx, name, evacuation); err != nil {
			return stay, err
		}
		e.Leaving = true
		l.interrupt(now)
	case keep:
		p.logger.Info("keeps a node: work was placed on it meanwhile", "node", name)
		if err := p.nomad.eligible(ctx, name, true); err != nil {
			return stay, err
		}
		e.Leaving = false
	case welcome:
		e.Ready = true
		p.logger.Info("a node is ready", "node", name, "after", now.Sub(e.Since).Round(time.Second))
	case giveUp:
		p.rest(l, now, fmt.Sprintf("node %s was not ready within %s", name, p.definition.start))
		return what, p.destroy(ctx, l, id, n)
	case lose:
		p.logger.Warn("gives a machine up: its node is out of Nomad's contact for longer than down_timeout", "machine", id, "node", name, "down_timeout", p.definition.down)
		if !e.Leaving {
			l.interrupt(now)
		}
		return what, p.destroy(ctx, l, id, n)
	case remove:
		return what, p.destroy(ctx, l, id, n)
	}
	return what, nil
}
