// SPDX-License-Identifier: MPL-2.0

package preflight

import (
	"math/bits"
	"slices"
	"testing"

	"github.com/shoenig/test/must"
	"pgregory.net/rapid"
)

func TestUpTo64MembersEveryoneCallsEveryoneOnce(t *testing.T) {
	for _, n := range []int{2, 3, 64} {
		for rank := range n {
			p := planFor(rank, n, true)
			seen := map[int]bool{rank: true}
			for _, to := range p.calls {
				must.False(t, seen[to], must.Sprintf("rank %d of %d calls %d twice", rank, n, to))
				seen[to] = true
			}
			must.MapLen(t, n, seen)
		}
	}
	must.Eq(t, plan{next: -1, before: -1}, planFor(0, 1, true))
	must.Eq(t, plan{calls: []int{0}, called: []int{2}, next: 0, before: 2}, planFor(3, 4, false))
}

func TestCallsMeetCallersWhateverTheSizeAndStayFew(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		n := rapid.IntRange(1, 4096).Draw(t, "n")
		all := rapid.Bool().Draw(t, "all")
		rank := rapid.IntRange(0, n-1).Draw(t, "rank")
		p := planFor(rank, n, all)
		for _, to := range p.calls {
			if !slices.Contains(planFor(to, n, all).called, rank) {
				t.Fatalf("rank %d calls %d, which does not expect it", rank, to)
			}
		}
		for _, from := range p.called {
			if !slices.Contains(planFor(from, n, all).calls, rank) {
				t.Fatalf("rank %d expects a call of %d, which makes none", rank, from)
			}
		}
		if n > fullMesh && len(p.calls) > bits.Len(uint(n-1)) {
			t.Fatalf("%d calls of one among %d", len(p.calls), n)
		}
		if n > 1 && !slices.Contains(p.calls, p.next) {
			t.Fatalf("the next neighbour is not called")
		}
	})
}
