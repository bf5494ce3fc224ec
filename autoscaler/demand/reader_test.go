// SPDX-License-Identifier: MPL-2.0

package demand

import (
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"runtime"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/hashicorp/nomad/api"
	"github.com/shoenig/test/must"

	"github.com/nomad-gpu/nomad-gpu/autoscaler/plan"
)

// standIn answers as Nomad's HTTP API does, and notes each call.
type standIn struct {
	mu     sync.Mutex
	calls  []string
	sent   int               // bytes of the answers
	answer map[string][]byte // by path
	status map[string]int    // of paths that are refused
}

func (s *standIn) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.calls = append(s.calls, r.URL.Path+"?"+r.URL.RawQuery)
	if code := s.status[r.URL.Path]; code != 0 {
		w.WriteHeader(code)
		fmt.Fprint(w, "Permission denied")
		return
	}
	body, ok := s.answer[r.URL.Path]
	if !ok {
		w.WriteHeader(http.StatusNotFound)
		fmt.Fprint(w, "job not found")
		return
	}
	s.sent += len(body)
	w.Write(body)
}

// set makes a path answer with a value, or with JSON as it stands.
func (s *standIn) set(t testing.TB, path string, v any) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if text, ok := v.(string); ok {
		s.answer[path] = []byte(text)
		return
	}
	data, err := json.Marshal(v)
	must.NoError(t, err)
	s.answer[path] = data
}

func (s *standIn) taken() []string {
	s.mu.Lock()
	defer s.mu.Unlock()
	defer func() { s.calls, s.sent = nil, 0 }()
	return s.calls
}

func newStandIn(t testing.TB) (*standIn, *Reader) {
	s := &standIn{answer: map[string][]byte{}, status: map[string]int{}}
	for _, path := range []string{"/v1/evaluations", "/v1/allocations", "/v1/nodes", "/v1/jobs"} {
		s.answer[path] = []byte("[]")
	}
	server := httptest.NewServer(s)
	t.Cleanup(server.Close)
	client, err := api.NewClient(&api.Config{Address: server.URL, Region: "west"})
	must.NoError(t, err)
	return s, NewReader(client)
}

// waitingEval makes a job wait as of an index.
func waitingEval(namespace, job string, index uint64) *api.Evaluation {
	return &api.Evaluation{ID: namespace + job, Namespace: namespace, JobID: job, Status: "blocked", JobModifyIndex: index, CreateTime: 7e9}
}

func jobOf(namespace, id string, index uint64) *api.Job {
	j := train()
	j.Namespace, j.ID, j.JobModifyIndex = ptr(namespace), ptr(id), ptr(index)
	return j
}

func TestAReadingCostsFourCallsAndOneForEachJobThatIsNewOrChanged(t *testing.T) {
	s, r := newStandIn(t)
	evals := []*api.Evaluation{waitingEval("default", "a", 5), waitingEval("default", "a", 5), waitingEval("research", "b", 6)}
	s.set(t, "/v1/evaluations", evals)
	s.set(t, "/v1/job/a", jobOf("default", "a", 5))
	s.set(t, "/v1/job/b", jobOf("research", "b", 6))
	first, err := r.Read(t.Context(), time.Unix(100, 0))
	must.NoError(t, err)
	must.Len(t, 2, first.Work)
	must.Eq(t, "a/gang", first.Work[0].Name())
	must.Eq(t, "research/b/gang", first.Work[1].Name())
	calls := s.taken()
	must.Len(t, 6, calls)
	for _, c := range calls {
		must.StrContains(t, c, "region=west")
	}
	must.StrContains(t, calls[0], "namespace=%2A")
	must.StrContains(t, calls[1], "namespace=%2A")

	again, err := r.Read(t.Context(), time.Unix(101, 0))
	must.NoError(t, err)
	must.Len(t, 2, again.Work)
	must.Len(t, 4, s.taken(), must.Sprint("nothing has changed"))

	evals[2].JobModifyIndex = 9
	s.set(t, "/v1/evaluations", evals)
	s.set(t, "/v1/job/b", jobOf("research", "b", 9))
	_, err = r.Read(t.Context(), time.Unix(102, 0))
	must.NoError(t, err)
	calls = s.taken()
	must.Len(t, 5, calls)
	must.StrContains(t, calls[4], "/v1/job/b?namespace=research")

	s.set(t, "/v1/evaluations", evals[:1])
	_, err = r.Read(t.Context(), time.Unix(103, 0))
	must.NoError(t, err)
	must.MapLen(t, 1, r.jobs, must.Sprint("a job that waits no more is forgotten"))
}

