// SPDX-License-Identifier: MPL-2.0

// Package plan decides how many nodes each pool shall have, from what waits
// and what there is. It is pure, and the same input gives the same output.
package plan

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"time"
)

// Make plans. It costs O(work × (nodes + pools)).
func Make(in Input) Output {
	p := &planner{in: in, bought: map[string]int{}, reasons: map[string][]string{}, count: map[string]int{}}
	for _, n := range in.Nodes {
		if n.Pool != "" && !n.Closed {
			p.count[n.Pool]++
		}
		p.nodes = append(p.nodes, &place{Node: n})
	}
	slices.SortStableFunc(p.nodes, func(a, b *place) int {
		// What is ready first; among those the fullest that fits, so that whole nodes stay whole.
		return cmp.Or(boolCompare(a.Starting, b.Starting), cmp.Compare(a.Free.GPUs, b.Free.GPUs), cmp.Compare(a.Name, b.Name))
	})
	queue := slices.Clone(in.Work)
	slices.SortStableFunc(queue, func(a, b Work) int {
		return cmp.Or(cmp.Compare(b.Priority, a.Priority), a.Since.Compare(b.Since), cmp.Compare(a.Name(), b.Name()))
	})
	var out Output
	for _, w := range queue {
		if w.Placed < w.Count {
			out.Waiting = append(out.Waiting, p.serve(w))
		}
	}
	for _, pool := range in.Pools {
		out.Decisions = append(out.Decisions, p.decide(pool))
	}
	return out
}

type planner struct {
	in      Input
	nodes   []*place
	count   map[string]int // nodes of each pool, those on their way included
	bought  map[string]int
	reasons map[string][]string
}

// place is a node with what this plan puts on it.
type place struct {
	Node
	used bool
}

func (n *place) fits(w Work) bool {
	return !n.Closed && fits(w.Request, n.Free) && w.Allowed(n.Where)
}

func fits(request, offer Shape) bool {
	return request.GPUs <= offer.GPUs && (request.Model == "" || strings.EqualFold(request.Model, offer.Model)) &&
		request.CPU <= offer.CPU && request.Memory <= offer.Memory
}

func take(request Shape, offer *Shape) {
	offer.GPUs -= request.GPUs
	offer.CPU -= request.CPU
	offer.Memory -= request.Memory
}

// serve finds a place for each allocation that waits, and buys what is missing.
// For a gang it buys all that is missing or nothing.
func (p *planner) serve(w Work) Waiting {
	missing := w.Count - w.Placed
	var held []*place
	for _, n := range p.nodes {
		if w.Distinct && slices.Contains(w.PlacedOn, n.Name) {
			continue
		}
		free := n.Free
		for len(held) < missing && !n.Closed && fits(w.Request, free) && w.Allowed(n.Where) {
			held = append(held, n)
			take(w.Request, &free)
			if w.Distinct {
				break
			}
		}
	}
	still := missing - len(held)
	if still == 0 {
		p.hold(held, w)
		return Waiting{Work: w, Reason: onTheWay(held, w)}
	}
	buys, left := p.buy(w, still)
	if left > 0 && (w.Gang || len(buys) == 0) {
		reason, never := p.refuse(w, still, left, len(held))
		if !w.Gang {
			p.hold(held, w)
		}
		return Waiting{Work: w, Reason: reason, Unsatisfiable: never}
	}
	p.hold(held, w)
	bought := map[string]int{}
	for _, b := range buys {
		bought[b.pool.Name] += b.nodes
	}
	for _, pool := range p.in.Pools {
		if n := bought[pool.Name]; n > 0 {
			p.bought[pool.Name] += n
			p.reasons[pool.Name] = append(p.reasons[pool.Name], p.why(w, n, missing))
		}
	}
	for _, b := range buys {
		p.open(b, w)
	}
	return Waiting{Work: w, Buys: bought, Reason: fmt.Sprintf("%s; %s", placed(w), describe(bought, p.in.Pools))}
}

