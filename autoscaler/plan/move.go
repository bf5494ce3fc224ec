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
	// elsewhere. A gang's member is never moved without, and all of the gang
	// starts again.
	Movable bool
}

// move lets dear nodes go whose work has leave to move and fits elsewhere: into
// what is free on nodes that are kept anyway, or onto nodes that together cost
// less, which are bought first. A step's nodes are drained only once all their
// work has a place that is ready, so that nothing queues for it, and all at once.
func (p *planner) move() {
	sellers := p.sellers()
	for _, s := range p.steps() {
		pool := p.pool(s.nodes[0].Pool)
		if slices.ContainsFunc(s.nodes, func(n *place) bool { return n.used }) || p.count[pool.Name]-len(p.drain[pool.Name])-len(s.nodes) < pool.Min ||
			p.late(s) || slices.ContainsFunc(s.gangs, func(w Work) bool { return p.moving[w.group()] }) {
			continue // new work was just put there, it is at the minimum, or there is no time
		}
		to, buys, saving := p.elsewhere(s, sellers)
		if to == nil || !p.pays(s, saving) {
			continue
		}
		for _, w := range s.gangs {
			p.moving[w.group()] = true
		}
		ready := true
		for i, t := range s.tenants {
			if to[i] != nil {
				p.lodge(to[i], t.Work)
				ready = ready && !to[i].Starting
			}
		}
		switch {
		case len(buys) > 0:
			p.buyToMove(s, buys)
		case ready:
			for _, n := range s.nodes {
				n.Closed = true
				p.drain[pool.Name] = append(p.drain[pool.Name], n.Name)
			}
			p.note(pool.Name, s.drained(to, saving))
		}
	}
}

func (s *step) drained(to []*place, saving float64) string {
	if len(s.gangs) == 0 {
		return fmt.Sprintf("%s is drained: all that runs on it may move and fits on %s", names(s.nodes), names(to))
	}
	return fmt.Sprintf("%s are drained together: all that runs there may move and fits on %s, where an hour costs %.2f less", names(s.nodes), names(to), saving)
}

// elsewhere finds a place for each of a step's tenants: on nodes that have work
// themselves, on others that are there, or on ones to buy (nil in the result).
// What is bought, and what is there and would else be let go, costs less than
// the step's nodes, by saving for an hour. It is nil where a tenant has no such place.
func (p *planner) elsewhere(s *step, sellers []Pool) (to []*place, buys []removal, saving float64) {
	price := s.nodes[0].price
	saving = p.pool(s.nodes[0].Pool).Price * float64(len(s.nodes))
	free, lodged := map[*place]Shape{}, map[*place][]group{}
	put := func(t Tenant, kept bool) *place {
		for _, o := range p.nodes {
			if o.devices < t.Work.Request.devices() {
				continue // most nodes are full
			}
			offer, taken := free[o]
			if !taken {
				offer = o.Free
			}
			if o.Pool == "" || o.Closed || o.price > price || (o.Busy || o.used || taken) != kept || slices.Contains(s.nodes, o) ||
				!fits(t.Work.Request, offer) || p.leaving(o) || !t.Work.mayGoTo(o) || t.Work.Distinct && slices.Contains(lodged[o], t.Work.group()) {
				continue
			}
			if !kept {
				if costs := p.pool(o.Pool).Price; costs < saving {
					saving -= costs
				} else {
					continue
				}
			}
			take(t.Work.Request, &offer)
			free[o] = offer
			lodged[o] = append(lodged[o], t.Work.group())
			return o
		}
		return nil
	}
	for _, t := range s.tenants {
		o := put(t, true)
		if o == nil {
			o = put(t, false)
		}
		if o == nil && !p.toBuy(t.Work, price, sellers, &buys, &saving) {
			return nil, nil, 0
		}
		to = append(to, o)
	}
	return to, buys, saving
}

// removal is a node to be bought for some of the work of others.
type removal struct {
	pool   Pool
	all    Shape // what moves there
	groups []group
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

// toBuy adds a work to the nodes that are to be bought, or another node for it,
// where a GPU costs less than price and the node no more than is still saved.
func (p *planner) toBuy(w Work, price float64, sellers []Pool, buys *[]removal, saving *float64) bool {
	for i := range *buys {
		b := &(*buys)[i]
		left := b.pool.Shape
		take(b.all, &left)
		if fits(w.Request, left) && p.takes(b.pool, w) && !(w.Distinct && slices.Contains(b.groups, w.group())) {
			b.all = add(b.all, w.Request)
			b.groups = append(b.groups, w.group())
			return true
		}
	}
	for i := range sellers {
		pool := &sellers[i]
		looks := pool.Price * (1 + float64(pool.Interrupted)*pool.Penalty)
		if pool.looksLike() > price {
			return false
		}
		if looks >= *saving || !p.takes(*pool, w) {
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
		*saving -= looks
		*buys = append(*buys, removal{*pool, w.Request, []group{w.group()}})
		return true
	}
	return false
}

// buyToMove buys the nodes that a step's work is to move to.
func (p *planner) buyToMove(s *step, buys []removal) {
	count := map[string]int{}
	for _, b := range buys {
		count[b.pool.Name]++
		p.bought[b.pool.Name]++
		p.open(purchase{b.pool, 1, 1}, Work{Request: b.all, Distinct: true})
	}
	for _, pool := range p.in.Pools {
		if c := count[pool.Name]; c > 0 {
			p.note(pool.Name, fmt.Sprintf("%d nodes are bought for what runs on %s and may move: an hour costs %.2f there each and %.2f here", c, names(s.nodes), pool.Price, p.pool(s.nodes[0].Pool).Price))
		}
	}
}

// mayGoTo reports whether a work may be moved to a node, where there is room.
func (w Work) mayGoTo(n *place) bool {
	return w.runsOn(n.lifecycle) && !(w.Distinct && (slices.Contains(w.PlacedOn, n.Name) || slices.Contains(n.guests, w.group()))) && !n.claimed(w) && !w.barred(n) && w.Allowed(n.Where)
}

// lodge holds a place for a work that moves there.
func (p *planner) lodge(n *place, w Work) {
	p.hold([]*place{n}, w)
	n.guests = append(n.guests, w.group())
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
