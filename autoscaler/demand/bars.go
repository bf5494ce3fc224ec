// SPDX-License-Identifier: MPL-2.0

package demand

import (
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/hashicorp/nomad/api"

	"github.com/nomad-gpu/nomad-gpu/autoscaler/plan"
)

const (
	// settling is how long a node's attributes may still change once it is ready:
	// its client finds out by and by what there is.
	settling = 2 * time.Minute
	// mostNodes bounds how many nodes one reading reads in full for constraints.
	mostNodes = 200
)

// bars are what groups ask for of a node itself: its attributes and meta, and
// volumes of its host. Groups that ask for the same share one.
type bars struct {
	plan.Bars
	constraints []*api.Constraint
	volumes     []*api.VolumeRequest
	verdicts    map[string]string // by node
}

// barsFor are those of a group; nil: it asks for nothing that only a node tells.
func (c *catalogue) barsFor(g *api.TaskGroup, constraints []*api.Constraint) *plan.Bars {
	b := &bars{verdicts: map[string]string{}}
	var parts []string
	for _, constraint := range constraints {
		if constraint != nil && constraint.Operand != "distinct_hosts" && constraint.Operand != "distinct_property" && (ofNode(constraint.LTarget) || ofNode(constraint.RTarget)) {
			b.constraints = append(b.constraints, constraint)
			parts = append(parts, constraint.LTarget+"\x00"+constraint.Operand+"\x00"+constraint.RTarget)
		}
	}
	for _, v := range g.Volumes {
		if v != nil && (v.Type == "" || v.Type == "host") && !v.PerAlloc {
			b.volumes = append(b.volumes, v)
			parts = append(parts, fmt.Sprint("volume\x00", v.Source, "\x00", v.ReadOnly))
		}
	}
	if len(parts) == 0 {
		return nil
	}
	slices.Sort(parts)
	key := strings.Join(parts, "\x01")
	if shared := c.bars[key]; shared != nil {
		return &shared.Bars
	}
	c.bars[key] = b
	b.Of = func(name string) (why string, known bool) {
		n := c.inspected[name]
		if n == nil {
			return "", false
		}
		why, asked := b.verdicts[name]
		if !asked {
			why = b.refuses(n)
			b.verdicts[name] = why
		}
		return why, true
	}
	return &b.Bars
}

// ofNode reports whether only a node itself tells a constraint's target.
func ofNode(target string) bool {
	return strings.HasPrefix(target, "${attr.") || strings.HasPrefix(target, "${meta.") || strings.HasPrefix(target, "${node.unique.")
}

// refuses says why a node is none for the group: Nomad's checkConstraint and
// HostVolumeChecker (scheduler/feasible.go).
func (b *bars) refuses(n *api.Node) string {
	for _, c := range b.constraints {
		left, leftOK := resolveNode(c.LTarget, n)
		right, rightOK := resolveNode(c.RTarget, n)
		if nodeHolds(c.Operand, left, right, leftOK, rightOK) {
			continue
		}
		text := strings.Join(strings.Fields(fmt.Sprintf("%.80s %s %.80s", c.LTarget, c.Operand, c.RTarget)), " ")
		if !leftOK {
			return fmt.Sprintf("its node %s has nothing to meet %s", n.Name, text)
		}
		return fmt.Sprintf("its node %s with %.80q does not meet %s", n.Name, left, text)
	}
	for _, v := range b.volumes {
		if has := n.HostVolumes[v.Source]; has == nil {
			return fmt.Sprintf("its node %s has no host volume %.80q", n.Name, v.Source)
		} else if has.ReadOnly && !v.ReadOnly {
			return fmt.Sprintf("host volume %.80q of its node %s is read-only", v.Source, n.Name)
		}
	}
	return ""
}

// resolveNode is what a target stands for on a node.
func resolveNode(target string, n *api.Node) (string, bool) {
	if !strings.HasPrefix(target, "${") {
		return target, true
	}
	switch target {
	case "${node.unique.id}":
		return n.ID, true
	case "${node.unique.name}":
		return n.Name, true
	case "${node.datacenter}":
		return n.Datacenter, true
	case "${node.class}":
		return n.NodeClass, true
	case "${node.pool}":
		return n.NodePool, true
	}
	if name, ok := strings.CutPrefix(target, "${attr."); ok {
		v, found := n.Attributes[strings.TrimSuffix(name, "}")]
		return v, found
	}
	if name, ok := strings.CutPrefix(target, "${meta."); ok {
		v, found := n.Meta[strings.TrimSuffix(name, "}")]
		return v, found
	}
	return "", false
}

// nodeHolds follows a constraint's operators where a value may be missing.
func nodeHolds(operand, left, right string, leftOK, rightOK bool) bool {
	switch operand {
	case "is_set":
		return leftOK
	case "is_not_set":
		return !leftOK
	case "!=", "not":
		return left != right
	}
	return leftOK && rightOK && holds(operand, left, right)
}

// settled takes in nodes that were read in full and are ready for long enough.
func (c *catalogue) settled(nodes map[string]*api.Node, now time.Time) {
	for _, n := range nodes {
		if n != nil && n.StatusUpdatedAt > 0 && now.Sub(time.Unix(n.StatusUpdatedAt, 0)) >= settling {
			c.inspected[n.Name] = n
		}
	}
}

// toInspect says at which places nodes are read in full: where work that waits
// may run that asks for what only a node tells.
func toInspect(work []plan.Work) func(plan.Where) bool {
	asked := map[plan.Where]bool{}
	return func(place plan.Where) bool {
		yes, known := asked[place]
		if !known {
			yes = slices.ContainsFunc(work, func(w plan.Work) bool { return w.Bars != nil && w.Missing() > 0 && w.Allowed(place) })
			asked[place] = yes
		}
		return yes
	}
}
