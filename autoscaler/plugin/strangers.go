// SPDX-License-Identifier: MPL-2.0

package plugin

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/nomad-gpu/nomad-gpu/autoscaler/plan"
)

// remark notes what is to be told of a pool with each of its decisions.
func (l *Lookout) remark(pool, text string) { l.remarks[pool] = append(l.remarks[pool], text) }

// tell adds to each decision what is remarked of its pool.
func (l *Lookout) tell(out plan.Output) {
	for i := range out.Decisions {
		d := &out.Decisions[i]
		d.Reason = strings.Join(append([]string{d.Reason}, l.remarks[d.Pool]...), "; ")
	}
}

// strangers tells which nodes a pool selects that none of its machines is. They
// belong to no pool: work is placed on them, and nothing is let go for them.
func (l *Lookout) strangers(in *plan.Input) {
	for _, p := range in.Pools {
		if l.own[p.Name] == nil {
			continue
		}
		var names []string
		coming := 0 // a machine is known by its node a moment after Nomad has it
		for i := range in.Nodes {
			switch n := &in.Nodes[i]; {
			case n.Pool == "" && p.Where.Selects(n.Where):
				names = append(names, n.Name)
			case n.Pool == p.Name && n.Starting:
				coming++
			}
		}
		if len(names) > coming {
			l.remark(p.Name, fmt.Sprintf("%s: selected by the pool and no machine that its maker tells of; work is placed there, and it is neither counted nor let go", some(names)))
		}
	}
}

// some are the first of many names.
func some(names []string) string {
	const most = 5
	if len(names) <= most {
		return strings.Join(names, ", ")
	}
	return fmt.Sprintf("%s and %d more", strings.Join(names[:most], ", "), len(names)-most)
}

// disown says how many nodes that a pool selects are not its target's: those
// beyond its count, where there are more for as long as a node may take to
// come or go. Which they are is not known: nodes with work are taken for them
// first, so that an idle one is let go for as long as the target has one.
func (l *Lookout) disown(in *plan.Input, p plan.Pool, there []*plan.Node, a *awaited, after time.Duration) int {
	over := len(there) - a.count
	if over <= 0 || a.told.IsZero() || in.Now.Sub(a.told) > countAge {
		a.over = time.Time{}
		return 0
	}
	if a.over.IsZero() {
		a.over = in.Now
	}
	if in.Now.Sub(a.over) < after {
		return 0
	}
	slices.SortFunc(there, func(x, y *plan.Node) int {
		if x.Busy != y.Busy {
			if x.Busy {
				return -1
			}
			return 1
		}
		return cmp.Compare(x.Name, y.Name)
	})
	for _, n := range there[:over] {
		n.Pool, n.Replace = "", ""
	}
	l.remark(p.Name, fmt.Sprintf("Nomad has %d nodes that the pool selects and its target counts %d; as many as are more are used, and neither counted nor let go", len(there), a.count))
	return over
}
