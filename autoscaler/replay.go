// SPDX-License-Identifier: MPL-2.0

package main

import (
	"cmp"
	"fmt"
	"io"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/nomad-gpu/nomad-gpu/autoscaler/forecast"
	"github.com/nomad-gpu/nomad-gpu/autoscaler/plan"
	"github.com/nomad-gpu/nomad-gpu/autoscaler/pool"
	"github.com/nomad-gpu/nomad-gpu/autoscaler/replay"
)

// replayed is what the command replay is told.
type replayed struct {
	trace, pools, html                          string
	spot                                        map[string]string
	seed                                        uint64
	json                                        bool
	gangs, most, fixed, burst                   int
	every, checkpoint, start, billing, arrivals time.Duration
	targets, headrooms                          []float64
	restart, notice, longest, gangRestart       time.Duration
	model                                       string
	daily                                       float64
	forecast                                    forecast.Season
}

func replayCommand() *cobra.Command {
	var r replayed
	c := &cobra.Command{Use: "replay", Short: "Replay a trace under this planner and under others, and compare them",
		Long: "Replay a recorded or generated workload on a virtual clock under this planner, a fixed pool, the Nomad Autoscaler's target-value on utilisation and a queue threshold, beside bounds that know the future. Nothing is bought; no cluster is asked.",
		RunE: func(c *cobra.Command, _ []string) error { return r.run(c.OutOrStdout()) }}
	f := c.Flags()
	f.StringVar(&r.trace, "trace", "", "a pod list of the openb trace, CSV, gzipped or not")
	f.IntVar(&r.gangs, "gangs", 0, "instead of a trace, generate so many gangs")
	f.IntVar(&r.most, "gang-nodes", 16, "the largest gang generated, in nodes")
	f.DurationVar(&r.arrivals, "gang-every", 30*time.Minute, "mean time between generated gangs")
	f.IntVar(&r.burst, "gang-burst", 0, "so many gangs are generated each day at 09:00, instead of all over it")
	f.DurationVar(&r.longest, "gang-longest", 7*24*time.Hour, "the longest run of a generated gang")
	f.StringVar(&r.model, "gang-model", replay.Models[0], "where generated sizes and run times come from: "+strings.Join(replay.Models, ", "))
	f.Float64Var(&r.daily, "gang-daily", 0, "how much the rate of generated gangs swings over a day, 0 to 1")
	f.StringVar(&r.pools, "pools", "", "the pools file")
	f.StringToStringVar(&r.spot, "spot", nil, "POOL=FILE: how many nodes a spot pool can have, over time; repeat for each")
	f.Uint64Var(&r.seed, "seed", 1, "of what is random: the generator, and which nodes an interruption takes")
	f.DurationVar(&r.every, "every", 10*time.Second, "time between two evaluations")
	f.DurationVar(&r.checkpoint, "checkpoint", 15*time.Minute, "time between two checkpoints of a task; 0: none")
	f.DurationVar(&r.restart, "restart", time.Minute, "what a task that starts again spends until it computes")
	f.DurationVar(&r.gangRestart, "gang-restart", 10*time.Minute, "also replay the planner with gangs that may be moved and say that it costs them so long (gpu.restart); 0: do not")
	f.DurationVar(&r.start, "start", 2*time.Minute, "how long a node takes to be ready")
	f.DurationVar(&r.notice, "notice", 0, "how long before its end a spot node has notice; AWS gives 2m")
	f.DurationVar(&r.billing, "billing", time.Minute, "what is billed at once")
	f.Float64SliceVar(&r.targets, "target", []float64{0.7, 0.9}, "targets of target-value, as shares of GPUs in use")
	f.Float64SliceVar(&r.headrooms, "headroom", []float64{0.1}, "also replay the planner with these headrooms in every pool")
	f.DurationVar(&r.forecast.Period, "forecast-period", 0, "what the load recurs after, for the planner with a forecast: 24h or 168h; 0: as the pools file says, else 168h")
	f.IntVar(&r.forecast.Periods, "forecast-periods", 0, "how many of them are remembered; 0: as the pools file says, else 4")
	f.Float64Var(&r.forecast.Share, "forecast-share", 0, "share of them that needed no more than what is expected; 0: as the pools file says, else 0.5")
	f.DurationVar(&r.forecast.Ahead, "forecast-ahead", 0, "how far ahead is looked; no less than a node takes to start; 0: as the pools file says, else 15m")
	f.IntVar(&r.fixed, "fixed", 0, "nodes of each on-demand pool under the fixed policy; 0: its maximum")
	f.BoolVar(&r.json, "json", false, "print JSON")
	f.StringVar(&r.html, "html", "", "also write a page with plots to this file")
	c.MarkFlagRequired("pools")
	c.MarkFlagsOneRequired("trace", "gangs")
	c.MarkFlagsMutuallyExclusive("trace", "gangs")
	return c
}

