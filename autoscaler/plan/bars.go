// SPDX-License-Identifier: MPL-2.0

package plan

// Bars tells which nodes that are there a work's constraints refuse. Works that
// ask for the same share one.
type Bars struct {
	// Of says why a node is refused; empty where it is not. Known is false where
	// nothing is known of it yet.
	Of func(node string) (why string, known bool)
}

// barred reports whether a node is refused.
func (w Work) barred(n *place) bool {
	if w.Bars == nil || n.Starting {
		return false
	}
	why, _ := w.Bars.Of(n.Name)
	return why != ""
}

// verdict is what a pool's nodes say to a work's constraints.
type verdict struct {
	why   string // of one that is refused, where all that are known are
	known bool
}

type barsOf struct {
	bars *Bars
	pool string
}

// verdict looks at a pool's ready nodes.
func (p *planner) verdict(pool string, w Work) (v verdict) {
	if w.Bars == nil {
		return verdict{}
	}
	key := barsOf{w.Bars, pool}
	if v, asked := p.verdicts[key]; asked {
		return v
	}
	for _, n := range p.nodes {
		if n.Pool != pool || n.Starting || n.Closed {
			continue
		}
		why, known := w.Bars.Of(n.Name)
		if !known {
			continue
		}
		if v.known = true; why == "" {
			v.why = ""
			break
		}
		if v.why == "" {
			v.why = why
		}
	}
	p.verdicts[key] = v
	return v
}
