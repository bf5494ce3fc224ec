// SPDX-License-Identifier: MPL-2.0

// Package plugin holds the Nomad Autoscaler's plugins: the APM gpu-queue, the
// strategy gpu-pool and the target gpu-pool.
package plugin

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/hashicorp/go-hclog"
	"github.com/hashicorp/nomad/api"

	"github.com/nomad-gpu/nomad-gpu/autoscaler/demand"
	"github.com/nomad-gpu/nomad-gpu/autoscaler/plan"
	"github.com/nomad-gpu/nomad-gpu/autoscaler/pool"
)

// Names of the plugins in the autoscaler's configuration.
const (
	APMName      = "gpu-queue"
	StrategyName = "gpu-pool"
	TargetName   = "gpu-pool"
)

// Program is the name of the executable that serves all three.
const Program = "nomad-autoscaler-gpu"

// configFile is the setting that all three plugins have.
const configFile = "pools_file"

// lookAge is how long one look at the cluster serves: the policies of all
// pools decide on the same one.
const lookAge = time.Second

// patience bounds one look.
const patience = 30 * time.Second

// Lookout looks at the cluster and plans for all pools at once, so that two
// policies never buy for the same gang.
type Lookout struct {
	File   *pool.File
	reader *demand.Reader
	// own are the pools whose nodes we make.
	own map[string]pool.Pool

	logger  hclog.Logger
	metrics *instruments // nil: none are served
	stop    func() error // of the metrics
	record  string       // empty: none is kept
	ahead   *foresight   // nil: nothing is bought ahead

	mu       sync.Mutex
	said     map[string]bool     // the complaints of the last look
	remarks  map[string][]string // of each pool, at the last look
	awaited  map[string]*awaited
	settled  map[string]bool // nodes that were seen with GPUs
	recorded time.Time
	at       time.Time
	reading  demand.Reading
	misfits  misfits
}

// NewLookout reads the pools file; the client's settings come from the
// plugin's configuration (nomad_address, nomad_token …), else from NOMAD_*.
func NewLookout(config map[string]string, logger hclog.Logger) (*Lookout, *api.Client, error) {
	if err := checkSettings(config); err != nil {
		return nil, nil, err
	}
	file, err := pool.ReadFile(config[configFile])
	if err != nil {
		return nil, nil, err
	}
	client, err := connect(config)
	if err != nil {
		return nil, nil, err
	}
	l := &Lookout{File: file, reader: demand.NewReader(client, offers(file)...), own: map[string]pool.Pool{}, logger: logger, record: config[configRecord]}
	l.reader.Inspect = l.inMaintenance
	if l.ahead, err = newForesight(file); err != nil {
		return nil, nil, err
	}
	for i := range file.Pools {
		p, err := pool.New(&file.Pools[i], client, logger)
		if err != nil {
			return nil, nil, err
		}
		if p != nil {
			l.own[file.Pools[i].Name] = p
		}
	}
	if address := config[configMetrics]; address != "" {
		l.metrics = newInstruments()
		l.metrics.prepare(file)
		if l.stop, _, err = l.metrics.serve(address, heirPatience); err != nil {
			return nil, nil, err
		}
	}
	return l, client, nil
}

// offers are what the file tells of the devices of its pools' nodes.
func offers(file *pool.File) (all []demand.Offer) {
	for i := range file.Pools {
		d := &file.Pools[i]
		where := d.Plan().Where
		for _, g := range d.Groups() {
			all = append(all, demand.OfferOf(g.Kind, where, demand.Told{Model: g.Model, Count: g.Size, Slices: g.Slices, Island: g.Island, Islands: g.Islands, Attributes: g.Attributes}))
		}
	}
	return all
}

// ReadAll lets each look read all jobs that wait at once, however many: a
// command looks only once.
func (l *Lookout) ReadAll() { l.reader.MostJobs = 0 }

