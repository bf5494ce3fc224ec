// SPDX-License-Identifier: MPL-2.0

package topology

import (
	"slices"

	"github.com/nomad-gpu/nomad-gpu/device/gpu"
)

// exactOrderLimit bounds the exact search for an order, whose cost is
// n² × 2ⁿ: 16 GPUs (an HGX-2) take some tens of milliseconds.
const exactOrderLimit = 16

// VisibleOrder puts GPUs in the order in which a task should see them, so that
// neighbours in the order share the best links: frameworks build pipelines and
// tensor-parallel groups from consecutive ranks. The sum of the neighbours'
// bandwidths is the greatest there is, the weakest of equal sums is the
// strongest, and of equals the order that is first by position is taken: on a
// machine where all pairs are alike that is the ascending order.
func VisibleOrder(m *gpu.Machine, gpus []int) []int {
	set := slices.Clone(gpus)
	slices.Sort(set)
	set = slices.Compact(set)
	if len(set) <= 2 || alike(m, set) {
		return set
	}
	if len(set) > exactOrderLimit {
		return greedyOrder(m, set)
	}
	return exactOrder(m, set)
}

func alike(m *gpu.Machine, set []int) bool {
	first := m.PairMBps(set[0], set[1])
	for x, i := range set {
		for _, j := range set[x+1:] {
			if m.PairMBps(i, j) != first {
				return false
			}
		}
	}
	return true
}

// chain is the value of an order: greater sum first, then greater weakest link.
type chain struct{ sum, weakest uint32 }

func (a chain) better(b chain) bool {
	return a.sum > b.sum || a.sum == b.sum && a.weakest > b.weakest
}

func (a chain) prepend(mbps uint32) chain {
	return chain{sum: a.sum + mbps, weakest: min(a.weakest, mbps)}
}

// exactOrder is the dynamic programme of Held and Karp (1962) for the longest
// path. best[visited][first] is the best order of the visited GPUs that begins
// with first; the order is then read off from the front, so that the first
// choice among equals is the one with the lowest position.
func exactOrder(m *gpu.Machine, set []int) []int {
	n := len(set)
	mbps := make([][]uint32, n)
	for x := range set {
		mbps[x] = make([]uint32, n)
		for y := range set {
			if x != y {
				mbps[x][y] = uint32(m.PairMBps(set[x], set[y]))
			}
		}
	}
	best := make([]chain, n<<n)
	for visited := 1; visited < 1<<n; visited++ {
		for first := range n {
			if visited>>first&1 == 0 {
				continue
			}
			rest := visited &^ (1 << first)
			if rest == 0 {
				best[visited*n+first] = chain{weakest: ^uint32(0)}
				continue
			}
			var top chain
			for next := range n {
				if rest>>next&1 == 1 {
					if c := best[rest*n+next].prepend(mbps[first][next]); c.better(top) {
						top = c
					}
				}
			}
			best[visited*n+first] = top
		}
	}

	everything := 1<<n - 1
	var goal chain
	for first := range n {
		if c := best[everything*n+first]; c.better(goal) {
			goal = c
		}
	}
	order := make([]int, 0, n)
	done := chain{weakest: ^uint32(0)}
	for rest, last := everything, -1; rest != 0; {
		for next := range n {
			if rest>>next&1 == 0 {
				continue
			}
			ahead := best[rest*n+next]
			if last >= 0 {
				ahead = ahead.prepend(mbps[last][next])
			}
			if done.sum+ahead.sum != goal.sum || min(done.weakest, ahead.weakest) != goal.weakest {
				continue
			}
			if last >= 0 {
				done = done.prepend(mbps[last][next])
			}
			order = append(order, set[next])
			rest &^= 1 << next
			last = next
			break
		}
	}
	return order
}

// greedyOrder always goes on to the best linked GPU that is left.
func greedyOrder(m *gpu.Machine, set []int) []int {
	order := []int{set[0]}
	left := slices.Clone(set[1:])
	for len(left) > 0 {
		at := 0
		for x := range left {
			last := order[len(order)-1]
			if m.PairMBps(last, left[x]) > m.PairMBps(last, left[at]) {
				at = x
			}
		}
		order = append(order, left[at])
		left = slices.Delete(left, at, at+1)
	}
	return order
}
