// SPDX-License-Identifier: MPL-2.0

package plan

import (
	"fmt"
	"slices"
)

// Misfit says that a pool's nodes do not serve a work though its shape says so.
type Misfit struct {
	Why string
	// Shunned: Nomad left ready nodes unused by it. Else they lack something, as
	// far as is remembered of a pool that may have no node now.
	Shunned bool
}

// offers are what a pool's ready nodes have in all.
type offers struct {
	whole []Shape // of nodes that have as many devices as the pool's shape, or more
	short []Shape // of nodes that have fewer
	// lacking is how many nodes are short: one may have a fault, two tell of the pool.
	lacking int
}

// survey takes in what nodes have that Nomad tells of.
func (p *planner) survey() {
	p.offers = map[string]*offers{}
	known := map[string]bool{}
	for _, n := range p.nodes {
		if n.Pool == "" || n.Starting || n.Closed || n.Whole.Devices == nil {
			continue
		}
		o := p.offers[n.Pool]
		if o == nil {
			o = &offers{}
			p.offers[n.Pool] = o
		}
		short := n.Whole.Size() < p.pool(n.Pool).Shape.Size()
		if short {
			o.lacking++
		}
		k := n.kind()
		key := k.pool + "\x00" + k.whole
		if known[key] {
			continue
		}
		known[key] = true
		if short {
			o.short = append(o.short, n.Whole)
		} else {
			o.whole = append(o.whole, n.Whole)
		}
	}
}

// misfit says why a pool's nodes do not serve a work that its shape serves;
// empty where they do, or nothing is known.
func (p *planner) misfit(pool Pool, w Work) string {
	remembered := w.Misfits[pool.Name]
	if remembered.Shunned {
		return remembered.Why
	}
	if v := p.verdict(pool.Name, w); v.why != "" {
		return v.why
	} else if !v.known && w.Bars != nil && remembered.Why != "" {
		return remembered.Why
	}
	o := p.offers[pool.Name]
	if o == nil || len(o.whole) == 0 && o.lacking < 2 {
		return remembered.Why
	}
	serves := func(s Shape) bool { return fits(w.Request, s) }
	if slices.ContainsFunc(o.whole, serves) || slices.ContainsFunc(o.short, serves) {
		return ""
	}
	return "its nodes have " + lacking(w.Request, slices.Concat(o.whole, o.short)[0])
}

// lacking is what a node has too little of for a request, in words.
func lacking(request, has Shape) string {
	cores, disk := request.onHost(has)
	switch {
	case request.Memory > has.Memory:
		return fmt.Sprintf("%d MiB of memory and it asks for %d", has.Memory, request.Memory)
	case request.mhz(has) > has.CPU:
		return fmt.Sprintf("%d MHz and it asks for %d", has.CPU, request.mhz(has))
	case cores[0] > cores[1]:
		return fmt.Sprintf("%d cores to reserve and it asks for %d", cores[1], cores[0])
	case disk[0] > disk[1]:
		return fmt.Sprintf("%d MiB of disk and it asks for %d", disk[1], disk[0])
	}
	return fmt.Sprintf("%s and it asks for %s", has.offered(), request)
}

// unfit says why a pool is not bought from for a work; empty where it is.
func (p *planner) unfit(pool Pool, w Work) string {
	switch {
	case !fits(w.Request, pool.Shape):
		if why := grouped(w.Request, pool); why != "" {
			return why
		}
		return "its shape has " + lacking(w.Request, pool.Shape)
	case !w.Allowed(pool.Where):
		return "its node pool, datacenter, constraints or devices' attributes do not admit it"
	case !w.runsOn(pool.Lifecycle):
		return fmt.Sprintf("it is %s and gpu.spot is %q", pool.Lifecycle, w.Spot)
	case w.overCost(pool):
		return fmt.Sprintf("it would cost %.2f there and gpu.max_cost is %.2f", w.costIn(pool), w.MaxCost)
	}
	return p.misfit(pool, w)
}

// mostNamed is how many pools a reason names.
const mostNamed = 4

// nobody says why each pool is not bought from.
func (p *planner) nobody(w Work) (text string) {
	for i, pool := range p.in.Pools {
		if i == mostNamed {
			return fmt.Sprintf("%s; and %d pools more", text, len(p.in.Pools)-mostNamed)
		}
		text += fmt.Sprintf("; pool %s: %s", pool.Name, p.unfit(pool, w))
	}
	return text
}

// seenUnfit are the pools whose nodes were found not to serve a work.
func (p *planner) seenUnfit(w Work) (all map[string]string) {
	for _, pool := range p.in.Pools {
		if w.Misfits[pool.Name].Why != "" || !w.Allowed(pool.Where) || !fits(w.Request, pool.Shape) {
			continue
		}
		if why := p.misfit(pool, w); why != "" {
			if all == nil {
				all = map[string]string{}
			}
			all[pool.Name] = why
		}
	}
	return all
}
