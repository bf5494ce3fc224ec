// SPDX-License-Identifier: MPL-2.0

package pool

import (
	"context"
	"fmt"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/service/autoscaling"
	"github.com/aws/aws-sdk-go-v2/service/autoscaling/types"
)

// groupMaker makes machines through an Auto Scaling group: its desired
// capacity is what was asked for, its instances are what came of it.
type groupMaker struct {
	aws       *AWS
	asg       *autoscaling.Client
	instances *instances
	prepared  bool
	// last is the newest scaling activity when machines were last asked for:
	// only a later one tells why they do not come.
	last string
}

func (m *groupMaker) group(ctx context.Context) (*types.AutoScalingGroup, error) {
	out, err := m.asg.DescribeAutoScalingGroups(ctx, &autoscaling.DescribeAutoScalingGroupsInput{AutoScalingGroupNames: []string{m.aws.Group}})
	if err != nil {
		return nil, fmt.Errorf("describe the Auto Scaling group: %w", err)
	}
	if len(out.AutoScalingGroups) == 0 {
		return nil, fmt.Errorf("aws.group: %q; there is no such Auto Scaling group in %s", m.aws.Group, m.aws.Region)
	}
	g := &out.AutoScalingGroups[0]
	if unit := aws.ToString(g.DesiredCapacityType); unit != "" && unit != "units" {
		return nil, fmt.Errorf("aws.group: %q counts its capacity in %q; allowed is \"units\", which are instances", m.aws.Group, unit)
	}
	if p := g.MixedInstancesPolicy; p != nil && p.LaunchTemplate != nil {
		for _, o := range p.LaunchTemplate.Overrides {
			if weight := aws.ToString(o.WeightedCapacity); weight != "" && weight != "1" {
				return nil, fmt.Errorf("aws.group: %q has instance type %q with weight %s; allowed is 1: its capacity is taken for instances", m.aws.Group, aws.ToString(o.InstanceType), weight)
			}
		}
	}
	return g, nil
}

// counts reports whether an instance counts against the desired capacity. One
// that waits at a hook on its way out is still there, with its work.
func counts(i types.Instance) (counted, waits bool) {
	switch i.LifecycleState {
	case types.LifecycleStateTerminating, types.LifecycleStateTerminatingProceed, types.LifecycleStateTerminated,
		types.LifecycleStateDetaching, types.LifecycleStateDetached, types.LifecycleStateEnteringStandby, types.LifecycleStateStandby:
		return false, false
	case types.LifecycleStateTerminatingWait:
		return false, true
	}
	return true, false
}

func (m *groupMaker) List(ctx context.Context) ([]Machine, string, error) {
	g, err := m.group(ctx)
	if err != nil {
		return nil, "", err
	}
	var ids []string
	waiting := map[string]bool{}
	counted := 0
	for _, i := range g.Instances {
		c, w := counts(i)
		if !c && !w {
			continue
		}
		if c {
			counted++
		}
		id := aws.ToString(i.InstanceId)
		ids, waiting[id] = append(ids, id), w
	}
	machines, err := m.instances.describe(ctx, ids)
	if err != nil {
		return nil, "", err
	}
	for i := range machines {
		machines[i].Interrupted = machines[i].Interrupted || waiting[machines[i].ID]
	}
	missing := int(aws.ToInt32(g.DesiredCapacity)) - counted
	for i := range max(missing, 0) {
		machines = append(machines, Machine{ID: pendingID(i), Pending: true})
	}
	if missing <= 0 {
		return machines, "", nil
	}
	refused, err := m.refused(ctx)
	return machines, refused, err
}

// refused is what the newest activity since the last order failed with.
func (m *groupMaker) refused(ctx context.Context) (string, error) {
	activities, err := m.activities(ctx)
	if err != nil || len(activities) == 0 || aws.ToString(activities[0].ActivityId) == m.last || activities[0].StatusCode != types.ScalingActivityStatusCodeFailed {
		return "", err
	}
	return lastLine([]byte(aws.ToString(activities[0].StatusMessage))), nil
}

func (m *groupMaker) activities(ctx context.Context) ([]types.Activity, error) {
	out, err := m.asg.DescribeScalingActivities(ctx, &autoscaling.DescribeScalingActivitiesInput{AutoScalingGroupName: &m.aws.Group, MaxRecords: aws.Int32(1)})
	if err != nil {
		return nil, fmt.Errorf("describe scaling activities: %w", err)
	}
	return out.Activities, nil
}

// Create raises the desired capacity. The token is not needed: what was asked
// for before is listed as pending.
func (m *groupMaker) Create(ctx context.Context, _ string, count int) error {
	g, err := m.group(ctx)
	if err != nil {
		return err
	}
	if err := m.prepare(ctx, g); err != nil {
		return err
	}
	activities, err := m.activities(ctx)
	if err != nil {
		return err
	}
	desired := aws.ToInt32(g.DesiredCapacity) + int32(count)
	if most := aws.ToInt32(g.MaxSize); desired > most {
		return &RefusedError{fmt.Sprintf("quota: the maximum of Auto Scaling group %s is %d instances; %d are needed", m.aws.Group, most, desired)}
	}
	if err := m.setDesired(ctx, desired); err != nil {
		return err
	}
	m.last = ""
	if len(activities) > 0 {
		m.last = aws.ToString(activities[0].ActivityId)
	}
	return nil
}

