// SPDX-License-Identifier: MPL-2.0

package plan

import (
	"fmt"
	"slices"
	"strings"
	"time"
)

// Lifecycles of a pool's nodes.
const (
	Spot     = "spot"
	OnDemand = "on-demand"
)

// What work says of spot nodes, in its job's meta gpu.spot.
const (
	Prefer = "prefer"
	Never  = "never"
	Only   = "only"
)

// Where selects nodes, or says where a node is. In a selection an empty field takes any.
type Where struct {
	NodePool   string
	Class      string
	Datacenter string
}

// Selects reports whether a node is in the selection.
func (w Where) Selects(n Where) bool {
	return (w.NodePool == "" || w.NodePool == n.NodePool) && (w.Class == "" || w.Class == n.Class) &&
		(w.Datacenter == "" || w.Datacenter == n.Datacenter)
}

// Pool is one kind of node that can be bought.
type Pool struct {
	Name      string
	Lifecycle string
	// Price is that of a node for an hour, in any one currency.
	Price    float64
	Min, Max int
	Where    Where
	Shape    Shape
	// IdleTime is how long a node is without work before it is let go.
	IdleTime time.Duration
	// Increment is what is billed at once: an idle node stays while it is paid
	// for, up to Margin before the next increment starts. Zero: not looked at.
	Increment, Margin time.Duration
	// Minimum is the least that is billed of a node: an idle one stays that
	// long, less Margin. Zero: not looked at.
	Minimum time.Duration
	// NoDrain: what makes its nodes does not drain those that a plan names, so
	// nothing that runs there is moved.
	NoDrain bool
	// Maintenance is the window that is open; nil: none is.
	Maintenance *Maintenance
	// Headroom is the share of the pool's busy nodes, 0 to 1, that is kept free
	// beside them for failures; rounded up. Zero: none.
	Headroom float64
	// Refused is when a node last was asked for and did not come. For Retry
	// after it other pools are tried first.
	Refused time.Time
	Retry   time.Duration
	// Interrupted is how many of its nodes were taken away lately; each makes
	// the pool's price look Penalty (a share of it) higher.
	Interrupted int
	Penalty     float64
}

// looksLike is the pool's price for a GPU and hour, dearer by its interruptions.
func (p Pool) looksLike() float64 {
	return p.perGPU() * (1 + float64(p.Interrupted)*p.Penalty)
}

func (p Pool) perGPU() float64 { return p.Price / max(p.Shape.Size(), 1) }

// refuses reports whether the pool's last request failed so lately that others come first.
func (p Pool) refuses(now time.Time) bool {
	return !p.Refused.IsZero() && now.Sub(p.Refused) < p.Retry
}

// Node is a node that is there, or on its way.
type Node struct {
	Name  string
	Pool  string // empty: it belongs to none
	Where Where
	// Free is what can still be placed on it; Whole what could once nothing runs
	// there and all of it is in order. Zero: not known.
	Free, Whole Shape
	// Starting: bought, and not yet seen by Nomad. Closed: takes no new work.
	Starting, Closed bool
	// Claims are those of what runs there.
	Claims []string
	// Busy: something runs on it.
	Busy bool
	// IdleSince is when it was first seen without work.
	IdleSince time.Time
	// Bought is when its billing began. Zero: not known.
	Bought time.Time
	// Replace is why it shall be replaced: what of it is old. Empty: it shall not.
	Replace string
	// AtRisk: it is replaced whether a window is open or not, and takes no new
	// work: its maker expects to take it away.
	AtRisk bool
	// Doomed: it is about to be taken away, and is closed: what runs there needs another.
	Doomed bool
	// Tenants are the allocations on it, where they are known: without them nothing is moved.
	Tenants []Tenant
}

// Work is one task group that asks for GPUs.
type Work struct {
	Namespace, Job, Group string
	Priority              int
	Since                 time.Time
	// Gang: Least of its allocations run, or none is of use; 0: all Count. The
	// others, of an elastic gang or its spares, are of use one by one.
	Gang  bool
	Least int
	// Count is how many allocations it wants, Placed how many have a node.
	Count, Placed int
	// Later is how many of the others have failed and are tried again from Until
	// on: they need no node before.
	Later int
	Until time.Time
	// Gone is how many have failed and are not tried again.
	Gone int
	// PlacedOn names the nodes of those placed.
	PlacedOn []string
	// Distinct: each allocation on a node of its own.
	Distinct bool
	// PerNode is the most of its allocations on one node; 0: any number.
	PerNode int
	// Claims are what one allocation of a node at most can have, such as a static
	// port, or the job's name where all of its groups keep apart.
	Claims  []string
	Request Shape
	Spot    string
	// Deadline is when it shall be done (gpu.deadline), Length how long it
	// runs. With both it waits for spot or a cheaper hour while there is time,
	// and takes on-demand when there is none. Zero: it has none.
	Deadline time.Time
	Length   time.Duration
	// MaxCost is the most it may cost (gpu.max_cost), all in all, or for an
	// hour where Length is not known; 0: no limit.
	MaxCost float64
	// Move is its owner's leave to stop it at a checkpoint and start it elsewhere (gpu.move).
	Move bool
	// Restart is how long it is without result when that is done (gpu.restart); 0: not said.
	Restart time.Duration
	// Began is when the last of its allocations was placed: what it computes now
	// began then. Zero: not known.
	Began time.Time
	// Faults are what is wrong in its meta, and so not looked at.
	Faults []string
	// Bars are what its constraints on single nodes refuse; nil: it has none.
	Bars *Bars
	// Allowed tells which nodes its node pool, datacenters and constraints admit.
	Allowed func(Where) bool
	// Version is its job's: with another it is another work.
	Version uint64
	// Misfits are the pools whose nodes are known not to serve it.
	Misfits map[string]Misfit
}

