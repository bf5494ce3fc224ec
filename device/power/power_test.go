// SPDX-License-Identifier: MPL-2.0

package power

import (
	"testing"

	"github.com/shoenig/test/must"
	"pgregory.net/rapid"

	"github.com/nomad-gpu/nomad-gpu/device/gpu"
)

func box() *gpu.Machine {
	return &gpu.Machine{GPUs: []gpu.GPU{{UUID: "a", Model: "H100"}, {UUID: "b", Model: "L40S"}, {UUID: "m", Model: "H100 MIG", Parent: "c"}}}
}

var bounds = map[string]Bounds{"a": {200, 700, 700}, "b": {100, 350, 350}}

func TestLimitsAreSetWithinWhatThePartAllows(t *testing.T) {
	changes, original, refused := Plan(box(), []Rule{{Model: "H100", Watts: 500}}, bounds, nil)
	must.Eq(t, []Change{{"a", 500, false}}, changes)
	must.Eq(t, Original{"a": 700}, original)
	must.MapEmpty(t, refused)

	changes, original, refused = Plan(box(), []Rule{{Watts: 600}}, bounds, nil)
	must.Eq(t, []Change{{"a", 600, false}}, changes)
	must.Eq(t, Original{"a": 700}, original)
	must.Eq(t, map[string]string{"b": "power limit 600 W: the part allows 100 to 350 W"}, refused)
}

func TestAfterACrashTheOriginalIsTheOldOne(t *testing.T) {
	now := map[string]Bounds{"a": {200, 700, 500}}
	changes, original, _ := Plan(box(), []Rule{{Model: "H100", Watts: 400}}, now, Original{"a": 700})
	must.Eq(t, []Change{{"a", 400, false}}, changes)
	must.Eq(t, Original{"a": 700}, original)
	changes, _, _ = Plan(box(), nil, now, Original{"a": 700})
	must.Eq(t, []Change{{"a", 700, true}}, changes, must.Sprint("a rule that went gives the limit back"))
	changes, original, _ = Plan(box(), nil, bounds, Original{"a": 700})
	must.SliceEmpty(t, changes)
	must.MapEmpty(t, original, must.Sprint("nothing is left to be put back"))
}

func TestWhatCannotBeAskedIsNamedAndKept(t *testing.T) {
	_, original, refused := Plan(box(), []Rule{{Watts: 300}}, nil, Original{"a": 700, "gone": 400})
	must.Eq(t, Original{"a": 700, "gone": 400}, original)
	must.Eq(t, map[string]string{"a": "the part does not tell its power limits", "b": "the part does not tell its power limits"}, refused)
}

// Whatever rules come and go, in the end every GPU has the limit it began with.
func TestEveryLimitIsPutBackInTheEnd(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		m, now, before := box(), map[string]Bounds{}, Original{}
		for uuid, b := range bounds {
			now[uuid] = b
		}
		apply := func(rules []Rule) {
			changes, original, _ := Plan(m, rules, now, before)
			before = original // kept first
			for _, c := range changes {
				if rapid.Bool().Draw(t, "killed") {
					return
				}
				b := now[c.UUID]
				b.Now = c.Watts
				now[c.UUID] = b
			}
		}
		for range rapid.IntRange(0, 8).Draw(t, "steps") {
			apply([]Rule{{Model: rapid.SampledFrom([]string{"", "H100", "L40S", "none"}).Draw(t, "model"), Watts: uint(rapid.IntRange(50, 800).Draw(t, "watts"))}})
		}
		for range 100 {
			apply(nil)
		}
		for uuid, b := range bounds {
			if now[uuid].Now != b.Now {
				t.Fatalf("%s is left at %d W, it had %d W", uuid, now[uuid].Now, b.Now)
			}
		}
	})
}
