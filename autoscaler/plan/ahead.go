// SPDX-License-Identifier: MPL-2.0

package plan

import (
	"fmt"
	"slices"
	"strings"
)

// Ahead is a load of the pools with one model of GPU that is expected before
// nodes bought for it could be ready.
type Ahead struct {
	// Model is that of the pools' shapes; empty: of pools that name none.
	Model string
	GPUs  int
	// Why says where the number comes from.
	Why string
}

// Of reports whether a pool can serve the load.
func (a Ahead) Of(pool Pool) bool { return strings.EqualFold(a.Model, pool.Shape.Model) }

// prepare buys what all pools of a model together lack of the load that is
// expected, the cheapest first, and keeps idle nodes for it that would else be let go.
func (p *planner) prepare(ahead Ahead) {
	if ahead.GPUs <= 0 {
		return
	}
	others := func(pool Pool) bool { return !ahead.Of(pool) }
	idle := map[string]int{}
	for _, n := range p.nodes {
		if !n.Starting && !n.Busy && !n.used && !n.Closed {
			idle[n.Pool]++
		}
	}
	lack := ahead.GPUs
	for _, pool := range slices.DeleteFunc(slices.Clone(p.in.Pools), others) {
		lack -= (p.count[pool.Name] + p.bought[pool.Name] - len(p.drain[pool.Name]) - idle[pool.Name]) * pool.Shape.GPUs
	}
	for _, pool := range slices.DeleteFunc(p.cheapest(), others) {
		if keep := min(idle[pool.Name], nodesFor(lack, pool)); keep > 0 {
			p.spare[pool.Name] = max(p.spare[pool.Name], keep)
			lack -= keep * pool.Shape.GPUs
			p.remark(pool.Name, fmt.Sprintf("%d nodes without work are kept: %s", keep, ahead.Why))
		}
	}
	for _, pool := range slices.DeleteFunc(p.sellers(), others) {
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

// places is how many GPUs of a work are to be on nodes of each pool: on those
// that hold it and on those that are bought.
func places(w Work, held []*place, buys []purchase) map[string]int {
	gpus := map[string]int{}
	for _, n := range held {
		if n.Pool != "" {
			gpus[n.Pool] += w.Request.GPUs
		}
	}
	for _, b := range buys {
		gpus[b.pool.Name] += b.allocations * w.Request.GPUs
	}
	return gpus
}
