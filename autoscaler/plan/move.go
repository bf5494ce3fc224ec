// SPDX-License-Identifier: MPL-2.0

package plan

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
)

// Tenant is one allocation that runs on a node.
type Tenant struct {
	Work Work
	// Movable: its owner gave leave to stop it at a checkpoint and start it
	// elsewhere. A gang's member is never moved without, and with it only for
	// maintenance: all of the gang starts again.
	Movable bool
}

// move lets dear nodes go whose work has leave to move and fits elsewhere: into
// what is free on nodes that are kept anyway, or onto a cheaper pool, for which
// nodes are bought first. A node is drained only once all its work has a place
// that is ready, so that nothing queues for it.
func (p *planner) move() {
	var from []*place
	for _, n := range p.nodes {
		if n.Busy && !n.Starting && !n.Closed && n.Pool != "" && !p.pool(n.Pool).NoDrain && len(n.Tenants) > 0 &&
			!slices.ContainsFunc(n.Tenants, func(t Tenant) bool { return !t.Movable || t.Work.Gang }) {
			from = append(from, n)
		}
	}
	// The dearest goes first; among those the one with the least work to move.
	slices.SortStableFunc(from, func(a, b *place) int {
		return cmp.Or(cmp.Compare(b.price, a.price), cmp.Compare(len(a.Tenants), len(b.Tenants)), cmp.Compare(a.Name, b.Name))
	})
	for _, n := range from {
		if n.used || p.count[n.Pool]-len(p.drain[n.Pool]) <= p.pool(n.Pool).Min {
			continue // new work was just put on it, or it is at the minimum
		}
		if to, ready := p.elsewhere(n, false); to != nil {
			for i, t := range n.Tenants {
				p.hold([]*place{to[i]}, t.Work)
			}
			if ready {
				n.Closed = true
				p.drain[n.Pool] = append(p.drain[n.Pool], n.Name)
				p.note(n.Pool, fmt.Sprintf("%s is drained: all that runs on it may move and fits on %s", n.Name, names(to)))
			}
			continue
		}
		p.buyToMove(n)
	}
}

// elsewhere finds a place for each of a node's tenants: on cheaper nodes, or on
// those that have work themselves; at any price, where it must. It is nil where
// one has none.
func (p *planner) elsewhere(n *place, must bool) (to []*place, ready bool) {
	free := map[*place]Shape{}
	ready = true
	for _, t := range n.Tenants {
		i := slices.IndexFunc(p.nodes, func(o *place) bool {
			offer, ok := free[o]
			if !ok {
				offer = o.Free
			}
			kept := (o.Busy || o.price < n.price) && o.price <= n.price
			return o != n && (kept || must) && o.Pool != "" && !o.Closed && fits(t.Work.Request, offer) && !p.leaving(o) && t.Work.runsOn(o.lifecycle) &&
				!(t.Work.Distinct && slices.Contains(t.Work.PlacedOn, o.Name)) && t.Work.Allowed(o.Where)
		})
		if i < 0 {
			return nil, false
		}
		o := p.nodes[i]
		offer, ok := free[o]
		if !ok {
			offer = o.Free
		}
		take(t.Work.Request, &offer)
		free[o] = offer
		to = append(to, o)
		ready = ready && !o.Starting
	}
	return to, ready
}

// buyToMove buys one node of a cheaper pool that takes all of a node's tenants.
// A pool that refused lately is not asked; one that lost nodes lately looks dearer.
func (p *planner) buyToMove(n *place) {
	cheaper := func(pool Pool) bool { return !pool.refuses(p.in.Now) && pool.looksLike() < n.price && p.room(pool) > 0 }
	if !slices.ContainsFunc(p.in.Pools, cheaper) {
		return
	}
	all := sum(n.Tenants)
	for _, pool := range p.candidates(n.Tenants[0].Work) {
		cost := pool.Price * (1 + float64(pool.Interrupted)*pool.Penalty)
		if cost >= p.pool(n.Pool).Price || pool.refuses(p.in.Now) || !fits(all, pool.Shape) || p.afford(pool, "", p.room(pool), 0) < 1 ||
			slices.ContainsFunc(n.Tenants, func(t Tenant) bool { return !p.takes(pool, t.Work) }) {
			continue
		}
		p.bought[pool.Name]++
		p.note(pool.Name, fmt.Sprintf("1 node is bought for what runs on %s and may move: it costs %.2f an hour there and %.2f here", n.Name, p.pool(n.Pool).Price, pool.Price))
		p.open(purchase{pool, 1, 1}, Work{Request: all, Distinct: true})
		return
	}
}

// sum is what all tenants ask for, of any model: each one's is checked by itself.
func sum(tenants []Tenant) (all Shape) {
	for _, t := range tenants {
		all.GPUs += t.Work.Request.GPUs
		all.CPU += t.Work.Request.CPU
		all.Memory += t.Work.Request.Memory
	}
	return all
}

func (p *planner) pool(name string) Pool {
	i := slices.IndexFunc(p.in.Pools, func(x Pool) bool { return x.Name == name })
	if i < 0 {
		return Pool{}
	}
	return p.in.Pools[i]
}

func (p *planner) note(pool, reason string) {
	p.reasons[pool] = append(p.reasons[pool], reason)
}

func names(nodes []*place) string {
	var all []string
	for _, n := range nodes {
		if !slices.Contains(all, n.Name) {
			all = append(all, n.Name)
		}
	}
	return strings.Join(all, ", ")
}
