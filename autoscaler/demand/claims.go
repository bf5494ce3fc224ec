// SPDX-License-Identifier: MPL-2.0

package demand

import (
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/hashicorp/nomad/api"

	"github.com/nomad-gpu/nomad-gpu/autoscaler/plan"
)

// spread notes on a work how its allocations keep apart, as Nomad's scheduler
// does: distinct_hosts of a group or of the job, distinct_property of what each
// node has its own of, and static ports, which a node has once.
func spread(w *plan.Work, job *api.Job, g *api.TaskGroup) {
	w.Distinct = w.Distinct || distinctHosts(g.Constraints)
	if distinctHosts(job.Constraints) {
		w.Claims = append(w.Claims, jobClaim(w.Namespace, w.Job))
	}
	for _, c := range slices.Concat(job.Constraints, g.Constraints) {
		if c == nil || c.Operand != "distinct_property" || !perNode(c.LTarget) {
			continue
		}
		most := 1
		if c.RTarget != "" {
			n, err := strconv.ParseUint(c.RTarget, 10, 32)
			if err != nil || n == 0 {
				continue
			}
			most = int(n)
		}
		if w.PerNode == 0 || most < w.PerNode {
			w.PerNode = most
		}
	}
	for _, n := range networks(g) {
		for _, p := range n.ReservedPorts {
			if claim := portClaim(p); !slices.Contains(w.Claims, claim) {
				w.Claims = append(w.Claims, claim)
			}
		}
	}
}

// distinctHosts reports whether the first such constraint is on; without a value,
// or with one that is neither true nor false, it is.
func distinctHosts(constraints []*api.Constraint) bool {
	for _, c := range constraints {
		if c != nil && c.Operand == "distinct_hosts" {
			on, err := strconv.ParseBool(c.RTarget)
			return err != nil || on
		}
	}
	return false
}

// perNode reports whether each node has a value of its own.
func perNode(target string) bool {
	return strings.HasPrefix(target, "${node.unique.") || strings.HasPrefix(target, "${attr.unique.") || strings.HasPrefix(target, "${meta.unique.")
}

func networks(g *api.TaskGroup) (all []*api.NetworkResource) {
	add := func(some []*api.NetworkResource) {
		for _, n := range some {
			if n != nil {
				all = append(all, n)
			}
		}
	}
	add(g.Networks)
	for _, t := range g.Tasks {
		if t != nil && t.Resources != nil {
			add(t.Resources.Networks)
		}
	}
	return all
}

func jobClaim(namespace, job string) string { return "job " + namespace + "/" + job }

func portClaim(p api.Port) string {
	if p.HostNetwork == "" || p.HostNetwork == "default" {
		return "port " + strconv.Itoa(p.Value)
	}
	return fmt.Sprintf("port %d of %s", p.Value, p.HostNetwork)
}

// want takes note of what jobs that wait, or may be moved, must have alone on a
// node: of the rest of what runs it is not looked at.
func (c *catalogue) want(jobs map[string]*api.Job) {
	for _, job := range jobs {
		if job == nil || job.Namespace == nil || job.ID == nil {
			continue
		}
		for _, g := range job.TaskGroups {
			if g == nil {
				continue
			}
			w := plan.Work{Namespace: *job.Namespace, Job: *job.ID}
			spread(&w, job, g)
			for _, claim := range w.Claims {
				c.wanted[claim] = true
			}
		}
	}
}

// claimsOn are those of what is wanted that a node's allocations have, or its
// client keeps.
func (c *catalogue) claimsOn(n *api.NodeListStub, allocs []*api.AllocationListStub) (claims []string) {
	if len(c.wanted) == 0 {
		return nil
	}
	note := func(claim string) {
		if c.wanted[claim] && !slices.Contains(claims, claim) {
			claims = append(claims, claim)
		}
	}
	for _, a := range allocs {
		note(jobClaim(a.Namespace, a.JobID))
		if a.AllocatedResources == nil {
			continue
		}
		taken := a.AllocatedResources.Shared.Networks
		for _, t := range a.AllocatedResources.Tasks {
			if t != nil {
				taken = slices.Concat(taken, t.Networks)
			}
		}
		for _, network := range taken {
			if network != nil {
				for _, p := range slices.Concat(network.ReservedPorts, network.DynamicPorts) {
					note(portClaim(p))
				}
			}
		}
	}
	if r := n.ReservedResources; r != nil && r.Networks.ReservedHostPorts != "" {
		kept := ranges(r.Networks.ReservedHostPorts)
		for claim := range c.wanted {
			// On whichever of its networks.
			port, _, _ := strings.Cut(strings.TrimPrefix(claim, "port "), " ")
			if value, err := strconv.Atoi(port); err == nil && slices.ContainsFunc(kept, func(r [2]int) bool { return r[0] <= value && value <= r[1] }) {
				note(claim)
			}
		}
	}
	slices.Sort(claims)
	return claims
}

// ranges reads a list of ports, such as "22,8000-8080"; what it does not
// understand is left out.
func ranges(text string) (all [][2]int) {
	for part := range strings.SplitSeq(text, ",") {
		from, to, more := strings.Cut(strings.TrimSpace(part), "-")
		if !more {
			to = from
		}
		first, err := strconv.Atoi(from)
		last, err2 := strconv.Atoi(to)
		if err == nil && err2 == nil {
			all = append(all, [2]int{first, last})
		}
	}
	return all
}
