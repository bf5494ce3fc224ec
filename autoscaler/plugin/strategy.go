// SPDX-License-Identifier: MPL-2.0

package plugin

import (
	"context"
	"fmt"
	"strings"

	"github.com/hashicorp/go-hclog"
	"github.com/hashicorp/nomad-autoscaler/plugins/base"
	"github.com/hashicorp/nomad-autoscaler/plugins/strategy"
	"github.com/hashicorp/nomad-autoscaler/sdk"

	"github.com/nomad-gpu/nomad-gpu/autoscaler/plan"
)

// releaseMeta names the nodes to let go, for the target gpu-pool.
const releaseMeta = "gpu_pool.release"

// drainMeta names the nodes to drain: their work has leave to move.
const drainMeta = "gpu_pool.drain"

// Strategy answers with the plan's count for its own pool.
type Strategy struct {
	logger  hclog.Logger
	lookout *Lookout
}

var _ strategy.Strategy = (*Strategy)(nil)

// NewStrategy makes the plugin.
func NewStrategy(logger hclog.Logger) *Strategy { return &Strategy{logger: logger.Named(StrategyName)} }

// PluginInfo names the program: the autoscaler compares it with the driver of its configuration.
func (s *Strategy) PluginInfo() (*base.PluginInfo, error) {
	return &base.PluginInfo{Name: Program, PluginType: sdk.PluginTypeStrategy}, nil
}

// SetConfig reads the pools file.
func (s *Strategy) SetConfig(config map[string]string) (err error) {
	if err := s.lookout.Close(); err != nil {
		return fmt.Errorf("%s: %w", StrategyName, err)
	}
	if s.lookout, _, err = NewLookout(config, s.logger); err != nil {
		return fmt.Errorf("%s: %w", StrategyName, err)
	}
	if err := s.lookout.keepRecord(); err != nil {
		return fmt.Errorf("%s: %w", StrategyName, err)
	}
	return nil
}

// Run plans. The metric of the check is not looked at: a strategy sees its own
// target alone, and a gang can need nodes of several pools.
func (s *Strategy) Run(eval *sdk.ScalingCheckEvaluation, count int64) (*sdk.ScalingCheckEvaluation, error) {
	d, err := s.lookout.poolOf(eval.Check.Strategy.Config)
	if err != nil {
		return nil, fmt.Errorf("strategy %s: %w", StrategyName, err)
	}
	_, out, err := s.lookout.Look(context.Background(), d.Name, int(count))
	if err != nil {
		return nil, fmt.Errorf("strategy %s: %w", StrategyName, err)
	}
	decision, ok := out.Of(d.Name)
	if !ok {
		return nil, fmt.Errorf("strategy %s: no decision for pool %q", StrategyName, d.Name)
	}
	eval.Action = action(decision, out, count)
	s.lookout.metrics.decided(d.Name, eval.Action)
	if eval.Action.Direction != sdk.ScaleDirectionNone {
		s.logger.Info("decided", "pool", d.Name, "from", count, "to", eval.Action.Count, "reason", eval.Action.Reason)
	}
	return eval, nil
}

// action is a decision in the autoscaler's words.
func action(d plan.Decision, out plan.Output, count int64) *sdk.ScalingAction {
	a := &sdk.ScalingAction{Count: count, Direction: sdk.ScaleDirectionNone, Reason: d.Reason, Meta: map[string]any{
		"queued_gpus": int64(queued(out, "", plan.Work.QueuedGPUs)), "queued_slices": int64(queued(out, "", plan.Work.QueuedSlices)),
		"needed_nodes": int64(d.Needed), "expected_gpus": int64(expected(out)), "unsatisfiable_gpus": int64(unsatisfiable(out, plan.Work.QueuedGPUs)),
	}}
	// The target may have acted between its count and this look: then the
	// next evaluation decides. A difference that stays is resolved by the look.
	switch {
	case int64(d.Now) != count:
		a.Reason = fmt.Sprintf("the pool has %d nodes and its target counts %d; deciding when both agree: once those on their way in or out are, or, where the pool selects nodes that are not its target's, after start_timeout", d.Now, count)
	case int64(d.Want) > count:
		a.Count, a.Direction = int64(d.Want), sdk.ScaleDirectionUp
	// The plan counts a node that is to be drained until it is, the target from then on no more.
	case int64(d.Want-len(d.Drain)) < count:
		a.Count, a.Direction = int64(d.Want-len(d.Drain)), sdk.ScaleDirectionDown
		a.Meta[releaseMeta], a.Meta[drainMeta] = strings.Join(d.Release, ","), strings.Join(d.Drain, ",")
	}
	return a
}
