// SPDX-License-Identifier: MPL-2.0

// Package plan decides how many nodes each pool shall have, from what waits
// and what there is. It is pure, and the same input gives the same output.
package plan

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
)

// Make plans. It costs O(work × (nodes + pools)).
func Make(in Input) Output {
	p := &planner{in: in, bought: map[string]int{}, reasons: map[string][]string{}, count: map[string]int{}, drain: map[string][]string{}, spare: map[string]int{},
		outdated: map[string][]string{}, remarks: map[string][]string{}}
	for _, n := range in.Nodes {
		if n.Pool != "" && !n.Closed {
			p.count[n.Pool]++
		}
		if n.AtRisk {
			n.Free = Shape{}
		}
		pool := p.pool(n.Pool)
		p.nodes = append(p.nodes, &place{Node: n, price: pool.perGPU(), lifecycle: pool.Lifecycle})
	}
	slices.SortStableFunc(p.nodes, func(a, b *place) int {
		// What is ready first; among those the fullest that fits, so that whole nodes stay whole.
		return cmp.Or(boolCompare(a.Starting, b.Starting), cmp.Compare(a.Free.GPUs, b.Free.GPUs), cmp.Compare(a.Name, b.Name))
	})
	p.spent()
	p.sift(in.Work)
	queue := slices.Clone(in.Work)
	slices.SortStableFunc(queue, func(a, b Work) int {
		return cmp.Or(cmp.Compare(b.Priority, a.Priority), a.Since.Compare(b.Since), cmp.Compare(a.Name(), b.Name()))
	})
	out := Output{Ahead: in.Ahead}
	for _, w := range queue {
		if w.Placed < w.Count {
			served := p.serve(w)
			served.Reason = w.Explain(served.Reason)
			out.Waiting = append(out.Waiting, served)
		}
	}
	p.keepHavens()
	p.move()
	for _, pool := range in.Pools {
		p.maintain(pool)
	}
	for _, pool := range in.Pools {
		p.keepFree(pool)
	}
	for _, ahead := range in.Ahead {
		p.prepare(ahead)
	}
	for _, pool := range in.Pools {
		out.Decisions = append(out.Decisions, p.decide(pool))
	}
	return out
}

type planner struct {
	in    Input
	nodes []*place
	crowd
	count      map[string]int // nodes of each pool, those on their way included
	bought     map[string]int
	reasons    map[string][]string
	drain      map[string][]string
	outdated   map[string][]string // nodes of each pool without work that are replaced
	remarks    map[string][]string // what keeps a pool from doing what it shall
	spare      map[string]int      // nodes of each pool that are kept free
	closing    float64             // what nodes that take no new work cost for an hour
	namespaces map[string]float64  // what each costs for an hour
}

