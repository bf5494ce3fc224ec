// SPDX-License-Identifier: MPL-2.0

package plan

import (
	"strings"
	"testing"

	"github.com/shoenig/test/must"
)

func TestNodesThatRefuseAWorkAreNotKeptForItNorMoreOfThemBought(t *testing.T) {
	// The name of a node says what its verdict is.
	bars := &Bars{Of: func(n string) (string, bool) {
		switch {
		case strings.HasPrefix(n, "no"):
			return "its node " + n + " is in another rack", true
		case strings.HasPrefix(n, "yes"):
			return "", true
		}
		return "", false
	}}
	remembered := map[string]Misfit{"spot": {Why: "its nodes were in another rack"}}
	starting := func(n Node) Node { n.Starting = true; return n }
	closed := func(n Node) Node { n.Closed = true; return n }
	for name, c := range map[string]struct {
		nodes    []Node
		misfits  map[string]Misfit
		bought   int
		reason   string
		never    bool
		retained bool // is the reason remembered?
	}{
		"no node is there":                       {nil, nil, 1, "1 of pool spot", false, false},
		"one that is not known yet":              {[]Node{node("spot", "new")}, nil, 0, "Nomad places it next", false, false},
		"one that admits it":                     {[]Node{node("spot", "yes")}, nil, 0, "Nomad places it next", false, false},
		"one that refuses it":                    {[]Node{node("spot", "no")}, nil, 0, "pool spot: its node no is in another rack", true, true},
		"one that refuses it is busy, too":       {[]Node{node("spot", "no"), busy(node("spot", "no-2"))}, nil, 0, "pool spot: its node no-2 is in another rack", true, true},
		"one refuses it, a busy one admits it":   {[]Node{node("spot", "no"), busy(node("spot", "yes"))}, nil, 1, "1 of pool spot", false, false},
		"one that starts is not asked":           {[]Node{starting(node("spot", "no"))}, nil, 0, "nodes are on their way", false, false},
		"one that takes no new work":             {[]Node{closed(node("spot", "no"))}, nil, 1, "1 of pool spot", false, false},
		"those that were there refused it":       {nil, remembered, 0, "its nodes were in another rack", true, false},
		"a new one there is not known yet":       {[]Node{busy(node("spot", "new"))}, remembered, 0, "more allocations are needed", false, false},
		"a new one there admits it, and is busy": {[]Node{busy(node("spot", "yes"))}, remembered, 1, "1 of pool spot", false, false},
	} {
		for i := range c.nodes {
			c.nodes[i].Whole = h100
			c.nodes[i].Whole.Devices = h100.groups()
		}
		w := single(8)
		w.Bars, w.Misfits, w.Spot = bars, c.misfits, Prefer
		out := Make(Input{Now: now, Pools: pools()[:1], Work: []Work{w}, Nodes: c.nodes})
		must.Eq(t, c.bought, out.Decisions[0].Needed, must.Sprint(name))
		must.Eq(t, c.never, out.Waiting[0].Unsatisfiable, must.Sprint(name))
		must.StrContains(t, out.Waiting[0].Reason, c.reason, must.Sprint(name))
		must.Eq(t, c.retained, out.Waiting[0].Misfits["spot"] != "", must.Sprint(name))
	}
	alone := single(8)
	alone.Bars = bars
	must.False(t, alone.mayGoTo(&place{Node: node("spot", "no")}), must.Sprint("nor is it moved there"))
}