func (p *planner) hold(held []*place, w Work) {
	for _, n := range held {
		take(w.Request, &n.Free)
		n.used = true
	}
}

// purchase is some nodes of one pool, for allocations of one work.
type purchase struct {
	pool        Pool
	nodes       int
	allocations int
}

// buy chooses pools for the allocations that no node takes; left is how many
// no pool takes either.
func (p *planner) buy(w Work, allocations int) (buys []purchase, left int) {
	left = allocations
	for _, pool := range p.candidates(w) {
		each := 1
		if !w.Distinct {
			each = perNode(w.Request, pool.Shape)
		}
		room := pool.Max - p.count[pool.Name] - p.bought[pool.Name]
		nodes := min((left+each-1)/each, max(room, 0))
		if nodes == 0 {
			continue
		}
		served := min(left, nodes*each)
		buys = append(buys, purchase{pool, nodes, served})
		if left -= served; left == 0 {
			break
		}
	}
	return buys, left
}

// open adds bought nodes to what later work can use: what is left on them.
func (p *planner) open(b purchase, w Work) {
	each := 1
	if !w.Distinct {
		each = perNode(w.Request, b.pool.Shape)
	}
	for i := range b.nodes {
		n := &place{Node: Node{Name: fmt.Sprintf("%s+%d", b.pool.Name, len(p.nodes)), Where: b.pool.Where, Free: b.pool.Shape, Starting: true}, used: true}
		for range min(each, b.allocations-i*each) {
			take(w.Request, &n.Free)
		}
		p.nodes = append(p.nodes, n)
	}
}

func perNode(request, shape Shape) int {
	each := 1 << 20
	for _, pair := range [][2]int{{request.GPUs, shape.GPUs}, {request.CPU, shape.CPU}, {request.Memory, shape.Memory}} {
		if pair[0] > 0 {
			each = min(each, pair[1]/pair[0])
		}
	}
	return each
}

// candidates are the pools that may serve a work: first those that did not
// refuse lately, then the cheapest for a GPU with its interruptions counted,
// spot before on-demand at the same price, then by name.
func (p *planner) candidates(w Work) []Pool {
	var all []Pool
	for _, pool := range p.in.Pools {
		if fits(w.Request, pool.Shape) && w.Allowed(pool.Where) &&
			!(w.Spot == Never && pool.Lifecycle == Spot) && !(w.Spot == Only && pool.Lifecycle != Spot) {
			all = append(all, pool)
		}
	}
	slices.SortStableFunc(all, func(a, b Pool) int {
		return cmp.Or(boolCompare(a.refuses(p.in.Now), b.refuses(p.in.Now)), cmp.Compare(a.looksLike(), b.looksLike()),
			boolCompare(a.Lifecycle != Spot, b.Lifecycle != Spot), cmp.Compare(a.Name, b.Name))
	})
	return all
}

// refuse says why nothing is bought, and whether that can ever change by
// itself: a work is unsatisfiable where all nodes that there are and all that
// could be bought do not hold it.
func (p *planner) refuse(w Work, still, left, held int) (string, bool) {
	candidates := p.candidates(w)
	most := held + w.Placed
	for _, pool := range candidates {
		each := 1
		if !w.Distinct {
			each = perNode(w.Request, pool.Shape)
		}
		most += each * max(pool.Max-p.idleOf(pool.Name, w), 0)
	}
	request := fmt.Sprintf("%d GPUs", w.Request.GPUs)
	if w.Request.Model != "" {
		request += " " + w.Request.Model
	}
	busy := p.busyFor(w)
	switch {
	case len(candidates) == 0 && busy+held+w.Placed < w.Count:
		return fmt.Sprintf("no pool has nodes for it: %d allocations of %s each, spot %q", w.Count, request, cmp.Or(w.Spot, Prefer)), true
	case most+busy < w.Count:
		return fmt.Sprintf("it needs %d allocations of %s each at once; all pools at their maximum hold %d", w.Count, request, most), true
	}
	return fmt.Sprintf("%s; %d more nodes are needed than the pools' maximum leaves now", placed(w), left), false
}

