// SPDX-License-Identifier: MPL-2.0

// Package preflight checks a gang before its processes exist: that the nodes'
// versions are the same, that members reach each other on the training
// network, that limits and RDMA devices are as NCCL needs them and, on
// request, that neighbours in rank order are as fast as they usually are.
//
// Members call each other on the ports that Nomad reserved for the gang, on
// the one that this generation's process will use afterwards. A member keeps
// listening until everyone who must call it has; all are prepared only after
// all have left their preflight, so no port is still taken when a process
// starts. What each rank must call is in planFor: n-1 calls up to 64 members,
// log2 n beyond.
package preflight

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/nomad-gpu/nomad-gpu/driver/gang"
)

// Steps says which checks are made, each of them by every member.
type Steps struct {
	// Reach, Versions, Limits and RDMA are on by default; Bandwidth is not.
	Reach, Versions, Limits, RDMA, Bandwidth bool
	// MinGbps is what a pair of neighbours must reach, in 10^9 bits a second;
	// 0: only the pair's baseline counts.
	MinGbps float64
	// Ratio is the part of its baseline that a pair must reach, 0 to 1.
	Ratio float64
	// LeaveOut asks the gang to go on without the worse node of a slow pair,
	// where one of the two is.
	LeaveOut bool
	// ShmMiB and MemlockMiB are what the user asks for: less is an error. 0
	// asks for nothing: what NCCL would miss is a warning.
	ShmMiB, MemlockMiB int
	// Timeout bounds all calls together, from this member's begin.
	Timeout time.Duration
}

// DefaultTimeout is far above what members differ in when they begin: all
// watch the same key.
const DefaultTimeout = 2 * time.Minute

// Defaults are the steps where the user says nothing.
func Defaults() Steps {
	return Steps{Reach: true, Versions: true, Limits: true, RDMA: true, Ratio: 0.5, Timeout: DefaultTimeout}
}

// Validate names each field that cannot be used.
func (s Steps) Validate() error {
	var errs []error
	if !(s.MinGbps >= 0 && s.MinGbps <= maxGbps) {
		errs = append(errs, fmt.Errorf("preflight.min_gbps: %g; allowed are 0 (no least) to %g", s.MinGbps, maxGbps))
	}
	if s.MinGbps > 0 && !s.Bandwidth {
		errs = append(errs, fmt.Errorf("preflight.min_gbps: %g, but preflight.bandwidth is false", s.MinGbps))
	}
	if s.LeaveOut && !s.Bandwidth {
		errs = append(errs, errors.New("preflight.leave_out: true, but preflight.bandwidth is false"))
	}
	if !(s.Ratio >= 0 && s.Ratio <= 1) {
		errs = append(errs, fmt.Errorf("preflight.ratio: %g; allowed are 0 (the baseline does not count) to 1", s.Ratio))
	}
	const most = 1 << 24
	if s.ShmMiB < 0 || s.ShmMiB > most {
		errs = append(errs, fmt.Errorf("preflight.shm_mib: %d; allowed are 0 (no least) to %d", s.ShmMiB, most))
	}
	if s.MemlockMiB < 0 || s.MemlockMiB > most {
		errs = append(errs, fmt.Errorf("preflight.memlock_mib: %d; allowed are 0 (no least) to %d", s.MemlockMiB, most))
	}
	if s.Timeout < time.Second {
		errs = append(errs, fmt.Errorf("preflight.timeout: %s; allowed is at least 1s", s.Timeout))
	}
	return errors.Join(errs...)
}

// Check is one member's preflight.
type Check struct {
	Steps
	// Versions are this node's, from LocalVersions.
	Versions Versions
	// Host is where the local checks look.
	Host Host
	// Baselines may be nil: then only MinGbps counts.
	Baselines Baselines
	// Warn is told what does not stop the gang; it must not block for long.
	Warn func(string)

	flowTime time.Duration // 0: defaultFlowTime
}

// Run makes the checks for one generation. env is the environment that the
// process will get. The error names the peer by rank, node and address, and
// what to look at, and is a gang.LeaveOut where the gang is to go on without a
// node; a context's error comes back where ctx ends first.
func (c Check) Run(ctx context.Context, a gang.Assignment, env map[string]string) error {
	if err := c.local(a.Self(), env); err != nil {
		return fmt.Errorf("preflight: %w", err)
	}
	if c.Steps.Versions {
		if text := Releases(a.Members); text != "" {
			c.Warn(text)
		}
	}
	if len(a.Members) < 2 || !c.Reach && !c.Steps.Versions && !c.Bandwidth {
		return nil
	}
	err := c.exchange(ctx, a)
	if err == nil {
		return nil
	}
	err = fmt.Errorf("preflight: %w", err)
	var slow *SlowPair
	if c.LeaveOut && errors.As(err, &slow) && slow.Worse >= 0 {
		return &gang.LeaveOut{Alloc: a.Members[slow.Worse].Alloc, Err: err}
	}
	return err
}

