// SPDX-License-Identifier: MPL-2.0

package notice

import (
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/shoenig/test/must"
)

// service is a metadata service that answers some paths; the others are 404.
type service struct {
	*httptest.Server
	paths map[string]string
	// guard answers what breaks the service's rules.
	guard func(http.ResponseWriter, *http.Request) bool
}

func serve(t *testing.T, guard func(http.ResponseWriter, *http.Request) bool, paths map[string]string) *service {
	s := &service{paths: paths, guard: guard}
	s.Server = httptest.NewServer(s)
	t.Cleanup(s.Close)
	return s
}

func (s *service) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	if s.guard(w, r) {
		return
	}
	text, ok := s.paths[r.URL.Path]
	switch {
	case !ok:
		http.NotFound(w, r)
	case text == "refused":
		http.Error(w, "no", http.StatusForbidden)
	case text == "slow":
		<-r.Context().Done()
	case text == "elsewhere":
		http.Redirect(w, r, "/elsewhere", http.StatusFound)
	case text == "endless":
		for {
			if _, err := w.Write(make([]byte, 64<<10)); err != nil {
				return
			}
		}
	default:
		fmt.Fprint(w, text)
	}
}

// read takes one read of a source at the service.
func (s *service) read(t *testing.T, source string) (*Notice, error) {
	c := Config{Source: source, Address: s.URL, Period: 5 * time.Second, Rebalance: true}
	for _, text := range s.paths {
		if text == "slow" {
			c.Period = 50 * time.Millisecond
		}
	}
	return New(c).Read(t.Context())
}

// tokens is IMDSv2: nothing without a token that was put.
func tokens(issued *atomic.Int32) func(http.ResponseWriter, *http.Request) bool {
	return func(w http.ResponseWriter, r *http.Request) bool {
		if r.Method == http.MethodPut && r.URL.Path == "/latest/api/token" {
			issued.Add(1)
			w.Header().Set("X-Aws-Ec2-Metadata-Token-Ttl-Seconds", r.Header.Get("X-Aws-Ec2-Metadata-Token-Ttl-Seconds"))
			fmt.Fprint(w, "secret")
			return true
		}
		if r.Header.Get("X-Aws-Ec2-Metadata-Token") != "secret" {
			w.WriteHeader(http.StatusUnauthorized)
			return true
		}
		return false
	}
}

// flavour is the header that a cloud asks for, so that no page can be made to read it.
func flavour(name, value string) func(http.ResponseWriter, *http.Request) bool {
	return func(w http.ResponseWriter, r *http.Request) bool {
		if r.Header.Get(name) == value && r.Method == http.MethodGet {
			return false
		}
		http.Error(w, "wrong flavour", http.StatusForbidden)
		return true
	}
}

// expected is what a read says: a notice, an error, or neither.
type expected struct {
	paths  map[string]string
	notice string
	err    string
}

func (e expected) check(t *testing.T, n *Notice, err error) {
	if e.err != "" {
		must.ErrorContains(t, err, e.err)
		must.Nil(t, n)
		must.Less(t, 600, len(err.Error()))
		return
	}
	must.NoError(t, err)
	if e.notice == "" {
		must.Nil(t, n)
		return
	}
	must.NotNil(t, n)
	must.Eq(t, e.notice, n.String())
}