// idleOf counts the nodes of a pool that are held for a work already.
func (p *planner) idleOf(pool string, w Work) int {
	n := 0
	for _, node := range p.nodes {
		if node.Pool == pool && (node.fits(w) || node.Busy || node.used) {
			n++
		}
	}
	return n
}

// busyFor counts the nodes that would take the work once what runs there has ended.
func (p *planner) busyFor(w Work) int {
	n := 0
	for _, node := range p.nodes {
		if (node.Busy || node.used) && !node.fits(w) && !node.Closed && w.Allowed(node.Where) && !slices.Contains(w.PlacedOn, node.Name) {
			n++
		}
	}
	return n
}

// decide turns what was bought, or what idles, into a pool's count.
func (p *planner) decide(pool Pool) Decision {
	d := Decision{Pool: pool.Name, Now: p.count[pool.Name], Needed: p.bought[pool.Name]}
	d.Want = d.Now + d.Needed
	var idle []*place
	for _, n := range p.nodes {
		if n.Pool == pool.Name && !n.Starting && !n.Closed && !n.Busy && !n.used {
			idle = append(idle, n)
		}
	}
	switch {
	case d.Needed > 0:
		d.Reason = strings.Join(p.reasons[pool.Name], "; ")
	case d.Now < pool.Min:
		d.Reason = fmt.Sprintf("the pool's minimum is %d nodes", pool.Min)
	case len(idle) > 0:
		// The longest idle goes first.
		slices.SortStableFunc(idle, func(a, b *place) int {
			return cmp.Or(a.IdleSince.Compare(b.IdleSince), cmp.Compare(a.Name, b.Name))
		})
		for _, n := range idle {
			if p.in.Now.Sub(n.IdleSince) >= pool.IdleTime && d.Want > pool.Min {
				d.Release = append(d.Release, n.Name)
				d.Want--
			}
		}
		if len(d.Release) > 0 {
			d.Reason = fmt.Sprintf("%s had no work for %s", strings.Join(d.Release, ", "), pool.IdleTime)
		} else if d.Want > pool.Min {
			wait := pool.IdleTime - p.in.Now.Sub(idle[0].IdleSince)
			d.Reason = fmt.Sprintf("%s has no work; it is let go in %s", idle[0].Name, wait.Round(time.Second))
		}
	}
	d.Want = max(d.Want, pool.Min)
	if d.Reason == "" {
		d.Reason = "nothing waits for this pool and nothing in it is idle"
	}
	return d
}

func (p *planner) why(w Work, nodes, missing int) string {
	kind := "work"
	if w.Gang {
		kind = "gang"
	}
	return fmt.Sprintf("%s %s queues %d GPUs (%s) and %d more nodes are bought for it", kind, w.Name(), w.QueuedGPUs(), placed(w), nodes)
}

func placed(w Work) string { return fmt.Sprintf("%d of %d placed", w.Placed, w.Count) }

func onTheWay(held []*place, w Work) string {
	starting := 0
	for _, n := range held {
		if n.Starting {
			starting++
		}
	}
	if starting > 0 {
		return fmt.Sprintf("%s; %d nodes are on their way", placed(w), starting)
	}
	return fmt.Sprintf("%s; the nodes for the rest are ready, Nomad places it next", placed(w))
}

func describe(bought map[string]int, pools []Pool) string {
	var parts []string
	for _, pool := range pools {
		if n := bought[pool.Name]; n > 0 {
			parts = append(parts, fmt.Sprintf("%d of pool %s", n, pool.Name))
		}
	}
	return "nodes are bought: " + strings.Join(parts, ", ")
}

func boolCompare(a, b bool) int {
	switch {
	case a == b:
		return 0
	case b:
		return -1
	}
	return 1
}
