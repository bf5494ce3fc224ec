// SPDX-License-Identifier: MPL-2.0

package preflight

import (
	"errors"
	"math"
	"net/netip"
	"testing"

	"github.com/shoenig/test/must"

	"github.com/nomad-gpu/nomad-gpu/driver/gang"
)

func membersNamed(names ...string) []gang.Member {
	var all []gang.Member
	for i, name := range names {
		all = append(all, gang.Member{Alloc: "alloc-" + name, Node: name, Address: netip.AddrFrom4([4]byte{10, 0, 0, byte(i + 1)}), Ports: [2]int{1, 2}, Slots: 8, Version: "1.0.0"})
	}
	return all
}

func TestTheWorseNodeOfASlowPairIsTheOneThatIsSlowElsewhereToo(t *testing.T) {
	members := membersNamed("a", "b", "c", "d")
	pair := func(from int, gbps float64) Pair {
		return Pair{From: from, To: (from + 1) % 4, Gbps: gbps, Baseline: 100}
	}
	for _, c := range []struct {
		name  string
		rates []float64 // of pairs 0-1, 1-2, 2-3, 3-0; the first is judged
		worse int
		text  string
	}{
		{"all well", []float64{90, 90, 90, 90}, 0, ""},
		{"just enough", []float64{50, 90, 90, 90}, 0, ""},
		{"another pair is slow", []float64{90, 10, 90, 90}, 0, ""},
		{"slow to", []float64{10, 12, 90, 90}, 1, "rank 1 on b (10.0.0.2) is slow with its other neighbour too"},
		{"slow from", []float64{10, 90, 90, 12}, 0, "rank 0 on a (10.0.0.1) is slow with its other neighbour too"},
		{"both, one worse", []float64{10, 40, 90, 12}, 0, "rank 0 on a"},
		{"both alike", []float64{10, 12, 90, 12}, -1, "look at the path between the two"},
		{"the pair alone", []float64{10, 90, 90, 90}, -1, "look at the path between the two"},
	} {
		t.Run(c.name, func(t *testing.T) {
			pairs := map[int]Pair{}
			for from, gbps := range c.rates {
				pairs[from] = pair(from, gbps)
			}
			err := judge(members, pairs[0], pairs, 0, 0.5)
			if c.text == "" {
				must.NoError(t, err)
				return
			}
			var slow *SlowPair
			must.True(t, errors.As(err, &slow))
			must.Eq(t, c.worse, slow.Worse)
			must.ErrorContains(t, err, "bandwidth from rank 0 on a (10.0.0.1) to rank 1 on b (10.0.0.2): 10 Gbit/s, usually 100")
			must.ErrorContains(t, err, c.text)
		})
	}
}

func TestAPairWithoutABaselineIsHeldToTheLeastAlone(t *testing.T) {
	members := membersNamed("a", "b")
	p := Pair{From: 0, To: 1, Gbps: 9}
	must.NoError(t, judge(members, p, nil, 0, 0.5))
	must.NoError(t, judge(members, p, nil, 9, 0.5))
	must.ErrorContains(t, judge(members, p, nil, 10, 0.5), "9 Gbit/s, min_gbps is 10; look at the path")
	p.Baseline = 1000
	must.NoError(t, judge(members, p, nil, 0, 0), must.Sprint("a ratio of 0 leaves the baseline out"))
}

func TestABaselineIsTheMedianOfTheNewestMeasurements(t *testing.T) {
	var b Baseline
	must.Zero(t, b.Usual())
	for i := range 20 {
		b = b.With(float64(100 + i))
	}
	must.Eq(t, []float64{112, 113, 114, 115, 116, 117, 118, 119}, b.Gbps)
	must.Eq(t, 116, b.Usual())
	must.NoError(t, b.Validate())
	for _, bad := range []float64{0, -1, 2e6, math.NaN(), math.Inf(1)} {
		must.Error(t, Baseline{Gbps: []float64{bad}}.Validate())
	}
	must.ErrorContains(t, Baseline{Gbps: make([]float64, 9)}.Validate(), "9 measurements; allowed are 8")
}

func TestAPairIsBelievedOnlyWhereItIsTheTellersOwnAndPlausible(t *testing.T) {
	must.NoError(t, Pair{From: 3, To: 0, Gbps: 1}.validate(3, 4))
	for _, p := range []Pair{{From: 2, To: 3, Gbps: 1}, {From: 3, To: 1, Gbps: 1}, {From: 3, To: 0}, {From: 3, To: 0, Gbps: 1, Baseline: -1}, {From: 3, To: 0, Gbps: 1e9}} {
		must.Error(t, p.validate(3, 4))
	}
}

func TestVersionsThatDifferAreToldWithTheRanksOfEach(t *testing.T) {
	members := membersNamed("a", "b", "c", "d", "e")
	v := func(s string) Versions { return Versions{"NVIDIA-driver": s} }
	err := compareVersions(members, map[int]Versions{0: v("550.1"), 1: v("550.1"), 2: v("535.9"), 3: v("550.1"), 4: {}})
	must.EqError(t, err, "versions of NVIDIA-driver differ: 550.1 on ranks 0-1, 3, 535.9 on rank 2 on c (10.0.0.3)")
	must.NoError(t, compareVersions(members, map[int]Versions{0: v("550.1"), 1: v("550.1"), 2: {}}))
	must.Eq(t, "", Releases(members))
	members[4].Version = "1.1.0"
	must.Eq(t, "releases of nomad-driver-nccl differ: 1.0.0 on ranks 0-3, 1.1.0 on rank 4 on e (10.0.0.5)", Releases(members))
}

func TestWhatIsNoVersionIsLeftOut(t *testing.T) {
	many := Versions{"nvidia": "550.54.15", "x\n": "1", "y": "1\x1b[2J", "z": ""}
	must.Eq(t, Versions{"nvidia": "550.54.15"}, many.clean())
	for i := range 40 {
		many[string(rune('a'+i%26))+"q"+string(rune('a'+i/26))] = "1"
	}
	must.MapLen(t, maxComponents, many.clean())
}
