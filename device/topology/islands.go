// SPDX-License-Identifier: MPL-2.0

// Package topology draws conclusions from a machine: its NVLink islands, the
// order in which a task should see its GPUs, the NICs nearest to them, and the
// best set of GPUs for a request. Everything here is pure; GPUs are positions
// in [gpu.Machine.GPUs].
package topology

import (
	"slices"

	"github.com/nomad-gpu/nomad-gpu/device/gpu"
)

// Islands are the sets of two and more GPUs joined by NVLink, directly or
// through other GPUs; each set ascending, sets by their first GPU.
func Islands(m *gpu.Machine) [][]int {
	var islands [][]int
	for _, component := range components(m) {
		if len(component) > 1 {
			islands = append(islands, component)
		}
	}
	return islands
}

// Alone are the GPUs without NVLink to any other, ascending.
func Alone(m *gpu.Machine) []int {
	var alone []int
	for _, component := range components(m) {
		if len(component) == 1 {
			alone = append(alone, component[0])
		}
	}
	return alone
}

// IslandSizes is the size of each GPU's island, 1 for a GPU that is alone.
func IslandSizes(m *gpu.Machine) []int {
	sizes := make([]int, len(m.GPUs))
	for _, component := range components(m) {
		for _, i := range component {
			sizes[i] = len(component)
		}
	}
	return sizes
}

func components(m *gpu.Machine) [][]int {
	seen := make([]bool, len(m.GPUs))
	var all [][]int
	for start := range m.GPUs {
		if seen[start] {
			continue
		}
		seen[start] = true
		component := []int{start}
		for next := 0; next < len(component); next++ {
			i := component[next]
			for j := range m.GPUs {
				if !seen[j] && m.Paths[i][j].NVLinks > 0 {
					seen[j] = true
					component = append(component, j)
				}
			}
		}
		slices.Sort(component)
		all = append(all, component)
	}
	return all
}

// FullMesh says whether every two GPUs of the island share NVLinks.
func FullMesh(m *gpu.Machine, island []int) bool {
	for _, i := range island {
		for _, j := range island {
			if i != j && m.Paths[i][j].NVLinks == 0 {
				return false
			}
		}
	}
	return true
}

// Cliques are the largest sets of GPUs in an island of which every two share
// NVLinks: the quads of a DGX-1 and the pairs between them. Each set ascending,
// sets in lexical order. (Bron and Kerbosch 1973, with pivoting.)
func Cliques(m *gpu.Machine, island []int) [][]int {
	linked := func(i, j int) bool { return i != j && m.Paths[i][j].NVLinks > 0 }
	neighbours := func(set []int, i int) []int {
		var out []int
		for _, j := range set {
			if linked(i, j) {
				out = append(out, j)
			}
		}
		return out
	}
	var cliques [][]int
	var grow func(clique, candidates, excluded []int)
	grow = func(clique, candidates, excluded []int) {
		if len(candidates) == 0 {
			if len(excluded) == 0 {
				found := slices.Clone(clique)
				slices.Sort(found)
				cliques = append(cliques, found)
			}
			return
		}
		pivot, most := -1, -1
		for _, i := range slices.Concat(candidates, excluded) {
			if n := len(neighbours(candidates, i)); n > most {
				pivot, most = i, n
			}
		}
		for _, i := range slices.Clone(candidates) {
			if linked(pivot, i) {
				continue
			}
			grow(append(slices.Clone(clique), i), neighbours(candidates, i), neighbours(excluded, i))
			candidates = slices.DeleteFunc(slices.Clone(candidates), func(j int) bool { return j == i })
			excluded = append(slices.Clone(excluded), i)
		}
	}
	grow(nil, slices.Clone(island), nil)
	slices.SortFunc(cliques, slices.Compare)
	return cliques
}
