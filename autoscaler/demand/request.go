// SPDX-License-Identifier: MPL-2.0

package demand

import (
	"cmp"
	"slices"

	"github.com/hashicorp/nomad/api"

	"github.com/nomad-gpu/nomad-gpu/autoscaler/plan"
)

// request is what device blocks ask for of a node. Those that ask for a certain
// kind are given devices first: the others take any.
func (c *catalogue) request(blocks []*api.RequestedDevice) (s plan.Shape) {
	certain := func(r *api.RequestedDevice) int {
		if _, _, model := deviceName(r.Name); model != "" || len(r.Constraints) > 0 {
			return 0
		}
		return 1
	}
	blocks = slices.SortedStableFunc(slices.Values(blocks), func(a, b *api.RequestedDevice) int { return cmp.Compare(certain(a), certain(b)) })
	for _, r := range blocks {
		ask := c.ask(r)
		if ask.Type == plan.GPU {
			s.GPUs += ask.Count
		}
		s.Asks = append(s.Asks, ask)
	}
	return s
}

// ask is a device block as the planner takes it.
func (c *catalogue) ask(r *api.RequestedDevice) plan.Ask {
	_, kind, model := deviceName(r.Name)
	if model == "" {
		for _, constraint := range r.Constraints {
			if constraint != nil && model == "" {
				model = namedBy(constraint)
			}
		}
	}
	a := plan.Ask{Type: plan.GPU, Model: model, Count: countOf(r)}
	if kind == plan.Slice {
		a.Type = plan.Slice
	}
	known := map[string]bool{}
	a.Serves = func(kind string) bool {
		ok, asked := known[kind]
		if !asked {
			ok = c.serves(r, kind)
			known[kind] = ok
		}
		return ok
	}
	return a
}

// countOf is how many devices a block asks for.
func countOf(r *api.RequestedDevice) int {
	if r.Count == nil {
		return 1
	}
	return int(min(*r.Count, maxCount))
}

// namedBy is the name that a constraint on devices asks for; empty where it asks for none.
func namedBy(c *api.Constraint) string {
	if c.LTarget == "${device.model}" {
		switch c.Operand {
		case "", "=", "==", "is":
			return c.RTarget
		}
	}
	return ""
}

// byID reports whether a block asks for certain devices.
func byID(r *api.RequestedDevice) bool {
	return slices.ContainsFunc(r.Constraints, func(c *api.Constraint) bool {
		return c != nil && (c.LTarget == deviceIDs || c.RTarget == deviceIDs)
	})
}

// deviceIDs stands for the ids of a node's devices. They are not looked at: a
// device that is asked for by its id is on a node that is there.
const deviceIDs = "${device.ids}"
