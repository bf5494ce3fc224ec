// SPDX-License-Identifier: MPL-2.0

package plan

import (
	"testing"
	"time"

	"github.com/shoenig/test/must"
)

func TestWhatIsExpectedIsBoughtAheadOfItAndKept(t *testing.T) {
	in := Input{Now: now, Pools: pools(), Ahead: Ahead{GPUs: 20, Why: "it was so on three Mondays"}}
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
	in.Ahead.GPUs = 16
	want(t, in, 2, 0)
}

func TestWhatIsExpectedIsBoughtWithinMaximumAndBudget(t *testing.T) {
	in := Input{Now: now, Pools: pools(), Ahead: Ahead{GPUs: 1000}}
	want(t, in, 8, 2)
	in.Pools[1].Min = 0
	in.Budget.PerHour = 35
	want(t, in, 3, 0)
}
