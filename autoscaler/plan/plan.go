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
	p := &planner{in: in, bought: map[string]int{}, reasons: map[string][]string{}, count: map[string]int{}, drain: map[string][]string{}, spare: map[string]int{},
		outdated: map[string][]string{}, remarks: map[string][]string{}, verdicts: map[barsOf]verdict{}, moving: map[group]bool{}}
	for _, n := range in.Nodes {
		if n.Pool != "" && !n.Closed {
			p.count[n.Pool]++
		}
		if n.AtRisk {
			n.Free = Shape{}
		}
		pool := p.pool(n.Pool)
		p.nodes = append(p.nodes, (&place{Node: n, price: pool.perGPU(), lifecycle: pool.Lifecycle}).counted())
	}
	slices.SortStableFunc(p.nodes, func(a, b *place) int {
		// What is ready first; among those the fullest that fits, so that whole nodes stay whole.
		return cmp.Or(boolCompare(a.Starting, b.Starting), cmp.Compare(a.devices, b.devices), cmp.Compare(a.Name, b.Name))
	})
	p.spent()
	p.survey()
	p.sift(in.Work)
	queue := slices.Clone(in.Work)
	slices.SortStableFunc(queue, func(a, b Work) int {
		return cmp.Or(cmp.Compare(b.Priority, a.Priority), a.Since.Compare(b.Since), cmp.Compare(a.Name(), b.Name()))
	})
	out := Output{Ahead: in.Ahead}
	for _, w := range queue {
		if w.Missing() > 0 || w.Later > 0 {
			served := p.serve(w)
			if w.Missing() > 0 && w.Later > 0 {
				served.Reason += "; " + w.again()
			}
			served.Reason = w.Explain(served.Reason)
			served.Misfits = p.seenUnfit(w)
			out.Waiting = append(out.Waiting, served)
		}
	}
	p.waiting = out.Waiting
	p.keepHavens()
	p.move()
	for _, pool := range in.Pools {
		p.maintain(pool)
	}
	for _, pool := range in.Pools {
		p.substitute(pool)
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
	offers     map[string]*offers
	waiting    []Waiting
	count      map[string]int // nodes of each pool, those on their way included
	bought     map[string]int
	reasons    map[string][]string
	drain      map[string][]string
	outdated   map[string][]string // nodes of each pool without work that are replaced
	remarks    map[string][]string // what keeps a pool from doing what it shall
	verdicts   map[barsOf]verdict
	moving     map[group]bool     // gangs that this plan moves
	spare      map[string]int     // nodes of each pool that are kept free
	closing    float64            // what nodes that take no new work cost for an hour
	namespaces map[string]float64 // what each costs for an hour
}

// place is a node with what this plan puts on it.
type place struct {
	Node
	used      bool
	price     float64 // of its pool, for a GPU and hour
	lifecycle string  // its pool's
	// devices is how many are free, greatest how many of one group: a long queue
	// meets the same nodes again and again.
	devices, greatest int
	guests            []group // what this plan moves there
}

// counted notes how many devices of a node are free.
func (n *place) counted() *place {
	n.devices, n.greatest = n.Free.devices(), n.Free.greatest()
	return n
}

func (n *place) fits(w Work) bool {
	return !n.Closed && w.Request.greatest() <= n.greatest && fits(w.Request, n.Free) && w.Allowed(n.Where) && w.mayUse(n.Pool, n.lifecycle) && w.roomOn(n) > 0
}

