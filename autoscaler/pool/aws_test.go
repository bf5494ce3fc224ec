// SPDX-License-Identifier: MPL-2.0

package pool

import (
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/credentials"
	"github.com/shoenig/test/must"
)

// fakeAWS answers as the Auto Scaling and EC2 query APIs do, over one group or
// fleet. What it is told to do is noted; it makes no instances by itself.
type fakeAWS struct {
	mu        sync.Mutex
	desired   int
	states    map[string]string // lifecycle state of an instance
	marked    []string          // spot instances with notice
	activity  string            // id of the newest, which has failed with failure
	failure   string
	fleetErr  string            // subtype of the fleet's error
	errors    map[string]string // error code of an action
	protected bool
	least     int    // the group's minimum
	weight    string // of the instance type of a group or fleet; empty: it has none
	unit      string // what the group counts
	did       []string
}

func (f *fakeAWS) ids() []string {
	var ids []string
	for id := range f.states {
		ids = append(ids, id)
	}
	slices.Sort(ids)
	return ids
}

func (f *fakeAWS) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	f.mu.Lock()
	defer f.mu.Unlock()
	r.ParseForm()
	action := r.Form.Get("Action")
	if code := f.errors[action]; code != "" {
		w.WriteHeader(http.StatusBadRequest)
		if strings.Contains(action, "Fleet") {
			fmt.Fprintf(w, `<Response><Errors><Error><Code>%s</Code><Message>none here</Message></Error></Errors></Response>`, code)
		} else {
			fmt.Fprintf(w, `<ErrorResponse><Error><Code>%s</Code><Message>none here</Message></Error></ErrorResponse>`, code)
		}
		return
	}
	var b strings.Builder
	switch action {
	case "DescribeAutoScalingGroups":
		fmt.Fprintf(&b, `<AutoScalingGroups><member><AutoScalingGroupName>g</AutoScalingGroupName><MinSize>%d</MinSize><DesiredCapacityType>%s</DesiredCapacityType><MaxSize>8</MaxSize><DesiredCapacity>%d</DesiredCapacity><NewInstancesProtectedFromScaleIn>%t</NewInstancesProtectedFromScaleIn><MixedInstancesPolicy><InstancesDistribution><OnDemandBaseCapacity>0</OnDemandBaseCapacity></InstancesDistribution><LaunchTemplate><Overrides><member><InstanceType>p5.48xlarge</InstanceType>%s</member></Overrides></LaunchTemplate></MixedInstancesPolicy><Instances>`, f.least, f.unit, f.desired, f.protected, f.weighs("WeightedCapacity"))
		for _, id := range f.ids() {
			fmt.Fprintf(&b, `<member><InstanceId>%s</InstanceId><LifecycleState>%s</LifecycleState><ProtectedFromScaleIn>%t</ProtectedFromScaleIn></member>`, id, f.states[id], f.protected)
		}
		b.WriteString(`</Instances></member></AutoScalingGroups>`)
	case "DescribeScalingActivities":
		if f.activity != "" {
			fmt.Fprintf(&b, `<Activities><member><ActivityId>%s</ActivityId><StatusCode>Failed</StatusCode><StatusMessage>%s</StatusMessage></member></Activities>`, f.activity, f.failure)
		}
	case "DescribeInstances":
		b.WriteString(`<reservationSet><item><instancesSet>`)
		for i, id := range f.ids() {
			fmt.Fprintf(&b, `<item><instanceId>%s</instanceId><privateIpAddress>10.0.0.%d</privateIpAddress><instanceLifecycle>spot</instanceLifecycle></item>`, id, i+1)
		}
		b.WriteString(`</instancesSet></item></reservationSet>`)
	case "DescribeSpotInstanceRequests":
		b.WriteString(`<spotInstanceRequestSet>`)
		for _, id := range f.marked {
			fmt.Fprintf(&b, `<item><instanceId>%s</instanceId></item>`, id)
		}
		b.WriteString(`</spotInstanceRequestSet>`)
	case "DescribeFleets":
		status := "fulfilled"
		if f.fleetErr != "" {
			status = "error"
		}
		fmt.Fprintf(&b, `<fleetSet><item><fleetId>fleet-1</fleetId><type>maintain</type><activityStatus>%s</activityStatus><targetCapacitySpecification><totalTargetCapacity>%d</totalTargetCapacity><defaultTargetCapacityType>spot</defaultTargetCapacityType></targetCapacitySpecification><launchTemplateConfigs><item><overrides><item><instanceType>p5.48xlarge</instanceType>%s</item></overrides></item></launchTemplateConfigs></item></fleetSet>`, status, f.desired, f.weighs("weightedCapacity"))
	case "DescribeFleetInstances":
		b.WriteString(`<activeInstanceSet>`)
		for _, id := range f.ids() {
			fmt.Fprintf(&b, `<item><instanceId>%s</instanceId></item>`, id)
		}
		b.WriteString(`</activeInstanceSet>`)
	case "DescribeFleetHistory":
		fmt.Fprintf(&b, `<historyRecordSet><item><timestamp>2026-01-01T00:00:00Z</timestamp><eventInformation><eventSubType>old</eventSubType></eventInformation></item><item><timestamp>2026-01-02T00:00:00Z</timestamp><eventInformation><eventSubType>%s</eventSubType><eventDescription>no luck</eventDescription></eventInformation></item></historyRecordSet>`, f.fleetErr)
	default:
		f.did = append(f.did, f.do(action, r.Form))
	}
	if strings.HasPrefix(action, "Describe") && (strings.Contains(action, "Instance") || strings.Contains(action, "Fleet")) {
		fmt.Fprintf(w, `<%[1]sResponse>%[2]s</%[1]sResponse>`, action, b.String())
		return
	}
	fmt.Fprintf(w, `<%[1]sResponse><%[1]sResult>%[2]s</%[1]sResult></%[1]sResponse>`, action, b.String())
}

