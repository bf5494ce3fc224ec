// SPDX-License-Identifier: MPL-2.0

package topology

import (
	"math/bits"
	"slices"
	"testing"

	"github.com/shoenig/test/must"
	"pgregory.net/rapid"

	"github.com/nomad-gpu/nomad-gpu/device/gpu"
)

// link joins GPUs a and b by n NVLinks.
type link struct {
	a, b int
	n    uint
}

// machine makes n GPUs, SYS apart but for the links, half of them on each of
// two NUMA nodes, with one RDMA NIC a pair of GPUs.
func machine(n int, links ...link) *gpu.Machine {
	m := &gpu.Machine{Paths: gpu.NewPaths(n)}
	for i := range n {
		m.GPUs = append(m.GPUs, gpu.GPU{Index: i, NUMANode: i * 2 / n, NVLinkVersion: 3})
		for j := range n {
			if i != j {
				m.Paths[i][j].PCIe = gpu.SYS
			}
		}
		if i%2 == 0 {
			m.NICs = append(m.NICs, gpu.NIC{Name: "nic", RDMA: true, NUMANode: i * 2 / n})
		}
	}
	m.NICPaths = gpu.NewNICPaths(n, len(m.NICs))
	for i := range n {
		for k := range m.NICs {
			m.NICPaths[i][k] = gpu.SYS
			if i/2 == k {
				m.NICPaths[i][k] = gpu.PXB
			}
		}
	}
	for _, l := range links {
		m.Paths[l.a][l.b].NVLinks = l.n
		m.Paths[l.b][l.a].NVLinks = l.n
	}
	return m
}

func mesh(links uint, gpus ...int) []link {
	var all []link
	for x, a := range gpus {
		for _, b := range gpus[x+1:] {
			all = append(all, link{a, b, links})
		}
	}
	return all
}

// dgx1 is the hybrid cube mesh of the DGX-1 with V100.
func dgx1() *gpu.Machine {
	return machine(8, []link{
		{0, 1, 1}, {0, 2, 1}, {0, 3, 2}, {0, 4, 2}, {1, 2, 2}, {1, 3, 1}, {1, 5, 2}, {2, 3, 2},
		{2, 6, 1}, {3, 7, 1}, {4, 5, 1}, {4, 6, 1}, {4, 7, 2}, {5, 6, 2}, {5, 7, 1}, {6, 7, 2},
	}...)
}

func TestIslands(t *testing.T) {
	pairs := machine(5, link{0, 2, 12}, link{1, 3, 12})
	must.Eq(t, [][]int{{0, 2}, {1, 3}}, Islands(pairs))
	must.Eq(t, []int{4}, Alone(pairs))
	must.Eq(t, []int{2, 2, 2, 2, 1}, IslandSizes(pairs))

	cube := dgx1()
	must.Eq(t, [][]int{{0, 1, 2, 3, 4, 5, 6, 7}}, Islands(cube))
	must.False(t, FullMesh(cube, Islands(cube)[0]))
	must.Eq(t, [][]int{{0, 1, 2, 3}, {0, 4}, {1, 5}, {2, 6}, {3, 7}, {4, 5, 6, 7}}, Cliques(cube, Islands(cube)[0]))
	must.True(t, FullMesh(cube, []int{0, 1, 2, 3}))

	must.Len(t, 0, Islands(&gpu.Machine{}))
	must.Len(t, 0, Alone(&gpu.Machine{}))
}

func TestNearestNICs(t *testing.T) {
	m := machine(4)
	must.Eq(t, []Nearest{
		{gpu.PXB, []int{0}}, {gpu.PXB, []int{0}}, {gpu.PXB, []int{1}}, {gpu.PXB, []int{1}},
	}, NearestNICs(m))
	must.Eq(t, []int{1, 0}, NearestNICsOf(m, []int{3, 0, 2}))

	m.NICs[0].RDMA = false
	must.Eq(t, Nearest{gpu.SYS, []int{1}}, NearestNICs(m)[0])
	must.Eq(t, []int{1}, NearestNICsOf(m, []int{0}))

	m.NICPaths[3][1] = gpu.NoLevel
	must.Eq(t, Nearest{}, NearestNICs(m)[3])
	must.Eq(t, []Nearest{{}}, NearestNICs(machineWithoutNICs()))
}

