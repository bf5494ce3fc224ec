// SPDX-License-Identifier: MPL-2.0

package replay

import (
	"cmp"
	"container/heap"
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"time"

	"github.com/nomad-gpu/nomad-gpu/autoscaler/plan"
)

// Options of a replay.
type Options struct {
	Trace Trace
	Pools []Pool
	Seed  uint64
	// Every is the time between two evaluations.
	Every time.Duration
	// Checkpoint is the time between two checkpoints of a task: an interruption
	// loses what it computed since the last. Zero: all that this run computed.
	Checkpoint time.Duration
	// Restart is what a task that starts again spends until it computes.
	Restart time.Duration
	// Notice is how long before it is taken away a spot node's end is known: its
	// tasks stop at a checkpoint then, and queue. Zero: it is not known.
	Notice time.Duration
	// Samples is how many points the curves have.
	Samples int
}

// Policy decides from what an autoscaler can see. It is asked again when
// something changed, and at the time it returns (zero: not before that).
type Policy interface {
	Name() string
	Decide(in plan.Input) (decisions []plan.Decision, again time.Time)
}

// happening is one event of the virtual clock.
type happening struct {
	at   time.Duration
	seq  int
	what func()
}

type agenda []happening

func (a agenda) Len() int { return len(a) }
func (a agenda) Less(i, j int) bool {
	return cmp.Or(cmp.Compare(a[i].at, a[j].at), cmp.Compare(a[i].seq, a[j].seq)) < 0
}
func (a agenda) Swap(i, j int) { a[i], a[j] = a[j], a[i] }
func (a *agenda) Push(x any)   { *a = append(*a, x.(happening)) }
func (a *agenda) Pop() any     { o := *a; x := o[len(o)-1]; *a = o[:len(o)-1]; return x }

// run is one policy over the trace.
type run struct {
	Options
	cluster
	now         time.Duration
	agenda      agenda
	seq         int
	changed     bool
	undone      int
	rng         *rand.Rand
	interrupted [][]time.Duration // of each pool, within memory
	result      *Result
	waits       []wait
	horizon     time.Duration
	sampled     int
}

// memory is how long an interruption counts.
const memory = 6 * time.Hour

// patience ends a replay whose work never ends: this long after the last
// arrival and the longest run.
const patience = 30 * 24 * time.Hour

// Run replays the trace under a policy.
func Run(o Options, policy Policy) (*Result, error) {
	if err := o.validate(); err != nil {
		return nil, err
	}
	r := &run{Options: o, cluster: cluster{pools: slices.Clone(o.Pools)}, rng: rand.New(rand.NewPCG(o.Seed, 0x73706f74)),
		interrupted: make([][]time.Duration, len(o.Pools)), result: newResult(policy.Name(), o), undone: len(o.Trace.Tasks), horizon: o.Trace.horizon()}
	for i := range r.pools {
		// A trace asks for GPUs, and the cluster counts no more of a node: groups of
		// devices that nothing is taken from would look free to the planner.
		r.pools[i].Shape.Devices = nil
	}
	for _, t := range o.Trace.Tasks {
		r.at(t.Arrive, func() { r.arrive(t) })
	}
	for i, p := range o.Pools {
		if p.Spot != nil {
			r.at(0, func() { r.offer(i) })
		}
	}
	limit := r.horizon + o.Trace.longest() + patience
	var next, evaluated time.Duration // the evaluation that is due, and the one that was
	evaluated = -o.Every
	for r.undone > 0 && r.now <= limit {
		event := time.Duration(math.MaxInt64)
		if len(r.agenda) > 0 {
			event = r.agenda[0].at
		}
		if r.changed {
			next = min(next, max((r.now+o.Every-1)/o.Every*o.Every, evaluated+o.Every))
		}
		if event == math.MaxInt64 && next == event {
			break // nothing will ever happen again
		}
		if event <= next {
			r.to(event)
			heap.Pop(&r.agenda).(happening).what()
			continue
		}
		r.to(next)
		r.changed, evaluated = false, next
		r.forget()
		decisions, again := policy.Decide(r.input(r.now))
		r.apply(decisions)
		next = math.MaxInt64
		if !again.IsZero() {
			next = max((again.Sub(epoch)+o.Every-1)/o.Every*o.Every, r.now+o.Every)
		}
	}
	for _, n := range r.nodes {
		r.bill(n)
	}
	r.finish()
	return r.result, nil
}

