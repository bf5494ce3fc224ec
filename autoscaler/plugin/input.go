// SPDX-License-Identifier: MPL-2.0

package plugin

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/nomad-gpu/nomad-gpu/autoscaler/plan"
	"github.com/nomad-gpu/nomad-gpu/autoscaler/pool"
)

// input joins the reading with the pools: what the planner decides on. Resting
// are the pools in which nothing can be bought now, and why.
func (l *Lookout) input(own string, count int) (in plan.Input, resting map[string]string, err error) {
	now := l.reading.At
	in = plan.Input{Now: now, Work: l.reading.Work, Nodes: slices.Clone(l.reading.Nodes), Budget: l.File.Spend()}
	complaints := slices.Clone(l.reading.Faults)
	for _, w := range in.Work {
		for _, f := range w.Faults {
			complaints = append(complaints, w.Name()+": "+f)
		}
	}
	// A curve that cannot be read shifts nothing.
	curve, fault := l.File.Curve.Rates(now)
	if fault != nil {
		complaints = append(complaints, fault.Error())
	}
	in.Curve = curve
	ahead, faults := l.ahead.expect(now)
	complaints = append(complaints, faults...)
	in.Ahead = ahead
	l.complain(complaints)
	resting = map[string]string{}
	for i := range l.File.Pools {
		d := &l.File.Pools[i]
		p := d.Plan()
		p.Maintenance = d.Maintenance.Open(now)
		rests := ""
		if made := l.own[p.Name]; made != nil {
			rests, err = l.assignOwn(&in, d, &p, made)
		} else {
			rests = l.assign(&in, d, p, own, count)
		}
		if err != nil {
			return in, nil, err
		}
		if rests != "" {
			resting[p.Name] = rests
		}
		in.Pools = append(in.Pools, p)
	}
	return in, resting, nil
}

// complain logs what was not said at the last look.
func (l *Lookout) complain(all []string) {
	said := map[string]bool{}
	for _, text := range all {
		if !l.said[text] && !said[text] {
			l.logger.Warn("not looked at", "what", text)
		}
		said[text] = true
	}
	l.said = said
}

// inMaintenance reports whether nodes of a place may have to be replaced now.
func (l *Lookout) inMaintenance(w plan.Where) bool {
	return slices.ContainsFunc(l.File.Pools, func(d pool.Definition) bool {
		return d.Maintenance.Open(time.Now()) != nil && d.Plan().Where.Selects(w)
	})
}

// claim says which nodes are the pool's, and what of them is old.
func (l *Lookout) claim(in *plan.Input, d *pool.Definition, p plan.Pool) map[string]*plan.Node {
	mine := map[string]*plan.Node{}
	for i := range in.Nodes {
		n := &in.Nodes[i]
		if n.Pool == "" && p.Where.Selects(n.Where) {
			n.Pool = p.Name
			if p.Maintenance != nil {
				n.Replace = d.Maintenance.Old(l.reading.Told[n.Name])
			}
			mine[n.Name] = n
		}
	}
	return mine
}

// assignOwn joins the nodes of a pool that we make with what is known of them,
// and adds those on their way.
func (l *Lookout) assignOwn(in *plan.Input, d *pool.Definition, p *plan.Pool, made pool.Pool) (rests string, err error) {
	if rests, err = made.Resting(in.Now); err != nil {
		return "", err
	}
	h, err := made.History(in.Now)
	if err != nil {
		return "", err
	}
	p.Refused, p.Interrupted = h.Refused, h.Interrupted
	nodes, err := made.Nodes()
	if err != nil {
		return "", err
	}
	mine := l.claim(in, d, *p)
	var coming []plan.Node
	for _, n := range nodes {
		known := mine[n.Name]
		switch {
		case known != nil:
			known.Bought = n.Since
			if n.AtRisk {
				known.AtRisk, known.Replace = true, cmp.Or(known.Replace, "its maker expects to take it away")
			}
			if known.Closed && !n.Leaving {
				// Someone else has closed it: it takes nothing and is in its pool until they open it.
				known.Closed, known.Busy, known.Free, known.Tenants, known.Replace = false, true, plan.Shape{}, nil, ""
			}
		case !n.Leaving:
			coming = append(coming, starting(n.Name, *p))
		}
	}
	in.Nodes = append(in.Nodes, coming...)
	return rests, nil
}

func starting(name string, p plan.Pool) plan.Node {
	return plan.Node{Name: name, Pool: p.Name, Where: p.Where, Free: p.Shape, Starting: true}
}

// awaited is what is known of a pool that another target makes: that target
// tells how many nodes it has, and nothing of each.
type awaited struct {
	count, members int
	told           time.Time // when the count was
	since          time.Time // since when as many members are fewer than the count
}

// countAge is how long a target's count serves the plans of other pools.
const countAge = 10 * time.Minute

// assign joins the nodes of a pool that another target makes, and adds those
// that it counts and Nomad does not know: they are on their way. When none has
// come up for start_timeout they are given up, and others are bought from.
func (l *Lookout) assign(in *plan.Input, d *pool.Definition, p plan.Pool, own string, count int) (rests string) {
	members := 0
	for n := range maps.Values(l.claim(in, d, p)) {
		if !n.Closed {
			members++
		}
	}
	if l.awaited == nil {
		l.awaited = map[string]*awaited{}
	}
	a := l.awaited[p.Name]
	if a == nil {
		a = &awaited{}
		l.awaited[p.Name] = a
	}
	if p.Name == own {
		a.count, a.told = count, in.Now
	}
	missing := a.count - members
	if missing <= 0 || in.Now.Sub(a.told) > countAge {
		a.since = time.Time{}
		return ""
	}
	start, retry := d.Patience()
	if a.since.IsZero() || members > a.members || in.Now.Sub(a.since) >= start+retry {
		a.since = in.Now
	}
	a.members = members
	late := in.Now.Sub(a.since) >= start
	for i := range missing {
		n := starting(fmt.Sprintf("%s-starting-%d", p.Name, i), p)
		if late {
			n.Free = plan.Shape{}
		}
		in.Nodes = append(in.Nodes, n)
	}
	if late {
		return fmt.Sprintf("%d nodes that its target counts did not come up within %s", missing, start)
	}
	return ""
}
