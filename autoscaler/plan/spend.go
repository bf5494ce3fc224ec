// SPDX-License-Identifier: MPL-2.0

package plan

import (
	"cmp"
	"fmt"
	"slices"
	"time"
)

// Budget is the most that nodes may cost for an hour, in the pools' currency.
// A pool's minimum is kept whatever it costs: it is for the configuration to
// have both agree.
type Budget struct {
	PerHour float64 // of all pools; 0: no limit
	// Namespaces limits what one namespace's running and newly bought GPUs cost; none: no limit.
	Namespaces map[string]float64
}

// spent adds up what each namespace's running GPUs cost for an hour, and what
// nodes cost that take no new work and so are in no pool's count.
func (p *planner) spent() {
	p.namespaces = map[string]float64{}
	for _, n := range p.nodes {
		if n.Closed {
			p.closing += p.pool(n.Pool).Price
		}
		for _, t := range n.Tenants {
			p.namespaces[t.Work.Namespace] += n.price * p.pool(n.Pool).Shape.Worth(t.Work.Request)
		}
	}
}

// perHour is what all nodes cost, those that are bought and the minima included.
func (p *planner) perHour() float64 {
	sum := p.closing
	for _, pool := range p.in.Pools {
		sum += pool.Price * float64(max(p.count[pool.Name]+p.bought[pool.Name], pool.Min))
	}
	return sum
}

// room is how many nodes a pool's maximum leaves.
func (p *planner) room(pool Pool) int {
	return max(pool.Max-p.count[pool.Name]-p.bought[pool.Name], 0)
}

// afford is how many of n nodes of a pool the budgets leave to a namespace
// (empty: to nobody in particular) when extra is spent for an hour besides. What
// the pool's minimum takes anyway is free.
func (p *planner) afford(pool Pool, namespace string, n int, extra float64) int {
	if pool.Price <= 0 {
		return n
	}
	limit := func(budget, spent float64, free int) {
		// A hair of tolerance: prices are sums of fractions.
		n = min(n, free+max(int((budget-spent-extra)/pool.Price+1e-9), 0))
	}
	if b := p.in.Budget.PerHour; b > 0 {
		limit(b, p.perHour(), max(pool.Min-p.count[pool.Name]-p.bought[pool.Name], 0))
	}
	if b, ok := p.in.Budget.Namespaces[namespace]; ok {
		limit(b, p.namespaces[namespace], 0)
	}
	return n
}

// overCost reports whether a work would cost more than its owner allows on a pool.
func (w Work) overCost(pool Pool) bool { return w.MaxCost > 0 && w.costIn(pool) > w.MaxCost }

// costIn is what a work would cost on a pool: all in all, or for an hour where
// its length is not known.
func (w Work) costIn(pool Pool) float64 {
	length := w.Length
	if length == 0 {
		length = time.Hour
	}
	return pool.perGPU() * float64(w.Count) * pool.Shape.Worth(w.Request) * length.Hours()
}

// overBudget says that a work costs more than a budget, whatever else runs;
// empty where it does not. Of work that is no gang one allocation is enough.
func (p *planner) overBudget(w Work, candidates []Pool) string {
	left, cost := 1, 0.0
	if w.Gang {
		left = w.least()
	}
	for _, pool := range slices.SortedStableFunc(slices.Values(candidates), func(a, b Pool) int { return cmp.Compare(a.perGPU(), b.perGPU()) }) {
		each := max(w.each(pool.Shape), 1)
		nodes := min((left+each-1)/each, pool.Max)
		cost += float64(nodes) * pool.Price
		if left -= nodes * each; left <= 0 {
			break
		}
	}
	text := func(field string, budget float64) string {
		return fmt.Sprintf("its nodes cost %.2f an hour at least; %s is %.2f", cost, field, budget)
	}
	if b := p.in.Budget.PerHour; b > 0 && cost > b {
		return text("budget.per_hour", b)
	}
	if b, ok := p.in.Budget.Namespaces[w.Namespace]; ok && cost > b {
		return text(fmt.Sprintf("budget.namespaces[%q]", w.Namespace), b)
	}
	return ""
}

// slack is how long a work with a deadline can still wait before its run must start.
func (w Work) slack(now time.Time) time.Duration { return w.Deadline.Sub(now) - w.Length }

// defers says whether a work with a deadline waits for a cheaper hour, and why:
// the latest one that is cheaper than now by the curve and early enough.
func (p *planner) defers(w Work) (string, bool) {
	if w.Deadline.IsZero() || w.Length == 0 || len(p.in.Curve) == 0 {
		return "", false
	}
	now, best := 1.0, Rate{}
	for _, r := range p.in.Curve {
		switch {
		case !r.From.After(p.in.Now):
			now = r.Factor
			best = Rate{Factor: r.Factor}
		case r.From.Sub(p.in.Now)+p.lead() <= w.slack(p.in.Now) && r.Factor < min(best.Factor, now):
			best = r
		}
	}
	if best.From.IsZero() {
		return "", false
	}
	return fmt.Sprintf("it is due at %s and waits for %s, when an hour costs %.2f of now's",
		w.Deadline.UTC().Format(time.RFC3339), best.From.UTC().Format(time.RFC3339), best.Factor/now), true
}

// lead is kept between the latest start and a deadline: a refusal and one more try.
func (p *planner) lead() time.Duration {
	lead := time.Duration(0)
	for _, pool := range p.in.Pools {
		lead = max(lead, pool.Retry)
	}
	return lead
}
