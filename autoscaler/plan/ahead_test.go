// SPDX-License-Identifier: MPL-2.0

package plan

import (
	"testing"
	"time"

	"github.com/shoenig/test/must"
)

func TestWhatIsExpectedIsBoughtAheadOfItAndKept(t *testing.T) {
	in := Input{Now: now, Pools: pools(), Ahead: []Ahead{{Model: "h100", GPUs: 20, Why: "it was so on three Mondays"}}}
	in.Pools[1].Min = 0
	out := want(t, in, 3, 0)
	d, _ := out.Of("spot")
	must.StrContains(t, d.Reason, "3 more nodes are bought ahead: it was so on three Mondays")
	in.Nodes = []Node{busy(node("spot", "s1")), starting("s2")}
	want(t, in, 3, 0)
	idle := node("spot", "s3")
	idle.IdleSince = now.Add(-time.Hour)
	in.Nodes = append(in.Nodes, idle)
	want(t, in, 3, 0)
	d, _ = Make(in).Of("spot")
	must.Eq(t, "nothing waits for this pool; 1 nodes without work are kept: it was so on three Mondays", d.Reason)
	in.Ahead[0].GPUs = 16
	want(t, in, 2, 0)
}

func TestWhatIsExpectedIsBoughtWithinMaximumAndBudget(t *testing.T) {
	in := Input{Now: now, Pools: pools(), Ahead: []Ahead{{Model: "H100", GPUs: 1000}}}
	want(t, in, 8, 2)
	in.Pools[1].Min = 0
	in.Budget.PerHour = 35
	want(t, in, 3, 0)
}

func TestALoadOfOneModelBuysNoOther(t *testing.T) {
	in := Input{Now: now, Pools: pools(), Ahead: []Ahead{{Model: "L40S", GPUs: 12}, {GPUs: 9}, {Model: "H100", GPUs: 8}}}
	cheap := in.Pools[0]
	cheap.Name, cheap.Price, cheap.Where.Class, cheap.Shape = "cheap", 1, "cheap", Shape{GPUs: 4, Model: "L40S"}
	in.Pools = append(in.Pools, cheap)
	in.Nodes = []Node{node("on-demand", "od-1")}
	out := Make(in)
	for pool, nodes := range map[string]int{"cheap": 3, "spot": 0, "on-demand": 1} {
		d, _ := out.Of(pool)
		must.Eq(t, nodes, d.Want, must.Sprint(pool))
	}
	must.Eq(t, in.Ahead, out.Ahead)
}

func TestWhereWhatWaitsIsToRun(t *testing.T) {
	whole := gang(3, 0)
	later := gang(11, 0)
	whole.Job, later.Job = "first", "later"
	out := Make(Input{Now: now, Pools: pools(), Nodes: []Node{starting("s1"), node("on-demand", "od-1")}, Work: []Work{whole, later}})
	must.Eq(t, map[string]int{"spot": 16, "on-demand": 8}, out.Waiting[0].Places)
	must.Eq(t, nil, out.Waiting[1].Places, must.Sprint("it has no nodes"))
}
