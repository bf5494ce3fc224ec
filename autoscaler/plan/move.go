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
// what is free on nodes that are kept anyway, or onto nodes that together cost
// less, which are bought first. A node is drained only once all its work has a
// place that is ready, so that nothing queues for it.
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
	sellers := p.sellers()
	for _, n := range from {
		if n.used || p.count[n.Pool]-len(p.drain[n.Pool]) <= p.pool(n.Pool).Min {
			continue // new work was just put on it, or it is at the minimum
		}
		to, buys := p.elsewhere(n, sellers)
		if to == nil {
			continue
		}
		ready := true
		for i, t := range n.Tenants {
			if to[i] != nil {
				p.hold([]*place{to[i]}, t.Work)
				ready = ready && !to[i].Starting
			}
		}
		switch {
		case len(buys) > 0:
			p.buyToMove(n, buys)
		case ready:
			n.Closed = true
			p.drain[n.Pool] = append(p.drain[n.Pool], n.Name)
			p.note(n.Pool, fmt.Sprintf("%s is drained: all that runs on it may move and fits on %s", n.Name, names(to)))
		}
	}
}

// removal is a node to be bought for some of the work of another.
type removal struct {
	pool Pool
	all  Shape // what moves there
}

// elsewhere finds a place for each of a node's tenants: on nodes that have work
// themselves, on others that are there, or on ones to buy (nil in the result).
// What is bought, and what is there and would else be let go, costs less than
// the node. It is nil where a tenant has no such place.
func (p *planner) elsewhere(n *place, sellers []Pool) (to []*place, buys []removal) {
	budget := p.pool(n.Pool).Price
	free := map[*place]Shape{}
	put := func(t Tenant, kept bool) *place {
		for _, o := range p.nodes {
			if o.devices < t.Work.Request.devices() {
				continue // most nodes are full
			}
			offer, taken := free[o]
			if !taken {
				offer = o.Free
			}
			if o == n || o.Pool == "" || o.Closed || o.price > n.price || (o.Busy || o.used || taken) != kept ||
				!fits(t.Work.Request, offer) || p.leaving(o) || !t.Work.mayGoTo(o) {
				continue
			}
			if !kept {
				if price := p.pool(o.Pool).Price; price < budget {
					budget -= price
				} else {
					continue
				}
			}
			take(t.Work.Request, &offer)
			free[o] = offer
			return o
		}
		return nil
	}
	for _, t := range n.Tenants {
		o := put(t, true)
		if o == nil {
			o = put(t, false)
		}
		if o == nil && !p.toBuy(t.Work, n, sellers, &buys, &budget) {
			return nil, nil
		}
		to = append(to, o)
	}
	return to, buys
}

// sellers are the pools that nodes can be bought from that nothing waits for,
// the cheapest first: those that refused lately are not asked.
func (p *planner) sellers() []Pool {
	return slices.DeleteFunc(p.cheapest(), func(pool Pool) bool { return pool.refuses(p.in.Now) || p.room(pool) == 0 })
}

// cheapest are the pools by their price for a GPU; one that lost nodes lately looks dearer.
func (p *planner) cheapest() []Pool {
	all := slices.Clone(p.in.Pools)
	slices.SortStableFunc(all, func(a, b Pool) int {
		return cmp.Or(cmp.Compare(a.looksLike(), b.looksLike()), boolCompare(a.Lifecycle != Spot, b.Lifecycle != Spot), cmp.Compare(a.Name, b.Name))
	})
	return all
}

// toBuy adds a work to the nodes that are to be bought, or another node for it.
func (p *planner) toBuy(w Work, n *place, sellers []Pool, buys *[]removal, budget *float64) bool {
	for i := range *buys {
		b := &(*buys)[i]
		left := b.pool.Shape
		take(b.all, &left)
		if fits(w.Request, left) && p.takes(b.pool, w) {
			b.all = add(b.all, w.Request)
			return true
		}
	}
	for i := range sellers {
		pool := &sellers[i]
		looks := pool.Price * (1 + float64(pool.Interrupted)*pool.Penalty)
		if pool.looksLike() > n.price {
			return false
		}
		if looks >= *budget || !p.takes(*pool, w) {
			continue
		}
		already, others := 0, 0.0
		for _, b := range *buys {
			if b.pool.Name == pool.Name {
				already++
			} else {
				others += b.pool.Price
			}
		}
		if p.afford(*pool, "", p.room(*pool), others) <= already {
			continue
		}
		*budget -= looks
		*buys = append(*buys, removal{*pool, w.Request})
		return true
	}
	return false
}

// buyToMove buys the nodes that a node's work is to move to.
func (p *planner) buyToMove(n *place, buys []removal) {
	count := map[string]int{}
	for _, b := range buys {
		count[b.pool.Name]++
		p.bought[b.pool.Name]++
		p.open(purchase{b.pool, 1, 1}, Work{Request: b.all, Distinct: true})
	}
	for _, pool := range p.in.Pools {
		if c := count[pool.Name]; c > 0 {
			p.note(pool.Name, fmt.Sprintf("%d nodes are bought for what runs on %s and may move: an hour costs %.2f there each and %.2f here", c, n.Name, pool.Price, p.pool(n.Pool).Price))
		}
	}
}

// mayGoTo reports whether a work may be moved to a node, where there is room.
func (w Work) mayGoTo(n *place) bool {
	return w.runsOn(n.lifecycle) && !(w.Distinct && slices.Contains(w.PlacedOn, n.Name)) && w.Allowed(n.Where)
}

// sum is what all tenants ask for, of any model: each one's is checked by itself.
func sum(tenants []Tenant) (all Shape) {
	for _, t := range tenants {
		all = add(all, t.Work.Request)
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
		if n != nil && !slices.Contains(all, n.Name) {
			all = append(all, n.Name)
		}
	}
	return strings.Join(all, ", ")
}
