// SPDX-License-Identifier: MPL-2.0

package plan

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
)

// Cause is a kind of reason to wait.
type Cause string

// Causes.
const (
	Buying        Cause = "buying"        // nodes are bought for it
	Starting      Cause = "starting"      // its nodes are on their way
	Placing       Cause = "placing"       // its nodes are ready
	Deferred      Cause = "deferred"      // it waits for a cheaper hour
	Full          Cause = "full"          // its pools have all the nodes that they may have
	Broke         Cause = "budget"        // a budget leaves it no nodes
	Resting       Cause = "resting"       // its pools have refused lately
	Unsatisfiable Cause = "unsatisfiable" // nothing that there can be holds it
	Forming       Cause = "forming"       // it is placed whole, and waits in its driver
	Broken        Cause = "broken"        // a gang that lacks allocations for good
	Retrying      Cause = "retrying"      // it failed, and Nomad tries again later
	Drained       Cause = "drained"       // a drain took it, and Nomad takes it for finished
)

// Causes are all of them.
var Causes = []Cause{Buying, Starting, Placing, Deferred, Full, Broke, Resting, Unsatisfiable, Broken, Retrying, Forming, Drained}

// Next says what lets a work run, for a person to do or to wait for. Pools are all that there are.
func (w Waiting) Next(pools []Pool) string {
	switch w.Cause {
	case Buying, Starting:
		return "nothing to do: it runs once its nodes are ready"
	case Placing:
		return fmt.Sprintf("nothing to do; where it stays so, a constraint that only Nomad sees keeps it: nomad job status%s %s tells which", namespaceFlag(w.Work), w.Work.Job)
	case Deferred:
		return "nothing to do; without gpu.deadline in the job's meta it runs now"
	case Full:
		return "other work that ends, a higher priority, or a greater max of " + w.poolNames(pools)
	case Broke:
		if w.Unsatisfiable {
			return "a greater budget (per_hour, namespaces) in the pools file, or a job that asks for less"
		}
		return "other work that ends, or a greater budget (per_hour, namespaces) in the pools file"
	case Resting:
		next := "nothing to do: the pool is tried again after its retry_after"
		if w.Work.Spot == Only {
			next += `; gpu.spot = "prefer" takes on-demand nodes`
		}
		return next
	case Unsatisfiable:
		if len(w.Misfits)+len(w.Work.Misfits) > 0 {
			return "nodes that have what the reason says they lack, or a job that does without"
		}
		if names := w.poolNames(pools); names != "" {
			return "fewer allocations at once, or a greater max of " + names
		}
		return "a pool whose select and shape (gpus, model, cpu, memory) admit it, or a job that asks for less: resources, constraints, gpu.spot, gpu.max_cost"
	case Forming:
		return fmt.Sprintf("what the driver says; nomad-driver-nccl gangs %s tells more", w.Work.Job)
	case Broken:
		return fmt.Sprintf("stop it and run it again: nomad job stop%s %s; a count of gang.nodes, and reschedule attempts enough", namespaceFlag(w.Work), w.Work.Job)
	case Retrying:
		return fmt.Sprintf("nothing to do; a shorter delay in the group's reschedule block tries again sooner; nomad alloc status%s tells why it failed", namespaceFlag(w.Work))
	case Drained:
		return fmt.Sprintf("run the job again with another priority in its file: nomad job run%s; what runs of it goes on", namespaceFlag(w.Work))
	}
	return ""
}

func namespaceFlag(w Work) string {
	if cmp.Or(w.Namespace, "default") == "default" {
		return ""
	}
	return " -namespace=" + w.Namespace
}

// Serving names the pools whose nodes may serve the work.
func (w Waiting) Serving(pools []Pool) (names []string) {
	for _, p := range pools {
		_, remembered := w.Work.Misfits[p.Name]
		_, seen := w.Misfits[p.Name]
		if w.Work.RunsOn(p) && w.Work.runsOn(p.Lifecycle) && !w.Work.overCost(p) && !remembered && !seen {
			names = append(names, p.Name)
		}
	}
	slices.Sort(names)
	return names
}

func (w Waiting) poolNames(pools []Pool) string { return strings.Join(w.Serving(pools), ", ") }

// Models are those that a request names.
func (s Shape) Models() (names []string) {
	for _, a := range s.asks() {
		if a.Model != "" && !slices.Contains(names, a.Model) {
			names = append(names, a.Model)
		}
	}
	return names
}

// coming counts the nodes that start, by pool.
func coming(held []*place) map[string]int {
	count, seen := map[string]int{}, map[*place]bool{}
	for _, n := range held {
		if n.Starting && !seen[n] {
			seen[n] = true
			count[n.Pool]++
		}
	}
	return count
}

// quiet says why nothing is done for a pool: what waits and would use it comes first.
func (p *planner) quiet(pool Pool, idle int) string {
	for _, w := range p.waiting {
		if w.Cause != Full && w.Cause != Broke || !p.takes(pool, w.Work) {
			continue
		}
		switch room := p.room(pool); {
		case w.Cause == Broke:
			return fmt.Sprintf("%s waits for it: a budget leaves it too little", w.Work.Name())
		case room == 0:
			return fmt.Sprintf("%s waits for it: it has all nodes that it may have, %d", w.Work.Name(), pool.Max)
		default:
			return fmt.Sprintf("%s waits for it: its maximum, %d, leaves %d nodes, which are too few", w.Work.Name(), pool.Max, room)
		}
	}
	if idle > 0 {
		return "nothing waits for this pool"
	}
	return "nothing waits for this pool and nothing in it is idle"
}

// short says what keeps a work from nodes that could be bought: the pools'
// maximum, or where that leaves enough, a budget.
func (p *planner) short(w Work, still int) Cause {
	for _, pool := range p.candidates(w) {
		still -= min(still, p.room(pool)*w.each(pool.Shape))
	}
	if still > 0 {
		return Full
	}
	return Broke
}
