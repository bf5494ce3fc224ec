// SPDX-License-Identifier: MPL-2.0

package plan

import "slices"

// crowd is the nodes as the queue meets them: those that still have room one by
// one, in the order of the plan's, and those without only counted. A long queue
// meets the same full nodes again and again.
type crowd struct {
	roomy []*place
	full  map[kind]int
	// least is how many devices the smallest request asks for: a node with fewer is full.
	least  int
	byName map[string]*place
}

// kind is what full nodes have in common.
type kind struct {
	pool   string
	where  Where
	closed bool
}

func (p *planner) sift(queue []Work) {
	p.full, p.byName, p.least = map[kind]int{}, make(map[string]*place, len(p.nodes)), 1<<30
	for _, w := range queue {
		if w.Placed < w.Count {
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
		p.full[kind{n.Pool, n.Where, n.Closed}]++
	}
}

func (p *planner) isFull(n *place) bool { return n.Closed || n.Free.devices() < p.least }

// retire counts the nodes that have just become full.
func (p *planner) retire() {
	p.roomy = slices.DeleteFunc(p.roomy, func(n *place) bool {
		if p.isFull(n) {
			p.full[kind{n.Pool, n.Where, n.Closed}]++
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
	for k, n := range p.full {
		if k.pool == pool {
			count += n
		}
	}
	return count
}

// busyFor counts the nodes that would take the work once what runs there has ended.
func (p *planner) busyFor(w Work) int {
	count := 0
	for _, n := range p.roomy {
		if (n.Busy || n.used) && !n.fits(w) && w.Allowed(n.Where) && !slices.Contains(w.PlacedOn, n.Name) {
			count++
		}
	}
	for k, n := range p.full {
		if !k.closed && w.Allowed(k.where) {
			count += n
		}
	}
	for i, name := range w.PlacedOn {
		if n := p.byName[name]; n != nil && p.isFull(n) && !n.Closed && (n.Busy || n.used) && w.Allowed(n.Where) && !slices.Contains(w.PlacedOn[:i], name) {
			count--
		}
	}
	return count
}
