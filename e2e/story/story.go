// SPDX-License-Identifier: MPL-2.0

// Package story tells the product's main job from end to end on a real
// cluster: a gang that is larger than the cluster waits, the pool grows by
// what it lacks, the gang forms, loses a rank, recovers from its checkpoint
// and ends, and the pool shrinks. The demo and a test tell the same story.
package story

import (
	"context"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/nomad-gpu/nomad-gpu/e2e/cluster"
	"github.com/nomad-gpu/nomad-gpu/e2e/pools"
)

// Options of the story.
type Options struct {
	Out io.Writer
	// Programs is the folder of the built programs.
	Programs string
	// Torch trains with PyTorch, else with the Go program.
	Torch bool
	// Loopback keeps to the loopback interface, also as root.
	Loopback bool
}

const (
	spotPool     = "h100-spot"
	onDemandPool = "h100-on-demand"
	maxSpot      = 4

	jobName  = "train"
	taskName = "train"
	steps    = 60
	// killRank is ended at killStep, midway and after a checkpoint.
	killRank = 2
	killStep = 25
)

// story is one telling.
type story struct {
	Options
	cluster  *cluster.Cluster
	timeline *Timeline
	observer *observer
	last     Snapshot
	seen     Observed
	scalings int
}

// Tell tells the story and returns what was observed; keep, if not nil, is
// called at its end while the cluster still stands.
func Tell(ctx context.Context, o Options, keep func(*cluster.Cluster)) (Observed, error) {
	s := &story{Options: o, timeline: NewTimeline(o.Out, time.Now), seen: Observed{Nodes: 4, GPUs: 8}}
	err := s.run(ctx)
	if s.cluster != nil {
		if err != nil && ctx.Err() == nil {
			err = fmt.Errorf("%w\n\nWhat each part last said:\n%s", err, s.cluster.Words(12))
		}
		if err == nil && keep != nil {
			keep(s.cluster)
		}
		s.timeline.Say("demo", "stopping the cluster")
		if ctx.Err() != nil {
			s.cluster.Kill()
		} else {
			s.cluster.Stop()
		}
	}
	return s.seen, err
}

func (s *story) run(ctx context.Context) error {
	var err error
	s.cluster, err = cluster.Start(ctx, cluster.Options{PluginDir: filepath.Join(s.Programs, "nomad"), Loopback: s.Loopback,
		Say: func(format string, args ...any) { s.timeline.Say("demo", format, args...) }})
	if err != nil {
		return err
	}
	for _, chapter := range []func(context.Context) error{s.open, s.submit, s.grow, s.train, s.fail, s.recover, s.shrink} {
		if err := chapter(ctx); err != nil {
			return err
		}
	}
	return nil
}

// open starts the autoscaler, which brings the on-demand pool to its minimum.
func (s *story) open(ctx context.Context) error {
	s.timeline.Say("demo", "starting the Nomad Autoscaler with two pools: spot (0 to %d nodes) and on-demand (1 node)", maxSpot)
	if _, err := pools.Start(s.cluster, filepath.Join(s.Programs, "autoscaler"),
		pools.Pool{Name: spotPool, Lifecycle: "spot", Price: 12.5, Max: maxSpot},
		pools.Pool{Name: onDemandPool, Lifecycle: "on-demand", Price: 40, Min: 1, Max: 1}); err != nil {
		return err
	}
	s.observer = newObserver(s.cluster.Nomad(), jobName, taskName)
	return s.until(ctx, time.Minute, "the on-demand node is ready", func() bool { return s.ready("on-demand") == 1 })
}

func (s *story) submit(ctx context.Context) error {
	checkpoints := filepath.Join(s.cluster.Dir(), "checkpoints")
	if err := os.Mkdir(checkpoints, 0o700); err != nil {
		return err
	}
	t := Training{Nodes: s.seen.Nodes, GPUs: s.seen.GPUs, Steps: steps, StepSeconds: 0.15, CheckpointDir: checkpoints}
	what := "PyTorch DDP over gloo"
	if !s.Torch {
		t.Program, what = filepath.Join(s.Programs, "ring-allreduce"), "a Go program over TCP"
	}
	s.timeline.Say("demo", "nomad job run jobspecs/train.nomad.hcl: a gang of %d nodes × %d GPUs, training with %s", t.Nodes, t.GPUs, what)
	return Submit(ctx, s.cluster, t)
}

