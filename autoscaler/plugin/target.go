// SPDX-License-Identifier: MPL-2.0

package plugin

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"time"

	"github.com/hashicorp/go-hclog"
	"github.com/hashicorp/nomad-autoscaler/plugins/base"
	"github.com/hashicorp/nomad-autoscaler/plugins/target"
	"github.com/hashicorp/nomad-autoscaler/sdk"

	"github.com/nomad-gpu/nomad-gpu/autoscaler/pool"
)

// tendPeriod is how often what is in progress is moved on.
const tendPeriod = time.Second

// Target makes pools of our own kinds grow and shrink.
type Target struct {
	ctx     context.Context
	logger  hclog.Logger
	lookout *Lookout
	stop    context.CancelFunc
	// acting is held, shared, while nodes are made or let go.
	acting sync.RWMutex
}

var _ target.Target = (*Target)(nil)

// NewTarget makes the plugin; ctx is its life.
func NewTarget(ctx context.Context, logger hclog.Logger) *Target {
	return &Target{ctx: ctx, logger: logger.Named(TargetName)}
}

// PluginInfo names the program: the autoscaler compares it with the driver of its configuration.
func (t *Target) PluginInfo() (*base.PluginInfo, error) {
	return &base.PluginInfo{Name: Program, PluginType: sdk.PluginTypeTarget}, nil
}

// SetConfig reads the pools file, and takes up what was in progress.
func (t *Target) SetConfig(config map[string]string) error {
	if err := t.lookout.Close(); err != nil {
		return fmt.Errorf("%s: %w", TargetName, err)
	}
	lookout, _, err := NewLookout(config, t.logger)
	if err != nil {
		return fmt.Errorf("%s: %w", TargetName, err)
	}
	if t.stop != nil {
		t.stop()
	}
	ctx, stop := context.WithCancel(t.ctx)
	t.lookout, t.stop = lookout, stop
	for _, p := range lookout.own {
		go t.tend(ctx, p)
	}
	return nil
}

func (t *Target) tend(ctx context.Context, p pool.Pool) {
	tick := time.NewTicker(tendPeriod)
	defer tick.Stop()
	last := ""
	for {
		t.acting.RLock()
		err := p.Tend(ctx, time.Now())
		t.acting.RUnlock()
		if text := fmt.Sprint(err); err != nil && text != last && ctx.Err() == nil {
			last = text
			t.logger.Warn("a pool cannot be tended", "error", err)
		} else if err == nil {
			last = ""
		}
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
	}
}

func (t *Target) poolOf(config map[string]string) (pool.Pool, error) {
	d, err := t.lookout.poolOf(config)
	if err != nil {
		return nil, fmt.Errorf("target %s: %w", TargetName, err)
	}
	p := t.lookout.own[d.Name]
	if p == nil {
		return nil, fmt.Errorf(`target %s: pool %q is of kind %q; another target of the autoscaler makes its nodes`, TargetName, d.Name, d.Kind)
	}
	return p, nil
}

// Status counts the pool's nodes: those on their way in, not those on their way out.
func (t *Target) Status(config map[string]string) (*sdk.TargetStatus, error) {
	p, err := t.poolOf(config)
	if err != nil {
		return nil, err
	}
	nodes, err := p.Nodes()
	if err != nil {
		return nil, err
	}
	s := &sdk.TargetStatus{Ready: true, Meta: map[string]string{}}
	for _, n := range nodes {
		if !n.Leaving {
			s.Count++
		}
	}
	return s, nil
}

// Scale starts nodes, or marks nodes to go; it does not wait for either.
func (t *Target) Scale(action sdk.ScalingAction, config map[string]string) error {
	if action.Count == sdk.StrategyActionMetaValueDryRunCount {
		return nil
	}
	p, err := t.poolOf(config)
	if err != nil {
		return err
	}
	t.acting.RLock()
	defer t.acting.RUnlock()
	if action.Direction == sdk.ScaleDirectionUp {
		if wanted, cut := cutFrom(action); cut {
			return t.refuse(config, int(action.Count), wanted)
		}
		return p.Grow(t.ctx, time.Now(), int(action.Count))
	}
	ctx, cancel := context.WithTimeout(t.ctx, patience)
	defer cancel()
	return shrink(ctx, p, int(action.Count), named(action, releaseMeta), named(action, drainMeta))
}

// Meta of an action that the autoscaler has cut to its policy's limits
// (sdk.ScalingAction.CapCount).
const (
	metaCapped   = "nomad_autoscaler.count.capped"
	metaOriginal = "nomad_autoscaler.count.original"
)

// cutFrom is the count that was wanted where the policy's max left less of it.
func cutFrom(action sdk.ScalingAction) (wanted int, cut bool) {
	if capped, _ := action.Meta[metaCapped].(bool); !capped {
		return 0, false
	}
	switch n := action.Meta[metaOriginal].(type) {
	case int64:
		wanted = int(n)
	case float64:
		wanted = int(n)
	}
	return wanted, int64(wanted) > action.Count
}

// refuse buys nothing where a policy's max would leave a gang a part of its
// nodes. The next plans take that max for the pool's.
func (t *Target) refuse(config map[string]string, most, wanted int) error {
	d, err := t.lookout.poolOf(config)
	if err != nil {
		return err
	}
	until, err := d.Cut(time.Now(), most)
	why := fmt.Errorf("pool %q: max of its policy is %d and of the pools file %d, and %d nodes are wanted: none is bought, as a gang might get a part; make both alike. Plans take %d for the maximum until %s",
		d.Name, most, d.Max, wanted, most, until.Format(time.RFC3339))
	return errors.Join(why, err)
}

// named are the nodes that an action's meta names.
func named(action sdk.ScalingAction, meta string) []string {
	if names, ok := action.Meta[meta].(string); ok && names != "" {
		return strings.Split(names, ",")
	}
	return nil
}

// shrink drains nodes and lets nodes go. Where nodes are drained, no others go
// but those that are named: one that could not be drained is not made up for.
func shrink(ctx context.Context, p pool.Pool, count int, release, drain []string) error {
	if len(drain) == 0 {
		return p.Shrink(ctx, count, release)
	}
	drained := p.Drain(ctx, drain)
	nodes, err := p.Nodes()
	if err != nil || len(release) == 0 {
		return errors.Join(drained, err)
	}
	present := 0
	for _, n := range nodes {
		if !n.Leaving {
			present++
		}
	}
	return errors.Join(drained, p.Shrink(ctx, present-len(release), release))
}