func TestAReadingReadsSoManyJobsAndTheNextOnesTheRest(t *testing.T) {
	s, r := newStandIn(t)
	r.MostJobs = 4
	var evals []*api.Evaluation
	for i := range 10 {
		id := fmt.Sprint("j", i)
		e := waitingEval("default", id, 5)
		e.Priority = 50 + i
		evals = append(evals, e)
		s.set(t, "/v1/job/"+id, jobOf("default", id, 5))
	}
	goes := jobOf("default", "goes", 7)
	goes.Meta = map[string]string{"gpu.move": "yes"}
	s.set(t, "/v1/job/goes", goes)
	s.set(t, "/v1/jobs", []*api.JobListStub{{ID: "goes", Namespace: "default", JobModifyIndex: 7, Status: "running", Priority: 100}})
	s.set(t, "/v1/evaluations", evals)
	s.set(t, "/v1/nodes", []*api.NodeListStub{{ID: "n1", Name: "node-1", Status: "ready"}, {ID: "n2", Name: "node-2", Status: "ready"}})
	s.set(t, "/v1/allocations", []*api.AllocationListStub{func() *api.AllocationListStub {
		a := alloc("running", "run", 3)
		a.JobID = "goes"
		return a
	}()})
	jobs := func(got Reading) (all []string) {
		for _, w := range got.Work {
			all = append(all, w.Job)
		}
		slices.Sort(all)
		return all
	}
	got, err := r.Read(t.Context(), time.Unix(100, 0))
	must.NoError(t, err)
	must.Len(t, 4+4, s.taken())
	must.Eq(t, []string{"j6", "j7", "j8", "j9"}, jobs(got), must.Sprint("by priority"))
	must.Eq(t, 6, got.Unread)
	must.StrContains(t, strings.Join(got.Faults, "\n"), "6 jobs that wait are not read yet")
	must.False(t, got.Nodes[0].Tenants[0].Movable, must.Sprint("what may be moved comes after what waits"))

	// One that was read changes: it stays in the plan.
	evals[9].JobModifyIndex = 6
	s.set(t, "/v1/evaluations", evals)
	s.set(t, "/v1/job/j9", jobOf("default", "j9", 6))
	got, err = r.Read(t.Context(), time.Unix(200, 0))
	must.NoError(t, err)
	must.Len(t, 4+4, s.taken())
	must.Eq(t, []string{"j3", "j4", "j5", "j6", "j7", "j8", "j9"}, jobs(got))
	must.Eq(t, 3, got.Unread)
	must.Eq(t, 200, got.Nodes[1].IdleSince.Unix(), must.Sprint("it may be there for work that is not read yet"))

	got, err = r.Read(t.Context(), time.Unix(300, 0))
	must.NoError(t, err)
	must.Len(t, 4+4, s.taken())
	must.Len(t, 10, jobs(got))
	must.Eq(t, 0, got.Unread)
	must.SliceEmpty(t, got.Faults)
	must.True(t, got.Nodes[0].Tenants[0].Movable)
	must.Eq(t, 200, got.Nodes[1].IdleSince.Unix())
}

func TestATenantIsMovableWhereItsJobsMetaSaysSo(t *testing.T) {
	s, r := newStandIn(t)
	n := &api.NodeListStub{ID: "n1", Name: "node-1", NodePool: "gpu", Status: "ready", SchedulingEligibility: "eligible"}
	s.set(t, "/v1/nodes", []*api.NodeListStub{n})
	stays, goes, system := alloc("running", "run", 3), alloc("running", "run", 3), alloc("running", "run", 3)
	stays.JobID, goes.JobID, goes.CreateTime = "stays", "goes", time.Unix(90, 0).UnixNano()
	system.JobID, system.JobType = "logs", "system"
	s.set(t, "/v1/allocations", []*api.AllocationListStub{stays, goes, system, alloc("complete", "run", 3)})
	job := jobOf("default", "goes", 7)
	job.Meta = map[string]string{"gpu.move": "yes", "gpu.deadline": "06:00"}
	submitted := time.Date(2026, 12, 3, 22, 0, 0, 0, time.UTC).UnixNano()
	job.SubmitTime = &submitted
	s.set(t, "/v1/jobs", []*api.JobListStub{{ID: "goes", Namespace: "default", JobModifyIndex: 7, Status: "running"}, {ID: "over", Namespace: "default", Status: "dead"}})
	s.set(t, "/v1/job/goes", job)
	got, err := r.Read(t.Context(), time.Unix(100, 0))
	must.NoError(t, err)
	must.SliceEmpty(t, got.Work, must.Sprint("it does not wait"))
	must.StrContains(t, strings.Join(s.taken(), "\n"), "filter=%22gpu.move%22+in+Meta+or+any+TaskGroups")
	tenants := got.Nodes[0].Tenants
	must.Len(t, 2, tenants, must.Sprint("a system job's allocation is none"))
	must.False(t, tenants[0].Movable)
	must.Eq(t, "8 GPUs H100", tenants[0].Work.Request.String())
	must.Eq(t, []int{8, 500, 1000}, []int{tenants[0].Work.Request.GPUs, tenants[0].Work.Request.CPU, tenants[0].Work.Request.Memory})
	must.False(t, tenants[0].Work.Allowed(plan.Where{NodePool: "gpu"}))
	must.True(t, tenants[1].Movable && tenants[1].Work.Gang)
	must.Eq(t, []string{"node-1"}, tenants[1].Work.PlacedOn)
	must.True(t, tenants[1].Work.Began.Equal(time.Unix(90, 0)))
	must.Eq(t, time.Date(2026, 12, 4, 6, 0, 0, 0, time.UTC), tenants[1].Work.Deadline)
	must.True(t, tenants[1].Work.Allowed(plan.Where{NodePool: "gpu", Datacenter: "dc1"}))

	s.status["/v1/jobs"] = http.StatusForbidden
	got, err = r.Read(t.Context(), time.Unix(101, 0))
	must.NoError(t, err)
	must.False(t, got.Nodes[0].Tenants[1].Movable)
	must.StrContains(t, got.Faults[0], "list-jobs")
}

