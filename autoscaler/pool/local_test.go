// SPDX-License-Identifier: MPL-2.0

package pool

import (
	"cmp"
	"context"
	"encoding/json"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/hashicorp/go-hclog"
	"github.com/hashicorp/nomad/api"
	"github.com/shoenig/test/must"
	"github.com/shoenig/test/wait"
)

// fakeNomad answers for the node endpoints that a pool uses.
type fakeNomad struct {
	mu    sync.Mutex
	nodes map[string]*api.NodeListStub
	busy  map[string]bool
	leave map[string]bool // what runs there may be moved
	// kind is the type of the job that keeps a node busy; service where it says none.
	kind map[string]string
	job  map[string]string // what keeps a node busy; train where it says none
	did  []string
	// index is that of its nodes.
	index int
}

func (f *fakeNomad) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	f.mu.Lock()
	defer f.mu.Unlock()
	parts := strings.Split(strings.TrimPrefix(r.URL.Path, "/v1/"), "/")
	var out any = map[string]any{}
	switch {
	case parts[0] == "acl":
		http.Error(w, "ACL support disabled", http.StatusBadRequest)
		return
	case parts[0] == "nodes":
		w.Header().Set("X-Nomad-Index", strconv.Itoa(f.index))
		all := []*api.NodeListStub{}
		for _, n := range f.nodes {
			all = append(all, n)
		}
		out = all
	case parts[2] == "allocations":
		allocs := []*api.Allocation{}
		if f.busy[parts[1]] {
			kind := cmp.Or(f.kind[parts[1]], "service")
			a := &api.Allocation{ID: "a1", JobID: cmp.Or(f.job[parts[1]], "train"), ClientStatus: "running", Job: &api.Job{Type: &kind}}
			if f.leave[parts[1]] {
				a.Job.Meta = map[string]string{"gpu.move": "yes"}
			}
			allocs = append(allocs, a)
		}
		out = allocs
	case parts[2] == "eligibility":
		var request struct{ Eligibility string }
		json.NewDecoder(r.Body).Decode(&request)
		f.did = append(f.did, parts[1]+" "+request.Eligibility)
		f.nodes[parts[1]].SchedulingEligibility = request.Eligibility
	case parts[2] == "drain":
		f.did = append(f.did, parts[1]+" drains")
		f.nodes[parts[1]].Drain = true
	case parts[2] == "purge":
		f.did = append(f.did, parts[1]+" purged")
		delete(f.nodes, parts[1])
	default:
		http.NotFound(w, r)
		return
	}
	json.NewEncoder(w).Encode(out)
}

func (f *fakeNomad) join(name string) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.nodes[name] = &api.NodeListStub{ID: name, Name: name, Status: "ready"}
}

func (f *fakeNomad) done() string {
	f.mu.Lock()
	defer f.mu.Unlock()
	return strings.Join(f.did, ", ")
}

type bench struct {
	t    *testing.T
	fake *fakeNomad
	def  *Definition
	pool *LocalPool
	make func() *LocalPool
}

// newBench is a pool of two slots whose nodes are real processes that do nothing.
func newBench(t *testing.T, command ...string) *bench {
	if command == nil {
		command = []string{"/bin/sleep", "1000"}
	}
	b := &bench{t: t, fake: &fakeNomad{nodes: map[string]*api.NodeListStub{}, busy: map[string]bool{}}}
	server := httptest.NewServer(b.fake)
	t.Cleanup(server.Close)
	client, err := api.NewClient(&api.Config{Address: server.URL})
	must.NoError(t, err)
	dir := t.TempDir()
	b.def = &Definition{Name: "spot", Kind: "local", Max: 2, start: time.Minute, down: 5 * time.Minute, Local: &Local{Dir: filepath.Join(dir, "state")}}
	for _, name := range []string{"s1", "s2"} {
		b.def.Local.Slots = append(b.def.Local.Slots, Slot{Name: name, Command: command, DataDir: filepath.Join(dir, name)})
		must.NoError(t, os.MkdirAll(filepath.Join(dir, name, "alloc"), 0o700))
	}
	b.make = func() *LocalPool { return NewLocal(b.def, client, hclog.NewNullLogger()) }
	b.pool = b.make()
	t.Cleanup(func() {
		for _, s := range b.def.Local.Slots {
			if r, err := b.pool.load(s.Name); err == nil && r != nil {
				r.Process.end(context.Background())
			}
		}
	})
	return b
}

