// SPDX-License-Identifier: MPL-2.0

package replay

import (
	"cmp"
	"fmt"
	"slices"
	"strconv"
	"time"

	"github.com/hashicorp/go-hclog"
	"github.com/hashicorp/nomad-autoscaler/plugins/builtin/strategy/target-value/plugin"
	"github.com/hashicorp/nomad-autoscaler/plugins/strategy"
	"github.com/hashicorp/nomad-autoscaler/sdk"

	"github.com/nomad-gpu/nomad-gpu/autoscaler/plan"
)

// cooldown is the Nomad Autoscaler's default for a policy.
const cooldown = 5 * time.Minute

// groupRetry is how often a cloud group is taken to ask again for a node that
// it wants and does not get.
const groupRetry = time.Minute

// Planner is this project's own.
type Planner struct {
	// Label tells variants apart.
	Label string
	// Move: single tasks gave leave to be moved to a cheaper node, at a
	// checkpoint made for it.
	Move bool
	// Gangs gave leave too, and say that a restart costs them so long. Zero: they gave none.
	Gangs time.Duration
	// Headroom is kept in every pool, where it is not zero.
	Headroom float64
	// Forecast, where there is one, buys ahead what it expects. It learns in one
	// replay: each needs its own.
	Forecast *Forecaster
}

// Name is the planner's in a report.
func (p Planner) Name() string { return cmp.Or(p.Label, "gpu-pool") }

// Decide makes a plan.
func (p Planner) Decide(in plan.Input) ([]plan.Decision, time.Time) {
	if p.Move {
		for i := range in.Nodes {
			for j := range in.Nodes[i].Tenants {
				t := &in.Nodes[i].Tenants[j]
				t.Movable, t.Work.Restart = !t.Work.Gang || p.Gangs > 0, p.Gangs
			}
		}
	}
	if p.Headroom > 0 {
		for i := range in.Pools {
			in.Pools[i].Headroom = p.Headroom
		}
	}
	if p.Forecast != nil {
		in.Ahead = p.Forecast.expect(in.Now)
	}
	out := plan.Make(in)
	again := turn(in)
	if p.Forecast != nil {
		p.Forecast.learn(in, out)
		if next := in.Now.Truncate(foresee).Add(foresee); again.IsZero() || next.Before(again) {
			again = next
		}
	}
	return out.Decisions, again
}

// turn is when time alone next makes a plan another one, where nothing happens
// in between: a pool's rest ends, or a node has idled long enough or comes to
// the end of what is paid. Zero: never.
func turn(in plan.Input) (again time.Time) {
	at := func(t time.Time) {
		if t.After(in.Now) && (again.IsZero() || t.Before(again)) {
			again = t
		}
	}
	pools := map[string]plan.Pool{}
	for _, p := range in.Pools {
		pools[p.Name] = p
		if !p.Refused.IsZero() {
			at(p.Refused.Add(p.Retry))
		}
	}
	for _, n := range in.Nodes {
		if n.Busy || n.Starting || n.Closed {
			continue
		}
		p := pools[n.Pool]
		end := n.IdleSince.Add(p.IdleTime)
		at(end)
		if p.Increment > p.Margin && !end.After(in.Now) {
			into := in.Now.Sub(n.Bought) % p.Increment
			at(in.Now.Add(p.Increment - p.Margin - into))
			at(in.Now.Add(2*p.Increment - p.Margin - into))
		}
	}
	return again
}

// Fixed keeps every on-demand pool at its share of GPUs, and no spot.
type Fixed struct {
	Nodes map[string]int
}

// Name is the policy's in a report.
func (Fixed) Name() string { return "fixed" }

// Decide wants the same each time.
func (f Fixed) Decide(in plan.Input) (decisions []plan.Decision, again time.Time) {
	for _, p := range in.Pools {
		decisions = append(decisions, plan.Decision{Pool: p.Name, Want: f.Nodes[p.Name]})
	}
	return decisions, time.Time{}
}

// state is what the other policies see of a pool.
type state struct {
	count, ready, gpus, used int
	idle                     []string // ready nodes without work, the longest idle first
}

func look(in plan.Input, p plan.Pool) (s state) {
	var idle []plan.Node
	for _, n := range in.Nodes {
		if n.Pool != p.Name || n.Closed {
			continue
		}
		s.count++
		if n.Starting {
			continue
		}
		s.ready++
		s.gpus += p.Shape.GPUs
		s.used += p.Shape.GPUs - n.Free.GPUs
		if !n.Busy {
			idle = append(idle, n)
		}
	}
	slices.SortStableFunc(idle, func(a, b plan.Node) int { return a.IdleSince.Compare(b.IdleSince) })
	for _, n := range idle {
		s.idle = append(s.idle, n.Name)
	}
	return s
}

