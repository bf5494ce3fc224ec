// SPDX-License-Identifier: MPL-2.0

package plan

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"time"
)

// Maintenance is a pool's window that is open.
type Maintenance struct {
	// Since is when the window opened.
	Since time.Time
	// AtOnce is how many nodes may be on their way out for it.
	AtOnce int
}

// maintain replaces nodes that are old, in the pool's window, and those at
// risk, at any time. A node without work is let go once the pool has its
// minimum without it. One with work is drained only where all that runs there
// has leave to move, and a place elsewhere that is ready: a gang may be moved
// here, which costs it a restart from its checkpoint.
func (p *planner) maintain(pool Pool) {
	if pool.NoDrain {
		return
	}
	var old, out []*place
	var newest *place
	left := 0
	if pool.Maintenance != nil {
		left = pool.Maintenance.AtOnce
	}
	for _, n := range p.nodes {
		switch {
		case n.Pool != pool.Name || n.Starting:
			continue
		case n.Replace != "" && n.Closed && !n.AtRisk:
			out = append(out, n)
		case n.Replace != "" && !n.Closed && (n.AtRisk || pool.Maintenance != nil):
			old = append(old, n)
		}
		if newest == nil || n.Bought.After(newest.Bought) {
			newest = n
		}
	}
	if len(old) == 0 {
		return
	}
	// Those at risk first, then those that are let go at the least cost.
	slices.SortStableFunc(old, func(a, b *place) int {
		return cmp.Or(boolCompare(!a.AtRisk, !b.AtRisk), boolCompare(a.Busy || a.used, b.Busy || b.used), cmp.Compare(len(a.Tenants), len(b.Tenants)), cmp.Compare(a.Name, b.Name))
	})
	vain := ""
	if m := pool.Maintenance; m != nil && newest.Replace != "" && !newest.AtRisk && !newest.Bought.IsZero() && newest.Bought.After(m.Since) {
		vain = fmt.Sprintf("%s was bought in this window and is old too: %s; no more nodes are replaced", newest.Name, newest.Replace)
		p.remark(pool.Name, vain)
	}
	if left -= len(out); pool.Maintenance != nil && len(out) > 0 && left <= 0 && slices.ContainsFunc(old, func(n *place) bool { return !n.AtRisk }) {
		p.remark(pool.Name, fmt.Sprintf("old nodes wait for %s, which must go first (at_once = %d)", names(out), pool.Maintenance.AtOnce))
	}
	for _, n := range old {
		if !n.AtRisk && (left <= 0 || vain != "") {
			continue
		}
		if p.replace(pool, n) && !n.AtRisk {
			left--
		}
	}
}