func (f *fakeAWS) weighs(element string) string {
	if f.weight == "" {
		return ""
	}
	return fmt.Sprintf("<%[1]s>%[2]s</%[1]s>", element, f.weight)
}

// do carries a change out, and says what it was.
func (f *fakeAWS) do(action string, form url.Values) string {
	said := action
	var keys []string
	for key := range form {
		if key != "Action" && key != "Version" && key != "AutoScalingGroupName" && key != "FleetId" {
			keys = append(keys, key)
		}
	}
	slices.Sort(keys)
	for _, key := range keys {
		said += " " + key[strings.LastIndex(key, ".")+1:] + "=" + form.Get(key)
	}
	if n, err := strconv.Atoi(form.Get("DesiredCapacity") + form.Get("TargetCapacitySpecification.TotalTargetCapacity")); err == nil {
		f.desired = n
	}
	switch action {
	case "UpdateAutoScalingGroup":
		f.protected = true
	case "TerminateInstanceInAutoScalingGroup":
		delete(f.states, form.Get("InstanceId"))
		f.desired--
	case "TerminateInstances":
		delete(f.states, form.Get("InstanceId.1"))
	}
	return said
}

func newFakeAWS(t *testing.T, d *Definition) (*fakeAWS, Maker) {
	f := &fakeAWS{states: map[string]string{}, errors: map[string]string{}}
	server := httptest.NewServer(f)
	t.Cleanup(server.Close)
	cfg := aws.Config{Region: "us-east-1", BaseEndpoint: &server.URL, RetryMaxAttempts: 1, Credentials: credentials.NewStaticCredentialsProvider("id", "secret", "")}
	return f, makerOn(cfg, d)
}

func groupPool() *Definition {
	return &Definition{Name: "spot", Kind: "aws-asg", AWS: &AWS{Region: "us-east-1", Group: "g", LifecycleHook: "bye"}}
}

func fleetPool() *Definition {
	return &Definition{Name: "spot", Kind: "aws-ec2-fleet", AWS: &AWS{Region: "us-east-1", Fleet: "fleet-1"}}
}

func TestAGroupsInstancesAndWhatItOwesAreMachines(t *testing.T) {
	f, m := newFakeAWS(t, groupPool())
	f.desired = 4
	f.states = map[string]string{"i-1": "InService", "i-2": "Pending", "i-3": "Terminating:Wait", "i-4": "Terminating", "i-5": "InService"}
	f.marked = []string{"i-5", "i-of-another"}
	machines, refused, err := m.List(t.Context())
	must.NoError(t, err)
	must.Eq(t, "", refused)
	must.Eq(t, []Machine{{ID: "i-1", Address: "10.0.0.1"}, {ID: "i-2", Address: "10.0.0.2"}, {ID: "i-3", Address: "10.0.0.3", Interrupted: true},
		{ID: "i-5", Address: "10.0.0.5", Interrupted: true}, {ID: "pending-1", Pending: true}}, machines)
}

