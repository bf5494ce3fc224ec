// SPDX-License-Identifier: MPL-2.0

// Package power decides which power limits GPUs get, and which are put back:
// at the plugin's end, or at its next start where it had no end. It is pure.
package power

import (
	"fmt"
	"slices"

	"github.com/nomad-gpu/nomad-gpu/device/gpu"
)

// Rule limits the GPUs of a model.
type Rule struct {
	// Model is the GPUs' product name; empty: any.
	Model string
	Watts uint
}

// Bounds are the limits that a part allows, and the one it has now, in watts.
type Bounds struct {
	Least, Most, Now uint
}

// Original are the limits that were there before any of ours, by UUID, in watts.
type Original map[string]uint

// Change is a limit to set.
type Change struct {
	UUID  string
	Watts uint
	// Back is true where it is the original one.
	Back bool
}

// Plan gives the changes that bring the machine's GPUs to their rules, and the
// originals to remember before the first is made. GPUs that no rule wants get
// back what they had. Refused names what a part does not allow, by UUID.
func Plan(m *gpu.Machine, rules []Rule, bounds map[string]Bounds, before Original) (changes []Change, original Original, refused map[string]string) {
	original, refused = Original{}, map[string]string{}
	for _, g := range m.GPUs {
		b, known := bounds[g.UUID]
		had, changed := before[g.UUID]
		i := slices.IndexFunc(rules, func(r Rule) bool { return r.Model == "" || r.Model == g.Model })
		switch {
		case !known || g.Parent != "":
			// What cannot be asked now may still have to be put back later.
			if changed {
				original[g.UUID] = had
			}
			if i >= 0 && g.Parent == "" {
				refused[g.UUID] = "the part does not tell its power limits"
			}
		case i < 0:
			if changed && b.Now != had {
				changes = append(changes, Change{g.UUID, had, true})
				original[g.UUID] = had
			}
		case rules[i].Watts < b.Least || rules[i].Watts > b.Most:
			refused[g.UUID] = fmt.Sprintf("power limit %d W: the part allows %d to %d W", rules[i].Watts, b.Least, b.Most)
			if changed {
				original[g.UUID] = had
			}
		default:
			if !changed {
				had = b.Now
			}
			original[g.UUID] = had
			if b.Now != rules[i].Watts {
				changes = append(changes, Change{g.UUID, rules[i].Watts, false})
			}
		}
	}
	// GPUs that are not there now keep their place.
	for uuid, watts := range before {
		if !slices.ContainsFunc(m.GPUs, func(g gpu.GPU) bool { return g.UUID == uuid }) {
			original[uuid] = watts
		}
	}
	return changes, original, refused
}
