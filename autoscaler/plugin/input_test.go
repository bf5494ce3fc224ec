// SPDX-License-Identifier: MPL-2.0

package plugin

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/hashicorp/go-hclog"
	"github.com/hashicorp/nomad-autoscaler/sdk"
	"github.com/shoenig/test/must"

	"github.com/nomad-gpu/nomad-gpu/autoscaler/demand"
	"github.com/nomad-gpu/nomad-gpu/autoscaler/plan"
	"github.com/nomad-gpu/nomad-gpu/autoscaler/pool"
)

const file = `
pool "asg" {
  kind          = "target"
  price         = 10
  max           = 8
  start_timeout = "5m"
  retry_after   = "3m"
  select {
    node_class = "asg"
  }
  shape {
    gpus = 8
  }
}

pool "own" {
  kind  = "command"
  price = 20
  max   = 8
  select {
    node_class = "own"
  }
  shape {
    gpus = 8
  }
  maintenance {
    start    = "0 0 * * *"
    duration = "24h"
    want     = { "meta.image" = "2" }
  }
  command {
    dir     = "/nowhere"
    create  = ["create"]
    list    = ["list"]
    destroy = ["destroy"]
  }
}
`

// standInPool tells what a test wants.
type standInPool struct {
	nodes   []pool.Node
	history pool.History
	resting string
	did     []string
	fail    error
	broken  error // what is known of it cannot be read
}

func (p *standInPool) Nodes() ([]pool.Node, error) { return p.nodes, p.broken }
func (p *standInPool) Grow(_ context.Context, _ time.Time, count int) error {
	p.did = append(p.did, fmt.Sprint("grow to ", count))
	return nil
}
func (p *standInPool) Shrink(_ context.Context, count int, wanted []string) error {
	p.did = append(p.did, "shrink to "+strings.Repeat("I", count)+" "+strings.Join(wanted, ","))
	return nil
}
func (p *standInPool) Drain(_ context.Context, names []string) error {
	p.did = append(p.did, "drain "+strings.Join(names, ","))
	return p.fail
}
func (p *standInPool) Tend(context.Context, time.Time) error           { return nil }
func (p *standInPool) Resting(time.Time) (string, error)               { return p.resting, nil }
func (p *standInPool) History(now time.Time) (h pool.History, e error) { return p.history, nil }

func lookout(t *testing.T, text string, r demand.Reading) (*Lookout, *standInPool, *bytes.Buffer) {
	path := filepath.Join(t.TempDir(), "pools.hcl")
	must.NoError(t, os.WriteFile(path, []byte(text), 0o600))
	f, err := pool.ReadFile(path)
	must.NoError(t, err)
	var log bytes.Buffer
	own := &standInPool{}
	return &Lookout{File: f, own: map[string]pool.Pool{"own": own}, reading: r, logger: hclog.New(&hclog.LoggerOptions{Output: &log})}, own, &log
}

func at(class, name string) plan.Node {
	return plan.Node{Name: name, Where: plan.Where{Class: class}, Free: plan.Shape{GPUs: 8, CPU: 1 << 30, Memory: 1 << 30}}
}

func TestNodesThatNomadDoesNotKnowYetAreOnTheirWayUntilTheyAreGivenUp(t *testing.T) {
	begin := time.Date(2026, 12, 3, 12, 0, 0, 0, time.UTC)
	l, _, _ := lookout(t, file, demand.Reading{At: begin, Nodes: []plan.Node{at("asg", "n1"), at("else", "n2")}})
	look := func(after time.Duration, own string, count int) ([]plan.Node, string) {
		l.reading.At = begin.Add(after)
		in, resting, err := l.input(own, count)
		must.NoError(t, err)
		return in.Nodes, resting["asg"]
	}
	nodes, rests := look(0, "asg", 3)
	must.Len(t, 4, nodes)
	must.Eq(t, "asg", nodes[0].Pool)
	must.Eq(t, "", nodes[1].Pool)
	must.True(t, nodes[2].Starting && nodes[3].Starting)
	must.Eq(t, "", rests)
	nodes, _ = look(time.Second, "own", 0)
	must.Len(t, 4, nodes, must.Sprint("another pool's policy plans with the same"))
	must.Eq(t, 8, nodes[3].Free.GPUs)
	nodes, rests = look(5*time.Minute, "asg", 3)
	must.Len(t, 4, nodes, must.Sprint("they still count"))
	must.Eq(t, 0, nodes[3].Free.GPUs, must.Sprint("and are no longer waited for"))
	must.Eq(t, "2 nodes that its target counts did not come up within 5m0s", rests)
	l.reading.Nodes = append(l.reading.Nodes, at("asg", "n3"))
	_, rests = look(6*time.Minute, "asg", 3)
	must.Eq(t, "", rests, must.Sprint("one came up: the other may too"))
	_, rests = look(11*time.Minute, "asg", 3)
	must.StrContains(t, rests, "1 nodes")
	_, rests = look(14*time.Minute, "asg", 3)
	must.Eq(t, "", rests, must.Sprint("after retry_after it is tried again"))
	nodes, _ = look(time.Hour, "own", 0)
	must.Len(t, 3, nodes, must.Sprint("a count of long ago is not believed"))
}