// grow: the gang waits for nodes; the autoscaler buys them.
func (s *story) grow(ctx context.Context) error {
	return s.until(ctx, time.Minute, "the spot nodes are ready", func() bool { return s.ready("spot") == s.seen.Nodes-1 })
}

func (s *story) train(ctx context.Context) error {
	return s.until(ctx, time.Minute, fmt.Sprintf("generation 1 is at step %d", killStep), func() bool { return Step(s.last.Members, 1) >= killStep })
}

// fail kills a rank's process, as a crash does: not through Nomad.
func (s *story) fail(ctx context.Context) error {
	pid, err := processOf(s.last.Members, killRank, 1)
	if err != nil {
		return err
	}
	s.timeline.Say("demo", "kill -9 of rank %d, process %d", killRank, pid)
	if err := syscall.Kill(pid, syscall.SIGKILL); err != nil {
		return fmt.Errorf("kill rank %d: %w", killRank, err)
	}
	if err := s.until(ctx, time.Minute, "generation 2 starts", func() bool { return Generation(s.last.Members) >= 2 }); err != nil {
		return err
	}
	s.seen.KilledAtStep = Step(s.last.Members, 1)
	return nil
}

func (s *story) recover(ctx context.Context) error {
	return s.until(ctx, 2*time.Minute, "the job is complete", func() bool { return s.last.JobStatus == "dead" })
}

// shrink: the idle spot nodes go, and nothing is left in Consul.
func (s *story) shrink(ctx context.Context) error {
	s.seen.Members, s.seen.JobStatus = s.last.Members, s.last.JobStatus
	s.timeline.Say("demo", "waiting for the spot pool to shrink to its minimum, 0")
	if err := s.until(ctx, time.Minute, "the spot nodes are gone", func() bool {
		return !slices.ContainsFunc(s.last.Nodes, func(n Node) bool { return n.Class == "spot" })
	}); err != nil {
		return err
	}
	s.seen.SpotNodesLeft = 0
	var err error
	s.seen.KeysLeft, s.seen.SessionsLeft, err = leftovers(s.cluster.Consul(), "nccl/")
	return err
}

func (s *story) ready(class string) int {
	n := 0
	for _, node := range s.last.Nodes {
		if node.Class == class && node.Status == "ready" {
			n++
		}
	}
	return n
}

// until looks at the cluster and tells what is new, until a condition holds.
func (s *story) until(ctx context.Context, patience time.Duration, what string, holds func() bool) error {
	return cluster.WaitFor(ctx, patience, what, func() (bool, string, error) {
		now, err := s.observer.snapshot(ctx)
		if err != nil {
			return false, err.Error(), nil
		}
		s.timeline.Tell(s.last, now)
		s.last = now
		for _, n := range now.Nodes {
			if n.Class == "spot" && !slices.Contains(s.seen.SpotNodes, n.Name) {
				s.seen.SpotNodes = append(s.seen.SpotNodes, n.Name)
			}
		}
		if err := s.tellScalings(); err != nil {
			return false, "", err
		}
		return holds(), s.describe(), s.cluster.Ended()
	})
}

func (s *story) tellScalings() error {
	log, err := s.cluster.AutoscalerLog()
	if err != nil {
		return err
	}
	all := pools.ParseScalings(log)
	for _, a := range all[min(s.scalings, len(all)):] {
		s.timeline.Say("autoscaler", "%d to %d nodes: %s", a.From, a.To, a.Reason)
		if a.To > a.From && strings.Contains(a.Reason, "gang") {
			s.seen.QueuedGPUs = max(s.seen.QueuedGPUs, a.QueuedGPUs)
		}
	}
	s.scalings = len(all)
	return nil
}

// describe is the state for a wait that fails.
func (s *story) describe() string {
	var parts []string
	for _, n := range s.last.Nodes {
		parts = append(parts, fmt.Sprintf("node %s %s", n.Name, n.Status))
	}
	for _, m := range s.last.Members {
		parts = append(parts, fmt.Sprintf("allocation %.8s on %s %s", m.Alloc, m.Node, m.Status))
	}
	return strings.Join(append(parts, fmt.Sprintf("job %q, step %d of generation %d", s.last.JobStatus, Step(s.last.Members, Generation(s.last.Members)), Generation(s.last.Members))), "; ")
}
