// SPDX-License-Identifier: MPL-2.0

package plan

import "fmt"

// Ahead is a load that is expected before nodes bought for it could be ready.
type Ahead struct {
	GPUs int
	// Why says where the number comes from.
	Why string
}

// prepare buys what all pools together lack of the load that is expected, the
// cheapest first, and keeps idle nodes for it that would else be let go.
func (p *planner) prepare(ahead Ahead) {
	if ahead.GPUs <= 0 {
		return
	}
	idle := map[string]int{}
	for _, n := range p.nodes {
		if !n.Starting && !n.Busy && !n.used && !n.Closed {
			idle[n.Pool]++
		}
	}
	lack := ahead.GPUs
	for _, pool := range p.in.Pools {
		lack -= (p.count[pool.Name] + p.bought[pool.Name] - len(p.drain[pool.Name]) - idle[pool.Name]) * pool.Shape.GPUs
	}
	for _, pool := range p.cheapest() {
		if keep := min(idle[pool.Name], nodesFor(lack, pool)); keep > 0 {
			p.spare[pool.Name] = max(p.spare[pool.Name], keep)
			lack -= keep * pool.Shape.GPUs
		}
	}
	for _, pool := range p.sellers() {
		if n := p.afford(pool, "", min(nodesFor(lack, pool), p.room(pool)), 0); n > 0 {
			p.bought[pool.Name] += n
			lack -= n * pool.Shape.GPUs
			p.note(pool.Name, fmt.Sprintf("%d more nodes are bought ahead: %s", n, ahead.Why))
		}
	}
}

// nodesFor is none of a pool whose nodes have no whole GPU.
func nodesFor(gpus int, pool Pool) int {
	each := pool.Shape.GPUs
	if each < 1 {
		return 0
	}
	return (max(gpus, 0) + each - 1) / each
}