func (o Options) validate() error {
	switch {
	case len(o.Trace.Tasks) == 0:
		return fmt.Errorf("trace: no task; allowed is 1 or more")
	case len(o.Pools) == 0:
		return fmt.Errorf("pools: none; allowed is 1 or more")
	case o.Every < time.Second:
		return fmt.Errorf("evaluation interval: %s; allowed are 1s and more", o.Every)
	case o.Checkpoint < 0:
		return fmt.Errorf("checkpoint interval: %s; allowed are 0 and more", o.Checkpoint)
	case o.Notice < 0:
		return fmt.Errorf("notice: %s; allowed are 0 and more", o.Notice)
	case o.Samples < 0 || o.Samples > 1<<16:
		return fmt.Errorf("samples: %d; allowed are 0 to %d", o.Samples, 1<<16)
	}
	return nil
}

// horizon is the last arrival.
func (t Trace) horizon() time.Duration { return t.Tasks[len(t.Tasks)-1].Arrive }

// longest is the longest run of a task.
func (t Trace) longest() (d time.Duration) {
	for _, x := range t.Tasks {
		d = max(d, x.Run)
	}
	return d
}

func (r *run) at(t time.Duration, what func()) {
	r.seq++
	heap.Push(&r.agenda, happening{t, r.seq, what})
}

func (r *run) arrive(t Task) {
	j := &job{Task: t, left: t.Run, queued: r.now}
	j.work = plan.Work{Namespace: t.Namespace, Job: t.Name, Group: "task", Priority: 50, Since: epoch.Add(r.now), Gang: t.Gang, Distinct: t.Gang,
		Count: t.Count, Request: t.Request, Spot: t.Spot, Allowed: r.allowed(t.Spot)}
	r.queue = append(r.queue, j)
	r.start()
}

// allowed is the constraint on the node class that a job with this gpu.spot has.
func (r *run) allowed(spot string) func(plan.Where) bool {
	return func(w plan.Where) bool {
		for _, p := range r.pools {
			if p.Where == w {
				return (spot != plan.Never || p.Lifecycle != plan.Spot) && (spot != plan.Only || p.Lifecycle == plan.Spot)
			}
		}
		return false
	}
}

// start places what fits and foresees its end.
func (r *run) start() {
	r.changed = true
	for _, j := range r.place(r.now) {
		run := j.run
		r.at(r.now+j.again+j.left, func() {
			if j.run == run && !j.done {
				r.end(j)
			}
		})
	}
}

func (r *run) end(j *job) {
	j.done = true
	r.result.UsedGPUHours += j.left.Hours() * float64(j.GPUs())
	r.result.LostGPUHours += j.again.Hours() * float64(j.GPUs())
	r.stop(j, r.now, j.again)
	r.waits = append(r.waits, wait{j.waited, j.Count > 1})
	r.undone--
	r.start()
}

// offer takes a zone's availability at this time: nodes over it are taken away,
// those that had notice first.
func (r *run) offer(pool int) {
	spot := r.pools[pool].Spot
	for _, n := range slices.Clone(r.nodes) {
		if n.pool == pool && n.Closed {
			r.interrupt(n)
		}
	}
	for _, n := range r.over(pool, spot.At(r.now)) {
		r.interrupt(n)
		r.start()
	}
	r.at(r.now+spot.Gap, func() { r.offer(pool) })
	if 0 < r.Notice && r.Notice < spot.Gap {
		r.at(r.now+spot.Gap-r.Notice, func() { r.warn(pool, r.now+r.Notice) })
	}
}

// over draws the nodes that a zone has no longer room for.
func (r *run) over(pool, room int) (all []*node) {
	for _, n := range r.nodes {
		if n.pool == pool && !n.Closed {
			all = append(all, n)
		}
	}
	if len(all) <= room {
		return nil
	}
	r.rng.Shuffle(len(all), func(i, j int) { all[i], all[j] = all[j], all[i] })
	return all[:len(all)-room]
}

// warn gives the nodes their notice that will be taken away at a time.
func (r *run) warn(pool int, end time.Duration) {
	for _, n := range r.over(pool, r.pools[pool].Spot.At(end)) {
		n.Closed = true
		for _, j := range slices.Clone(n.jobs) {
			r.requeue(j, time.Second)
		}
		r.start()
	}
}

// interrupt takes a node away: each job on it, and so its whole gang, falls
// back to its last checkpoint and queues again.
func (r *run) interrupt(n *node) {
	r.result.Interruptions++
	r.interrupted[n.pool] = append(r.interrupted[n.pool], r.now)
	for _, j := range slices.Clone(n.jobs) {
		r.requeue(j, r.Checkpoint)
	}
	r.bill(n)
	r.remove(n)
}

