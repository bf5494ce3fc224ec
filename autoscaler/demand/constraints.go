// SPDX-License-Identifier: MPL-2.0

package demand

import (
	"cmp"
	"path"
	"slices"
	"strconv"
	"strings"

	"github.com/hashicorp/nomad/api"

	"github.com/nomad-gpu/nomad-gpu/autoscaler/plan"
)

// allowed evaluates what is known of a place: node pool, datacenter, class, and
// the GPUs of its nodes. A constraint on anything else is taken to hold: what
// it needs is known to the nodes alone, and a job must not wait for ever
// because a pool's definition does not say it.
func allowed(job *api.Job, constraints []*api.Constraint, devices []*api.RequestedDevice, known *catalogue) func(plan.Where) bool {
	pool := "default"
	if job.NodePool != nil && *job.NodePool != "" {
		pool = *job.NodePool
	}
	datacenters := job.Datacenters
	// A plan asks for the same few places again and again.
	have := map[plan.Where]bool{}
	hasDevices := func(w plan.Where) bool {
		ok, asked := have[w]
		if !asked {
			ok = !slices.ContainsFunc(devices, func(r *api.RequestedDevice) bool { return !known.has(w, r) })
			have[w] = ok
		}
		return ok
	}
	return func(w plan.Where) bool {
		if pool != "all" && w.NodePool != "" && w.NodePool != pool {
			return false
		}
		if len(datacenters) > 0 && w.Datacenter != "" && !slices.ContainsFunc(datacenters, func(pattern string) bool {
			ok, err := path.Match(pattern, w.Datacenter)
			return err == nil && ok
		}) {
			return false
		}
		for _, c := range constraints {
			if c == nil {
				continue
			}
			value, known := "", true
			switch c.LTarget {
			case "${node.class}":
				value = w.Class
			case "${node.datacenter}":
				value = w.Datacenter
			case "${node.pool}":
				value = w.NodePool
			default:
				known = false
			}
			if known && value != "" && !holds(c.Operand, value, c.RTarget) {
				return false
			}
		}
		return hasDevices(w)
	}
}

// holds follows the operators of Nomad's constraint block: numbers compare as
// such, other texts by their letters.
func holds(operand, left, right string) bool {
	switch operand {
	case "", "=", "==", "is", "!=", "not":
		return inOrder(operand, strings.Compare(left, right))
	case "<", "<=", ">", ">=":
		l, lErr := strconv.ParseFloat(left, 64)
		r, rErr := strconv.ParseFloat(right, 64)
		if lErr == nil && rErr == nil {
			return inOrder(operand, cmp.Compare(l, r))
		}
		return inOrder(operand, strings.Compare(left, right))
	case "is_set":
		return true
	case "is_not_set":
		return false
	case "distinct_hosts", "distinct_property":
		return true
	}
	return textHolds(operand, left, right)
}
