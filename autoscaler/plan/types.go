// SPDX-License-Identifier: MPL-2.0

package plan

import (
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

// Shape is what a node offers, or an allocation asks for. In a request an
// empty model takes any, and zero CPU or memory any amount.
type Shape struct {
	GPUs   int
	Model  string
	CPU    int // MHz
	Memory int // MiB
}

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

func (p Pool) perGPU() float64 { return p.Price / float64(max(p.Shape.GPUs, 1)) }

// refuses reports whether the pool's last request failed so lately that others come first.
func (p Pool) refuses(now time.Time) bool {
	return !p.Refused.IsZero() && now.Sub(p.Refused) < p.Retry
}

// Node is a node that is there, or on its way.
type Node struct {
	Name  string
	Pool  string // empty: it belongs to none
	Where Where
	// Free is what can still be placed on it.
	Free Shape
	// Starting: bought, and not yet seen by Nomad. Closed: takes no new work.
	Starting, Closed bool
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
	// Tenants are the allocations on it, where they are known: without them nothing is moved.
	Tenants []Tenant
}

// Work is one task group that asks for GPUs.
type Work struct {
	Namespace, Job, Group string
	Priority              int
	Since                 time.Time
	// Gang: all Count allocations run, or none is of use.
	Gang bool
	// Count is how many allocations it wants, Placed how many have a node.
	Count, Placed int
	// PlacedOn names the nodes of those placed.
	PlacedOn []string
	// Distinct: each allocation on a node of its own.
	Distinct bool
	Request  Shape
	Spot     string
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
	// Faults are what is wrong in its meta, and so not looked at.
	Faults []string
	// Allowed tells which nodes its node pool, datacenters and constraints admit.
	Allowed func(Where) bool
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

// QueuedGPUs is what is asked for and of no use yet: a gang that is not whole counts whole.
func (w Work) QueuedGPUs() int {
	if w.Gang && w.Placed < w.Count {
		return w.Count * w.Request.GPUs
	}
	return (w.Count - w.Placed) * w.Request.GPUs
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
	// Unsatisfiable: no pool could ever take it.
	Unsatisfiable bool
	// Buys is how many nodes are bought for it, by pool.
	Buys map[string]int
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