// requeue stops a job at its last checkpoint, one each interval (zero: none),
// and puts it back into the queue.
func (r *run) requeue(j *job, interval time.Duration) {
	ran := max(r.now-j.began-j.again, 0)
	kept := time.Duration(0)
	if interval > 0 {
		kept = ran / interval * interval
	}
	spent := r.now - j.began
	j.left -= kept
	r.result.UsedGPUHours += kept.Hours() * float64(j.GPUs())
	r.result.LostGPUHours += (spent - kept).Hours() * float64(j.GPUs())
	r.stop(j, r.now, spent-kept)
	j.run++
	j.again, j.queued = r.Restart, r.now
	r.queue = append(r.queue, j)
	slices.SortStableFunc(r.queue, func(a, b *job) int { return cmp.Compare(a.Arrive, b.Arrive) })
}

// drain stops what runs on nodes, each at a checkpoint that is made for it, and
// lets the nodes go; it tells how many did. All are closed before anything
// starts again: a gang stops once.
func (r *run) drain(names []string) (gone int) {
	for _, n := range slices.Clone(r.nodes) {
		if !slices.Contains(names, n.Name) {
			continue
		}
		for _, j := range slices.Clone(n.jobs) {
			r.requeue(j, time.Second)
			r.result.Moved++
		}
		r.bill(n)
		r.remove(n)
		gone++
	}
	r.start()
	return gone
}

// forget updates how many interruptions each pool is remembered for.
func (r *run) forget() {
	for i := range r.pools {
		r.interrupted[i] = slices.DeleteFunc(r.interrupted[i], func(t time.Duration) bool { return r.now-t > memory })
		r.pools[i].Interrupted = len(r.interrupted[i])
	}
}

// apply does what was decided: what is let go first, then what is bought.
func (r *run) apply(decisions []plan.Decision) {
	for _, d := range decisions {
		pool := slices.IndexFunc(r.pools, func(p Pool) bool { return p.Name == d.Pool })
		for _, name := range d.Release {
			if i := slices.IndexFunc(r.nodes, func(n *node) bool { return n.Name == name && !n.Busy && !n.Starting }); i >= 0 {
				n := r.nodes[i]
				r.bill(n)
				r.remove(n)
				r.changed = true
			}
		}
		if len(d.Drain) > 0 {
			d.Want -= r.drain(d.Drain) // the plan counts them until they are gone
		}
		for range min(d.Want, r.pools[pool].Max) - r.open(pool) {
			if spot := r.pools[pool].Spot; spot != nil && r.count(pool) >= spot.At(r.now) {
				// Another pool may have what this one has not: that is looked at once, as the pool rests now.
				r.changed = r.changed || r.pools[pool].Refused.IsZero() || r.now-r.pools[pool].Refused.Sub(epoch) >= r.pools[pool].Retry
				r.pools[pool].Refused = epoch.Add(r.now)
				r.result.Refused++
				break
			}
			r.changed = true
			n := r.buy(pool, r.now)
			r.result.Bought++
			r.at(r.now+r.pools[pool].Start, func() {
				if !n.gone {
					n.Starting, n.IdleSince = false, epoch.Add(r.now)
					n.ready, n.free = r.now, r.now
					r.start()
				}
			})
		}
	}
}

// bill charges a node from its purchase to now, in whole increments, and says for what.
func (r *run) bill(n *node) {
	p := r.pools[n.pool]
	there := r.now - n.bought
	t := there
	if p.Increment > 0 {
		t = (t + p.Increment - 1) / p.Increment * p.Increment
	}
	r.result.Cost += t.Hours() * p.Price
	r.result.PaidGPUHours += t.Hours() * float64(p.Shape.GPUs)
	if p.Lifecycle == plan.Spot {
		r.result.SpotGPUHours += t.Hours() * float64(p.Shape.GPUs)
	}
	start, idle, held := there, time.Duration(0), n.held
	for _, j := range n.jobs { // the replay ends before it does
		held += (r.now - j.began) * time.Duration(j.Request.GPUs)
	}
	if !n.Starting {
		start, idle = n.ready-n.bought, n.idle
		if !n.Busy {
			idle += r.now - n.free
		}
	}
	for _, x := range []struct {
		to   *float64
		gpus time.Duration // GPU time
	}{
		{&r.result.Spent.Start, start * time.Duration(p.Shape.GPUs)},
		{&r.result.Spent.Idle, idle * time.Duration(p.Shape.GPUs)},
		{&r.result.Spent.Unfilled, (there-start-idle)*time.Duration(p.Shape.GPUs) - held},
		{&r.result.Spent.Lost, n.lost},
		{&r.result.Spent.Billing, (t - there) * time.Duration(p.Shape.GPUs)},
		{&r.result.Spent.Work, held - n.lost},
	} {
		*x.to += x.gpus.Hours() * perGPU(p)
	}
}
