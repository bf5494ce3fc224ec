// SPDX-License-Identifier: MPL-2.0

package replay

import (
	"cmp"
	"fmt"
	"slices"
	"time"

	"github.com/nomad-gpu/nomad-gpu/autoscaler/plan"
)

// Pool is one kind of node of the virtual cluster.
type Pool struct {
	plan.Pool
	// Start is how long a node takes from its purchase until it takes work; it is paid for.
	Start time.Duration
	// Spot says how many nodes can be had; nil: as many as Max.
	Spot *Availability
}

// job is a task on its way through the cluster.
type job struct {
	Task
	work   plan.Work
	left   time.Duration // still to compute
	queued time.Duration // when it last joined the queue
	waited time.Duration // in the queue, all in all
	began  time.Duration // this run
	again  time.Duration // what this run computes once more or loses on its start, out of left
	run    int           // counts its starts: an end that was foreseen for an earlier one is void
	on     []*node
	done   bool
}

// node is one that was bought and is not gone.
type node struct {
	plan.Node
	pool   int
	bought time.Duration
	ready  time.Duration // when its start ended
	idle   time.Duration // all the time it was ready and empty, up to free
	free   time.Duration // since when it is empty, where it is
	jobs   []*job
	gone   bool
	// held and lost are what jobs had of it and what of that they computed in vain, in GPU time.
	held, lost time.Duration
}

// cluster is the virtual one: it places whole gangs, oldest first, on the
// fullest nodes that fit, the cheapest first among those. A later task that
// fits may start before an earlier one that does not.
type cluster struct {
	pools  []Pool
	nodes  []*node
	queue  []*job
	serial int
}

var epoch = time.Unix(0, 0).UTC()

func (c *cluster) buy(pool int, now time.Duration) *node {
	c.serial++
	p := c.pools[pool]
	n := &node{pool: pool, bought: now, Node: plan.Node{Name: fmt.Sprintf("%s-%d", p.Name, c.serial), Pool: p.Name, Where: p.Where,
		Free: p.Shape, Starting: true, Bought: epoch.Add(now)}}
	c.nodes = append(c.nodes, n)
	return n
}

func (c *cluster) remove(n *node) {
	n.gone = true
	c.nodes = slices.DeleteFunc(c.nodes, func(o *node) bool { return o == n })
}

// count is how many nodes of a pool there are, open how many of them stay.
func (c *cluster) count(pool int) (count int) {
	return c.countIf(pool, func(*node) bool { return true })
}

func (c *cluster) open(pool int) int { return c.countIf(pool, func(n *node) bool { return !n.Closed }) }

func (c *cluster) countIf(pool int, is func(*node) bool) (count int) {
	for _, n := range c.nodes {
		if n.pool == pool && is(n) {
			count++
		}
	}
	return count
}

// place starts what fits, and returns it.
func (c *cluster) place(now time.Duration) (started []*job) {
	if len(c.queue) == 0 {
		return nil
	}
	nodes := slices.Clone(c.nodes)
	order := func() {
		slices.SortStableFunc(nodes, func(a, b *node) int {
			return cmp.Or(cmp.Compare(a.Free.GPUs, b.Free.GPUs), cmp.Compare(c.price(a), c.price(b)))
		})
	}
	order()
	type ask struct {
		gpus, cpu, memory, count int
		spot                     string
	}
	failed := map[ask]bool{}
	c.queue = slices.DeleteFunc(c.queue, func(j *job) bool {
		a := ask{j.Request.GPUs, j.Request.CPU, j.Request.Memory, j.Count, j.Spot}
		if failed[a] {
			return false
		}
		var on []*node
		for _, n := range nodes {
			if len(on) < j.Count && !n.Starting && !n.Closed && fits(j.Request, n.Free) && j.work.Allowed(n.Where) {
				on = append(on, n)
			}
		}
		if len(on) < j.Count {
			failed[a] = true
			return false
		}
		for _, n := range on {
			n.Free.GPUs -= j.Request.GPUs
			n.Free.CPU -= j.Request.CPU
			n.Free.Memory -= j.Request.Memory
			if !n.Busy {
				n.idle += now - n.free
			}
			n.Busy, n.jobs = true, append(n.jobs, j)
		}
		j.on, j.began, j.waited = on, now, j.waited+now-j.queued
		j.run++
		j.work.Placed, j.work.Began, j.work.PlacedOn = j.Count, epoch.Add(now), make([]string, 0, len(on))
		for _, n := range on {
			j.work.PlacedOn = append(j.work.PlacedOn, n.Name)
		}
		started = append(started, j)
		order()
		return true
	})
	return started
}

func (c *cluster) price(n *node) float64 {
	return c.pools[n.pool].Price / float64(c.pools[n.pool].Shape.GPUs)
}

func fits(request, free plan.Shape) bool {
	return request.GPUs <= free.GPUs && request.CPU <= free.CPU && request.Memory <= free.Memory
}

// stop takes a job off its nodes; lost is what it computed there in vain.
func (c *cluster) stop(j *job, now, lost time.Duration) {
	for _, n := range j.on {
		n.held += (now - j.began) * time.Duration(j.Request.GPUs)
		n.lost += lost * time.Duration(j.Request.GPUs)
		n.Free.GPUs += j.Request.GPUs
		n.Free.CPU += j.Request.CPU
		n.Free.Memory += j.Request.Memory
		n.jobs = slices.DeleteFunc(n.jobs, func(o *job) bool { return o == j })
		if n.Busy = len(n.jobs) > 0; !n.Busy {
			n.IdleSince, n.free = epoch.Add(now), now
		}
	}
	j.on = nil
	j.work.Placed, j.work.Began, j.work.PlacedOn = 0, time.Time{}, nil
}

// input is the cluster as the planner sees it.
func (c *cluster) input(now time.Duration) plan.Input {
	in := plan.Input{Now: epoch.Add(now), Pools: make([]plan.Pool, 0, len(c.pools)), Nodes: make([]plan.Node, 0, len(c.nodes)), Work: make([]plan.Work, 0, len(c.queue))}
	for i := range c.pools {
		in.Pools = append(in.Pools, c.pools[i].Pool)
	}
	all := 0
	for _, n := range c.nodes {
		all += len(n.jobs)
	}
	tenants := make([]plan.Tenant, 0, all)
	for _, n := range c.nodes {
		from := len(tenants)
		for _, j := range n.jobs {
			tenants = append(tenants, plan.Tenant{Work: j.work})
		}
		in.Nodes = append(in.Nodes, n.Node)
		in.Nodes[len(in.Nodes)-1].Tenants = tenants[from:len(tenants):len(tenants)]
	}
	for _, j := range c.queue {
		in.Work = append(in.Work, j.work)
	}
	return in
}