func TestAWSSaysWhetherASpotInstanceIsTakenBack(t *testing.T) {
	const action, advice = "/latest/meta-data/spot/instance-action", "/latest/meta-data/events/recommendations/rebalance"
	for name, e := range map[string]expected{
		"nothing is announced": {},
		"an end": {paths: map[string]string{action: `{"action": "terminate", "time": "2026-12-01T08:22:00Z"}`},
			notice: "spot notice: AWS: spot instance-action terminate at 2026-12-01T08:22:00Z"},
		"an end counts before a recommendation": {paths: map[string]string{action: `{"action": "stop", "time": "2026-12-01T08:22:00Z"}`, advice: `{"noticeTime": "2026-12-01T08:00:00Z"}`},
			notice: "spot notice: AWS: spot instance-action stop at 2026-12-01T08:22:00Z"},
		"a recommendation":                  {paths: map[string]string{advice: `{"noticeTime": "2026-12-01T08:00:00Z"}`}, notice: "spot notice: AWS: rebalance recommendation"},
		"an action nobody knows":            {paths: map[string]string{action: `{"action": "explode", "time": "2026-12-01T08:22:00Z"}`}, err: `action "explode"; allowed are terminate, stop, hibernate`},
		"a time that is none":               {paths: map[string]string{action: `{"action": "stop", "time": "soon"}`}, err: "spot/instance-action"},
		"no JSON":                           {paths: map[string]string{action: "<html>"}, err: "spot/instance-action"},
		"a recommendation without its time": {paths: map[string]string{advice: "{}"}, err: "no noticeTime"},
		"an answer that does not come":      {paths: map[string]string{action: "slow"}, err: "read spot/instance-action of AWS's instance metadata"},
		"an answer without end":             {paths: map[string]string{action: "endless"}, err: "more than 262144 bytes"},
		"a refusal":                         {paths: map[string]string{action: "refused"}, err: "403"},
		"an answer that points elsewhere":   {paths: map[string]string{action: "elsewhere", "/elsewhere": `{"action": "terminate"}`}, err: "302"},
	} {
		t.Run(name, func(t *testing.T) {
			var issued atomic.Int32
			n, err := serve(t, tokens(&issued), e.paths).read(t, "aws")
			e.check(t, n, err)
			must.Eq(t, 1, issued.Load())
		})
	}
}

func TestAWSIsNotReadWithoutAToken(t *testing.T) {
	for _, status := range []int{http.StatusForbidden, http.StatusNotFound, http.StatusMethodNotAllowed} {
		asked := atomic.Int32{}
		s := serve(t, func(w http.ResponseWriter, r *http.Request) bool {
			if r.Method == http.MethodPut {
				w.WriteHeader(status)
				return true
			}
			asked.Add(1)
			return false
		}, map[string]string{"/latest/meta-data/spot/instance-action": `{"action": "terminate", "time": "2026-12-01T08:22:00Z"}`})
		n, err := s.read(t, "aws")
		must.Error(t, err, must.Sprint("status", status))
		must.Nil(t, n)
		must.Eq(t, 0, asked.Load())
	}
}

func TestRebalanceRecommendationsCanBeIgnored(t *testing.T) {
	var issued atomic.Int32
	s := serve(t, tokens(&issued), map[string]string{"/latest/meta-data/events/recommendations/rebalance": `{"noticeTime": "2026-12-01T08:00:00Z"}`})
	n, err := New(Config{Source: "aws", Address: s.URL, Period: 5 * time.Second}).Read(t.Context())
	must.NoError(t, err)
	must.Nil(t, n)
}

func TestGoogleSaysWhetherAnInstanceIsStopped(t *testing.T) {
	const preempted, event = "/computeMetadata/v1/instance/preempted", "/computeMetadata/v1/instance/maintenance-event"
	for name, e := range map[string]expected{
		"items that are not there":     {},
		"nothing is announced":         {paths: map[string]string{preempted: "FALSE", event: "NONE"}},
		"a preemption":                 {paths: map[string]string{preempted: "TRUE\n", event: "NONE"}, notice: "spot notice: Google: preempted"},
		"a maintenance that stops it":  {paths: map[string]string{preempted: "FALSE", event: "TERMINATE_ON_HOST_MAINTENANCE"}, notice: "spot notice: Google: maintenance, the instance is stopped"},
		"a maintenance that moves it":  {paths: map[string]string{preempted: "FALSE", event: "MIGRATE_ON_HOST_MAINTENANCE"}},
		"a word nobody knows":          {paths: map[string]string{preempted: "perhaps"}, err: `instance/preempted of Google's metadata: "perhaps"; allowed are TRUE and FALSE`},
		"an event nobody knows":        {paths: map[string]string{event: "FLOOD"}, err: `instance/maintenance-event of Google's metadata: "FLOOD"; allowed are NONE`},
		"a refusal":                    {paths: map[string]string{preempted: "refused"}, err: "read instance/preempted of Google's metadata: status 403: no"},
		"an answer that does not come": {paths: map[string]string{preempted: "slow"}, err: "read instance/preempted of Google's metadata"},
		"an answer without end":        {paths: map[string]string{preempted: "endless"}, err: "more than 262144 bytes"},
	} {
		t.Run(name, func(t *testing.T) {
			n, err := serve(t, flavour("Metadata-Flavor", "Google"), e.paths).read(t, "google")
			e.check(t, n, err)
		})
	}
}