// serve finds a place for each allocation that waits, and buys what is missing.
// For a gang it buys all that it cannot run without, or nothing.
func (p *planner) serve(w Work) Waiting {
	missing := w.Missing()
	if missing == 0 {
		return Waiting{Work: w, Reason: w.again(), Cause: Retrying}
	}
	if why := w.broken(); why != "" {
		return Waiting{Work: w, Reason: why, Cause: Broken, Unsatisfiable: true}
	}
	var held []*place
	greatest := w.Request.greatest()
	for _, n := range p.roomy {
		if len(held) == missing {
			break
		}
		if n.greatest < greatest {
			continue
		}
		if !w.mayUse(n.Pool, n.lifecycle) {
			continue
		}
		free := n.Free
		for room := w.roomOn(n); room > 0 && len(held) < missing && fits(w.Request, free) && w.Allowed(n.Where); room-- {
			held = append(held, n)
			take(w.Request, &free)
		}
	}
	still := missing - len(held)
	if still == 0 {
		p.hold(held, w)
		p.retire()
		cause, starting := Placing, coming(held)
		if len(starting) > 0 {
			cause = Starting
		}
		return Waiting{Work: w, Reason: onTheWay(w, starting, p.in.Pools), Cause: cause, Coming: starting, Ready: ready(held), Places: places(w, held, nil)}
	}
	if reason, wait := p.defers(w); wait {
		return Waiting{Work: w, Reason: reason, Cause: Deferred}
	}
	buys, left := p.buy(w, still)
	atomic := w.Gang && w.Placed+missing-left < w.least()
	if left > 0 && (atomic || len(buys) == 0) {
		reason, cause, never := p.refuse(w, still, left, len(held))
		if never && w.Gang {
			reason += wasted(w, len(p.candidates(w)) > 0)
		}
		waiting := Waiting{Work: w, Reason: reason, Cause: cause, Unsatisfiable: never}
		if !atomic {
			waiting.Ready = ready(held)
			p.hold(held, w)
			p.retire()
			waiting.Places = places(w, held, nil)
		}
		return waiting
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
	reason, starting := fmt.Sprintf("%s; nodes are bought: %s", placed(w), describe(bought, p.in.Pools)), coming(held)
	if len(starting) > 0 {
		reason += "; on their way: " + describe(starting, p.in.Pools)
	}
	return Waiting{Work: w, Cause: Buying, Buys: bought, Coming: starting, Ready: ready(held), Places: places(w, held, buys), Reason: reason}
}

func (p *planner) hold(held []*place, w Work) {
	for _, n := range held {
		take(w.Request, &n.Free)
		n.claim(w)
		n.counted().used = true
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
		each := w.each(pool.Shape)
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
	each := w.each(b.pool.Shape)
	for i := range b.nodes {
		n := &place{Node: Node{Name: fmt.Sprintf("%s+%d", b.pool.Name, len(p.nodes)), Pool: b.pool.Name, Where: b.pool.Where, Free: b.pool.Shape, Whole: b.pool.Shape, Starting: true}, used: true, price: b.pool.perGPU(), lifecycle: b.pool.Lifecycle}
		for range min(each, b.allocations-i*each) {
			take(w.Request, &n.Free)
		}
		n.claim(w)
		p.nodes = append(p.nodes, n.counted())
		p.add(n)
	}
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
	hurried := w.Deadline.After(p.in.Now) && !patient
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
	return fits(w.Request, pool.Shape) && w.Allowed(pool.Where) && !w.overCost(pool) && w.runsOn(pool.Lifecycle) && p.misfit(pool, w) == ""
}

// mayUse reports whether nodes of a pool that are there are ones that a work
// wants. Of nodes of no pool it is not known what they are.
func (w Work) mayUse(pool, lifecycle string) bool {
	return (pool == "" || w.runsOn(lifecycle)) && !w.Misfits[pool].Shunned
}

// runsOn follows what a work says of spot nodes.
func (w Work) runsOn(lifecycle string) bool {
	return !(w.Spot == Never && lifecycle == Spot) && !(w.Spot == Only && lifecycle != Spot)
}

// refuse says why nothing is bought, and whether that can never change by
// itself: a work is unsatisfiable where all nodes that there are and all that
// could be bought do not hold it.
func (p *planner) refuse(w Work, still, left, held int) (reason string, cause Cause, never bool) {
	candidates := p.candidates(w)
	need := w.Count
	if w.Gang {
		need = w.least()
	}
	most := held + w.Placed
	for _, pool := range candidates {
		most += w.each(pool.Shape) * max(pool.Max-p.idleOf(pool.Name, w), 0)
	}
	busy := p.busyFor(w)
	switch {
	case len(candidates) == 0 && busy+held+w.Placed < need:
		reason = fmt.Sprintf("no pool has nodes for it: %d allocations of %s each", need, w.Request)
		return reason + p.nobody(w), Unsatisfiable, true
	case most+busy < need:
		return fmt.Sprintf("it needs %d allocations of %s each at once; all pools at their maximum hold %d", need, w.Request, most), Unsatisfiable, true
	}
	if why := p.overBudget(w, candidates); why != "" {
		return why, Broke, true
	}
	what := "the pools' maximum leaves"
	if cause = p.short(w, still); cause == Broke {
		what = "the budget leaves"
	}
	return fmt.Sprintf("%s; nodes for %d more allocations are needed than %s now", placed(w), left, what), cause, false
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

// broken says why a gang can never be whole, whatever nodes there are; empty
// where it can.
func (w Work) broken() string {
	switch {
	case !w.Gang || w.Count-w.Gone >= w.least():
		return ""
	case w.Gone > 0:
		return fmt.Sprintf("%d of its %d allocations have failed and Nomad tries none of them again, and it runs with %d at least", w.Gone, w.Count, w.least())
	}
	return fmt.Sprintf("its group's count is %d, and it runs with %d at least (gang.nodes, gang.min_nodes)", w.Count, w.least())
}

func (p *planner) why(w Work, nodes, missing int) string {
	kind := "work"
	if w.Gang {
		kind = "gang"
	}
	return fmt.Sprintf("%s %s queues %s (%s) and %d more nodes are bought for it", kind, w.Name(), Amount(w.QueuedGPUs(), w.QueuedSlices()), placed(w), nodes)
}

func placed(w Work) string { return fmt.Sprintf("%d of %d placed", w.Placed, w.Count) }

// again says until when what has failed waits.
func (w Work) again() string {
	return fmt.Sprintf("%d of %d failed; Nomad tries again at %s, and nothing is bought before", w.Later, w.Count, w.Until.UTC().Format(time.RFC3339))
}

func onTheWay(w Work, starting map[string]int, pools []Pool) string {
	if len(starting) > 0 {
		return fmt.Sprintf("%s; nodes are on their way: %s", placed(w), describe(starting, pools))
	}
	return fmt.Sprintf("%s; the nodes for the rest are ready, Nomad places it next", placed(w))
}

// ready are the pools of the nodes that take work now.
func ready(held []*place) (pools []string) {
	for _, n := range held {
		if !n.Starting && !slices.Contains(pools, n.Pool) {
			pools = append(pools, n.Pool)
		}
	}
	return pools
}

// describe says how many nodes of which pools; those of none come last.
func describe(nodes map[string]int, pools []Pool) string {
	var parts []string
	for _, pool := range pools {
		if n := nodes[pool.Name]; n > 0 {
			parts = append(parts, fmt.Sprintf("%d of pool %s", n, pool.Name))
		}
	}
	if n := nodes[""]; n > 0 {
		parts = append(parts, fmt.Sprintf("%d of no pool", n))
	}
	return strings.Join(parts, ", ")
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
