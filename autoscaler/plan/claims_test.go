// SPDX-License-Identifier: MPL-2.0

package plan

import (
	"testing"

	"github.com/shoenig/test/must"
)

func TestWhatANodeHasOnceIsGivenOnce(t *testing.T) {
	few := func(count int, change func(*Work)) Work {
		w := single(1)
		w.Count, w.Spot = count, Prefer
		change(&w)
		return w
	}
	port := func(w *Work) { w.Claims = []string{"port 80"} }
	other := func(w *Work) { w.Group, w.Claims = "other", []string{"port 80", "job a/j"} }
	pair := func(w *Work) { w.PerNode = 2 }
	taken := node("spot", "s1")
	taken.Claims = []string{"port 80"}
	for name, c := range map[string]struct {
		work   []Work
		nodes  []Node
		bought int
	}{
		"no port":                       {[]Work{few(4, func(*Work) {})}, nil, 1},
		"a port for each of four":       {[]Work{few(4, port)}, nil, 4},
		"two groups with the same port": {[]Work{few(1, port), few(1, other)}, nil, 2},
		"two ports":                     {[]Work{few(1, port), few(1, func(w *Work) { w.Claims = []string{"port 81"} })}, nil, 1},
		"a node whose port is free":     {[]Work{few(1, port)}, []Node{node("spot", "s1")}, 0},
		"a node whose port is taken":    {[]Work{few(1, port)}, []Node{taken}, 1},
		"one node, two that want it":    {[]Work{few(1, port), few(1, other)}, []Node{node("spot", "s1")}, 1},
		"two on a node":                 {[]Work{few(4, pair)}, nil, 2},
		"two on a node that has one":    {[]Work{few(4, func(w *Work) { w.PerNode, w.Placed, w.PlacedOn = 2, 1, []string{"s1"} })}, []Node{node("spot", "s1")}, 1},
	} {
		in := Input{Now: now, Pools: pools()[:1], Work: c.work, Nodes: c.nodes}
		must.Eq(t, c.bought, Make(in).Decisions[0].Needed, must.Sprint(name))
	}
	full := Input{Now: now, Pools: pools()[:1], Work: []Work{few(9, port)}}
	full.Pools[0].Max = 8
	out := Make(full)
	must.Eq(t, 8, out.Decisions[0].Needed)
	alone := few(1, func(w *Work) { w.Claims, w.Move = []string{"port 80"}, true })
	must.False(t, alone.mayGoTo(&place{Node: taken}), must.Sprint("nor is it moved there"))
}
