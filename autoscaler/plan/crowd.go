// SPDX-License-Identifier: MPL-2.0

package plan

import (
	"fmt"
	"slices"
)

// crowd is the nodes as the queue meets them: those that still have room one by
// one, in the order of the plan's, and those without only counted. A long queue
// meets the same full nodes again and again.
type crowd struct {
	roomy []*place
	full  map[kind]*alike
	// least is how many devices the smallest request asks for: a node with fewer is full.
	least  int
	byName map[string]*place
}

// kind is what full nodes have in common.
type kind struct {
	pool   string
	where  Where
	closed bool
	whole  string
}

// alike are full nodes of a kind.
type alike struct {
	count int
	whole Shape
}

func (n *place) kind() kind {
	k := kind{n.Pool, n.Where, n.Closed, ""}
	if n.Whole.Devices != nil {
		k.whole = fmt.Sprint(n.Whole.CPU, n.Whole.Memory, n.Whole.Devices)
		if n.Whole.Host != nil {
			k.whole += fmt.Sprint(*n.Whole.Host)
		}
	}
	return k
}

// count adds a full node.
func (c *crowd) count(n *place) {
	k := n.kind()
	if c.full[k] == nil {
		c.full[k] = &alike{whole: n.Whole}
	}
	c.full[k].count++
}

func (p *planner) sift(queue []Work) {
	p.full, p.byName, p.least = map[kind]*alike{}, make(map[string]*place, len(p.nodes)), 1<<30
	for _, w := range queue {
		if w.Missing() > 0 {
			p.least = min(p.least, w.Request.devices())
		}
	}
	for _, n := range p.nodes {
		p.byName[n.Name] = n
		p.add(n)
	}
}

// add takes a node in.
func (p *planner) add(n *place) {
	if !p.isFull(n) {
		p.roomy = append(p.roomy, n)
	} else if n.Busy || n.used {
		p.crowd.count(n)
	}
}

func (p *planner) isFull(n *place) bool { return n.Closed || n.devices < p.least }

// retire counts the nodes that have just become full.
func (p *planner) retire() {
	p.roomy = slices.DeleteFunc(p.roomy, func(n *place) bool {
		if p.isFull(n) {
			p.crowd.count(n)
			return true
		}
		return false
	})
}

// idleOf counts the nodes of a pool that are held for a work already.
func (p *planner) idleOf(pool string, w Work) int {
	count := 0
	for _, n := range p.roomy {
		if n.Pool == pool && (n.Busy || n.used || n.fits(w)) {
			count++
		}
	}
	for k, all := range p.full {
		if k.pool == pool {
			count += all.count
		}
	}
	return count
}

// busyFor counts the allocations of a work that nodes would take once what runs
// there has ended: one for each node of which no more is known.
func (p *planner) busyFor(w Work) int {
	count := 0
	here := map[string]int{} // its own allocations
	for _, name := range w.PlacedOn {
		here[name]++
	}
	for _, n := range p.roomy {
		switch {
		case !n.Busy && !n.used || !w.Allowed(n.Where) || !w.mayUse(n.Pool, n.lifecycle) || w.barred(n):
		case n.Whole.Devices != nil:
			count += max(w.each(n.Whole)-w.each(n.Free)-here[n.Name], 0)
		case !n.fits(w) && here[n.Name] == 0:
			count++
		}
	}
	for k, all := range p.full {
		if !k.closed && w.Allowed(k.where) && w.mayUse(k.pool, p.pool(k.pool).Lifecycle) && p.verdict(k.pool, w).why == "" {
			count += all.count * w.wouldTake(all.whole)
		}
	}
	for name, placed := range here {
		if n := p.byName[name]; n != nil && p.isFull(n) && !n.Closed && (n.Busy || n.used) && w.Allowed(n.Where) {
			count -= min(placed, w.wouldTake(n.Whole))
		}
	}
	return count
}

// each is how many allocations of a work a node takes.
func (w Work) each(s Shape) int {
	each := max(perNode(w.Request, s), 0)
	if most := w.limit(); most > 0 {
		return min(each, most)
	}
	return each
}

// wouldTake is the same of a node of which all may not be known.
func (w Work) wouldTake(whole Shape) int {
	if whole.Devices == nil {
		return 1
	}
	return w.each(whole)
}