func (b *bench) tend(now time.Time) {
	b.t.Helper()
	must.NoError(b.t, b.pool.Tend(b.t.Context(), now))
}

func (b *bench) grow(count int) error { return b.pool.Grow(b.t.Context(), time.Now(), count) }

func (b *bench) nodes() string {
	b.t.Helper()
	nodes, err := b.pool.Nodes()
	must.NoError(b.t, err)
	return show(nodes)
}

func TestAPoolGrowsAndIsFoundAgainByTheNextLifeOfThePlugin(t *testing.T) {
	b := newBench(t)
	must.NoError(t, b.grow(2))
	must.Eq(t, "[{s1 false false} {s2 false false}]", b.nodes())
	before, err := b.pool.load("s1")
	must.NoError(t, err)
	must.True(t, before.Process.alive())
	b.pool = b.make()
	b.fake.join("s1")
	b.tend(time.Now())
	must.Eq(t, "[{s1 true false} {s2 false false}]", b.nodes())
	must.NoError(t, b.grow(2))
	after, err := b.pool.load("s1")
	must.NoError(t, err)
	must.Eq(t, before.Process, after.Process, must.Sprint("a node is started twice"))
	must.ErrorContains(t, b.grow(3), "2 nodes of 3")
}

func TestOnlyNodesWithoutWorkGoAndTheyGoWhole(t *testing.T) {
	b := newBench(t)
	must.NoError(t, b.grow(2))
	b.fake.join("s1")
	b.fake.join("s2")
	b.tend(time.Now())
	b.fake.busy["s1"] = true
	must.ErrorContains(t, b.pool.Shrink(t.Context(), 0, nil), "1 of the nodes to let go have work or are not ready")
	must.Eq(t, "[{s1 true false} {s2 true true}]", b.nodes())
	r, err := b.pool.load("s2")
	must.NoError(t, err)
	b.tend(time.Now())
	must.Eq(t, "[{s1 true false}]", b.nodes())
	must.False(t, r.Process.alive())
	must.FileNotExists(t, b.def.Local.Slots[1].DataDir)
	must.Eq(t, "s2 ineligible, s2 purged", b.fake.done())
}

func TestASystemJobKeepsNoNode(t *testing.T) {
	b := newBench(t)
	must.NoError(t, b.grow(1))
	b.fake.join("s1")
	b.tend(time.Now())
	b.fake.busy["s1"], b.fake.kind = true, map[string]string{"s1": "system"}
	must.NoError(t, b.pool.Shrink(t.Context(), 0, []string{"s1"}))
	b.tend(time.Now())
	must.Eq(t, "[]", b.nodes())
}

func TestANodeThatGotWorkMeanwhileOrIsWantedAgainStays(t *testing.T) {
	b := newBench(t)
	must.NoError(t, b.grow(2))
	b.fake.join("s1")
	b.fake.join("s2")
	b.tend(time.Now())
	must.NoError(t, b.pool.Shrink(t.Context(), 0, nil))
	b.fake.busy["s1"] = true
	must.NoError(t, b.grow(1), must.Sprint("the first on its way out is kept"))
	must.Eq(t, "[{s1 true false} {s2 true true}]", b.nodes())
	b.fake.busy["s2"] = true
	b.tend(time.Now())
	must.Eq(t, "[{s1 true false} {s2 true false}]", b.nodes())
	must.Eq(t, "s1 ineligible, s2 ineligible, s1 eligible, s2 eligible", b.fake.done())
}

func TestANodeThatDoesNotComeUpIsGivenUpAndItsSlotRests(t *testing.T) {
	b := newBench(t)
	must.NoError(t, b.grow(1))
	b.tend(time.Now().Add(30 * time.Second))
	must.Eq(t, "[{s1 false false}]", b.nodes())
	b.tend(time.Now().Add(2 * time.Minute))
	must.Eq(t, "[]", b.nodes())
	why, err := b.pool.Resting(time.Now())
	must.NoError(t, err)
	must.Eq(t, "", why, must.Sprint("another slot is free"))
	must.NoError(t, b.grow(1))
	must.Eq(t, "[{s2 false false}]", b.nodes(), must.Sprint("the other slot is tried"))
}

