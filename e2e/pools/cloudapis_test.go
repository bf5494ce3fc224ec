// SPDX-License-Identifier: MPL-2.0

package pools

import (
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"path"
	"strconv"
	"strings"
)

// aws answers as the Auto Scaling query API does over one group.
func (g *group) aws(w http.ResponseWriter, r *http.Request) {
	r.ParseForm()
	action := r.Form.Get("Action")
	done := func(id string) string {
		return fmt.Sprintf(`<ActivityId>%s</ActivityId><AutoScalingGroupName>%s</AutoScalingGroupName><Cause>asked</Cause><StartTime>2026-01-01T00:00:00Z</StartTime><StatusCode>Successful</StatusCode><Progress>100</Progress>`, id, g.name)
	}
	var b strings.Builder
	switch action {
	case "DescribeAutoScalingGroups":
		ids := g.instances()
		fmt.Fprintf(&b, `<AutoScalingGroups><member><AutoScalingGroupName>%s</AutoScalingGroupName><AvailabilityZones><member>us-east-1a</member></AvailabilityZones><MinSize>0</MinSize><MaxSize>16</MaxSize><DesiredCapacity>%d</DesiredCapacity><DefaultCooldown>0</DefaultCooldown><HealthCheckType>EC2</HealthCheckType><CreatedTime>2026-01-01T00:00:00Z</CreatedTime><Instances>`, g.name, len(ids))
		for _, id := range ids {
			fmt.Fprintf(&b, `<member><InstanceId>%s</InstanceId><AvailabilityZone>us-east-1a</AvailabilityZone><LifecycleState>InService</LifecycleState><HealthStatus>Healthy</HealthStatus><ProtectedFromScaleIn>false</ProtectedFromScaleIn></member>`, id)
		}
		b.WriteString(`</Instances></member></AutoScalingGroups>`)
	case "DescribeScalingActivities":
		b.WriteString(`<Activities>`)
		for n := 1; r.Form.Has(fmt.Sprint("ActivityIds.member.", n)); n++ {
			fmt.Fprintf(&b, `<member>%s</member>`, done(r.Form.Get(fmt.Sprint("ActivityIds.member.", n))))
		}
		b.WriteString(`</Activities>`)
	case "DescribeInstanceRefreshes", "CreateOrUpdateTags":
	case "UpdateAutoScalingGroup":
		count, _ := strconv.Atoi(r.Form.Get("DesiredCapacity"))
		g.resize(count)
	case "TerminateInstanceInAutoScalingGroup":
		g.terminate(r.Form.Get("InstanceId"))
		fmt.Fprintf(&b, `<Activity>%s</Activity>`, done("end-"+r.Form.Get("InstanceId")))
	default:
		http.Error(w, action, http.StatusNotImplemented)
		return
	}
	fmt.Fprintf(w, `<%[1]sResponse><%[1]sResult>%[2]s</%[1]sResult></%[1]sResponse>`, action, b.String())
}

// azure answers as the compute API does over one scale set.
func (g *group) azure(w http.ResponseWriter, r *http.Request) {
	w.Header().Set("Content-Type", "application/json")
	succeeded := []any{map[string]any{"code": "ProvisioningState/succeeded", "count": 1}}
	set := func() any {
		return map[string]any{"name": g.name, "sku": map[string]any{"capacity": len(g.instances())}, "properties": map[string]any{"provisioningState": "Succeeded"}}
	}
	var out any
	switch what := path.Base(r.URL.Path); {
	case r.Method == http.MethodGet && what == g.name:
		out = set()
	case what == "instanceView":
		out = map[string]any{"virtualMachine": map[string]any{"statusesSummary": succeeded}, "statuses": succeeded}
	case r.Method == http.MethodPatch && what == g.name:
		var in struct{ Sku struct{ Capacity int } }
		json.NewDecoder(r.Body).Decode(&in)
		g.resize(in.Sku.Capacity)
		out = set()
	case what == "virtualMachines":
		all := []any{}
		for _, id := range g.instances() {
			all = append(all, map[string]any{"id": r.URL.Path + "/" + id, "instanceId": strings.TrimPrefix(id, g.name+"_"),
				"properties": map[string]any{"instanceView": map[string]any{"statuses": []any{map[string]any{"code": "PowerState/running"}}}}})
		}
		out = map[string]any{"value": all}
	case what == "delete":
		var in struct{ InstanceIds []string }
		json.NewDecoder(r.Body).Decode(&in)
		for _, n := range in.InstanceIds {
			g.terminate(g.name + "_" + n)
		}
		return
	default:
		http.Error(w, r.Method+" "+r.URL.Path, http.StatusNotImplemented)
		return
	}
	json.NewEncoder(w).Encode(out)
}

// google answers as the compute API does over one zonal managed instance group.
func (g *group) google(w http.ResponseWriter, r *http.Request) {
	w.Header().Set("Content-Type", "application/json")
	out := map[string]any{}
	switch path.Base(r.URL.Path) {
	case g.name:
		out["targetSize"], out["status"] = len(g.instances()), map[string]any{"isStable": true}
	case "listManagedInstances":
		all := []any{}
		for _, id := range g.instances() {
			all = append(all, map[string]any{"instance": fmt.Sprintf("https://compute.googleapis.com/compute/v1/projects/%s/zones/%s/instances/%s", googleProject, googleZone, id),
				"instanceStatus": "RUNNING", "currentAction": "NONE"})
		}
		out["managedInstances"] = all
	case "resize":
		count, _ := strconv.Atoi(r.URL.Query().Get("size"))
		g.resize(count)
	case "deleteInstances":
		var in struct{ Instances []string }
		json.NewDecoder(r.Body).Decode(&in)
		for _, i := range in.Instances {
			g.terminate(path.Base(i))
		}
	default:
		http.Error(w, r.URL.Path, http.StatusNotImplemented)
		return
	}
	json.NewEncoder(w).Encode(out)
}

// token gives a token to whoever asks, as the clouds' authorities do to their own.
func token(w http.ResponseWriter, _ *http.Request) {
	w.Header().Set("Content-Type", "application/json")
	io.WriteString(w, `{"access_token":"token","token_type":"Bearer","expires_in":3600,"expires_on":"4102444800","not_before":"0","resource":"https://management.azure.com/"}`)
}
