// SPDX-License-Identifier: MPL-2.0

package pool

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/google/uuid"
)

// order is a purchase. There is one at a time, and it is open until the maker
// lists its machines, refuses it, or start_timeout has passed. What of it is
// not listed yet counts, so that nothing is bought twice: not by this pool, nor
// by another for the same work.
type order struct {
	Token string `json:"token"`
	Count int    `json:"count"`
	// Since is when it was given first, Index Nomad's state of its nodes then.
	Since time.Time `json:"since"`
	Index uint64    `json:"index,omitempty"`
	// Listed is how many machines have appeared since.
	Listed int `json:"listed,omitempty"`
	// Answered: the maker has taken it. Until then it may have or not, and is
	// given again with its token.
	Answered bool   `json:"answered,omitempty"`
	Fault    string `json:"fault,omitempty"`
}

func (o *order) outstanding() int {
	if o == nil {
		return 0
	}
	return max(o.Count-o.Listed, 0)
}

// unanswered: it is to be given again.
func (o *order) unanswered() bool { return o != nil && !o.Answered }

// follow closes the order when all its machines have appeared, and gives it up
// when they do not in time.
func (p *MachinePool) follow(now time.Time, l *ledger, appeared int) {
	o := l.Order
	if o == nil {
		return
	}
	if o.Since.IsZero() { // of an earlier release
		o.Since = now
	}
	o.Listed += appeared
	o.Answered = o.Answered || o.Listed > 0
	switch {
	case o.outstanding() == 0:
		l.Order = nil
	case now.Sub(o.Since) > p.definition.start:
		reason := fmt.Sprintf("%d of %d machines that were asked for are not listed within %s", o.outstanding(), o.Count, p.definition.start)
		if o.Fault != "" {
			reason += ": " + o.Fault
		}
		l.Order = nil
		p.rest(l, now, reason)
	}
}

// Grow keeps nodes on their way out, then asks the maker. What the maker has
// is read first, so that a purchase of an earlier life is counted.
func (p *MachinePool) Grow(ctx context.Context, now time.Time, count int) error {
	unhold, err := hold(&p.ordering, p.store.dir, p.store.pool+".order")
	if err != nil {
		return err
	}
	defer unhold()
	// First the order that has no answer, then what is missing beside it.
	for {
		o, again, err := p.due(ctx, now, count)
		if err == nil && o != nil {
			err = p.give(ctx, now, *o)
		}
		if err != nil || !again {
			return err
		}
	}
}

// due is the order to give now, and whether that is done again; nil where
// nothing is missing.
func (p *MachinePool) due(ctx context.Context, now time.Time, count int) (o *order, again bool, err error) {
	unhold, err := hold(&p.mu, p.store.dir, p.store.pool)
	if err != nil {
		return nil, false, err
	}
	defer unhold()
	l, s, err := p.reconcile(ctx, now)
	if err != nil {
		return nil, false, err
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
	switch {
	case missing <= 0 && !l.Order.unanswered():
		return nil, false, p.store.save(l)
	case l.rests(now):
		err = fmt.Errorf("pool %q rests until %s: %s", p.definition.Name, l.Rest.Until.Format(time.RFC3339), l.Rest.Reason)
	case l.Order.unanswered():
		again = true
	case l.Order != nil:
		err = fmt.Errorf("pool %q: %d of the %d machines asked for at %s are not listed yet; %d more are asked for when they are", p.definition.Name, l.Order.outstanding(), l.Order.Count, l.Order.Since.Format(time.RFC3339), missing)
	default:
		l.Order = &order{Token: uuid.NewString(), Count: missing, Since: now, Index: s.index}
	}
	return l.Order, again, errors.Join(err, p.store.save(l))
}

// give asks the maker. What is known of the pool is not held meanwhile: that
// may take minutes, and a node that is taken away cannot wait.
func (p *MachinePool) give(ctx context.Context, now time.Time, o order) error {
	err := p.maker.Create(ctx, o.Token, o.Count)
	if err != nil {
		err = fmt.Errorf("pool %q: create %d machines: %w", p.definition.Name, o.Count, err)
	}
	unhold, fault := hold(&p.mu, p.store.dir, p.store.pool)
	if fault != nil {
		return errors.Join(err, fault)
	}
	defer unhold()
	l, fault := p.store.load()
	if fault != nil {
		return errors.Join(err, fault)
	}
	var refused *RefusedError
	switch open := l.Order != nil && l.Order.Token == o.Token; {
	case errors.As(err, &refused):
		if open {
			l.Order = nil
		}
		p.rest(l, now, refused.Reason)
	case err != nil && open:
		l.Order.Fault = err.Error()
	case err == nil:
		p.logger.Info("asks for machines", "count", o.Count)
		l.Rest = nil
		if open {
			l.Order.Answered, l.Order.Fault = true, ""
		}
	}
	if err := errors.Join(err, p.store.save(l)); err != nil {
		return err
	}
	_, _, err = p.reconcile(ctx, now)
	return err
}

// askAgain gives an order that has no answer once more, beside all else; where
// an order is being given it does nothing.
func (p *MachinePool) askAgain(ctx context.Context, now time.Time) {
	if !p.ordering.TryLock() {
		return
	}
	go func() {
		defer p.ordering.Unlock()
		unlock, err := lock(p.store.dir, p.store.pool+".order")
		if err != nil {
			p.logger.Warn("an order is not given again", "error", err)
			return
		}
		defer unlock()
		o, _, err := p.due(ctx, now, 0)
		if err == nil && o != nil {
			err = p.give(ctx, now, *o)
		}
		if err != nil && ctx.Err() == nil {
			p.logger.Warn("an order has no answer and is given again", "error", err)
		}
	}()
}