func TestAzureSaysWhetherThisMachineIsTakenBack(t *testing.T) {
	const name, events = "/metadata/instance/compute/name", "/metadata/scheduledevents"
	document := func(list ...string) map[string]string {
		return map[string]string{name: "node_3", events: `{"DocumentIncarnation": 2, "Events": [` + strings.Join(list, ",") + `]}`}
	}
	event := func(kind, machine, at string) string {
		return fmt.Sprintf(`{"EventId": "e", "EventType": %q, "ResourceType": "VirtualMachine", "Resources": ["node_1", %q], "EventStatus": "Scheduled", "NotBefore": %q}`, kind, machine, at)
	}
	const at, later = "Tue, 01 Dec 2026 08:22:00 GMT", "Tue, 01 Dec 2026 09:22:00 GMT"
	for title, e := range map[string]expected{
		"nothing is announced":                     {paths: document()},
		"a preemption":                             {paths: document(event("Preempt", "node_3", at)), notice: "spot notice: Azure: Preempt at 2026-12-01T08:22:00Z"},
		"an event that has begun":                  {paths: document(event("Terminate", "NODE_3", "")), notice: "spot notice: Azure: Terminate"},
		"another machine's":                        {paths: document(event("Preempt", "node_4", at))},
		"a freeze of seconds":                      {paths: document(event("Freeze", "node_3", at))},
		"the first of several":                     {paths: document(event("Reboot", "node_3", later), event("Redeploy", "node_3", at)), notice: "spot notice: Azure: Redeploy at 2026-12-01T08:22:00Z"},
		"an event nobody knows":                    {paths: document(event("Flood", "node_3", at)), err: `EventType "Flood"; allowed are Freeze`},
		"an unknown event hides no known one":      {paths: document(event("Flood", "node_3", at), event("Preempt", "node_3", later)), notice: "spot notice: Azure: Preempt at 2026-12-01T09:22:00Z"},
		"a time that is none":                      {paths: document(event("Preempt", "node_3", "soon")), err: `NotBefore "soon"; allowed is a time such as`},
		"no JSON":                                  {paths: map[string]string{name: "node_3", events: "<html>"}, err: "read the scheduled events of Azure's metadata"},
		"no name":                                  {paths: map[string]string{name: " ", events: "{}"}, err: "read this machine's name of Azure's metadata: it is empty"},
		"no events":                                {paths: map[string]string{name: "node_3"}, err: "read the scheduled events of Azure's metadata: status 404"},
		"an answer that does not come":             {paths: map[string]string{name: "slow"}, err: "read this machine's name of Azure's metadata"},
		"an answer without end":                    {paths: map[string]string{name: "node_3", events: "endless"}, err: "more than 262144 bytes"},
		"an answer that points elsewhere is none":  {paths: map[string]string{name: "elsewhere", "/elsewhere": "node_3"}, err: "status 302"},
		"a refusal names its status and its words": {paths: map[string]string{name: "refused"}, err: "status 403: no"},
	} {
		t.Run(title, func(t *testing.T) {
			n, err := serve(t, flavour("Metadata", "true"), e.paths).read(t, "azure")
			e.check(t, n, err)
		})
	}
}

func TestMetadataIsNeverReadThroughAProxy(t *testing.T) {
	must.Nil(t, newClient("", time.Second).Transport.(bounded).next.(*http.Transport).Proxy)
}
