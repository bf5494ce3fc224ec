// SPDX-License-Identifier: MPL-2.0

package plan

import (
	"cmp"
	"slices"
	"time"
)

// defaultRestart is what a stop and a start are taken to cost a work that does
// not say (gpu.restart).
const defaultRestart = 10 * time.Minute

// group names a work.
type group struct{ namespace, job, group string }

func (w Work) group() group { return group{w.Namespace, w.Job, w.Group} }

// step is nodes of one pool that are emptied together: one, or all those of the
// pool that gangs share, so that each gang stops once.
type step struct {
	nodes   []*place
	tenants []Tenant
	gangs   []Work
}

// steps are all nodes that may be emptied, the dearest first; among those the
// ones with the least work to move. A gang that is not whole stays, and so does
// one with a member on a node of the pool that must stay.
func (p *planner) steps() []*step {
	on := map[group][]*place{} // the nodes of each gang that are not on their way out
	members := map[group]int{}
	for _, n := range p.nodes {
		for _, t := range n.Tenants {
			if g := t.Work.group(); t.Work.Gang && !n.Closed {
				members[g]++
				if !slices.Contains(on[g], n) {
					on[g] = append(on[g], n)
				}
			}
		}
	}
	mayGo := func(n *place) bool {
		return n.Busy && !n.Starting && !n.Closed && n.Pool != "" && !p.pool(n.Pool).NoDrain && len(n.Tenants) > 0 &&
			!slices.ContainsFunc(n.Tenants, func(t Tenant) bool {
				return !t.Movable || t.Work.Gang && (t.Work.Placed < t.Work.Count || members[t.Work.group()] != t.Work.Count)
			})
	}
	seen := map[*place]bool{}
	var all []*step
	for _, first := range p.nodes {
		if seen[first] || !mayGo(first) {
			continue
		}
		seen[first] = true
		s, whole := &step{nodes: []*place{first}}, true
		for i := 0; i < len(s.nodes); i++ { // it grows as gangs are met
			for _, t := range s.nodes[i].Tenants {
				s.tenants = append(s.tenants, t)
				if !t.Work.Gang || slices.ContainsFunc(s.gangs, func(w Work) bool { return w.group() == t.Work.group() }) {
					continue
				}
				s.gangs = append(s.gangs, t.Work)
				for _, o := range on[t.Work.group()] {
					if o.Pool != first.Pool || seen[o] {
						continue
					}
					seen[o] = true
					whole = whole && mayGo(o)
					s.nodes = append(s.nodes, o)
				}
			}
		}
		if whole {
			all = append(all, s)
		}
	}
	slices.SortStableFunc(all, func(a, b *step) int {
		return cmp.Or(cmp.Compare(b.nodes[0].price, a.nodes[0].price), cmp.Compare(len(a.tenants), len(b.tenants)), cmp.Compare(a.nodes[0].Name, b.nodes[0].Name))
	})
	return all
}

// pays reports whether a step that stops gangs is worth it. A restart costs
// what the nodes there and here cost while nothing is computed. The gangs have
// overpaid that much since they began here, and what is known of their length
// lets them save it: so a gang pays for its moves at most what it paid for
// staying, and does not swing between two pools. What is no gang costs others nothing.
func (p *planner) pays(s *step, saving float64) bool {
	if len(s.gangs) == 0 {
		return true
	}
	here := p.pool(s.nodes[0].Pool).Price * float64(len(s.nodes))
	restart := time.Duration(0)
	for _, w := range s.gangs {
		restart = max(restart, w.restart())
	}
	cost := (here + here - saving) * restart.Hours()
	for _, w := range s.gangs {
		if w.Began.IsZero() || saving <= 0 {
			return false
		}
		ran := p.in.Now.Sub(w.Began)
		if saving*ran.Hours() < cost || w.Length > 0 && saving*(w.Length-ran).Hours() <= cost {
			return false
		}
	}
	return true
}

// late reports whether a restart could cost work its deadline: what is left to
// run, the restart and one more try have to fit. How much is left is told by
// its length alone: without one it may be all of the time.
func (p *planner) late(s *step) bool {
	return slices.ContainsFunc(s.tenants, func(t Tenant) bool {
		w := t.Work
		if w.Deadline.IsZero() {
			return false
		}
		left := w.Length
		if !w.Began.IsZero() {
			left = max(left-p.in.Now.Sub(w.Began), 0)
		}
		return w.Length == 0 || p.in.Now.Add(left+w.restart()+p.lead()).After(w.Deadline)
	})
}

// restart is how long a work is without result when it is stopped and started.
func (w Work) restart() time.Duration { return cmp.Or(w.Restart, defaultRestart) }
