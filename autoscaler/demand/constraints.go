// SPDX-License-Identifier: MPL-2.0

package demand

import (
	"path"
	"regexp"
	"slices"
	"strings"

	"github.com/hashicorp/nomad/api"

	"github.com/nomad-gpu/nomad-gpu/autoscaler/plan"
)

// allowed evaluates what a pool's definition tells of its nodes: node pool,
// datacenter and class. A constraint on anything else is taken to hold: what
// it needs is known to the nodes alone, and a job must not wait for ever
// because a pool's definition does not say it.
func allowed(job *api.Job, constraints []*api.Constraint) func(plan.Where) bool {
	pool := "default"
	if job.NodePool != nil && *job.NodePool != "" {
		pool = *job.NodePool
	}
	datacenters := job.Datacenters
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
		return true
	}
}

// holds follows the operators of Nomad's constraint block.
func holds(operand, left, right string) bool {
	list := func() []string {
		var all []string
		for _, s := range strings.Split(right, ",") {
			all = append(all, strings.TrimSpace(s))
		}
		return all
	}
	switch operand {
	case "", "=", "==", "is":
		return left == right
	case "!=", "not":
		return left != right
	case "<":
		return left < right
	case "<=":
		return left <= right
	case ">":
		return left > right
	case ">=":
		return left >= right
	case "regexp":
		re, err := regexp.Compile(right)
		return err == nil && re.MatchString(left)
	case "set_contains", "set_contains_all":
		return slices.Equal(list(), []string{left})
	case "set_contains_any":
		return slices.Contains(list(), left)
	case "is_set":
		return true
	case "is_not_set":
		return false
	}
	return true
}
