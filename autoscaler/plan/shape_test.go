// SPDX-License-Identifier: MPL-2.0

package plan

import (
	"fmt"
	"strings"
	"testing"

	"github.com/shoenig/test/must"
	"pgregory.net/rapid"
)

// rack is a node of two islands with four GPUs each, and another GPU in four slices.
var rack = Shape{GPUs: 8, CPU: 1000, Memory: 1000, Devices: []Devices{
	{Type: GPU, Model: "A100 island 0", Count: 4, Kind: "a100"}, {Type: GPU, Model: "A100 island 4", Count: 4, Kind: "a100"},
	{Type: Slice, Model: "T4 mps of 4", Count: 4, Of: 4, Kind: "t4"},
}}

// of asks for some devices, of a kind where one is named.
func of(kind, typ string, counts ...int) (s Shape) {
	for _, n := range counts {
		s.Asks = append(s.Asks, Ask{Type: typ, Count: n, Serves: func(k string) bool {
			if kind != "" {
				return k == kind
			}
			return k == "t4" == (typ == Slice)
		}})
		if typ == GPU {
			s.GPUs += n
		}
	}
	return s
}

func TestADeviceBlockIsServedFromOneGroup(t *testing.T) {
	for name, c := range map[string]struct {
		request Shape
		each    int // allocations a node takes; 0: it does not fit
	}{
		"an island":                         {of("", GPU, 4), 2},
		"half an island":                    {of("", GPU, 2), 4},
		"three of four, the rest is alone":  {of("", GPU, 3), 2},
		"more than an island":               {of("", GPU, 5), 0},
		"both islands, by two blocks":       {of("", GPU, 4, 4), 1},
		"three blocks of two":               {of("", GPU, 2, 2, 2), 1},
		"two blocks that leave no room":     {of("", GPU, 3, 3), 1},
		"a slice":                           {of("", Slice, 1), 4},
		"all slices":                        {of("", Slice, 4), 1},
		"more slices than there are":        {of("", Slice, 5), 0},
		"GPUs and slices":                   {add(of("", GPU, 4), of("", Slice, 2)), 2},
		"another kind":                      {of("h100", GPU, 1), 0},
		"GPUs that are not told apart":      {Shape{GPUs: 4}, 2},
		"more of them than a group has":     {Shape{GPUs: 8}, 0},
		"a model":                           {Shape{GPUs: 1, Model: "a100 island 4"}, 4},
		"no device":                         {Shape{CPU: 400}, 2},
		"too little CPU for more":           {add(of("", GPU, 1), Shape{CPU: 400}), 2},
		"too little memory for one of them": {add(of("", GPU, 1), Shape{Memory: 1001}), 0},
	} {
		must.Eq(t, c.each, perNode(c.request, rack), must.Sprint(name))
		must.Eq(t, c.each > 0, fits(c.request, rack), must.Sprint(name))
	}
	must.False(t, fits(of("", Slice, 1), Shape{GPUs: 8, Model: "A100"}), must.Sprint("a slice is no GPU"))
	must.False(t, fits(Shape{GPUs: 1}, Shape{Devices: rack.Devices[2:]}), must.Sprint("nor is a GPU of slices"))
	must.False(t, fits(of("", Slice, 1), Shape{}), must.Sprint("a node that offers nothing"))
}

func TestWhatIsTakenIsOfTheGroupWithTheLeastLeft(t *testing.T) {
	left := rack
	take(of("", GPU, 1), &left)
	take(of("", GPU, 3), &left)
	must.True(t, fits(of("", GPU, 4), left), must.Sprint("the other island is whole still"))
	take(of("", Slice, 3), &left)
	must.Eq(t, []int{0, 4, 1}, []int{left.Devices[0].Count, left.Devices[1].Count, left.Devices[2].Count})
	must.Eq(t, 4, left.GPUs)
	must.Eq(t, 4, rack.Devices[0].Count, must.Sprint("what it was taken of is a copy"))
}