func TestANodeThatDoesNotComeUpIsBoughtElsewhere(t *testing.T) {
	begin := time.Date(2026, 12, 3, 12, 0, 0, 0, time.UTC)
	work := plan.Work{Job: "train", Group: "g", Gang: true, Distinct: true, Count: 2, Request: plan.Shape{GPUs: 8}, Spot: plan.Prefer, Allowed: func(plan.Where) bool { return true }}
	l, _, _ := lookout(t, file, demand.Reading{At: begin, Work: []plan.Work{work}})
	wants := func(after time.Duration) (asg, own int) {
		l.reading.At = begin.Add(after)
		in, resting, err := l.input("asg", 2)
		must.NoError(t, err)
		out := planAround(in, resting)
		a, _ := out.Of("asg")
		o, _ := out.Of("own")
		must.Eq(t, 2, a.Now, must.Sprint("as many as the target counts"))
		return a.Want, o.Want
	}
	asg, own := wants(0)
	must.Eq(t, [2]int{2, 0}, [2]int{asg, own})
	asg, own = wants(5 * time.Minute)
	must.Eq(t, [2]int{2, 2}, [2]int{asg, own})
}

func TestANodeThatHasToldOfNoDeviceYetIsOnItsWay(t *testing.T) {
	begin := time.Date(2026, 12, 3, 12, 0, 0, 0, time.UTC)
	bare := at("asg", "n1")
	bare.Free = plan.Shape{CPU: 1000, Memory: 1000, Devices: []plan.Devices{}}
	bare.IdleSince = begin
	work := plan.Work{Job: "train", Group: "g", Count: 1, Request: plan.Shape{GPUs: 8}, Spot: plan.Prefer, Allowed: func(plan.Where) bool { return true }}
	l, _, _ := lookout(t, file, demand.Reading{At: begin.Add(4 * time.Minute), Nodes: []plan.Node{bare}, Work: []plan.Work{work}})
	in, resting, err := l.input("asg", 1)
	must.NoError(t, err)
	must.True(t, in.Nodes[0].Starting)
	d, _ := planAround(in, resting).Of("asg")
	must.Eq(t, 1, d.Want, must.Sprint("no other is bought beside it"))
	l.reading.At = begin.Add(5 * time.Minute)
	in, resting, err = l.input("asg", 1)
	must.NoError(t, err)
	must.False(t, in.Nodes[0].Starting, must.Sprint("it is given up"))
	d, _ = planAround(in, resting).Of("asg")
	must.Eq(t, 2, d.Want)
}