// RunsOn reports whether an allocation of the work fits a node of the pool.
func (w Work) RunsOn(pool Pool) bool { return fits(w.Request, pool.Shape) && w.Allowed(pool.Where) }

// Name is the work's in a sentence.
func (w Work) Name() string {
	name := w.Job + "/" + w.Group
	if w.Namespace != "" && w.Namespace != "default" {
		name = w.Namespace + "/" + name
	}
	return name
}

// Explain is a reason with what is wrong in the work's meta.
func (w Work) Explain(reason string) string {
	return strings.Join(append([]string{reason}, w.Faults...), "; ")
}

// QueuedGPUs is what is asked for and of no use yet, slices not counted: a gang
// that is not whole counts whole.
func (w Work) QueuedGPUs() int { return w.useless() * w.Request.GPUs }

// QueuedSlices is the same of slices of GPUs.
func (w Work) QueuedSlices() int { return w.useless() * w.Request.Slices() }

// QueuedOn is the same of both, in GPUs, where a node of a shape serves it.
func (w Work) QueuedOn(s Shape) float64 { return float64(w.useless()) * s.Worth(w.Request) }

// Amount is a number of GPUs and slices in words.
func Amount(gpus, slices int) string {
	switch {
	case slices == 0:
		return fmt.Sprintf("%d GPUs", gpus)
	case gpus == 0:
		return fmt.Sprintf("%d slices", slices)
	}
	return fmt.Sprintf("%d GPUs and %d slices", gpus, slices)
}

// Missing is how many allocations need a place now.
func (w Work) Missing() int { return max(w.Count-w.Placed-w.Later-w.Gone, 0) }

// least is how many allocations must have a place for one to be of use.
func (w Work) least() int {
	switch {
	case !w.Gang:
		return 1
	case w.Least == 0:
		return w.Count
	}
	return w.Least
}

// Forms reports whether as many are placed as are of use.
func (w Work) Forms() bool { return w.Placed >= w.least() }

// useless is how many allocations lack a place, or wait for one that does.
func (w Work) useless() int {
	if missing := w.Missing(); missing == 0 || w.Forms() {
		return missing
	}
	return w.Missing() + w.Placed
}

// Input is all that a plan is made from.
type Input struct {
	Now    time.Time
	Work   []Work
	Nodes  []Node
	Pools  []Pool
	Budget Budget
	// Curve is how the price, or the carbon, of an hour goes, in order of time: it shifts
	// work that has a deadline. Empty: every hour is alike.
	Curve []Rate
	// Ahead is what is expected to be in use soon, each model of GPU once.
	Ahead []Ahead
}

// Rate holds from a time until the next one's.
type Rate struct {
	From   time.Time
	Factor float64 // of the pools' prices
}

// Waiting says why one work waits.
type Waiting struct {
	Work   Work
	Reason string
	// Cause is the kind of reason.
	Cause Cause
	// Unsatisfiable: no pool could ever take it.
	Unsatisfiable bool
	// Buys is how many nodes are bought for it, Coming how many that are bought
	// already start, by pool.
	Buys, Coming map[string]int
	// Ready are the pools whose ready nodes are held for it: Nomad alone has yet to place it.
	Ready []string
	// Misfits are the pools whose nodes are now seen not to serve it, and why.
	Misfits map[string]string
	// Places is how many of its GPUs are to be on nodes of each pool: on those
	// that have room, are on their way or are bought. Nothing where it waits for more.
	Places map[string]int
}

// Decision is one pool's.
type Decision struct {
	Pool string
	// Now is how many nodes it has, those on their way included; Want how many it shall have.
	Now, Want int
	// Needed is how many nodes are bought for what waits.
	Needed int
	// Release names the nodes to let go.
	Release []string
	// Drain names nodes whose work has leave to move and has a place elsewhere:
	// to be drained, and let go when empty. Want counts them still.
	Drain  []string
	Reason string
}

// Output is a plan.
type Output struct {
	Decisions []Decision
	Waiting   []Waiting
	// Ahead is what the plan was told to expect.
	Ahead []Ahead
}

// Of is one pool's decision.
func (o Output) Of(pool string) (Decision, bool) {
	i := slices.IndexFunc(o.Decisions, func(d Decision) bool { return d.Pool == pool })
	if i < 0 {
		return Decision{}, false
	}
	return o.Decisions[i], true
}