func TestASliceIsWorthItsPartOfAGPU(t *testing.T) {
	must.Eq(t, 9.0, rack.Size())
	must.Eq(t, 0.75, rack.Worth(of("", Slice, 3)))
	must.Eq(t, 2.25, rack.Worth(add(of("", GPU, 2), of("", Slice, 1))))
	must.Eq(t, 8.0, Shape{}.Worth(Shape{GPUs: 8}))
	must.Eq(t, 0.5, Shape{}.Worth(Shape{Asks: []Ask{{Type: Slice, Count: 2, Of: 4}}}), must.Sprint("of a node that is of no pool"))
}

// All that fits is taken from what is there, whatever is asked for in whatever order.
func TestNoDeviceIsGivenTwice(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		offer := Shape{Devices: []Devices{}}
		kinds := map[string]int{}
		for range rapid.IntRange(0, 5).Draw(t, "groups") {
			d := Devices{Type: GPU, Kind: rapid.SampledFrom([]string{"a", "b", "c"}).Draw(t, "kind"), Count: rapid.IntRange(0, 8).Draw(t, "count")}
			offer.Devices = append(offer.Devices, d)
			offer.GPUs += d.Count
			kinds[d.Kind] += d.Count
		}
		request := Shape{}
		for range rapid.IntRange(1, 3).Draw(t, "blocks") {
			request = add(request, of(rapid.SampledFrom([]string{"a", "b", ""}).Draw(t, "wanted"), GPU, rapid.IntRange(1, 4).Draw(t, "n")))
		}
		each := perNode(request, offer)
		left := offer
		for i := range each {
			if !fits(request, left) {
				t.Fatalf("%d are said to fit %+v, and the %d. does not", each, offer, i+1)
			}
			take(request, &left)
		}
		if fits(request, left) {
			t.Fatalf("%d are said to fit %+v, and one more does", each, offer)
		}
		sum := 0
		for i, d := range left.Devices {
			if d.Count < 0 || d.Count > offer.Devices[i].Count {
				t.Fatalf("%d of %d are left", d.Count, offer.Devices[i].Count)
			}
			sum += d.Count
		}
		if left.GPUs != sum || offer.GPUs-sum != each*request.GPUs {
			t.Fatalf("%d GPUs are left by the sum and %d by the groups", left.GPUs, sum)
		}
	})
}

// shared is a pool whose nodes are eight GPUs in four slices each.
func shared() Pool {
	p := Pool{Name: "shared", Lifecycle: OnDemand, Price: 8, Max: 2, Shape: Shape{CPU: 1 << 20, Memory: 1 << 20}}
	for range 4 {
		p.Shape.Devices = append(p.Shape.Devices, Devices{Type: Slice, Model: "L40S", Count: 8, Of: 4, Kind: "t4"})
	}
	return p
}

func TestPoolsOfSlicesAndOfGPUsServeTheirOwn(t *testing.T) {
	in := Input{Now: now, Pools: append(pools(), shared())}
	in.Pools[1].Min = 0
	wants := func(w Work) (Output, [2]int) {
		w.Job, w.Group, w.Allowed = "j", "g", anywhere
		in.Work = []Work{w}
		out := Make(in)
		s, _ := out.Of("spot")
		d, _ := out.Of("shared")
		return out, [2]int{s.Want, d.Want}
	}
	out, got := wants(Work{Count: 33, Request: of("", Slice, 1)})
	must.Eq(t, [2]int{0, 2}, got)
	d, _ := out.Of("shared")
	must.StrContains(t, d.Reason, "work j/g queues 33 slices (0 of 33 placed) and 2 more nodes are bought for it")
	_, got = wants(Work{Count: 9, Request: of("", GPU, 1)})
	must.Eq(t, [2]int{2, 0}, got)
	_, got = wants(Work{Count: 5, Request: of("", Slice, 8)})
	must.Eq(t, [2]int{0, 2}, got, must.Sprint("a group has eight, a node four groups"))
	out, got = wants(Work{Count: 1, Request: of("", Slice, 9)})
	must.Eq(t, [2]int{0, 0}, got)
	must.True(t, out.Waiting[0].Unsatisfiable)
	must.StrContains(t, out.Waiting[0].Reason, `pool shared: its nodes have groups of 8 devices at most, and Nomad serves a request from one group`)
	_, got = wants(Work{Count: 1, Request: of("", Slice, 8), MaxCost: 1.9})
	must.Eq(t, [2]int{0, 0}, got, must.Sprint("eight slices are two GPUs of a node that costs 8"))
	_, got = wants(Work{Count: 1, Request: of("", Slice, 8), MaxCost: 2})
	must.Eq(t, [2]int{0, 1}, got)
	in.Ahead = []Ahead{{Model: "H100", GPUs: 100, Why: "it is noon"}, {GPUs: 100, Why: "of the model that shared has"}}
	out, got = wants(Work{})
	must.Eq(t, [2]int{8, 0}, got, must.Sprint("a load of whole GPUs buys no slices ahead"))
	must.StrNotContains(t, fmt.Sprint(out), "%!")
}