func TestWhatAPoolOfOursKnowsOfItsNodesIsJoined(t *testing.T) {
	begin := time.Date(2026, 12, 3, 12, 0, 0, 0, time.UTC)
	closed := at("own", "n3")
	closed.Closed = true
	l, own, _ := lookout(t, file, demand.Reading{At: begin, Nodes: []plan.Node{at("own", "n1"), at("own", "n2"), closed}, Told: map[string]map[string]string{"n1": {"meta.image": "1"}, "n2": {"meta.image": "2"}}})
	own.nodes = []pool.Node{{Name: "n1", Ready: true, Since: begin.Add(-time.Hour)}, {Name: "n2", Ready: true, AtRisk: true}, {Name: "n3", Ready: true}, {Name: "m4"}, {Name: "m5", Leaving: true}}
	own.history = pool.History{Refused: begin.Add(-time.Minute), Interrupted: 3}
	in, _, err := l.input("", 0)
	must.NoError(t, err)
	must.Eq(t, begin.Add(-time.Hour), in.Nodes[0].Bought)
	must.Eq(t, `meta.image is "1", wanted is "2"`, in.Nodes[0].Replace)
	must.True(t, in.Nodes[1].AtRisk)
	must.Eq(t, "its maker expects to take it away", in.Nodes[1].Replace)
	must.False(t, in.Nodes[2].Closed, must.Sprint("closed by someone else it counts, as its pool counts it"))
	must.Eq(t, plan.Shape{}, in.Nodes[2].Free)
	must.Len(t, 4, in.Nodes, must.Sprint("one is on its way, one on its way out"))
	must.True(t, in.Nodes[3].Starting)
	p := in.Pools[1]
	must.Eq(t, 3, p.Interrupted)
	must.Eq(t, begin.Add(-time.Minute), p.Refused)
	must.Eq(t, plan.Maintenance{Since: begin.Truncate(24 * time.Hour), AtOnce: 1}, *p.Maintenance)
	d, _ := plan.Make(in).Of("own")
	must.Eq(t, 4, d.Now)
}

func TestANodeThatHasJustJoinedIsOnItsWayUntilItHasItsGPUs(t *testing.T) {
	begin := time.Date(2026, 12, 3, 12, 0, 0, 0, time.UTC)
	bare := at("own", "n1")
	bare.Free = plan.Shape{}
	l, own, _ := lookout(t, file, demand.Reading{})
	own.nodes = []pool.Node{{Name: "n1", Ready: true, Since: begin}}
	look := func(after time.Duration, n plan.Node) plan.Node {
		l.reading.At, l.reading.Nodes = begin.Add(after), []plan.Node{n}
		in, _, err := l.input("own", 1)
		must.NoError(t, err)
		must.Len(t, 1, in.Nodes)
		return in.Nodes[0]
	}
	n := look(time.Second, bare)
	must.True(t, n.Starting)
	must.Eq(t, 8, n.Free.GPUs)
	n = look(settleTime, bare)
	must.False(t, n.Starting, must.Sprint("it has none"))
	must.False(t, look(2*time.Second, at("own", "n1")).Starting)
	n = look(3*time.Second, bare)
	must.False(t, n.Starting, must.Sprint("it has lost them, as with a notice: it is not waited for"))
	must.Eq(t, 0, n.Free.GPUs)
	own.nodes[0].Since = begin.Add(time.Minute)
	must.True(t, look(61*time.Second, bare).Starting, must.Sprint("another node of the same name"))
}

func TestAComplaintIsLoggedOnceWhileItStands(t *testing.T) {
	w := plan.Work{Job: "train", Group: "g", Faults: []string{`meta gpu.deadline: "soon" is not looked at`}}
	l, _, log := lookout(t, "curve {\n  file = \"/no/such/curve.csv\"\n}\n"+file, demand.Reading{At: time.Unix(1e9, 0), Work: []plan.Work{w}})
	for range 3 {
		in, _, err := l.input("", 0)
		must.NoError(t, err)
		must.SliceEmpty(t, in.Curve)
	}
	must.Eq(t, 1, strings.Count(log.String(), "train/g: meta gpu.deadline"))
	must.Eq(t, 1, strings.Count(log.String(), "curve.file: open /no/such/curve.csv"))
	l.reading.Work = nil
	_, _, err := l.input("", 0)
	must.NoError(t, err)
	l.reading.Work = []plan.Work{w}
	_, _, err = l.input("", 0)
	must.NoError(t, err)
	must.Eq(t, 2, strings.Count(log.String(), "train/g: meta gpu.deadline"))
}

func TestTheTargetDrainsWhatIsNamedAndLetsNothingElseGoForIt(t *testing.T) {
	scale := func(own *standInPool, meta map[string]any) error {
		l, _, _ := lookout(t, file, demand.Reading{})
		l.own["own"] = own
		target := &Target{ctx: t.Context(), logger: hclog.NewNullLogger(), lookout: l}
		return target.Scale(sdk.ScalingAction{Count: 1, Direction: sdk.ScaleDirectionDown, Meta: meta}, map[string]string{"pool": "own"})
	}
	own := &standInPool{nodes: []pool.Node{{Name: "n1"}, {Name: "n2", Leaving: true}, {Name: "n3"}}}
	must.NoError(t, scale(own, map[string]any{releaseMeta: "n1", drainMeta: ""}))
	must.Eq(t, []string{"shrink to I n1"}, own.did)
	own.did = nil
	must.NoError(t, scale(own, map[string]any{releaseMeta: "", drainMeta: "n2,n3"}))
	must.Eq(t, []string{"drain n2,n3"}, own.did)
	own.did, own.fail = nil, errors.New("n3 has no leave")
	must.ErrorContains(t, scale(own, map[string]any{releaseMeta: "n1", drainMeta: "n2,n3"}), "n3 has no leave")
	must.Eq(t, []string{"drain n2,n3", "shrink to I n1"}, own.did, must.Sprint("of the two that are left one goes"))
}

