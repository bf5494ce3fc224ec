// SPDX-License-Identifier: MPL-2.0

package plan

import "slices"

// limit is the most allocations of a work on one node; 0: any number.
func (w Work) limit() int {
	if w.Distinct || len(w.Claims) > 0 {
		return 1
	}
	return w.PerNode
}

// roomOn is how many allocations of a work a node may have beside those it has,
// whatever it offers.
func (w Work) roomOn(n *place) int {
	if n.claimed(w) || w.barred(n) {
		return 0
	}
	room := w.limit()
	if room == 0 {
		return w.Count
	}
	for _, name := range w.PlacedOn {
		if name == n.Name {
			room--
		}
	}
	return max(room, 0)
}

// claimed reports whether something on a node has what a work must have alone.
func (n *place) claimed(w Work) bool {
	return len(w.Claims) > 0 && slices.ContainsFunc(w.Claims, func(c string) bool { return slices.Contains(n.Claims, c) })
}

func (n *place) claim(w Work) {
	if len(w.Claims) > 0 {
		n.Claims = slices.Concat(n.Claims, w.Claims)
	}
}
