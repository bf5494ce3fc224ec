// SPDX-License-Identifier: MPL-2.0

package pools

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/shoenig/test/must"

	"github.com/nomad-gpu/nomad-gpu/e2e/cluster"
)

// more is another check of a policy.
func more(name, group, query, strategy string) string {
	return fmt.Sprintf("check %q {\n  group = %q\n  source = \"gpu-queue\"\n  query = %q\n  strategy %s\n}", name, group, query, strategy)
}

// What the autoscaler itself decides stands above the plan: a dry run, a
// cooldown, a minimum, and which of several checks wins.
func TestTheAutoscalersOwnRulesHold(t *testing.T) {
	const cooldown = 6 * time.Second
	m := newMarket(t,
		Pool{Name: "dry", Class: "dry", Lifecycle: "spot", Price: 1, Max: 1, Target: `dry-run = "true"`},
		Pool{Name: "least", Class: "least", Lifecycle: "spot", Price: 1, Min: 1, Max: 2},
		Pool{Name: "slow", Class: "slow", Lifecycle: "spot", Price: 1, Max: 2, Cooldown: cooldown.String()},
		// Another check wants one node at least: the larger count wins, in both directions.
		Pool{Name: "both", Class: "both", Lifecycle: "spot", Price: 1, Max: 2, Checks: more("one", "", "queued_gpus", "\"fixed-value\" {\nvalue = \"1\"\n}")},
		// A check that has nothing to say keeps no node where it is of the same group.
		Pool{Name: "group", Class: "group", Lifecycle: "spot", Price: 1, Max: 2, Group: "gpu", Checks: more("quiet", "gpu", "utilisation", "\"threshold\" {\nlower_bound = \"5\"\nupper_bound = \"10\"\ndelta = \"1\"\n}")},
		// A policy with a smaller max than the pools file has.
		Pool{Name: "cut", Class: "cut", Lifecycle: "spot", Price: 1, Max: 3, PolicyMax: 2},
	)
	on := func(class string) string {
		return fmt.Sprintf("constraint {\n  attribute = \"${node.class}\"\n  value = %q\n}", class)
	}
	have := func(want map[string]int) {
		t.Helper()
		must.NoError(t, cluster.WaitFor(t.Context(), time.Minute, fmt.Sprint("the pools have ", want), func() (bool, string, error) {
			seen := map[string]int{}
			for class := range want {
				seen[class] = len(m.nodes(class))
			}
			return fmt.Sprint(seen) == fmt.Sprint(want), fmt.Sprint(seen), m.Ended()
		}))
	}
	have(map[string]int{"dry": 0, "least": 1, "slow": 0, "both": 1, "group": 0})
	m.gang("dry", 1, "prefer", on("dry"))
	m.gang("cut", 3, "prefer", on("cut"))
	m.gang("slow-1", 1, "prefer", on("slow"))
	m.gang("both", 2, "prefer", on("both"))
	m.gang("group", 1, "prefer", on("group"))
	must.Eq(t, []string{"slow-1"}, m.running("slow-1", 1))
	m.gang("slow-2", 1, "prefer", on("slow"))
	must.Eq(t, []string{"slow-2"}, m.running("slow-2", 1))
	must.Eq(t, []string{"both-1", "both-2"}, m.running("both", 2))
	must.Eq(t, []string{"group-1"}, m.running("group", 1))
	log, err := m.AutoscalerLog()
	must.NoError(t, err)
	scalings := ParseScalings(log)
	at := func(gang string) time.Time {
		i := slices.IndexFunc(scalings, func(s Scaling) bool { return strings.Contains(s.Reason, "gang "+gang+"/gang") })
		must.NonNegative(t, i)
		return scalings[i].At
	}
	must.GreaterEq(t, cooldown, at("slow-2").Sub(at("slow-1")), must.Sprint("it was bought within the cooldown"))
	must.StrContains(t, string(log), "scaling dry-run is enabled")
	must.Zero(t, m.clients("dry"))
	must.StrContains(t, string(log), `pool \"cut\": max of its policy is 2 and of the pools file 3, and 3 nodes are wanted: none is bought, as a gang might get a part`)
	must.Zero(t, m.clients("cut"))
	must.StrContains(t, m.plan(), "its policy's max leaves it 2 nodes of 3")
	_, _, err = m.Nomad().Jobs().Deregister("cut", true, nil)
	must.NoError(t, err)
	m.gang("cut-2", 2, "prefer", on("cut"))
	must.Eq(t, []string{"cut-1", "cut-2"}, m.running("cut-2", 2))

	must.NoError(t, os.WriteFile(filepath.Join(m.Dir(), "go"), nil, 0o644))
	have(map[string]int{"dry": 0, "least": 1, "slow": 0, "both": 1, "group": 0, "cut": 0})
}