func TestAPurchaseThatAPolicysMaxCutsIsRefusedAndPlansTakeThatMax(t *testing.T) {
	dir := t.TempDir()
	l, own, _ := lookout(t, strings.Replace(file, "/nowhere", dir, 1), demand.Reading{At: time.Now(), Work: []plan.Work{gangOf(4)}})
	target := &Target{ctx: t.Context(), logger: hclog.NewNullLogger(), lookout: l}
	scale := func(count int64, meta map[string]any) error {
		return target.Scale(sdk.ScalingAction{Count: count, Direction: sdk.ScaleDirectionUp, Meta: meta}, map[string]string{"pool": "own"})
	}
	must.ErrorContains(t, scale(3, map[string]any{metaCapped: true, metaOriginal: float64(4)}), `pool "own": max of its policy is 3 and of the pools file 8, and 4 nodes are wanted: none is bought`)
	must.SliceEmpty(t, own.did)
	in, resting, err := l.input("own", 0)
	must.NoError(t, err)
	out := planAround(in, resting)
	d, _ := out.Of("own")
	must.Eq(t, 0, d.Want)
	must.True(t, out.Waiting[0].Unsatisfiable)
	must.StrContains(t, out.Waiting[0].Reason, "all pools at their maximum hold 3")
	must.SliceContains(t, l.remarks["own"], "its policy's max leaves it 3 nodes of 8")
	// One that a policy's min has raised, and one that is as it was wanted.
	must.NoError(t, scale(2, map[string]any{metaCapped: true, metaOriginal: int64(1)}))
	must.NoError(t, scale(3, map[string]any{}))
	must.Eq(t, []string{"grow to 2", "grow to 3"}, own.did)
}

// gangOf is a gang of whole nodes that runs on own alone.
func gangOf(count int) plan.Work {
	return plan.Work{Job: "train", Group: "g", Gang: true, Distinct: true, Count: count, Request: plan.Shape{GPUs: 8}, Spot: plan.Prefer, Allowed: func(w plan.Where) bool { return w.Class == "own" }}
}

func TestANodeThatNoMachineIsFreezesNoPool(t *testing.T) {
	fixed := at("own", "fixed")
	fixed.Busy, fixed.Free = true, plan.Shape{}
	l, own, log := lookout(t, file, demand.Reading{At: time.Unix(1e9, 0), Nodes: []plan.Node{fixed, at("own", "n1")}, Work: []plan.Work{gangOf(3)}})
	own.nodes = []pool.Node{{Name: "n1", Ready: true}}
	decide := func() plan.Decision {
		in, resting, err := l.input("own", 1)
		must.NoError(t, err)
		out := planAround(in, resting)
		l.tell(out)
		d, _ := out.Of("own")
		return d
	}
	d := decide()
	must.Eq(t, 1, d.Now, must.Sprint("as many as the target counts"))
	must.Eq(t, 3, d.Want)
	must.StrContains(t, d.Reason, "fixed: selected by the pool and no machine that its maker tells of; work is placed there, and it is neither counted nor let go")
	must.StrContains(t, log.String(), "pool own: fixed: selected by the pool")
	must.Eq(t, sdk.ScaleDirectionUp, action(d, plan.Output{}, 1).Direction)

	l.reading.Nodes[0] = at("own", "fixed")
	must.Eq(t, 2, decide().Want, must.Sprint("what it has free is used"))

	l.reading.Nodes[0] = at("own", "n2")
	own.nodes = append(own.nodes, pool.Node{Name: "m2"})
	must.StrNotContains(t, decide().Reason, "selected by the pool", must.Sprint("a machine's node is known a moment later"))
}

