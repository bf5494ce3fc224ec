// SPDX-License-Identifier: MPL-2.0

package pool

import (
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/service/ec2"
	"github.com/aws/aws-sdk-go-v2/service/ec2/types"
)

// fleetMaker makes machines through an EC2 Fleet of type maintain: its target
// capacity, of weight 1 each, is what was asked for.
type fleetMaker struct {
	aws       *AWS
	ec2       *ec2.Client
	instances *instances
}

func (m *fleetMaker) fleet(ctx context.Context) (*types.FleetData, int, error) {
	out, err := m.ec2.DescribeFleets(ctx, &ec2.DescribeFleetsInput{FleetIds: []string{m.aws.Fleet}})
	if err != nil {
		return nil, 0, fmt.Errorf("describe the EC2 Fleet: %w", err)
	}
	if len(out.Fleets) == 0 {
		return nil, 0, fmt.Errorf("aws.fleet: %q; there is no such EC2 Fleet in %s", m.aws.Fleet, m.aws.Region)
	}
	f := &out.Fleets[0]
	if f.Type != types.FleetTypeMaintain {
		return nil, 0, fmt.Errorf("aws.fleet: %q is of type %q; allowed is \"maintain\"", m.aws.Fleet, f.Type)
	}
	if f.TargetCapacitySpecification == nil {
		return nil, 0, fmt.Errorf("aws.fleet: %q has no target capacity", m.aws.Fleet)
	}
	if s := f.SpotOptions; m.aws.CapacityRebalance && (s == nil || s.MaintenanceStrategies == nil || s.MaintenanceStrategies.CapacityRebalance == nil) {
		return nil, 0, fmt.Errorf("aws.capacity_rebalance: true; allowed is it only where EC2 Fleet %s was created with the maintenance strategy capacity rebalance", m.aws.Fleet)
	}
	for _, c := range f.LaunchTemplateConfigs {
		for _, o := range c.Overrides {
			if o.WeightedCapacity != nil && *o.WeightedCapacity != 1 {
				return nil, 0, fmt.Errorf("aws.fleet: %q has instance type %q with weight %v; allowed is 1: its capacity is taken for instances", m.aws.Fleet, o.InstanceType, *o.WeightedCapacity)
			}
		}
	}
	return f, int(aws.ToInt32(f.TargetCapacitySpecification.TotalTargetCapacity)), nil
}

func (m *fleetMaker) List(ctx context.Context) ([]Machine, string, error) {
	f, target, err := m.fleet(ctx)
	if err != nil {
		return nil, "", err
	}
	ids, err := m.active(ctx)
	if err != nil {
		return nil, "", err
	}
	machines, err := m.instances.describe(ctx, ids)
	if err != nil {
		return nil, "", err
	}
	for i := range max(target-len(ids), 0) {
		machines = append(machines, Machine{ID: pendingID(i), Pending: true})
	}
	if target <= len(ids) || f.ActivityStatus != types.FleetActivityStatusError {
		return machines, "", nil
	}
	refused, err := m.refused(ctx)
	return machines, refused, err
}

func (m *fleetMaker) active(ctx context.Context) (ids []string, err error) {
	in := &ec2.DescribeFleetInstancesInput{FleetId: &m.aws.Fleet}
	for {
		out, err := m.ec2.DescribeFleetInstances(ctx, in)
		if err != nil {
			return nil, fmt.Errorf("describe the fleet's instances: %w", err)
		}
		for _, i := range out.ActiveInstances {
			ids = append(ids, aws.ToString(i.InstanceId))
		}
		if in.NextToken = out.NextToken; aws.ToString(in.NextToken) == "" || len(ids) > maxMachines {
			return ids, nil
		}
	}
}

// refused is the newest error of the fleet's history.
func (m *fleetMaker) refused(ctx context.Context) (string, error) {
	out, err := m.ec2.DescribeFleetHistory(ctx, &ec2.DescribeFleetHistoryInput{FleetId: &m.aws.Fleet, EventType: types.FleetEventTypeServiceError,
		StartTime: aws.Time(time.Now().Add(-time.Hour))})
	if err != nil {
		return "", fmt.Errorf("describe the fleet's history: %w", err)
	}
	reason, at := "the EC2 Fleet is in error", time.Time{}
	for _, r := range out.HistoryRecords {
		if e := r.EventInformation; e != nil && !aws.ToTime(r.Timestamp).Before(at) {
			at = aws.ToTime(r.Timestamp)
			reason = aws.ToString(e.EventSubType) + ": " + lastLine([]byte(aws.ToString(e.EventDescription)))
		}
	}
	return reason, nil
}

// Create raises the target. The token is not needed: what was asked for before is listed as pending.
func (m *fleetMaker) Create(ctx context.Context, _ string, count int) error {
	f, target, err := m.fleet(ctx)
	if err != nil {
		return err
	}
	return m.setTarget(ctx, f, target+count)
}

// setTarget never lets the fleet choose which instances go.
func (m *fleetMaker) setTarget(ctx context.Context, f *types.FleetData, total int) error {
	spec := &types.TargetCapacitySpecificationRequest{TotalTargetCapacity: aws.Int32(int32(total)), DefaultTargetCapacityType: f.TargetCapacitySpecification.DefaultTargetCapacityType}
	if base := m.aws.OnDemandBase; base != nil {
		onDemand := min(*base, total)
		spec.OnDemandTargetCapacity, spec.SpotTargetCapacity = aws.Int32(int32(onDemand)), aws.Int32(int32(total-onDemand))
	}
	if _, err := m.ec2.ModifyFleet(ctx, &ec2.ModifyFleetInput{FleetId: &m.aws.Fleet, TargetCapacitySpecification: spec,
		ExcessCapacityTerminationPolicy: types.FleetExcessCapacityTerminationPolicyNoTermination}); err != nil {
		return refusal("modify the EC2 Fleet", err)
	}
	return nil
}

// Destroy lowers the target first: the fleet would replace what ends. Done
// again after a failure it lowers it no further.
func (m *fleetMaker) Destroy(ctx context.Context, ids []string) error {
	f, target, err := m.fleet(ctx)
	if err != nil {
		return err
	}
	active, err := m.active(ctx)
	if err != nil {
		return err
	}
	pending, named := split(ids)
	gone := slices.DeleteFunc(slices.Clone(active), func(id string) bool { return !slices.Contains(named, id) })
	left := len(active) - len(gone) + max(target-len(active)-pending, 0)
	if err := m.setTarget(ctx, f, left); err != nil {
		return err
	}
	if len(gone) == 0 {
		return nil
	}
	if _, err := m.ec2.TerminateInstances(ctx, &ec2.TerminateInstancesInput{InstanceIds: gone}); err != nil {
		return fmt.Errorf("end instances %q: %w", gone, err)
	}
	return nil
}