func TestANodeIsReadInFullWhereItIsToBeInspectedAndWhenItChanges(t *testing.T) {
	s, r := newStandIn(t)
	stub := func(id, class string, index uint64) *api.NodeListStub {
		return &api.NodeListStub{ID: id, Name: "name-" + id, NodeClass: class, Status: "ready", ModifyIndex: index, NodeResources: &api.NodeResources{Devices: []*api.NodeDeviceResource{
			{Vendor: "nvidia", Type: "gpu", Name: "H100", Attributes: map[string]*api.Attribute{"driver_version": {StringVal: ptr("550.54.15")}, "memory": {IntVal: ptr(int64(80)), Unit: "GiB"}}}}}}
	}
	s.set(t, "/v1/nodes", []*api.NodeListStub{stub("n1", "rack", 5), stub("n2", "else", 5)})
	s.set(t, "/v1/node/n1", &api.Node{ID: "n1", ModifyIndex: 5, Attributes: map[string]string{"kernel.name": "linux"}, Meta: map[string]string{"image": "1"}})
	got, err := r.Read(t.Context(), time.Unix(100, 0))
	must.NoError(t, err)
	must.Nil(t, got.Told)
	must.Len(t, 4, s.taken())
	r.Inspect = func(w plan.Where) bool { return w.Class == "rack" }
	for _, calls := range []int{5, 4} {
		got, err = r.Read(t.Context(), time.Unix(100, 0))
		must.NoError(t, err)
		must.Eq(t, map[string]map[string]string{"name-n1": {"attr.kernel.name": "linux", "meta.image": "1", "device.driver_version": "550.54.15", "device.memory": "80 GiB"}}, got.Told)
		must.Len(t, calls, s.taken())
	}
	s.set(t, "/v1/nodes", []*api.NodeListStub{stub("n1", "rack", 6)})
	s.set(t, "/v1/node/n1", "null")
	got, err = r.Read(t.Context(), time.Unix(100, 0))
	must.NoError(t, err)
	must.MapLen(t, 2, got.Told["name-n1"])
	s.status["/v1/node/n1"] = http.StatusNotFound
	got, err = r.Read(t.Context(), time.Unix(100, 0))
	must.NoError(t, err, must.Sprint("it went after it was listed"))
	must.MapEmpty(t, got.Told)
	s.status["/v1/node/n1"] = http.StatusForbidden
	_, err = r.Read(t.Context(), time.Unix(100, 0))
	must.ErrorContains(t, err, "read node name-n1: ")
}

func TestANodeWithSystemJobsAloneIsIdle(t *testing.T) {
	s, r := newStandIn(t)
	s.set(t, "/v1/nodes", []*api.NodeListStub{{ID: "n1", Name: "node-1", Status: "ready"}})
	system := alloc("running", "run", 1)
	system.JobType = "system"
	s.set(t, "/v1/allocations", []*api.AllocationListStub{system})
	got, err := r.Read(t.Context(), time.Unix(100, 0))
	must.NoError(t, err)
	must.False(t, got.Nodes[0].Busy)
	must.Eq(t, 100, got.Nodes[0].IdleSince.Unix())
}