func TestANodeOfBothHasRoomForEach(t *testing.T) {
	pool := Pool{Name: "both", Max: 1, Shape: rack}
	n := Node{Name: "n", Pool: "both", Free: rack}
	for _, w := range []Work{{Count: 2, Request: of("", GPU, 4)}, {Count: 4, Request: of("", Slice, 1)}} {
		take(w.Request, &n.Free)
		w.Job, w.Allowed = "j", anywhere
		out := Make(Input{Now: now, Work: []Work{w}, Nodes: []Node{n}, Pools: []Pool{pool}})
		must.False(t, strings.Contains(out.Waiting[0].Reason, "ready"), must.Sprint("one place is taken"))
		w.Count--
		out = Make(Input{Now: now, Work: []Work{w}, Nodes: []Node{n}, Pools: []Pool{pool}})
		must.StrContains(t, out.Waiting[0].Reason, "the nodes for the rest are ready")
	}
}

// A node that is busy and too small for a work, even when it is empty, is no
// reason to wait for it.
func TestABusyNodeThatCouldNeverHoldAWorkIsNoHope(t *testing.T) {
	pool := Pool{Name: "both", Max: 1, Shape: rack}
	for _, full := range []bool{false, true} {
		n := Node{Name: "n", Pool: "both", Free: rack, Whole: rack, Busy: true}
		if full {
			n.Free = Shape{Devices: []Devices{}}
		} else {
			take(of("", GPU, 3), &n.Free)
		}
		for gpus, never := range map[int]bool{4: false, 5: true} {
			w := Work{Job: "j", Count: 2, Request: of("", GPU, gpus), Allowed: anywhere}
			out := Make(Input{Now: now, Work: []Work{w}, Nodes: []Node{n}, Pools: []Pool{pool}})
			must.Eq(t, never, out.Waiting[0].Unsatisfiable, must.Sprint(gpus, full, out.Waiting[0].Reason))
			w.Count = 3
			out = Make(Input{Now: now, Work: []Work{w}, Nodes: []Node{n}, Pools: []Pool{pool}})
			must.True(t, out.Waiting[0].Unsatisfiable, must.Sprint("it has two islands"))
			w.Placed, w.PlacedOn = 1, []string{"n"}
			out = Make(Input{Now: now, Work: []Work{w}, Nodes: []Node{n}, Pools: []Pool{pool}})
			must.True(t, out.Waiting[0].Unsatisfiable, must.Sprint("one of which it has itself"))
		}
	}
}

// BenchmarkPlanOfSlices packs requests for slices onto nodes of as many groups
// as the device plugin ever makes, half of them busy.
func BenchmarkPlanOfSlices(b *testing.B) {
	pool := Pool{Name: "shared", Max: 2000, Shape: Shape{CPU: 1 << 20, Memory: 1 << 20}}
	for range 64 {
		pool.Shape.Devices = append(pool.Shape.Devices, Devices{Type: Slice, Count: 8, Of: 64, Kind: "t4"})
	}
	in := Input{Now: now, Pools: []Pool{pool}}
	for i := range 1000 {
		in.Nodes = append(in.Nodes, Node{Name: fmt.Sprint("n", i), Pool: "shared", Free: pool.Shape, Whole: pool.Shape, Busy: i%2 == 0})
	}
	for i := range 10000 {
		in.Work = append(in.Work, Work{Job: fmt.Sprint("j", i), Group: "g", Count: 1 + i%16, Request: of("", Slice, 1+i%8), Allowed: anywhere})
	}
	for b.Loop() {
		Make(in)
	}
}