// toward is the decision for a count: only nodes without work are let go, which
// is kinder than the built-in targets, that drain any.
func toward(p plan.Pool, s state, want int) plan.Decision {
	want = min(max(want, p.Min), p.Max)
	d := plan.Decision{Pool: p.Name, Now: s.count, Want: want}
	if over := s.count - want; over > 0 {
		d.Release = s.idle[:min(over, len(s.idle))]
	}
	return d
}

// TargetValue is a policy for each pool with the Nomad Autoscaler's own
// strategy target-value on the share of the pool's GPUs in use, at least one
// node each (at none the share never grows), and the default cooldown.
type TargetValue struct {
	Target   float64
	strategy strategy.Strategy
	acted    map[string]time.Time
}

// NewTargetValue aims at a share, 0 to 1.
func NewTargetValue(target float64) *TargetValue {
	return &TargetValue{Target: target, strategy: plugin.NewTargetValuePlugin(hclog.NewNullLogger()), acted: map[string]time.Time{}}
}

// Name is the policy's in a report.
func (t *TargetValue) Name() string { return fmt.Sprintf("target-value %.0f %%", 100*t.Target) }

// Decide runs the strategy for each pool.
func (t *TargetValue) Decide(in plan.Input) (decisions []plan.Decision, again time.Time) {
	for _, p := range in.Pools {
		s := look(in, p)
		p.Min = max(p.Min, 1)
		if s.count < p.Min {
			decisions = append(decisions, toward(p, s, p.Min))
			if again.IsZero() {
				again = in.Now.Add(groupRetry)
			}
			continue
		}
		if last, ok := t.acted[p.Name]; ok && in.Now.Sub(last) < cooldown {
			if end := last.Add(cooldown); again.IsZero() || end.Before(again) {
				again = end
			}
			continue
		}
		want := t.want(in.Now, p, s)
		d := toward(p, s, want)
		if d.Want > s.count || len(d.Release) > 0 {
			t.acted[p.Name] = in.Now
			decisions = append(decisions, d)
			again = in.Now.Add(cooldown)
		}
	}
	return decisions, again
}

func (t *TargetValue) want(now time.Time, p plan.Pool, s state) int {
	share := 0.0
	if s.gpus > 0 {
		share = float64(s.used) / float64(s.gpus)
	}
	check := &sdk.ScalingPolicyCheck{Name: p.Name, Strategy: &sdk.ScalingPolicyStrategy{Name: "target-value",
		Config: map[string]string{"target": strconv.FormatFloat(t.Target, 'g', -1, 64)}}}
	eval, err := t.strategy.Run(&sdk.ScalingCheckEvaluation{Check: check, Action: &sdk.ScalingAction{},
		Metrics: sdk.TimestampedMetrics{{Timestamp: now, Value: share}}}, int64(s.count))
	if err != nil || eval.Action.Direction == sdk.ScaleDirectionNone {
		return s.count
	}
	return int(eval.Action.Count)
}

// Threshold grows by the queue: while more GPUs wait than are on their way it
// buys for them one by one, the cheapest pool first, on-demand only where a
// spot pool is full; it lets go what idles for the cooldown. It counts only
// work whose request its nodes take, and knows of no gangs; a pool that refused is left alone for the cooldown.
type Threshold struct{}

// Name is the policy's in a report.
func (Threshold) Name() string { return "queue threshold" }

// Decide counts GPUs.
func (Threshold) Decide(in plan.Input) (decisions []plan.Decision, again time.Time) {
	order := slices.Clone(in.Pools)
	slices.SortStableFunc(order, func(a, b plan.Pool) int {
		return cmp.Compare(a.Price/float64(a.Shape.GPUs), b.Price/float64(b.Shape.GPUs))
	})
	lacks := func(p plan.Pool) (gpus int) {
		for _, w := range in.Work {
			if fits(w.Request, p.Shape) {
				gpus += w.Count * w.Request.GPUs
			}
		}
		for _, n := range in.Nodes {
			if n.Starting {
				gpus -= n.Free.GPUs
			}
		}
		return gpus
	}
	bought := 0
	for _, p := range order {
		s := look(in, p)
		want := s.count
		if lack := lacks(p) - bought; lack > 0 && (p.Refused.IsZero() || in.Now.Sub(p.Refused) >= cooldown) {
			more := min((lack+p.Shape.GPUs-1)/p.Shape.GPUs, p.Max-s.count)
			want += more
			bought += more * p.Shape.GPUs
		}
		d := toward(p, s, want)
		if want == s.count {
			for _, n := range in.Nodes {
				if n.Pool == p.Name && !n.Starting && !n.Closed && !n.Busy && in.Now.Sub(n.IdleSince) >= cooldown && d.Want > p.Min {
					d.Release, d.Want = append(d.Release, n.Name), d.Want-1
				}
			}
		}
		decisions = append(decisions, d)
	}
	if len(in.Work) > 0 || slices.ContainsFunc(in.Nodes, func(n plan.Node) bool { return !n.Busy && !n.Starting && !n.Closed }) {
		again = in.Now.Add(time.Second)
	}
	return decisions, again
}