func TestAnErrorNamesTheCallThatFailed(t *testing.T) {
	for path, want := range map[string]string{
		"/v1/evaluations": "list the evaluations: ",
		"/v1/allocations": "list the allocations: ",
		"/v1/nodes":       "list the nodes: ",
		"/v1/job/a":       "read job default/a: ",
	} {
		t.Run(path, func(t *testing.T) {
			s, r := newStandIn(t)
			s.set(t, "/v1/evaluations", []*api.Evaluation{waitingEval("default", "a", 5)})
			s.set(t, "/v1/job/a", jobOf("default", "a", 5))
			s.status[path] = http.StatusForbidden
			_, err := r.Read(t.Context(), time.Unix(100, 0))
			must.ErrorContains(t, err, want)
			must.ErrorContains(t, err, "403")
		})
	}
	s, r := newStandIn(t)
	s.set(t, "/v1/nodes", `{"not": "a list"}`)
	_, err := r.Read(t.Context(), time.Unix(100, 0))
	must.ErrorContains(t, err, "list the nodes: ")
}

func TestAJobThatWasPurgedMeanwhileIsNoDemandAndNoError(t *testing.T) {
	s, r := newStandIn(t)
	s.set(t, "/v1/evaluations", []*api.Evaluation{waitingEval("default", "gone", 5), waitingEval("default", "a", 5)})
	s.set(t, "/v1/job/a", jobOf("default", "a", 5))
	got, err := r.Read(t.Context(), time.Unix(100, 0))
	must.NoError(t, err)
	must.Len(t, 1, got.Work)
}

func TestWhatWasReadBeforeAnErrorIsNotReadAgain(t *testing.T) {
	s, r := newStandIn(t)
	var evals []*api.Evaluation
	for i := range 20 {
		id := fmt.Sprint("j", i)
		evals = append(evals, waitingEval("default", id, 5))
		s.set(t, "/v1/job/"+id, jobOf("default", id, 5))
	}
	s.set(t, "/v1/evaluations", evals)
	s.status["/v1/job/j9"] = http.StatusInternalServerError // the last by name
	_, err := r.Read(t.Context(), time.Unix(100, 0))
	must.ErrorContains(t, err, "read job default/j9")
	s.taken()
	s.status = map[string]int{}
	got, err := r.Read(t.Context(), time.Unix(101, 0))
	must.NoError(t, err)
	must.Len(t, 20, got.Work)
	must.Less(t, 4+20, len(s.taken()))
}

func TestAnswersWithHolesDoNotPanic(t *testing.T) {
	for _, job := range []string{
		`null`, `{}`, `{"ID":"a","Namespace":"default","Status":"pending","TaskGroups":[null,{},{"Name":"g"},{"Name":"h","Tasks":[null,{}]}]}`,
		`{"ID":"a","Namespace":"default","Status":"pending","Constraints":[null],"TaskGroups":[{"Name":"g","Constraints":[null],"Tasks":[{"Constraints":[null],"Resources":{"Devices":[null,{"Name":""},{"Name":"nvidia/gpu","Constraints":[null]}]}}]}]}`,
	} {
		s, r := newStandIn(t)
		s.set(t, "/v1/evaluations", `[{},{"JobID":"a","Namespace":"default"}]`)
		s.set(t, "/v1/allocations", `[{},{"NodeID":"n","AllocatedResources":{"Tasks":{"t":null,"u":{"Devices":[null,{}]}}}}]`)
		s.set(t, "/v1/nodes", `[{},{"ID":"n","Name":"n","Status":"ready","NodeResources":{"Devices":[null,{"Type":"gpu","Instances":[null],"Attributes":{"x":null}}]}}]`)
		s.set(t, "/v1/job/a", job)
		_, err := r.Read(t.Context(), time.Unix(100, 0))
		must.NoError(t, err, must.Sprint(job))
	}
}

func TestANodeIsIdleSinceItWasFirstSeenWithoutWork(t *testing.T) {
	s, r := newStandIn(t)
	s.set(t, "/v1/nodes", []*api.NodeListStub{{ID: "n1", Name: "node-1", Status: "ready"}})
	_, err := r.Read(t.Context(), time.Unix(100, 0))
	must.NoError(t, err)
	got, err := r.Read(t.Context(), time.Unix(500, 0))
	must.NoError(t, err)
	must.Eq(t, 100, got.Nodes[0].IdleSince.Unix())
	s.set(t, "/v1/allocations", []*api.AllocationListStub{alloc("running", "run", 1)})
	got, err = r.Read(t.Context(), time.Unix(600, 0))
	must.NoError(t, err)
	must.True(t, got.Nodes[0].IdleSince.IsZero())
	s.set(t, "/v1/allocations", "[]")
	got, err = r.Read(t.Context(), time.Unix(700, 0))
	must.NoError(t, err)
	must.Eq(t, 700, got.Nodes[0].IdleSince.Unix(), must.Sprint("work in between begins the count anew"))
}