// replace does the next step of replacing one node, and reports whether there was one.
func (p *planner) replace(pool Pool, n *place) bool {
	stays := func(why string) bool {
		p.remark(pool.Name, fmt.Sprintf("%s shall be replaced (%s) and stays for now: %s", n.Name, n.Replace, why))
		return false
	}
	going := len(p.drain[pool.Name]) + len(p.outdated[pool.Name])
	spare := p.count[pool.Name]-going > pool.Min
	if !n.Busy {
		switch {
		case n.used:
			return stays("work was just given to it")
		case spare && p.ready(pool.Name) > pool.Min:
			n.Closed = true
			p.outdated[pool.Name] = append(p.outdated[pool.Name], n.Name)
			p.note(pool.Name, fmt.Sprintf("%s has no work and is replaced: %s", n.Name, n.Replace))
		case p.count[pool.Name]+p.bought[pool.Name]-going > pool.Min: // its replacement is on its way
		case p.afford(pool, "", min(1, p.room(pool)), 0) < 1 || pool.refuses(p.in.Now):
			return stays("the pool is at its minimum, and no node can be bought for it first")
		default:
			p.bought[pool.Name]++
			p.note(pool.Name, fmt.Sprintf("1 node is bought in place of %s: %s", n.Name, n.Replace))
		}
		return true
	}
	if i := slices.IndexFunc(n.Tenants, func(t Tenant) bool { return !t.Movable }); i >= 0 {
		return stays(n.Tenants[i].Work.Name() + " may not be moved")
	}
	if i := slices.IndexFunc(n.Tenants, func(t Tenant) bool { return p.moving[t.Work.group()] }); i >= 0 {
		return stays(n.Tenants[i].Work.Name() + " moves already")
	}
	if len(n.Tenants) == 0 || n.used {
		return stays("it is not known what runs there, or work was just given to it")
	}
	if to, ready := p.haven(n); to != nil {
		for i, t := range n.Tenants {
			p.lodge(to[i], t.Work)
		}
		if ready && spare {
			n.Closed = true
			p.drain[pool.Name] = append(p.drain[pool.Name], n.Name)
			p.note(pool.Name, fmt.Sprintf("%s is drained and replaced: %s; what runs on it may move to %s", n.Name, n.Replace, names(to)))
		}
		return true
	}
	all := sum(n.Tenants)
	if !fits(all, pool.Shape) || p.afford(pool, "", min(1, p.room(pool)), 0) < 1 || pool.refuses(p.in.Now) {
		return stays("what runs there has no other place, and no node can be bought for it first")
	}
	p.bought[pool.Name]++
	p.note(pool.Name, fmt.Sprintf("1 node is bought in place of %s: %s", n.Name, n.Replace))
	p.open(purchase{pool, 1, 1}, Work{Request: all, Distinct: true})
	return true
}

// keepHavens holds the places of work that is being drained: it runs still, and
// so queues for none.
func (p *planner) keepHavens() {
	for _, n := range p.nodes {
		if !n.Closed || !n.Busy || len(n.Tenants) == 0 || slices.ContainsFunc(n.Tenants, func(t Tenant) bool { return !t.Movable }) {
			continue
		}
		to, _ := p.haven(n)
		for i, o := range to {
			p.lodge(o, n.Tenants[i].Work)
		}
	}
}

// haven finds a place for each of a node's tenants on nodes that are there or on
// their way, at any price. It is nil where one has none.
func (p *planner) haven(n *place) (to []*place, ready bool) {
	free := map[*place]Shape{}
	ready = true
	for _, t := range n.Tenants {
		i := slices.IndexFunc(p.nodes, func(o *place) bool {
			offer, taken := free[o]
			if !taken {
				offer = o.Free
			}
			return o != n && o.Pool != "" && !o.Closed && fits(t.Work.Request, offer) && !p.leaving(o) && t.Work.mayGoTo(o)
		})
		if i < 0 {
			return nil, false
		}
		o := p.nodes[i]
		offer, taken := free[o]
		if !taken {
			offer = o.Free
		}
		take(t.Work.Request, &offer)
		free[o] = offer
		to = append(to, o)
		ready = ready && !o.Starting
	}
	return to, ready
}

// ready counts a pool's nodes that are there and stay.
func (p *planner) ready(pool string) (count int) {
	for _, n := range p.nodes {
		if n.Pool == pool && !n.Starting && !n.Closed {
			count++
		}
	}
	return count
}

// leaving reports whether a node is about to be replaced: nothing is moved onto it.
func (p *planner) leaving(n *place) bool {
	return n.Replace != "" && (n.AtRisk || p.pool(n.Pool).Maintenance != nil)
}

// remark is added to a pool's reason whatever it decides.
func (p *planner) remark(pool, text string) {
	if !slices.Contains(p.remarks[pool], text) {
		p.remarks[pool] = append(p.remarks[pool], text)
	}
}

// remarked is a reason with the pool's remarks; of many the first few.
func (p *planner) remarked(pool, reason string) string {
	all := p.remarks[pool]
	if most := 3; len(all) > most {
		all = append(slices.Clone(all[:most]), fmt.Sprintf("and %d more", len(all)-most))
	}
	return strings.Join(append([]string{reason}, all...), "; ")
}
