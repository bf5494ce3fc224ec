// SPDX-License-Identifier: MPL-2.0

package pool

import "fmt"

// Select says which of Nomad's nodes are the pool's.
type Select struct {
	NodePool   string `hcl:"node_pool,optional"`
	NodeClass  string `hcl:"node_class,optional"`
	Datacenter string `hcl:"datacenter,optional"`
}

// within reports whether each node of a selection is in another too.
func (s Select) within(other Select) bool {
	for _, field := range [][2]string{{s.NodePool, other.NodePool}, {s.NodeClass, other.NodeClass}, {s.Datacenter, other.Datacenter}} {
		if field[1] != "" && field[0] != field[1] {
			return false
		}
	}
	return other != Select{}
}

// validateSelects refuses pools whose nodes are another's too, whatever nodes
// there are. Pools of which that depends on the nodes are told apart later.
func (f *File) validateSelects() (errs []error) {
	for i, a := range f.Pools {
		for j, b := range f.Pools {
			if i != j && a.Select.within(b.Select) && (j < i || !b.Select.within(a.Select)) {
				errs = append(errs, fmt.Errorf("pool %q: select: each node of it is selected by pool %q too; allowed are selections no two of which hold the same node", a.Name, b.Name))
			}
		}
	}
	return errs
}