// crowd is a stand-in of a cluster: jobs that wait, nodes of 8 GPUs, half of
// them with one allocation.
func crowd(b *testing.B, jobs, nodes int) (*standIn, *Reader) {
	s, r := newStandIn(b)
	var evals []*api.Evaluation
	for i := range jobs {
		id := fmt.Sprint("job-", i)
		evals = append(evals, waitingEval("default", id, 5))
		s.set(b, "/v1/job/"+id, jobOf("default", id, 5))
	}
	var stubs []*api.NodeListStub
	var allocs []*api.AllocationListStub
	for i := range nodes {
		d := &api.NodeDeviceResource{Vendor: "nvidia", Type: "gpu", Name: "H100", Attributes: map[string]*api.Attribute{"memory": {IntVal: ptr(int64(81559)), Unit: "MiB"}}}
		for g := range 8 {
			d.Instances = append(d.Instances, &api.NodeDevice{ID: fmt.Sprintf("GPU-%08d-%d", i, g), Healthy: true})
		}
		id := fmt.Sprint("node-", i)
		stubs = append(stubs, &api.NodeListStub{ID: id, Name: id, NodePool: "gpu", Datacenter: "dc1", Status: "ready", SchedulingEligibility: "eligible",
			NodeResources: &api.NodeResources{Cpu: api.NodeCpuResources{CpuShares: 1e5}, Memory: api.NodeMemoryResources{MemoryMB: 1e6}, Devices: []*api.NodeDeviceResource{d}}})
		if i%2 == 0 {
			a := alloc("running", "run", 1)
			a.ID, a.JobID, a.NodeID, a.NodeName = fmt.Sprint("a", i), fmt.Sprint("job-", i%max(jobs, 1)), id, id
			allocs = append(allocs, a)
		}
	}
	s.set(b, "/v1/evaluations", evals)
	s.set(b, "/v1/nodes", stubs)
	s.set(b, "/v1/allocations", allocs)
	return s, r
}

// BenchmarkReading tells calls, bytes and memory of a reading of 10,000 waiting
// jobs and 2,000 nodes: the first, all that it takes until every job is read,
// one that reads all of them at once as the commands do, and one that follows.
func BenchmarkReading(b *testing.B) {
	const jobs, nodes = 10_000, 2_000
	read := func(b *testing.B, r *Reader) Reading {
		got, err := r.Read(b.Context(), time.Unix(100, 0))
		if err != nil || len(got.Work)+got.Unread != jobs {
			b.Fatal(len(got.Work), got.Unread, err)
		}
		return got
	}
	measure := func(b *testing.B, s *standIn, most int, once func()) {
		var calls, bytes int
		b.ReportAllocs()
		for b.Loop() {
			s.taken()
			once()
			calls, bytes = len(s.calls), s.sent
		}
		b.ReportMetric(float64(calls), "calls")
		b.ReportMetric(float64(bytes)/1e6, "MB-answered")
		if calls > most {
			b.Fatal(calls, "calls; allowed are", most)
		}
	}
	b.Run("first", func(b *testing.B) {
		s, r := crowd(b, jobs, nodes)
		measure(b, s, 4+mostJobs, func() {
			r.jobs = map[string]*api.Job{}
			read(b, r)
		})
	})
	b.Run("until all is read", func(b *testing.B) {
		s, r := crowd(b, jobs, nodes)
		measure(b, s, jobs+4*jobs/mostJobs, func() {
			r.jobs = map[string]*api.Job{}
			for read(b, r).Unread > 0 {
			}
		})
	})
	b.Run("all at once", func(b *testing.B) {
		s, r := crowd(b, jobs, nodes)
		r.MostJobs = 0
		measure(b, s, 4+jobs, func() {
			r.jobs = map[string]*api.Job{}
			read(b, r)
		})
	})
	b.Run("following", func(b *testing.B) {
		s, r := crowd(b, jobs, nodes)
		for read(b, r).Unread > 0 {
		}
		measure(b, s, 4, func() { read(b, r) })
		var m runtime.MemStats
		runtime.GC()
		runtime.ReadMemStats(&m)
		b.ReportMetric(float64(m.HeapAlloc)/(1<<20), "MiB-held")
	})
}
