// SPDX-License-Identifier: MPL-2.0

package plan

import (
	"cmp"
	"fmt"
	"math"
	"slices"
	"strings"
	"time"
)

// decide turns what was bought, or what idles, into a pool's count.
func (p *planner) decide(pool Pool) Decision {
	d := Decision{Pool: pool.Name, Now: p.count[pool.Name], Needed: p.bought[pool.Name]}
	d.Want = d.Now + d.Needed
	d.Drain = p.drain[pool.Name]
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
	case len(p.drain[pool.Name])+len(p.outdated[pool.Name]) > 0:
		d.Release = p.outdated[pool.Name]
		d.Want -= len(d.Release)
		d.Reason = strings.Join(p.reasons[pool.Name], "; ")
	case len(idle) > p.spare[pool.Name]:
		// The longest idle goes first.
		slices.SortStableFunc(idle, func(a, b *place) int {
			return cmp.Or(a.IdleSince.Compare(b.IdleSince), cmp.Compare(a.Name, b.Name))
		})
		for _, n := range idle[:len(idle)-p.spare[pool.Name]] {
			if p.in.Now.Sub(n.IdleSince) >= pool.IdleTime && d.Want > pool.Min && p.unpaid(pool, n) {
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
		d.Reason = p.quiet(pool, len(idle))
	}
	d.Reason = p.remarked(pool.Name, d.Reason)
	return d
}

// unpaid reports whether a node's least bill is spent, and its next billing
// increment is about to start.
func (p *planner) unpaid(pool Pool, n *place) bool {
	if n.Bought.IsZero() {
		return true
	}
	if p.in.Now.Sub(n.Bought) < pool.Minimum-pool.Margin {
		return false
	}
	if pool.Increment <= 0 {
		return true
	}
	into := p.in.Now.Sub(n.Bought) % pool.Increment
	return into == 0 || pool.Increment-into <= pool.Margin
}

// keepFree buys what a pool's headroom lacks, and notes how many idle nodes are it.
func (p *planner) keepFree(pool Pool) {
	if pool.Headroom <= 0 {
		return
	}
	busy, free := 0, 0
	for _, n := range p.nodes {
		switch {
		case n.Closed || n.Pool != pool.Name:
		case n.Busy || n.used:
			busy++
		default:
			free++
		}
	}
	want := int(math.Ceil(pool.Headroom*float64(busy) - 1e-9))
	if lack := want - free; lack > 0 && !pool.refuses(p.in.Now) {
		if n := p.afford(pool, "", min(lack, p.room(pool)), 0); n > 0 {
			p.bought[pool.Name] += n
			p.note(pool.Name, fmt.Sprintf("%d more nodes are bought to keep %.0f %% of %d busy ones free", n, 100*pool.Headroom, busy))
		}
	}
	idle := 0
	for _, n := range p.nodes {
		if n.Pool == pool.Name && !n.Starting && !n.Closed && !n.Busy && !n.used {
			idle++
		}
	}
	p.spare[pool.Name] = max(p.spare[pool.Name], min(want, idle))
}
