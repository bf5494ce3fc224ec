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
	in = plan.Input{Now: now, Work: slices.Clone(l.reading.Work), Nodes: slices.Clone(l.reading.Nodes), Budget: l.File.Spend()}
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
	resting, l.remarks = map[string]string{}, map[string][]string{}
	for i := range l.File.Pools {
		p := l.File.Pools[i].Plan()
		p.Maintenance = l.File.Pools[i].Maintenance.Open(now)
		most, err := l.File.Pools[i].MostNow(now)
		if err != nil {
			complaints = append(complaints, fmt.Sprintf("pool %s: %s", p.Name, err))
		}
		if most < p.Max {
			l.remarks[p.Name] = append(l.remarks[p.Name], fmt.Sprintf("its policy's max leaves it %d nodes of %d", most, p.Max))
			p.Max = most
		}
		in.Pools = append(in.Pools, p)
	}
	// First those that tell which nodes are theirs: what they leave may be another's.
	for i := range in.Pools {
		if made := l.own[in.Pools[i].Name]; made != nil {
			rests, err := l.assignOwn(&in, i, made)
			if err != nil {
				rests = fmt.Sprintf("what it has is not known: %s", err)
				complaints = append(complaints, fmt.Sprintf("pool %s: %s", in.Pools[i].Name, err))
			}
			if rests != "" {
				resting[in.Pools[i].Name] = rests
			}
		}
	}
	for i := range in.Pools {
		if p := in.Pools[i]; l.own[p.Name] == nil {
			if rests := l.assign(&in, i, own, count); rests != "" {
				resting[p.Name] = rests
			}
		}
	}
	l.strangers(&in)
	for _, p := range in.Pools {
		for _, remark := range l.remarks[p.Name] {
			complaints = append(complaints, "pool "+p.Name+": "+remark)
		}
	}
	l.complain(complaints)
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

// claim says which nodes are the pool's of those that may be, and what of them
// is old. One that has told of no device yet, as its driver is still being
// installed, is on its way for as long as a node may take to be ready.
func (l *Lookout) claim(in *plan.Input, i int, may func(name string) bool) map[string]*plan.Node {
	mine := map[string]*plan.Node{}
	p := in.Pools[i]
	start, _ := l.File.Pools[i].Patience()
	for j := range in.Nodes {
		n := &in.Nodes[j]
		if n.Pool == "" && p.Where.Selects(n.Where) && may(n.Name) {
			n.Pool = p.Name
			if p.Maintenance != nil {
				n.Replace = cmp.Or(l.File.Pools[i].Maintenance.Old(l.reading.Told[n.Name]), n.Replace)
			}
			if n.Free.Devices != nil && len(n.Whole.Devices) == 0 && !n.Busy && !n.Closed && in.Now.Sub(n.IdleSince) < start {
				n.Starting, n.Free = true, p.Shape
			}
			mine[n.Name] = n
		}
	}
	return mine
}

func anyNode(string) bool { return true }

// assignOwn joins the nodes of a pool that we make with what is known of them,
// and adds those on their way. A pool of which nothing can be read keeps what
// Nomad has of it.
func (l *Lookout) assignOwn(in *plan.Input, i int, made pool.Pool) (rests string, err error) {
	p := &in.Pools[i]
	nodes, err := made.Nodes()
	h, err2 := made.History(in.Now)
	rests, err3 := made.Resting(in.Now)
	if err := cmp.Or(err, err2, err3); err != nil {
		l.claim(in, i, anyNode)
		return "", err
	}
	p.Refused, p.Interrupted = h.Refused, h.Interrupted
	told := map[string]int{}
	for _, n := range nodes {
		told[n.Name]++
	}
	mine := l.claim(in, i, func(name string) bool { return told[name] > 0 })
	var coming []plan.Node
	for _, n := range nodes {
		known := mine[n.Name]
		delete(mine, n.Name)
		switch {
		case known != nil:
			known.Bought, known.Doomed = n.Since, n.Doomed
			l.settling(known, *p, n.Since)
			if n.AtRisk {
				known.AtRisk, known.Replace = true, cmp.Or(known.Replace, "its maker expects to take it away")
			}
			if n.Leaving {
				known.Closed = true
			} else if known.Closed {
				// Someone else has closed it: it takes nothing and is in its pool until they open it.
				known.Closed, known.Busy, known.Free, known.Tenants, known.Replace = false, true, plan.Shape{}, nil, ""
			}
		case !n.Leaving:
			c := starting(n.Name, *p)
			if n.Late {
				c.Free = plan.Shape{}
			}
			if told[n.Name] > 1 {
				c.Free = plan.Shape{}
				l.remark(p.Name, fmt.Sprintf("two machines have the node %s", n.Name))
			}
			coming = append(coming, c)
		}
	}
	in.Nodes = append(in.Nodes, coming...)
	return rests, nil
}

// settling takes a node that has just joined for one on its way: Nomad has it
// ready a moment before its task driver takes gangs, and what it is bought for
// would be bought again. One that had GPUs to give once has lost them.
func (l *Lookout) settling(n *plan.Node, p plan.Pool, bought time.Time) {
	is := n.Name + " " + bought.String() // a name is used again
	switch {
	case n.Busy || n.Free.GPUs > 0 || len(n.Free.Devices) > 0:
		if l.settled == nil || len(l.settled) > maxSettled {
			l.settled = map[string]bool{}
		}
		l.settled[is] = true
	case !n.Closed && !l.settled[is] && l.reading.At.Sub(bought) < settleTime:
		n.Starting, n.Free = true, p.Shape
	}
}

// settleTime is how long after it was asked for a node may have no GPUs yet.
const settleTime = time.Minute

// maxSettled bounds what is remembered of nodes that are gone.
const maxSettled = 1 << 14

func starting(name string, p plan.Pool) plan.Node {
	return plan.Node{Name: name, Pool: p.Name, Where: p.Where, Free: p.Shape, Starting: true}
}

// awaited is what is known of a pool that another target makes: that target
// tells how many nodes it has, and nothing of each.
type awaited struct {
	count, members int
	told           time.Time // when the count was
	since          time.Time // since when as many members are fewer than the count
	over           time.Time // since when they are more
}

// countAge is how long a target's count serves the plans of other pools.
const countAge = 10 * time.Minute

// assign joins the nodes of a pool that another target makes, and adds those
// that it counts and Nomad does not know: they are on their way. When none has
// come up for start_timeout they are given up, and others are bought from.
func (l *Lookout) assign(in *plan.Input, i int, own string, count int) (rests string) {
	p := in.Pools[i]
	var there []*plan.Node
	for n := range maps.Values(l.claim(in, i, anyNode)) {
		if !n.Closed {
			there = append(there, n)
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
	start, retry := l.File.Pools[i].Patience()
	members := len(there) - l.disown(in, p, there, a, start)
	missing := a.count - members
	if missing <= 0 || in.Now.Sub(a.told) > countAge {
		a.since = time.Time{}
		return ""
	}
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
