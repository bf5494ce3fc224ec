// SPDX-License-Identifier: MPL-2.0

package gang

import (
	"cmp"
	"slices"
	"strings"
)

// assignRanks names the n members of the next generation in rank order.
// Members of the generation before keep their rank, so that a checkpoint
// sharded by rank stays with its node; a replacement takes a vacated rank, and
// new members fill what is free in the order of compareNew. It needs at least
// n candidates; with more, members of the generation before come first.
func assignRanks(before []Member, candidates []Member, n int) []Member {
	rest := slices.Clone(candidates)
	slices.SortFunc(rest, compareNew)
	seats := make([]*Member, n)
	for rank, old := range before[:min(len(before), n)] {
		if i := slices.IndexFunc(rest, func(m Member) bool { return m.Alloc == old.Alloc }); i >= 0 {
			m := rest[i]
			seats[rank] = &m
			rest = slices.Delete(rest, i, i+1)
		}
	}
	next := 0
	ranked := make([]Member, n)
	for rank, seat := range seats {
		if seat != nil {
			ranked[rank] = *seat
			continue
		}
		ranked[rank] = rest[next]
		next++
	}
	return ranked
}

// compareNew orders members that had no rank yet: those that share a switch
// together, then nodes in natural order, then Nomad's index; the allocation
// ID makes the order total.
func compareNew(a, b Member) int {
	return cmp.Or(
		naturalCompare(a.Topology, b.Topology),
		naturalCompare(a.Node, b.Node),
		cmp.Compare(a.Index, b.Index),
		cmp.Compare(a.Alloc, b.Alloc),
	)
}

// naturalCompare compares texts with runs of digits as numbers: node2 comes
// before node10.
func naturalCompare(a, b string) int {
	for a != "" && b != "" {
		da, db := digits(a), digits(b)
		if da == "" || db == "" {
			if a[0] != b[0] {
				return cmp.Compare(a[0], b[0])
			}
			a, b = a[1:], b[1:]
			continue
		}
		na, nb := strings.TrimLeft(da, "0"), strings.TrimLeft(db, "0")
		if c := cmp.Or(cmp.Compare(len(na), len(nb)), cmp.Compare(na, nb), cmp.Compare(len(da), len(db))); c != 0 {
			return c
		}
		a, b = a[len(da):], b[len(db):]
	}
	return cmp.Compare(len(a), len(b))
}

func digits(s string) string {
	end := 0
	for end < len(s) && '0' <= s[end] && s[end] <= '9' {
		end++
	}
	return s[:end]
}
