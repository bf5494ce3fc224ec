// SPDX-License-Identifier: MPL-2.0

package preflight

// fullMesh is up to how many members everyone calls everyone: beyond, the
// calls of all members together would grow with the square of the gang.
const fullMesh = 64

// plan is whom one rank calls and who calls it, each without itself.
type plan struct {
	// calls and called are ranks, in ascending distance.
	calls, called []int
	// next and before are the neighbours on the ring of ranks; -1: none.
	next, before int
}

// planFor is the plan of a rank among n. With all true every rank calls every
// other where there are at most 64, n-1 calls a member. Beyond, it calls the
// ranks 1, 2, 4, 8 … further on, ceil(log2 n) calls a member: each rank is on
// both ends of as many pairs, and every switch that joins a part of the ring
// to the rest is passed. With all false it calls its next neighbour alone.
func planFor(rank, n int, all bool) plan {
	p := plan{next: -1, before: -1}
	if n < 2 {
		return p
	}
	p.next, p.before = (rank+1)%n, (rank+n-1)%n
	call := func(distance int) {
		p.calls = append(p.calls, (rank+distance)%n)
		p.called = append(p.called, (rank+n-distance)%n)
	}
	switch {
	case !all:
		call(1)
	case n <= fullMesh:
		for d := 1; d < n; d++ {
			call(d)
		}
	default:
		for d := 1; d < n; d *= 2 {
			call(d)
		}
	}
	return p
}