func TestANodeOfThisMachineThatIsLostIsGivenUp(t *testing.T) {
	b := newBench(t)
	must.NoError(t, b.grow(1))
	b.fake.join("s1")
	now := time.Now()
	b.tend(now)
	r, err := b.pool.load("s1")
	must.NoError(t, err)
	b.fake.mu.Lock()
	b.fake.nodes["s1"].Status = "down"
	b.fake.mu.Unlock()
	for range 6 {
		b.tend(now)
		now = now.Add(time.Minute)
	}
	must.Eq(t, "[{s1 true false}]", b.nodes(), must.Sprint("it may come back"))
	b.tend(now)
	must.Eq(t, "[]", b.nodes())
	must.False(t, r.Process.alive())
	must.Eq(t, "s1 purged", b.fake.done())
	must.False(t, b.pool.failedAt("s1").IsZero(), must.Sprint("another slot is tried first"))
}

// The times are the test's own: a machine that stood still meanwhile, or whose
// clock was put right, changes nothing.
func TestANodeThatEndsByItselfIsSeen(t *testing.T) {
	b := newBench(t, "/bin/true")
	now := time.Now()
	must.NoError(t, b.grow(1))
	must.Wait(t, wait.InitialSuccess(wait.BoolFunc(func() bool {
		b.tend(now)
		return b.nodes() == "[]"
	}), wait.Timeout(time.Minute), wait.Gap(20*time.Millisecond)))
	must.NoError(t, b.pool.noteFailure("s2", now))
	must.ErrorContains(t, b.pool.Grow(t.Context(), now.Add(time.Second), 1), "node s1 failed a moment ago")
	why, err := b.make().Resting(now.Add(time.Second))
	must.NoError(t, err)
	must.StrContains(t, why, "node s1, s2 ended or did not come up")
	why, err = b.make().Resting(now.Add(failurePause))
	must.NoError(t, err)
	must.Eq(t, "", why)
}

func TestAnotherProcessWithTheNumberIsNotTakenForTheNode(t *testing.T) {
	b := newBench(t)
	must.NoError(t, b.grow(1))
	r, err := b.pool.load("s1")
	must.NoError(t, err)
	must.True(t, r.Process.alive())
	for name, other := range map[string]process{
		"a later one":                       {PID: r.Process.PID, Ticks: r.Process.Ticks - 1, Boot: r.Process.Boot},
		"one of before the machine's start": {PID: r.Process.PID, Ticks: r.Process.Ticks, Boot: "another"},
	} {
		must.False(t, other.alive(), must.Sprint(name))
		must.NoError(t, other.end(t.Context()))
	}
	must.True(t, r.Process.alive(), must.Sprint("it was killed"))
}

func TestANodeOfThisMachineWhoseWorkMayMoveIsDrained(t *testing.T) {
	b := newBench(t)
	must.NoError(t, b.grow(1))
	b.fake.join("s1")
	b.tend(time.Now())
	b.fake.busy["s1"] = true
	must.ErrorContains(t, b.pool.Drain(t.Context(), []string{"s1"}), "no leave to move")
	must.Eq(t, "[{s1 true false}]", b.nodes())
	b.fake.leave = map[string]bool{"s1": true}
	must.NoError(t, b.pool.Drain(t.Context(), []string{"s1"}))
	must.Eq(t, "[{s1 true true}]", b.nodes())
	b.tend(time.Now())
	must.Eq(t, "[{s1 true true}]", b.nodes())
	must.NoError(t, b.grow(1))
	must.Eq(t, "[{s1 true true} {s2 false false}]", b.nodes(), must.Sprint("it is not kept"))
	delete(b.fake.busy, "s1")
	b.tend(time.Now())
	must.Eq(t, "[{s2 false false}]", b.nodes())
	must.Eq(t, "s1 ineligible, s1 eligible, s1 ineligible, s1 drains, s1 purged", b.fake.done())
}