func TestOfTwoPoolsThatSelectANodeTheOneWhoseMachineItIsHasIt(t *testing.T) {
	overlapping := strings.Replace(file, `node_class = "asg"`, `datacenter = "dc1"`, 1)
	n1, n2 := at("own", "n1"), at("own", "n2")
	n1.Where.Datacenter, n2.Where.Datacenter = "dc1", "dc1"
	l, own, _ := lookout(t, overlapping, demand.Reading{At: time.Unix(1e9, 0), Nodes: []plan.Node{n1, n2}})
	own.nodes = []pool.Node{{Name: "n2", Ready: true}}
	in, _, err := l.input("own", 1)
	must.NoError(t, err)
	must.Eq(t, []string{"asg", "own"}, []string{in.Nodes[0].Pool, in.Nodes[1].Pool})
}

func TestNodesBeyondATargetsCountAreToldApartWhenTheyStay(t *testing.T) {
	begin := time.Unix(1e9, 0)
	busy := at("asg", "z")
	busy.Busy, busy.Free = true, plan.Shape{}
	l, _, _ := lookout(t, file, demand.Reading{At: begin, Nodes: []plan.Node{at("asg", "a"), at("asg", "b"), busy}})
	now := func(after time.Duration) int {
		l.reading.At = begin.Add(after)
		in, resting, err := l.input("asg", 2)
		must.NoError(t, err)
		d, _ := planAround(in, resting).Of("asg")
		return d.Now
	}
	must.Eq(t, 3, now(0), must.Sprint("the target may have let one go just now"))
	must.Eq(t, 3, now(4*time.Minute))
	must.Eq(t, 2, now(5*time.Minute))
	in, _, err := l.input("asg", 2)
	must.NoError(t, err)
	must.Eq(t, []string{"asg", "asg", ""}, []string{in.Nodes[0].Pool, in.Nodes[1].Pool, in.Nodes[2].Pool})
	must.StrContains(t, l.remarks["asg"][0], "Nomad has 3 nodes that the pool selects and its target counts 2")
}

func TestNothingIsPlannedOnAMachineThatIsKeptThoughItDidNotComeUp(t *testing.T) {
	l, own, _ := lookout(t, file, demand.Reading{At: time.Unix(1e9, 0), Work: []plan.Work{gangOf(1)}})
	own.nodes = []pool.Node{{Name: "m1", Late: true}}
	in, _, err := l.input("own", 1)
	must.NoError(t, err)
	d, _ := plan.Make(in).Of("own")
	must.Eq(t, [2]int{1, 2}, [2]int{d.Now, d.Want})
}

func TestTwoMachinesWithOneNodeFreezeNoPool(t *testing.T) {
	l, own, _ := lookout(t, file, demand.Reading{At: time.Unix(1e9, 0), Nodes: []plan.Node{at("own", "n1")}})
	own.nodes = []pool.Node{{Name: "n1", Ready: true}, {Name: "n1"}}
	in, _, err := l.input("own", 2)
	must.NoError(t, err)
	d, _ := plan.Make(in).Of("own")
	must.Eq(t, 2, d.Now)
	must.Eq(t, []string{"two machines have the node n1"}, l.remarks["own"])
}

func TestAPoolOfWhichNothingCanBeReadRestsAndTheOthersServe(t *testing.T) {
	anywhere := gangOf(2)
	anywhere.Allowed = func(plan.Where) bool { return true }
	l, own, log := lookout(t, strings.Replace(file, "price = 20", "price = 1", 1), demand.Reading{At: time.Unix(1e9, 0), Nodes: []plan.Node{at("own", "n1")}, Work: []plan.Work{anywhere, gangOf(3)}})
	l.reading.Nodes[0].Busy, l.reading.Nodes[0].Free = true, plan.Shape{}
	own.broken = errors.New("/x/own.json is no ledger of a pool")
	in, resting, err := l.input("asg", 0)
	must.NoError(t, err)
	must.Eq(t, "what it has is not known: /x/own.json is no ledger of a pool", resting["own"])
	must.StrContains(t, log.String(), "/x/own.json is no ledger of a pool")
	out := planAround(in, resting)
	asg, _ := out.Of("asg")
	must.Eq(t, 2, asg.Want)
	d, _ := out.Of("own")
	must.Eq(t, [2]int{1, 1}, [2]int{d.Now, d.Want})
	must.StrContains(t, d.Reason, "the pool rests: what it has is not known")
}