// place is a node with what this plan puts on it.
type place struct {
	Node
	used      bool
	price     float64 // of its pool, for a GPU and hour
	lifecycle string  // its pool's
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
	for _, n := range p.roomy {
		if len(held) == missing {
			break
		}
		if w.Distinct && slices.Contains(w.PlacedOn, n.Name) {
			continue
		}
		free := n.Free
		for len(held) < missing && fits(w.Request, free) && w.Allowed(n.Where) {
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
		p.retire()
		return Waiting{Work: w, Reason: onTheWay(held, w), Places: places(w, held, nil)}
	}
	if reason, wait := p.defers(w); wait {
		return Waiting{Work: w, Reason: reason}
	}
	buys, left := p.buy(w, still)
	if left > 0 && (w.Gang || len(buys) == 0) {
		reason, never := p.refuse(w, still, left, len(held))
		if never && w.Gang {
			reason += wasted(w, len(p.candidates(w)) > 0)
		}
		out := Waiting{Work: w, Reason: reason, Unsatisfiable: never}
		if !w.Gang {
			p.hold(held, w)
			p.retire()
			out.Places = places(w, held, nil)
		}
		return out
	}
	p.hold(held, w)
	p.retire()
	bought := map[string]int{}
	for _, b := range buys {
		bought[b.pool.Name] += b.nodes
	}
	for _, pool := range p.in.Pools {
		if n := bought[pool.Name]; n > 0 {
			p.bought[pool.Name] += n
			p.namespaces[w.Namespace] += float64(n) * pool.Price
			p.reasons[pool.Name] = append(p.reasons[pool.Name], p.why(w, n, missing))
		}
	}
	for _, b := range buys {
		p.open(b, w)
	}
	return Waiting{Work: w, Buys: bought, Places: places(w, held, buys), Reason: fmt.Sprintf("%s; %s", placed(w), describe(bought, p.in.Pools))}
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
	extra := 0.0 // what the purchases before cost
	for _, pool := range p.candidates(w) {
		each := 1
		if !w.Distinct {
			each = perNode(w.Request, pool.Shape)
		}
		nodes := p.afford(pool, w.Namespace, min((left+each-1)/each, p.room(pool)), extra)
		if nodes == 0 {
			continue
		}
		served := min(left, nodes*each)
		extra += float64(nodes) * pool.Price
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
		n := &place{Node: Node{Name: fmt.Sprintf("%s+%d", b.pool.Name, len(p.nodes)), Pool: b.pool.Name, Where: b.pool.Where, Free: b.pool.Shape, Starting: true}, used: true, price: b.pool.perGPU(), lifecycle: b.pool.Lifecycle}
		for range min(each, b.allocations-i*each) {
			take(w.Request, &n.Free)
		}
		p.nodes = append(p.nodes, n)
		p.add(n)
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
	patient := !w.Deadline.IsZero() && w.Length > 0 && w.slack(p.in.Now) > p.lead()
	for _, pool := range p.in.Pools {
		if p.takes(pool, w) && !(patient && pool.Lifecycle != Spot && w.Spot != Never) {
			all = append(all, pool)
		}
	}
	hurried := !w.Deadline.IsZero() && !patient
	slices.SortStableFunc(all, func(a, b Pool) int {
		if hurried && a.Lifecycle != b.Lifecycle {
			return boolCompare(a.Lifecycle == Spot, b.Lifecycle == Spot)
		}
		return cmp.Or(boolCompare(a.refuses(p.in.Now), b.refuses(p.in.Now)), cmp.Compare(a.looksLike(), b.looksLike()),
			boolCompare(a.Lifecycle != Spot, b.Lifecycle != Spot), cmp.Compare(a.Name, b.Name))
	})
	return all
}

// takes reports whether a pool's nodes may serve a work.
func (p *planner) takes(pool Pool, w Work) bool {
	return fits(w.Request, pool.Shape) && w.Allowed(pool.Where) && !w.overCost(pool) && w.runsOn(pool.Lifecycle)
}

// runsOn follows what a work says of spot nodes.
func (w Work) runsOn(lifecycle string) bool {
	return !(w.Spot == Never && lifecycle == Spot) && !(w.Spot == Only && lifecycle != Spot)
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
	if p.in.Budget.PerHour > 0 || p.in.Budget.Namespaces != nil {
		return fmt.Sprintf("%s; %d more allocations need nodes than the pools' maximum and the budget leave now", placed(w), left), false
	}
	return fmt.Sprintf("%s; %d more nodes are needed than the pools' maximum leaves now", placed(w), left), false
}

// wasted says what a gang that can never be whole does to others: Nomad places
// its allocations one by one, wherever there is room.
func wasted(w Work, fits bool) string {
	switch {
	case w.Placed > 0:
		return fmt.Sprintf("; %d of it are placed and hold what others could use: stop it, or let it ask for less", w.Placed)
	case fits:
		return "; Nomad can still place a part of it on nodes bought for others: stop it, or let it ask for less"
	}
	return ""
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