func TestAGroupGrowsAndItsInstancesAreProtectedFromIt(t *testing.T) {
	d := groupPool()
	base := 2
	d.AWS.OnDemandBase, d.AWS.CapacityRebalance = &base, true
	f, m := newFakeAWS(t, d)
	f.desired, f.states = 1, map[string]string{"i-1": "InService"}
	must.NoError(t, m.Create(t.Context(), "", 3))
	must.Eq(t, []string{
		"UpdateAutoScalingGroup CapacityRebalance=true OnDemandBaseCapacity=2 OnDemandPercentageAboveBaseCapacity=0 NewInstancesProtectedFromScaleIn=true",
		"SetInstanceProtection 1=i-1 ProtectedFromScaleIn=true",
		"SetDesiredCapacity DesiredCapacity=4 HonorCooldown=false",
	}, f.did)
	machines, _, err := m.List(t.Context())
	must.NoError(t, err)
	must.Len(t, 4, machines, must.Sprint("what was asked for counts at once"))
	var refused *RefusedError
	must.True(t, errors.As(m.Create(t.Context(), "", 5), &refused))
	must.Eq(t, "quota: the maximum of Auto Scaling group g is 8 instances; 9 are needed", refused.Reason)
}

func TestAGroupLetsExactlyTheNamedInstancesGo(t *testing.T) {
	f, m := newFakeAWS(t, groupPool())
	f.protected = true
	f.desired, f.states = 4, map[string]string{"i-1": "InService", "i-2": "InService", "i-3": "Terminating:Wait"}
	must.NoError(t, m.Destroy(t.Context(), []string{"i-2", "i-3", "i-gone", "pending-1"}))
	must.Eq(t, []string{"SetDesiredCapacity DesiredCapacity=3 HonorCooldown=false",
		"TerminateInstanceInAutoScalingGroup InstanceId=i-2 ShouldDecrementDesiredCapacity=true",
		"CompleteLifecycleAction InstanceId=i-3 LifecycleActionResult=CONTINUE LifecycleHookName=bye"}, f.did[len(f.did)-3:])
}

func TestWhatCountsInAnotherUnitThanInstancesIsRefused(t *testing.T) {
	f, m := newFakeAWS(t, groupPool())
	f.weight, f.unit = "1", "units"
	_, _, err := m.List(t.Context())
	must.NoError(t, err)
	f.weight = "8"
	_, _, err = m.List(t.Context())
	must.EqError(t, err, `aws.group: "g" has instance type "p5.48xlarge" with weight 8; allowed is 1: its capacity is taken for instances`)
	f.weight, f.unit = "", "vcpu"
	must.EqError(t, m.Create(t.Context(), "", 1), `aws.group: "g" counts its capacity in "vcpu"; allowed is "units", which are instances`)
	must.SliceEmpty(t, f.did)

	f, m = newFakeAWS(t, fleetPool())
	f.weight = "1"
	_, _, err = m.List(t.Context())
	must.NoError(t, err)
	f.weight = "8"
	must.EqError(t, m.Create(t.Context(), "", 1), `aws.fleet: "fleet-1" has instance type "p5.48xlarge" with weight 8; allowed is 1: its capacity is taken for instances`)
	must.SliceEmpty(t, f.did)
}

func TestAGroupsOwnMinimumIsNamed(t *testing.T) {
	f, m := newFakeAWS(t, groupPool())
	f.protected, f.least = true, 1
	f.desired, f.states = 2, map[string]string{"i-1": "InService", "i-2": "InService"}
	must.EqError(t, m.Destroy(t.Context(), []string{"i-2", "i-1"}), "end instance i-1: the minimum of Auto Scaling group g is 1 instances, and it has no more; allowed is at most the pool's min")
	must.Eq(t, []string{"i-1"}, f.ids())
}

func TestWhyAGroupsInstancesDoNotComeIsTold(t *testing.T) {
	f, m := newFakeAWS(t, groupPool())
	f.protected, f.activity, f.failure = true, "a1", "Could not launch: old"
	must.NoError(t, m.Create(t.Context(), "", 2))
	_, refused, err := m.List(t.Context())
	must.NoError(t, err)
	must.Eq(t, "", refused, must.Sprint("that failure is of an earlier order"))
	f.activity, f.failure = "a2", "Could not launch Spot Instances. InsufficientInstanceCapacity - none in us-east-1a."
	_, refused, err = m.List(t.Context())
	must.NoError(t, err)
	must.Eq(t, f.failure, refused)
	f.desired = 0
	_, refused, err = m.List(t.Context())
	must.NoError(t, err)
	must.Eq(t, "", refused, must.Sprint("nothing is missing"))
}

