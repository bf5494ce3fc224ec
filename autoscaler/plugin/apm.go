// SPDX-License-Identifier: MPL-2.0

package plugin

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"regexp"
	"slices"
	"time"

	"github.com/hashicorp/go-hclog"
	"github.com/hashicorp/nomad-autoscaler/plugins/apm"
	"github.com/hashicorp/nomad-autoscaler/plugins/base"
	"github.com/hashicorp/nomad-autoscaler/sdk"

	"github.com/nomad-gpu/nomad-gpu/autoscaler/demand"
	"github.com/nomad-gpu/nomad-gpu/autoscaler/plan"
)

// APM answers queries on the GPU queue.
type APM struct {
	logger  hclog.Logger
	lookout *Lookout
}

var _ apm.APM = (*APM)(nil)

// NewAPM makes the plugin.
func NewAPM(logger hclog.Logger) *APM { return &APM{logger: logger.Named(APMName)} }

// PluginInfo names the program: the autoscaler compares it with the driver of its configuration.
func (a *APM) PluginInfo() (*base.PluginInfo, error) {
	return &base.PluginInfo{Name: Program, PluginType: sdk.PluginTypeAPM}, nil
}

// SetConfig reads the pools file.
func (a *APM) SetConfig(config map[string]string) (err error) {
	if err := a.lookout.Close(); err != nil {
		return fmt.Errorf("%s: %w", APMName, err)
	}
	if a.lookout, _, err = NewLookout(config, a.logger); err != nil {
		return fmt.Errorf("%s: %w", APMName, err)
	}
	return nil
}

// metric is one figure; of all pools where none is named.
type metric func(r demand.Reading, o plan.Output, pool string) float64

var metrics = map[string]metric{
	"queued_gpus": func(_ demand.Reading, o plan.Output, pool string) float64 {
		return queued(o, pool, plan.Work.QueuedGPUs)
	},
	"queued_gangs": func(_ demand.Reading, o plan.Output, pool string) float64 { return queued(o, pool, oneGang) },
	"needed_nodes": func(_ demand.Reading, o plan.Output, pool string) float64 { return decided(o, pool, neededNodes) },
	"wanted_nodes": func(_ demand.Reading, o plan.Output, pool string) float64 { return decided(o, pool, wantedNodes) },
	"unsatisfiable_gpus": func(_ demand.Reading, o plan.Output, _ string) float64 {
		return unsatisfiable(o, plan.Work.QueuedGPUs)
	},
	"running_gpus": func(r demand.Reading, _ plan.Output, _ string) float64 { return float64(r.RunningGPUs) },
	"utilisation":  func(r demand.Reading, _ plan.Output, _ string) float64 { return r.Utilisation() },
	"queued_slices": func(_ demand.Reading, o plan.Output, pool string) float64 {
		return queued(o, pool, plan.Work.QueuedSlices)
	},
	"unsatisfiable_slices": func(_ demand.Reading, o plan.Output, _ string) float64 {
		return unsatisfiable(o, plan.Work.QueuedSlices)
	},
	"running_slices": func(r demand.Reading, _ plan.Output, _ string) float64 { return float64(r.RunningSlices) },
}

func oneGang(w plan.Work) int {
	if w.Gang && w.Missing() > 0 && !w.Forms() {
		return 1
	}
	return 0
}

// queued sums over the work that waits; with a pool, over what it buys for.
func queued(o plan.Output, pool string, of func(plan.Work) int) float64 {
	n := 0
	for _, w := range o.Waiting {
		if !w.Unsatisfiable && (pool == "" || w.Buys[pool] > 0) {
			n += of(w.Work)
		}
	}
	return float64(n)
}

func unsatisfiable(o plan.Output, of func(plan.Work) int) float64 {
	n := 0
	for _, w := range o.Waiting {
		if w.Unsatisfiable {
			n += of(w.Work)
		}
	}
	return float64(n)
}

func neededNodes(d plan.Decision) int { return d.Needed }
func wantedNodes(d plan.Decision) int { return d.Want }

func decided(o plan.Output, pool string, of func(plan.Decision) int) float64 {
	n := 0
	for _, d := range o.Decisions {
		if pool == "" || d.Pool == pool {
			n += of(d)
		}
	}
	return float64(n)
}

// query is a metric's name, and a pool where one is named.
var query = regexp.MustCompile(`^\s*([a-z_]+)\s*(\{\s*pool\s*=\s*"([^"]*)"\s*\})?\s*$`)

// ofOnePool are the metrics that can be asked for one pool.
var ofOnePool = []string{"needed_nodes", "queued_gangs", "queued_gpus", "wanted_nodes"}

func (a *APM) parse(q string) (metric, string, error) {
	if a.lookout == nil {
		return nil, "", errors.New("the plugin is not configured")
	}
	parts := query.FindStringSubmatch(q)
	if parts == nil {
		return nil, "", fmt.Errorf(`query: %q; allowed is a metric such as queued_gpus, or with a pool: needed_nodes{pool="name"}`, q)
	}
	m, ok := metrics[parts[1]]
	if !ok {
		return nil, "", fmt.Errorf("query: metric %q; allowed are %q", parts[1], slices.Sorted(maps.Keys(metrics)))
	}
	if parts[2] != "" {
		if !slices.Contains(ofOnePool, parts[1]) {
			return nil, "", fmt.Errorf("query: %q: %s is of all pools, so no pool may be named; of one pool there are %q", q, parts[1], ofOnePool)
		}
		if _, err := a.lookout.File.Find(parts[3]); err != nil {
			return nil, "", fmt.Errorf("query: %w", err)
		}
	}
	return m, parts[3], nil
}

// Query answers with one value, of now. An empty series would mean no action.
func (a *APM) Query(q string, _ sdk.TimeRange) (sdk.TimestampedMetrics, error) {
	m, pool, err := a.parse(q)
	if err != nil {
		return nil, err
	}
	r, o, err := a.lookout.Look(context.Background(), "", 0)
	if err != nil {
		return nil, err
	}
	return sdk.TimestampedMetrics{{Timestamp: time.Now(), Value: m(r, o, pool)}}, nil
}

// QueryMultiple answers with one series.
func (a *APM) QueryMultiple(q string, r sdk.TimeRange) ([]sdk.TimestampedMetrics, error) {
	one, err := a.Query(q, r)
	if err != nil {
		return nil, err
	}
	return []sdk.TimestampedMetrics{one}, nil
}