func (m *groupMaker) setDesired(ctx context.Context, desired int32) error {
	if _, err := m.asg.SetDesiredCapacity(ctx, &autoscaling.SetDesiredCapacityInput{AutoScalingGroupName: &m.aws.Group, DesiredCapacity: &desired, HonorCooldown: aws.Bool(false)}); err != nil {
		return refusal("set the desired capacity", err)
	}
	return nil
}

// prepare sets, once, what the pools file says of the group, and protects its
// instances: which go is decided here, never by the group, which does not know
// what runs on them.
func (m *groupMaker) prepare(ctx context.Context, g *types.AutoScalingGroup) error {
	if m.prepared {
		return nil
	}
	change := &autoscaling.UpdateAutoScalingGroupInput{AutoScalingGroupName: &m.aws.Group}
	changed := false
	if !aws.ToBool(g.NewInstancesProtectedFromScaleIn) {
		change.NewInstancesProtectedFromScaleIn, changed = aws.Bool(true), true
	}
	if m.aws.CapacityRebalance != aws.ToBool(g.CapacityRebalance) {
		change.CapacityRebalance, changed = &m.aws.CapacityRebalance, true
	}
	if base := m.aws.OnDemandBase; base != nil {
		if g.MixedInstancesPolicy == nil {
			return fmt.Errorf("aws.on_demand_base: %d; allowed is one only where Auto Scaling group %s has a mixed instances policy", *base, m.aws.Group)
		}
		if d := g.MixedInstancesPolicy.InstancesDistribution; d == nil || int(aws.ToInt32(d.OnDemandBaseCapacity)) != *base {
			change.MixedInstancesPolicy, changed = &types.MixedInstancesPolicy{InstancesDistribution: &types.InstancesDistribution{
				OnDemandBaseCapacity: aws.Int32(int32(*base)), OnDemandPercentageAboveBaseCapacity: aws.Int32(0)}}, true
		}
	}
	if changed {
		if _, err := m.asg.UpdateAutoScalingGroup(ctx, change); err != nil {
			return fmt.Errorf("update the Auto Scaling group: %w", err)
		}
	}
	var open []string
	for _, i := range g.Instances {
		if !aws.ToBool(i.ProtectedFromScaleIn) && i.LifecycleState == types.LifecycleStateInService {
			open = append(open, aws.ToString(i.InstanceId))
		}
	}
	if len(open) > 0 {
		if _, err := m.asg.SetInstanceProtection(ctx, &autoscaling.SetInstanceProtectionInput{AutoScalingGroupName: &m.aws.Group, InstanceIds: open, ProtectedFromScaleIn: aws.Bool(true)}); err != nil {
			return fmt.Errorf("protect instances from scale-in: %w", err)
		}
	}
	m.prepared = true
	return nil
}

// Destroy ends instances and lowers the desired capacity with them, takes back
// what is no instance yet, and lets those go on that wait at the hook.
func (m *groupMaker) Destroy(ctx context.Context, ids []string) error {
	g, err := m.group(ctx)
	if err != nil {
		return err
	}
	pending, named := split(ids)
	least := aws.ToInt32(g.MinSize)
	desired := max(aws.ToInt32(g.DesiredCapacity)-int32(pending), least)
	if pending > 0 {
		if err := m.prepare(ctx, g); err != nil {
			return err
		}
		if err := m.setDesired(ctx, desired); err != nil {
			return err
		}
	}
	there := map[string]types.Instance{}
	for _, i := range g.Instances {
		there[aws.ToString(i.InstanceId)] = i
	}
	for _, id := range named {
		i, ok := there[id]
		counted, waits := counts(i)
		switch {
		case ok && waits && m.aws.LifecycleHook != "":
			if _, err := m.asg.CompleteLifecycleAction(ctx, &autoscaling.CompleteLifecycleActionInput{AutoScalingGroupName: &m.aws.Group,
				LifecycleHookName: &m.aws.LifecycleHook, InstanceId: aws.String(id), LifecycleActionResult: aws.String("CONTINUE")}); err != nil {
				return fmt.Errorf("complete lifecycle hook %s of %s: %w", m.aws.LifecycleHook, id, err)
			}
		case ok && counted && desired <= least:
			return fmt.Errorf("end instance %s: the minimum of Auto Scaling group %s is %d instances, and it has no more; allowed is at most the pool's min", id, m.aws.Group, least)
		case ok && counted:
			desired--
			if _, err := m.asg.TerminateInstanceInAutoScalingGroup(ctx, &autoscaling.TerminateInstanceInAutoScalingGroupInput{InstanceId: aws.String(id), ShouldDecrementDesiredCapacity: aws.Bool(true)}); err != nil {
				return fmt.Errorf("end instance %s: %w", id, err)
			}
		}
	}
	return nil
}