// Look returns what there is and the plan for it. For the pool named, count is
// how many nodes its target counts: those that Nomad does not know yet are on
// their way. An empty name asks for no pool in particular.
func (l *Lookout) Look(ctx context.Context, own string, count int) (demand.Reading, plan.Output, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	if now := time.Now(); now.Sub(l.at) > lookAge {
		reading, err := l.reader.Read(ctx, now)
		l.metrics.observe(time.Since(now), err)
		if err != nil {
			return demand.Reading{}, plan.Output{}, err
		}
		l.reading, l.at = reading, now
	}
	in, resting, err := l.input(own, count)
	if err != nil {
		return demand.Reading{}, plan.Output{}, err
	}
	l.misfits.tell(in.Work, in.Pools, in.Now)
	out := planAround(in, resting)
	l.misfits.learn(out.Waiting, in.Now)
	l.tell(out)
	held := samples(l.reading.At, in.Pools, in.Nodes, l.reading.Running)
	l.noteMetrics(in, out, resting, held)
	if l.record != "" && l.reading.At.Sub(l.recorded) >= recordPeriod {
		l.recorded = l.reading.At
		if err := appendRecord(l.record, queue(held, in.Pools, out.Waiting)); err != nil {
			l.logger.Warn("the record is not kept", "file", l.record, "error", err)
		}
	}
	return l.reading, out, nil
}

// Close ends what serves the metrics.
func (l *Lookout) Close() error {
	if l == nil || l.stop == nil {
		return nil
	}
	return l.stop()
}

// PoolOf says which pool each node of the cluster is of.
func (l *Lookout) PoolOf(ctx context.Context) (map[string]string, error) {
	reading, _, err := l.Look(ctx, "", 0)
	if err != nil {
		return nil, err
	}
	pools := map[string]string{}
	for _, n := range reading.Nodes {
		for i := range l.File.Pools {
			if p := l.File.Pools[i].Plan(); pools[n.Name] == "" && p.Where.Selects(n.Where) {
				pools[n.Name] = p.Name
			}
		}
	}
	return pools, nil
}

// Usage is what the cluster's allocations used between two moments.
func (l *Lookout) Usage(ctx context.Context, from, to time.Time) (demand.Usage, error) {
	pools, err := l.PoolOf(ctx)
	if err != nil {
		return demand.Usage{}, err
	}
	allocs, err := l.reader.Allocations(ctx)
	if err != nil {
		return demand.Usage{}, err
	}
	return demand.UsageOfAllocs(allocs, func(node string) string { return pools[node] }, from, to), nil
}

// planAround plans with the pools that rest as they are: what they cannot give
// now is bought elsewhere. Work that only they could serve waits for them.
func planAround(in plan.Input, resting map[string]string) plan.Output {
	if len(resting) == 0 {
		return plan.Make(in)
	}
	around := in
	around.Pools = slices.Clone(in.Pools)
	var reasons []string
	for i := range around.Pools {
		p := &around.Pools[i]
		why, rests := resting[p.Name]
		if !rests {
			continue
		}
		have := 0
		for _, n := range in.Nodes {
			if n.Pool == p.Name && !n.Closed {
				have++
			}
		}
		p.Max = max(min(p.Max, have), p.Min)
		reasons = append(reasons, fmt.Sprintf("pool %s rests: %s", p.Name, why))
	}
	out := plan.Make(around)
	ever := map[string]bool{}
	for _, w := range plan.Make(in).Waiting {
		ever[w.Work.Name()] = !w.Unsatisfiable
	}
	for i := range out.Waiting {
		if w := &out.Waiting[i]; w.Unsatisfiable && ever[w.Work.Name()] {
			w.Unsatisfiable, w.Cause = false, plan.Resting
			w.Reason = w.Work.Explain(strings.Join(reasons, "; "))
		}
	}
	for i := range out.Decisions {
		if why, rests := resting[out.Decisions[i].Pool]; rests {
			out.Decisions[i].Reason += "; the pool rests: " + why
		}
	}
	return out
}

// poolOf is the pool that a plugin's settings name.
func (l *Lookout) poolOf(config map[string]string) (*pool.Definition, error) {
	if l == nil {
		return nil, errors.New("the plugin is not configured")
	}
	return l.File.Find(config["pool"])
}
