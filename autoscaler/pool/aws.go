// SPDX-License-Identifier: MPL-2.0

package pool

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/config"
	"github.com/aws/aws-sdk-go-v2/service/autoscaling"
	"github.com/aws/aws-sdk-go-v2/service/ec2"
	ec2types "github.com/aws/aws-sdk-go-v2/service/ec2/types"
	"github.com/aws/smithy-go"
)

// AWS is a pool of instances of one Auto Scaling group, or of one EC2 Fleet of
// type maintain, that exists already with its launch template. Credentials
// come from where AWS's own tools take them.
type AWS struct {
	// Dir keeps what is known of the instances.
	Dir    string `hcl:"dir"`
	Region string `hcl:"region"`
	// Group is the name of an Auto Scaling group, Fleet the id of an EC2 Fleet.
	Group string `hcl:"group,optional"`
	Fleet string `hcl:"fleet,optional"`
	// OnDemandBase is how many of a mixed group's or fleet's instances are on-demand.
	OnDemandBase *int `hcl:"on_demand_base,optional"`
	// CapacityRebalance: AWS starts a replacement when it sees an interruption coming.
	CapacityRebalance bool `hcl:"capacity_rebalance,optional"`
	// LifecycleHook is the group's hook on termination, completed when nothing
	// runs on the instance.
	LifecycleHook string `hcl:"lifecycle_hook,optional"`
	// Endpoint replaces AWS's own, for tests and private endpoints.
	Endpoint string `hcl:"endpoint,optional"`
}

var (
	regionName = regexp.MustCompile(`^[a-z]{2,}(-[a-z0-9]+)+$`)
	fleetID    = regexp.MustCompile(`^fleet-[0-9a-f-]+$`)
)

func (a *AWS) validate(pool, kind string) (errs []error) {
	if a == nil {
		return []error{fmt.Errorf("pool %q: aws: no block; kind %q needs one", pool, kind)}
	}
	wrong := func(field string, value any, allowed string) {
		errs = append(errs, fmt.Errorf("pool %q: aws.%s: %#v; allowed is %s", pool, field, value, allowed))
	}
	if !filepath.IsAbs(a.Dir) {
		wrong("dir", a.Dir, "an absolute path")
	}
	if !regionName.MatchString(a.Region) {
		wrong("region", a.Region, "a region such as us-east-1")
	}
	switch {
	case kind == "aws-asg" && (a.Group == "" || a.Fleet != ""):
		wrong("group", a.Group, `the name of an Auto Scaling group, and no fleet, with kind "aws-asg"`)
	case kind == "aws-ec2-fleet" && (!fleetID.MatchString(a.Fleet) || a.Group != ""):
		wrong("fleet", a.Fleet, `an id such as fleet-1234, and no group, with kind "aws-ec2-fleet"`)
	case kind == "aws-ec2-fleet" && a.LifecycleHook != "":
		wrong("lifecycle_hook", a.LifecycleHook, `one only with kind "aws-asg"`)
	}
	if a.OnDemandBase != nil && *a.OnDemandBase < 0 {
		wrong("on_demand_base", *a.OnDemandBase, "0 and more")
	}
	if a.Endpoint != "" && !strings.HasPrefix(a.Endpoint, "https://") && !strings.HasPrefix(a.Endpoint, "http://") {
		wrong("endpoint", a.Endpoint, "a URL")
	}
	return errs
}

func newAWS(d *Definition) (Maker, error) {
	cfg, err := config.LoadDefaultConfig(context.Background(), config.WithRegion(d.AWS.Region), config.WithBaseEndpoint(d.AWS.Endpoint))
	if err != nil {
		return nil, fmt.Errorf("pool %q: aws: %w", d.Name, err)
	}
	return makerOn(cfg, d), nil
}

func makerOn(cfg aws.Config, d *Definition) Maker {
	instances := &instances{ec2: ec2.NewFromConfig(cfg), known: map[string]instance{}}
	if d.Kind == "aws-ec2-fleet" {
		return &fleetMaker{aws: d.AWS, ec2: instances.ec2, instances: instances}
	}
	return &groupMaker{aws: d.AWS, asg: autoscaling.NewFromConfig(cfg), instances: instances}
}

// instance is what does not change in an instance's life.
type instance struct {
	address string
	spot    bool
}

// instances tells of EC2 instances what groups and fleets do not.
type instances struct {
	ec2   *ec2.Client
	mu    sync.Mutex
	known map[string]instance
}