func (r replayed) run(out io.Writer) error {
	o, err := r.options()
	if err != nil {
		return err
	}
	fixed := replay.Fixed{Nodes: map[string]int{}}
	for _, p := range o.Pools {
		if p.Lifecycle == plan.OnDemand {
			fixed.Nodes[p.Name] = p.Max
			if r.fixed > 0 {
				fixed.Nodes[p.Name] = min(r.fixed, p.Max)
			}
		}
	}
	season, err := r.season()
	if err != nil {
		return err
	}
	forecaster, err := replay.NewForecaster(season)
	if err != nil {
		return usage(fmt.Errorf("--forecast-%w", err))
	}
	policies := []replay.Policy{replay.Planner{Move: true}, replay.Planner{Label: "gpu-pool, forecast", Move: true, Forecast: forecaster},
		replay.Planner{Label: "gpu-pool, nothing moves"}, replay.Threshold{}, fixed}
	if r.gangs > 0 && r.gangRestart > 0 {
		policies = slices.Insert(policies, 1, replay.Policy(replay.Planner{Label: "gpu-pool, gangs move too", Move: true, Gangs: r.gangRestart}))
	}
	for _, h := range r.headrooms {
		if !(h >= 0 && h <= 1) {
			return usage(fmt.Errorf("--headroom: %v; allowed are 0 to 1", h))
		}
		label := fmt.Sprintf("gpu-pool, headroom %.0f %%", 100*h)
		policies = append(policies, replay.Planner{Label: label, Move: true, Headroom: h}, replay.Planner{Label: label + ", nothing moves", Headroom: h})
	}
	for _, t := range r.targets {
		if !(t > 0 && t <= 1) {
			return usage(fmt.Errorf("--target: %v; allowed are shares over 0, at most 1", t))
		}
		policies = append(policies, replay.NewTargetValue(t))
	}
	report, err := replay.Compare(o, policies)
	if err != nil {
		return err
	}
	if r.html != "" {
		var page strings.Builder
		if err := report.HTML(&page); err != nil {
			return err
		}
		if err := os.WriteFile(r.html, []byte(page.String()), 0o644); err != nil {
			return fmt.Errorf("--html: %w", err)
		}
	}
	if r.json {
		return printJSON(out, report)
	}
	report.Table(out)
	return nil
}

// season is what the flags say of the forecast, then the pools file's block.
func (r replayed) season() (forecast.Season, error) {
	file, err := pool.ReadFile(r.pools)
	if err != nil {
		return forecast.Season{}, err
	}
	s := forecast.Usual
	if file.Forecast != nil {
		s = file.Forecast.Season()
	}
	return forecast.Season{Period: cmp.Or(r.forecast.Period, s.Period), Periods: cmp.Or(r.forecast.Periods, s.Periods),
		Share: cmp.Or(r.forecast.Share, s.Share), Ahead: cmp.Or(r.forecast.Ahead, s.Ahead)}, nil
}

func (r replayed) options() (o replay.Options, err error) {
	file, err := pool.ReadFile(r.pools)
	if err != nil {
		return o, err
	}
	for field, d := range map[string]time.Duration{"--start": r.start, "--billing": r.billing, "--checkpoint": r.checkpoint, "--restart": r.restart, "--gang-restart": r.gangRestart, "--notice": r.notice} {
		if d < 0 || d > 24*time.Hour {
			return o, usage(fmt.Errorf("%s: %s; allowed are 0 to 24h", field, d))
		}
	}
	if r.gangs < 0 || r.gangs > 1<<20 || r.most < 1 || r.most > 1<<12 || r.arrivals < time.Second || r.arrivals > 720*time.Hour {
		return o, usage(fmt.Errorf("--gangs, --gang-nodes and --gang-every: %d, %d and %s; allowed are 0 to %d, 1 to %d and 1s to 720h", r.gangs, r.most, r.arrivals, 1<<20, 1<<12))
	}
	if !slices.Contains(replay.Models, r.model) {
		return o, usage(fmt.Errorf("--gang-model: %q; allowed are %q", r.model, replay.Models))
	}
	if r.longest < time.Second || r.longest > 365*24*time.Hour {
		return o, usage(fmt.Errorf("--gang-longest: %s; allowed are 1s to 8760h", r.longest))
	}
	if r.burst < 0 || r.burst > 1<<12 {
		return o, usage(fmt.Errorf("--gang-burst: %d; allowed are 0 (none) to %d", r.burst, 1<<12))
	}
	if !(r.daily >= 0 && r.daily <= 1) {
		return o, usage(fmt.Errorf("--gang-daily: %v; allowed are 0 to 1", r.daily))
	}
	o = replay.Options{Seed: r.seed, Every: r.every, Checkpoint: r.checkpoint, Restart: r.restart, Notice: r.notice, Samples: 600}
	names, smallest := []string{}, 1<<20
	for i := range file.Pools {
		p := replay.Pool{Pool: file.Pools[i].Plan(), Start: r.start}
		// A trace asks for so many GPUs of a node, whatever their groups, and for no slices.
		if p.Shape.Devices = nil; p.Shape.GPUs == 0 {
			continue
		}
		p.Increment, p.Margin = r.billing, max(r.every, time.Minute)
		p.Retry, p.Penalty = 10*time.Minute, 0.02
		if path := r.spot[p.Name]; path != "" {
			a, err := replay.ReadAvailability(path)
			if err != nil {
				return o, err
			}
			p.Spot = &a
		}
		o.Pools = append(o.Pools, p)
		names = append(names, p.Name)
		smallest = min(smallest, p.Shape.GPUs)
	}
	for name := range r.spot {
		if !slices.Contains(names, name) {
			return o, usage(fmt.Errorf("--spot: pool %q; allowed are %q", name, names))
		}
	}
	if r.trace != "" {
		o.Trace, err = replay.ReadTrace(r.trace)
		return o, err
	}
	o.Trace = replay.Generate(replay.Gangs{Model: r.model, Daily: r.daily, Burst: r.burst, Count: r.gangs, Every: r.arrivals, Most: r.most, GPUs: smallest, Longest: r.longest}, r.seed)
	return o, nil
}
