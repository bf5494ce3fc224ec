// SPDX-License-Identifier: MPL-2.0

package plan

import (
	"testing"

	"github.com/shoenig/test/must"
	"pgregory.net/rapid"
)

func TestAGangGetsWhatItRunsWithWholeAndTheRestOneByOne(t *testing.T) {
	for name, c := range map[string]struct {
		count, least, placed, gone int
		spot, budget               int // the most nodes, and how many can be paid for
		bought, queued             int // nodes, GPUs
		never                      bool
		reason                     string
	}{
		"room for all":                       {4, 2, 0, 0, 8, 8, 4, 32, false, "4 of pool spot"},
		"room for what it runs with":         {4, 2, 0, 0, 2, 8, 2, 32, false, "2 of pool spot"},
		"and one more":                       {4, 2, 0, 0, 3, 8, 3, 32, false, "3 of pool spot"},
		"room for less":                      {4, 2, 0, 0, 1, 8, 0, 32, true, "it needs 2 allocations of 8 GPUs"},
		"money for what it runs with":        {4, 2, 0, 0, 8, 2, 2, 32, false, "2 of pool spot"},
		"money for less":                     {4, 2, 0, 0, 8, 1, 0, 32, true, "its nodes cost 20.00 an hour at least"},
		"it lacks one to run":                {4, 2, 1, 0, 1, 8, 1, 32, false, "1 of pool spot"},
		"it runs with fewer, no room":        {4, 2, 2, 0, 0, 8, 0, 16, false, "2 of 4 placed; nodes for 2 more allocations are needed than the pools' maximum leaves now"},
		"it runs with fewer, room for one":   {4, 2, 2, 0, 1, 8, 1, 16, false, "1 of pool spot"},
		"it runs, and lacks its spare":       {4, 3, 3, 0, 1, 8, 1, 8, false, "1 of pool spot"},
		"a spare for which there is no room": {4, 3, 0, 0, 3, 8, 3, 32, false, "3 of pool spot"},
		"one has failed for good, a spare":   {4, 3, 0, 1, 8, 8, 3, 24, false, "3 of pool spot"},
		"more have than it can miss":         {4, 3, 1, 2, 8, 8, 0, 16, true, "2 of its 4 allocations have failed and Nomad tries none of them again, and it runs with 3 at least"},
		"a count below what it runs with":    {3, 4, 0, 0, 8, 8, 0, 24, true, "its group's count is 3, and it runs with 4 at least"},
	} {
		w := gang(c.count, c.placed)
		w.Least, w.Gone = c.least, c.gone
		in := Input{Now: now, Pools: pools()[:1], Work: []Work{w}}
		in.Pools[0].Max = c.spot
		in.Budget.PerHour = 10 * float64(c.budget)
		out := Make(in)
		must.Eq(t, c.bought, out.Decisions[0].Want, must.Sprint(name))
		must.Eq(t, c.never, out.Waiting[0].Unsatisfiable, must.Sprint(name))
		must.StrContains(t, out.Waiting[0].Reason, c.reason, must.Sprint(name))
		must.StrNotContains(t, out.Waiting[0].Reason, map[bool]string{true: "\x00", false: "stop it"}[c.never], must.Sprint(name))
		must.Eq(t, c.queued, w.QueuedGPUs(), must.Sprint(name))
		must.NotEq(t, "", out.Waiting[0].Next(in.Pools), must.Sprint(name))
	}
}

func TestNothingIsBoughtForAGangThatWouldNotRunWithIt(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		in := Input{Now: now, Pools: pools()}
		in.Budget.PerHour = float64(rapid.IntRange(30, 200).Draw(t, "budget"))
		for i := range in.Pools {
			in.Pools[i].Min, in.Pools[i].Max = 0, rapid.IntRange(0, 5).Draw(t, "max")
		}
		count := rapid.IntRange(1, 12).Draw(t, "count")
		w := gang(count, rapid.IntRange(0, count).Draw(t, "placed"))
		w.Least = rapid.IntRange(0, count).Draw(t, "least")
		in.Work = []Work{w}
		free := rapid.IntRange(0, 2).Draw(t, "free")
		for i := range free {
			in.Nodes = append(in.Nodes, node("spot", string(rune('a'+i))))
		}
		out := Make(in)
		bought := 0
		for _, d := range out.Decisions {
			bought += d.Needed
		}
		if bought > 0 {
			must.GreaterEq(t, w.least(), w.Placed+min(free, w.Missing())+bought)
			must.LessEq(t, w.Missing(), min(free, w.Missing())+bought)
		}
	})
}