// describeAtOnce bounds one call.
const describeAtOnce = 200

// describe makes machines of instances: with their addresses, and which of the
// spot ones are about to be taken away.
func (i *instances) describe(ctx context.Context, ids []string) ([]Machine, error) {
	i.mu.Lock()
	defer i.mu.Unlock()
	var unknown []string
	for _, id := range ids {
		if i.known[id].address == "" {
			unknown = append(unknown, id)
		}
	}
	for chunk := range slices.Chunk(unknown, describeAtOnce) {
		// A filter, not a list of ids: one that is not known yet is no error.
		pages := ec2.NewDescribeInstancesPaginator(i.ec2, &ec2.DescribeInstancesInput{Filters: []ec2types.Filter{{Name: aws.String("instance-id"), Values: chunk}}})
		for pages.HasMorePages() {
			page, err := pages.NextPage(ctx)
			if err != nil {
				return nil, fmt.Errorf("describe instances: %w", err)
			}
			for _, r := range page.Reservations {
				for _, n := range r.Instances {
					i.known[aws.ToString(n.InstanceId)] = instance{aws.ToString(n.PrivateIpAddress), n.InstanceLifecycle == ec2types.InstanceLifecycleTypeSpot}
				}
			}
		}
	}
	known := map[string]instance{}
	anySpot := false
	for _, id := range ids {
		known[id] = i.known[id]
		anySpot = anySpot || known[id].spot
	}
	i.known = known // those that are gone are forgotten
	going := map[string]bool{}
	if anySpot {
		var err error
		if going, err = i.interrupted(ctx); err != nil {
			return nil, err
		}
	}
	var all []Machine
	for _, id := range ids {
		all = append(all, Machine{ID: id, Address: known[id].address, Interrupted: going[id]})
	}
	return all, nil
}

// interrupted are the instances whose spot requests AWS has given notice on:
// the same notice that the instance's metadata has.
func (i *instances) interrupted(ctx context.Context) (map[string]bool, error) {
	going := map[string]bool{}
	pages := ec2.NewDescribeSpotInstanceRequestsPaginator(i.ec2, &ec2.DescribeSpotInstanceRequestsInput{
		Filters: []ec2types.Filter{{Name: aws.String("status-code"), Values: []string{"marked-for-termination", "marked-for-stop"}}}})
	for pages.HasMorePages() {
		page, err := pages.NextPage(ctx)
		if err != nil {
			return nil, fmt.Errorf("describe spot instance requests: %w", err)
		}
		for _, r := range page.SpotInstanceRequests {
			going[aws.ToString(r.InstanceId)] = true
		}
	}
	return going, nil
}

// pendingID numbers what was asked for and is no instance yet.
func pendingID(i int) string { return fmt.Sprintf("pending-%d", i+1) }

// split parts what is no instance yet from instances.
func split(ids []string) (pending int, named []string) {
	for _, id := range ids {
		if strings.HasPrefix(id, "pending-") {
			pending++
		} else {
			named = append(named, id)
		}
	}
	return pending, named
}

// Codes with which AWS says that it has none to give
// (EC2 API reference, error codes; Service Quotas).
var (
	capacityCodes = []string{"InsufficientInstanceCapacity", "InsufficientCapacity", "InsufficientHostCapacity", "InsufficientReservedInstanceCapacity",
		"UnfulfillableCapacity", "SpotMaxPriceTooLow", "allLaunchSpecsTemporarilyBlacklisted"}
	quotaCodes = []string{"VcpuLimitExceeded", "InstanceLimitExceeded", "MaxSpotInstanceCountExceeded", "MaxSpotFleetRequestCountExceeded",
		"LimitExceeded", "ResourceCountExceeded", "spotInstanceCountLimitExceeded"}
)

// refusal turns an answer that there is none to give into a RefusedError.
func refusal(doing string, err error) error {
	var answer smithy.APIError
	if errors.As(err, &answer) {
		said := answer.ErrorCode() + ": " + lastLine([]byte(answer.ErrorMessage()))
		switch {
		case slices.Contains(capacityCodes, answer.ErrorCode()):
			return &RefusedError{"capacity: " + said}
		case slices.Contains(quotaCodes, answer.ErrorCode()):
			return &RefusedError{"quota: " + said}
		}
	}
	return fmt.Errorf("%s: %w", doing, err)
}