func machineWithoutNICs() *gpu.Machine {
	return &gpu.Machine{GPUs: make([]gpu.GPU, 1), Paths: gpu.NewPaths(1), NICPaths: gpu.NewNICPaths(1, 0)}
}

func TestVisibleOrder(t *testing.T) {
	cases := []struct {
		name string
		m    *gpu.Machine
		gpus []int
		want []int
	}{
		{"behind switches the order is ascending", machine(8, mesh(12, 0, 1, 2, 3, 4, 5, 6, 7)...), []int{7, 3, 5, 1}, []int{1, 3, 5, 7}},
		{"interleaved pairs stand side by side", machine(4, link{0, 2, 12}, link{1, 3, 12}), []int{0, 1, 2, 3}, []int{0, 2, 1, 3}},
		{"a quad of the cube mesh follows its double links", dgx1(), []int{0, 1, 2, 3}, []int{0, 3, 2, 1}},
		{"duplicates are dropped", machine(4), []int{2, 2, 0}, []int{0, 2}},
		{"one GPU", machine(4), []int{3}, []int{3}},
		{"none", machine(4), nil, nil},
	}
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) { must.SliceEqOp(t, c.want, VisibleOrder(c.m, c.gpus)) })
	}
}

func TestOfOrdersWithEqualSumsTheWeakestLinkDecides(t *testing.T) {
	m := machine(4, link{1, 2, 1})
	for _, p := range []struct {
		a, b  int
		level gpu.Level
	}{{0, 1, gpu.PIX}, {2, 3, gpu.SYS}, {0, 2, gpu.PHB}, {1, 3, gpu.PHB}, {0, 3, gpu.NoLevel}} {
		m.Paths[p.a][p.b].PCIe, m.Paths[p.b][p.a].PCIe = p.level, p.level
	}
	// PIX and SYS add up to as much as PHB twice.
	must.SliceEqOp(t, []int{0, 2, 1, 3}, VisibleOrder(m, []int{0, 1, 2, 3}))
}

// anyMachine draws a machine of 2 to most GPUs with random links, levels, NICs.
func anyMachine(t *rapid.T, most int) *gpu.Machine {
	n := rapid.IntRange(2, most).Draw(t, "gpus")
	k := rapid.IntRange(0, 3).Draw(t, "nics")
	m := &gpu.Machine{GPUs: make([]gpu.GPU, n), NICs: make([]gpu.NIC, k), Paths: gpu.NewPaths(n), NICPaths: gpu.NewNICPaths(n, k)}
	for i := range n {
		m.GPUs[i].NUMANode = rapid.IntRange(gpu.NoNUMA, 1).Draw(t, "numa")
		for j := range i {
			path := gpu.Path{
				NVLinks: uint(rapid.IntRange(0, 2).Draw(t, "nvlinks")),
				PCIe:    gpu.Level(rapid.IntRange(0, int(gpu.PIX)).Draw(t, "pcie")),
			}
			m.Paths[i][j], m.Paths[j][i] = path, path
		}
		for x := range k {
			m.NICPaths[i][x] = gpu.Level(rapid.IntRange(0, int(gpu.PIX)).Draw(t, "nic path"))
		}
	}
	for x := range k {
		m.NICs[x].RDMA = rapid.Bool().Draw(t, "rdma")
	}
	return m
}

// permutations calls visit with every order of set, in lexical order.
func permutations(set []int, visit func([]int)) {
	var walk func(done, left []int)
	walk = func(done, left []int) {
		if len(left) == 0 {
			visit(done)
			return
		}
		for x := range left {
			walk(append(slices.Clone(done), left[x]), slices.Delete(slices.Clone(left), x, x+1))
		}
	}
	walk(nil, set)
}

