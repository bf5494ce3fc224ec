// SPDX-License-Identifier: MPL-2.0

package plan

import "fmt"

// substitute buys a node for each of a pool's that is about to be taken away and
// has work, beyond those that are free, and keeps idle ones for them: that work
// asks Nomad for another node only once it has lost its own.
func (p *planner) substitute(pool Pool) {
	doomed, free, idle := 0, 0, 0
	for _, n := range p.nodes {
		switch {
		case n.Pool != pool.Name:
		case n.Doomed && n.Busy:
			doomed++
		case !n.Closed && !n.Busy && !n.used:
			free++
			if !n.Starting {
				idle++
			}
		}
	}
	if doomed == 0 {
		return
	}
	p.spare[pool.Name] = max(p.spare[pool.Name], min(doomed, idle))
	lack := doomed - free
	if lack <= 0 || pool.refuses(p.in.Now) {
		return
	}
	if n := p.afford(pool, "", min(lack, p.room(pool)), 0); n > 0 {
		p.bought[pool.Name] += n
		p.note(pool.Name, fmt.Sprintf("%d more nodes are bought for the work of %d that will be taken away", n, doomed))
	}
}