// local checks this node.
func (c Check) local(self gang.Member, env map[string]string) error {
	var errs []error
	var warnings []string
	if c.Limits {
		w, err := c.Host.limits(c.Steps, env)
		warnings = append(warnings, w...)
		if err != nil {
			errs = append(errs, err)
		}
	}
	if c.RDMA {
		w, err := c.Host.rdma(env)
		warnings = append(warnings, w...)
		if err != nil {
			errs = append(errs, err)
		}
	}
	for _, w := range warnings {
		c.Warn(w)
	}
	if len(errs) > 0 {
		return fmt.Errorf("%s: %w", self.Node, oneLine(errs))
	}
	return nil
}

// exchange makes the calls.
func (c Check) exchange(parent context.Context, a gang.Assignment) error {
	ctx, cancel := context.WithTimeout(parent, c.Timeout)
	defer cancel()
	var length time.Duration
	if c.Bandwidth {
		if length = c.flowTime; length == 0 {
			length = defaultFlowTime
		}
	}
	x := newExchange(a, planFor(a.Rank, len(a.Members), c.Reach), c.Versions, length)
	l, err := x.listen(ctx)
	if err != nil {
		return errors.Join(parent.Err(), err)
	}
	defer l.close()
	late := time.AfterFunc(c.Timeout/4, func() {
		if ranks := x.callers(hello); len(ranks) > 0 {
			c.Warn(fmt.Sprintf("%s of %s: no call yet from %s", (c.Timeout / 4).Round(time.Second), c.Timeout, x.names(ranks)))
		}
	})
	defer late.Stop()

	failed := x.greet(ctx)
	var base Baseline
	if len(failed) == 0 && c.Bandwidth {
		base = c.baseline(ctx, x)
		failed = bandwidth(ctx, x, base)
	}
	select {
	case <-x.complete:
		l.settle()
	case <-ctx.Done():
	}
	if parent.Err() != nil {
		return parent.Err()
	}
	if err := x.unreached(failed); err != nil {
		return err
	}
	if c.Steps.Versions {
		known, _ := x.learnt()
		if err := compareVersions(a.Members, known); err != nil {
			return err
		}
	}
	return c.judge(ctx, x, base)
}

// bandwidth measures the pair to the next neighbour and tells of it. A
// stream that did not come to its end is a failed call.
func bandwidth(ctx context.Context, x *exchange, base Baseline) map[int]error {
	gbps, err := x.measure(ctx)
	if err != nil {
		return map[int]error{x.plan.next: fmt.Errorf("bandwidth: %w", err)}
	}
	own := Pair{From: x.a.Rank, To: x.plan.next, Gbps: gbps, Baseline: base.Usual()}
	x.mu.Lock()
	x.pairs[own.From] = own
	x.mu.Unlock()
	return x.tellNeighbours(ctx, own)
}

// baseline is the pair's; empty where none is known, or none can be read.
func (c Check) baseline(ctx context.Context, x *exchange) Baseline {
	if c.Baselines == nil {
		return Baseline{}
	}
	b, err := c.Baselines.Baseline(ctx, x.a.Self().Node, x.a.Members[x.plan.next].Node)
	if err != nil {
		c.Warn(fmt.Sprintf("the pair's baseline is left out: %v", err))
	}
	return b
}

// judge finds out whether this member's pair is slow, and keeps what it
// reached where it is not.
func (c Check) judge(ctx context.Context, x *exchange, base Baseline) error {
	_, pairs := x.learnt()
	own, measured := pairs[x.a.Rank]
	if !measured {
		return nil
	}
	if err := judge(x.a.Members, own, pairs, c.MinGbps, c.Ratio); err != nil || c.Baselines == nil {
		return err
	}
	if err := c.Baselines.Keep(ctx, x.a.Self().Node, x.a.Members[own.To].Node, base.With(own.Gbps)); err != nil {
		c.Warn(fmt.Sprintf("the pair's baseline is not kept: %v", err))
	}
	return nil
}