func TestAFleetGrowsShrinksAndTellsItsError(t *testing.T) {
	d := fleetPool()
	base := 1
	d.AWS.OnDemandBase = &base
	f, m := newFakeAWS(t, d)
	f.desired, f.states, f.marked = 2, map[string]string{"i-1": "", "i-2": ""}, []string{"i-2"}
	must.NoError(t, m.Create(t.Context(), "", 2))
	must.Eq(t, []string{"ModifyFleet ExcessCapacityTerminationPolicy=no-termination DefaultTargetCapacityType=spot OnDemandTargetCapacity=1 SpotTargetCapacity=3 TotalTargetCapacity=4"}, f.did)
	f.fleetErr = "spotInstanceCountLimitExceeded"
	machines, refused, err := m.List(t.Context())
	must.NoError(t, err)
	must.Eq(t, []Machine{{ID: "i-1", Address: "10.0.0.1"}, {ID: "i-2", Address: "10.0.0.2", Interrupted: true}, {ID: "pending-1", Pending: true}, {ID: "pending-2", Pending: true}}, machines)
	must.Eq(t, "spotInstanceCountLimitExceeded: no luck", refused)

	f.errors["TerminateInstances"] = "RequestLimitExceeded"
	must.ErrorContains(t, m.Destroy(t.Context(), []string{"i-2", "pending-1", "pending-2"}), `end instances ["i-2"]`)
	must.Eq(t, 1, f.desired)
	delete(f.errors, "TerminateInstances")
	must.NoError(t, m.Destroy(t.Context(), []string{"i-2"}))
	must.Eq(t, 1, f.desired, must.Sprint("done again it takes no more"))
	must.Eq(t, []string{"i-1"}, f.ids())
}

func TestWhatAWSHasNotToGiveIsARefusal(t *testing.T) {
	for code, want := range map[string]string{
		"InsufficientInstanceCapacity": "capacity: InsufficientInstanceCapacity: none here",
		"VcpuLimitExceeded":            "quota: VcpuLimitExceeded: none here",
		"UnauthorizedOperation":        "",
	} {
		f, m := newFakeAWS(t, fleetPool())
		f.errors["ModifyFleet"] = code
		err := m.Create(t.Context(), "", 1)
		must.ErrorContains(t, err, code)
		var refused *RefusedError
		must.Eq(t, want != "", errors.As(err, &refused))
		if refused != nil {
			must.Eq(t, want, refused.Reason)
		}
	}
}

func TestAnAWSErrorNamesTheCall(t *testing.T) {
	for action, want := range map[string]string{"DescribeAutoScalingGroups": "describe the Auto Scaling group", "DescribeInstances": "describe instances",
		"DescribeSpotInstanceRequests": "describe spot instance requests", "DescribeScalingActivities": "describe scaling activities"} {
		f, m := newFakeAWS(t, groupPool())
		f.desired, f.states = 2, map[string]string{"i-1": "InService"}
		f.errors[action] = "AccessDenied"
		_, _, err := m.List(t.Context())
		must.ErrorContains(t, err, want)
	}
}

func TestAnAWSPoolIsChecked(t *testing.T) {
	negative := -1
	for name, c := range map[string]struct {
		change func(*Definition)
		want   string
	}{
		"no block":    {func(d *Definition) { d.AWS = nil }, `aws: no block; kind "aws-asg" needs one`},
		"directory":   {func(d *Definition) { d.AWS.Dir = "x" }, `aws.dir: "x"; allowed is an absolute path`},
		"region":      {func(d *Definition) { d.AWS.Region = "Virginia" }, `aws.region: "Virginia"`},
		"no group":    {func(d *Definition) { d.AWS.Group = "" }, `aws.group: ""`},
		"both":        {func(d *Definition) { d.AWS.Fleet = "fleet-1" }, `aws.group: "g"; allowed is the name of an Auto Scaling group, and no fleet`},
		"fleet":       {func(d *Definition) { d.Kind, d.AWS.Group, d.AWS.LifecycleHook = "aws-ec2-fleet", "", "" }, `aws.fleet: ""`},
		"base":        {func(d *Definition) { d.AWS.OnDemandBase = &negative }, "aws.on_demand_base: -1"},
		"endpoint":    {func(d *Definition) { d.AWS.Endpoint = "localhost" }, `aws.endpoint: "localhost"`},
		"other kinds": {func(d *Definition) { d.Kind = "target" }, `aws: a block; allowed is one only with kind "aws-asg" "aws-ec2-fleet"`},
	} {
		d := groupPool()
		d.AWS.Dir = "/var/lib/pool"
		must.SliceEmpty(t, d.validateMaker())
		c.change(d)
		must.ErrorContains(t, errors.Join(d.validateMaker()...), c.want, must.Sprint(name))
	}
}