func TestVisibleOrderIsTheFirstOfTheBestOrders(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		m := anyMachine(t, 6)
		all := make([]int, len(m.GPUs))
		for i := range all {
			all[i] = i
		}
		var want []int
		var wantSum, wantWeakest uint
		permutations(all, func(order []int) {
			sum, weakest := uint(0), ^uint(0)
			for x := 1; x < len(order); x++ {
				mbps := m.PairMBps(order[x-1], order[x])
				sum += mbps
				weakest = min(weakest, mbps)
			}
			if want == nil || sum > wantSum || sum == wantSum && weakest > wantWeakest {
				want, wantSum, wantWeakest = order, sum, weakest
			}
		})
		must.SliceEqOp(t, want, VisibleOrder(m, all))
	})
}

// slowScore sums everything from scratch, as the fields of Score say.
func slowScore(m *gpu.Machine, r Request, chosen []int) Score {
	nearest := NearestNICs(m)
	left := slices.DeleteFunc(slices.Clone(r.Free), func(i int) bool { return slices.Contains(chosen, i) })
	pairs := func(set []int, value func(i, j int) uint64) (sum uint64) {
		for x, i := range set {
			for _, j := range set[x+1:] {
				sum += value(i, j)
			}
		}
		return sum
	}
	mbps := func(i, j int) uint64 { return uint64(m.PairMBps(i, j)) }
	near := func(i, j int) uint64 { return pairLocality(m, nearest, i, j) }
	s := Score{
		InternalMBps: pairs(chosen, mbps), LeftMBps: pairs(left, mbps),
		LeftLaterMBps:    pairs(slices.Concat(left, r.InUse), mbps) - pairs(r.InUse, mbps),
		InternalLocality: pairs(chosen, near), LeftLocality: pairs(left, near),
	}
	for _, i := range chosen {
		s.NICLevels += uint64(nearest[i].Level)
	}
	return s
}

func TestChooseIsTheFirstOfTheBestSubsets(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		m := anyMachine(t, 8)
		var r Request
		for i := range m.GPUs {
			switch rapid.IntRange(0, 4).Draw(t, "state") {
			case 0:
				r.InUse = append(r.InUse, i)
			case 1:
			default:
				r.Free = append(r.Free, i)
			}
		}
		if len(r.Free) == 0 {
			t.Skip("nothing free to choose from")
		}
		r.Count = rapid.IntRange(1, len(r.Free)).Draw(t, "count")
		var want []int
		var wantScore Score
		for set := range uint(1) << len(r.Free) {
			if bits.OnesCount(set) != r.Count {
				continue
			}
			var chosen []int
			for x, i := range r.Free {
				if set>>x&1 == 1 {
					chosen = append(chosen, i)
				}
			}
			score := slowScore(m, r, chosen)
			better := score.Compare(wantScore)
			if want == nil || better > 0 || better == 0 && slices.Compare(chosen, want) < 0 {
				want, wantScore = chosen, score
			}
		}
		got, err := Choose(m, Request{Free: rapid.Permutation(r.Free).Draw(t, "order"), InUse: r.InUse, Count: r.Count})
		must.NoError(t, err)
		must.SliceEqOp(t, want, got)
	})
}

func TestChoose(t *testing.T) {
	two := machine(8, slices.Concat(mesh(6, 0, 1, 2, 3), mesh(6, 4, 5, 6, 7))...)
	cases := []struct {
		name string
		m    *gpu.Machine
		r    Request
		want []int
	}{
		{"a bridge pair, not two halves", machine(4, link{0, 2, 12}, link{1, 3, 12}), Request{Free: []int{0, 1, 2, 3}, Count: 2}, []int{0, 2}},
		{"what is left of a pair serves a single", machine(4, link{0, 2, 12}, link{1, 3, 12}), Request{Free: []int{0, 1, 3}, InUse: []int{2}, Count: 1}, []int{0}},
		{"a broken island before a whole one", two, Request{Free: []int{0, 1, 2, 3, 6, 7}, InUse: []int{4, 5}, Count: 2}, []int{6, 7}},
		{"a quad of the cube mesh", dgx1(), Request{Free: []int{0, 1, 2, 3, 4, 5, 6, 7}, Count: 4}, []int{0, 1, 2, 3}},
		{"behind switches, GPUs that share a NIC", machine(8, mesh(12, 0, 1, 2, 3, 4, 5, 6, 7)...), Request{Free: []int{1, 2, 3, 4}, InUse: []int{0}, Count: 2}, []int{2, 3}},
		{"what can pair later with one in use is left", machine(4, link{0, 1, 12}), Request{Free: []int{0, 3}, InUse: []int{1}, Count: 1}, []int{3}},
		{"all that are free", two, Request{Free: []int{5, 1}, Count: 2}, []int{1, 5}},
	}
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			got, err := Choose(c.m, c.r)
			must.NoError(t, err)
			must.SliceEqOp(t, c.want, got)
		})
	}
}

func TestChooseRefusesWhatCannotBe(t *testing.T) {
	m := machine(4)
	cases := []struct {
		name string
		r    Request
		want string
	}{
		{"no count", Request{Free: []int{0}}, "count 0"},
		{"more than are free", Request{Free: []int{0, 1}, Count: 3}, "only 2 GPUs are free"},
		{"a GPU that is not there", Request{Free: []int{0, 4}, Count: 1}, "GPU 4: the machine has GPUs 0 to 3"},
		{"free and in use at once", Request{Free: []int{0, 1}, InUse: []int{1}, Count: 1}, "GPU 1 is given twice"},
	}
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			_, err := Choose(m, c.r)
			must.ErrorContains(t, err, c.want)
		})
	}
}

func TestMoreGPUsThanCanBeComparedAreStillChosenWell(t *testing.T) {
	var links []link
	for first := 0; first < 24; first += 4 {
		links = append(links, mesh(4, first, first+1, first+2, first+3)...)
	}
	m := machine(24, links...)
	free := make([]int, 24)
	for i := range free {
		free[i] = i
	}
	got, err := Choose(m, Request{Free: free[1:], InUse: []int{0}, Count: 8})
	must.NoError(t, err)
	must.SliceEqOp(t, []int{4, 5, 6, 7, 8, 9, 10, 11}, got)
	must.SliceEqOp(t, free, VisibleOrder(m, free))
}

// BenchmarkChoose16 is the worst case of the largest machine: 8 of 16.
func BenchmarkChoose16(b *testing.B) {
	m := machine(16, slices.Concat(mesh(6, 0, 1, 2, 3, 4, 5, 6, 7), mesh(6, 8, 9, 10, 11, 12, 13, 14, 15))...)
	free := make([]int, 16)
	for i := range free {
		free[i] = i
	}
	for _, count := range []int{1, 2, 4, 7, 8, 9, 15} {
		b.Run(string(rune('0'+count/10))+string(rune('0'+count%10)), func(b *testing.B) {
			for b.Loop() {
				if _, err := Choose(m, Request{Free: free, Count: count}); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}

// BenchmarkChooseUnlike is the hardest machine of 16: no two GPUs are alike.
func BenchmarkChooseUnlike(b *testing.B) {
	m := machine(16)
	for i := range 16 {
		for j := range i {
			links := uint(1 + (i*7+j*5)%17)
			m.Paths[i][j].NVLinks, m.Paths[j][i].NVLinks = links, links
		}
	}
	free := make([]int, 16)
	for i := range free {
		free[i] = i
	}
	for b.Loop() {
		if _, err := Choose(m, Request{Free: free, Count: 8}); err != nil {
			b.Fatal(err)
		}
	}
}

func BenchmarkVisibleOrder(b *testing.B) {
	m := dgx1()
	for b.Loop() {
		VisibleOrder(m, []int{0, 1, 2, 3, 4, 5, 6, 7})
	}
}
