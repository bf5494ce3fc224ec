// SPDX-License-Identifier: MPL-2.0

package topology

import (
	"fmt"
	"slices"

	"github.com/nomad-gpu/nomad-gpu/device/gpu"
)

// ExactLimit is the number of free GPUs up to which [Choose] compares every
// subset. No machine so far holds more than 16.
const ExactLimit = 20

// Request asks for Count of the Free GPUs. InUse are GPUs that are taken now
// and come back some day; the two sets do not meet.
type Request struct {
	Free  []int
	InUse []int
	Count int
}

// Score is what a choice is judged by, the fields in this order, more being
// better in each. The sums are over pairs.
type Score struct {
	// InternalMBps is the bandwidth among the chosen.
	InternalMBps uint64
	// LeftMBps is the bandwidth among the free GPUs that are left.
	LeftMBps uint64
	// LeftLaterMBps is the same when those in use have come back too.
	LeftLaterMBps uint64
	// InternalLocality and LeftLocality count shared NUMA nodes and shared
	// nearest NICs, among the chosen and among those left.
	InternalLocality, LeftLocality uint64
	// NICLevels is the sum of the chosen GPUs' distances to their nearest NIC.
	NICLevels uint64
}

// Compare gives -1, 0 or 1 as a is worse than, as good as, or better than b.
func (a Score) Compare(b Score) int {
	for _, pair := range [...][2]uint64{
		{a.InternalMBps, b.InternalMBps},
		{a.LeftMBps, b.LeftMBps},
		{a.LeftLaterMBps, b.LeftLaterMBps},
		{a.InternalLocality, b.InternalLocality},
		{a.LeftLocality, b.LeftLocality},
		{a.NICLevels, b.NICLevels},
	} {
		switch {
		case pair[0] > pair[1]:
			return 1
		case pair[0] < pair[1]:
			return -1
		}
	}
	return 0
}

// Choose picks the best GPUs for a request, ascending: greatest bandwidth
// among them, then least damage to what stays free, then NUMA and NIC
// locality; of equals the set that is first by position. Exact up to
// [ExactLimit] free GPUs; beyond, the best that growing from every start and
// exchanging single GPUs finds.
func Choose(m *gpu.Machine, r Request) ([]int, error) {
	free := slices.Clone(r.Free)
	slices.Sort(free)
	if err := r.validate(len(m.GPUs), free); err != nil {
		return nil, err
	}
	if r.Count == len(free) {
		return free, nil
	}
	s := newScorer(m, free, r.InUse)
	var positions []int
	if len(free) <= ExactLimit {
		positions = s.best(r.Count)
	} else {
		positions = s.climb(r.Count)
	}
	chosen := make([]int, len(positions))
	for x, p := range positions {
		chosen[x] = free[p]
	}
	return chosen, nil
}

func (r Request) validate(gpus int, free []int) error {
	seen := make(map[int]bool, gpus)
	for _, i := range slices.Concat(free, r.InUse) {
		if i < 0 || i >= gpus {
			return fmt.Errorf("GPU %d: the machine has GPUs 0 to %d", i, gpus-1)
		}
		if seen[i] {
			return fmt.Errorf("GPU %d is given twice as free or in use", i)
		}
		seen[i] = true
	}
	if r.Count < 1 {
		return fmt.Errorf("count %d: at least one GPU must be asked for", r.Count)
	}
	if r.Count > len(free) {
		return fmt.Errorf("count %d: only %d GPUs are free", r.Count, len(free))
	}
	return nil
}

// scorer scores subsets of the free GPUs, given by positions in that list.
// With W the sum over all pairs, d(i) that of i's pairs and I(S) that among a
// set S, what is left without S sums to W − Σd(i) + I(S): so every part of the
// score grows with each GPU added, and no subset is summed from scratch.
type scorer struct {
	mbps, locality    [][]uint64
	mbpsOf, laterOf   []uint64 // d(i) among the free, and with those in use
	localityOf        []uint64
	nicLevel          []uint64
	mbpsAll, laterAll uint64
	localityAll       uint64
}

func newScorer(m *gpu.Machine, free, inUse []int) *scorer {
	n := len(free)
	nearest := NearestNICs(m)
	s := &scorer{
		mbps: make([][]uint64, n), locality: make([][]uint64, n),
		mbpsOf: make([]uint64, n), laterOf: make([]uint64, n),
		localityOf: make([]uint64, n), nicLevel: make([]uint64, n),
	}
	for x, i := range free {
		s.mbps[x], s.locality[x] = make([]uint64, n), make([]uint64, n)
		s.nicLevel[x] = uint64(nearest[i].Level)
		for y, j := range free {
			if x == y {
				continue
			}
			s.mbps[x][y] = uint64(m.PairMBps(i, j))
			s.locality[x][y] = pairLocality(m, nearest, i, j)
			s.mbpsOf[x] += s.mbps[x][y]
			s.localityOf[x] += s.locality[x][y]
		}
		s.laterOf[x] = s.mbpsOf[x]
		for _, j := range inUse {
			s.laterOf[x] += uint64(m.PairMBps(i, j))
		}
		s.mbpsAll += s.mbpsOf[x]
		s.localityAll += s.localityOf[x]
	}
	s.mbpsAll /= 2
	s.localityAll /= 2
	// Pairs among those in use are the same for every choice and left out; a
	// pair of a free GPU with one in use is counted once, at the free one.
	for x := range free {
		s.laterAll += s.laterOf[x] - s.mbpsOf[x]
	}
	s.laterAll += s.mbpsAll
	return s
}

// pairLocality is 2 for a shared NUMA node plus 1 for a shared nearest NIC.
func pairLocality(m *gpu.Machine, nearest []Nearest, i, j int) uint64 {
	var locality uint64
	if a := m.GPUs[i].NUMANode; a != gpu.NoNUMA && a == m.GPUs[j].NUMANode {
		locality += 2
	}
	if nearest[i].Level > gpu.SYS && nearest[j].Level > gpu.SYS {
		for _, k := range nearest[i].NICs {
			if slices.Contains(nearest[j].NICs, k) {
				locality++
				break
			}
		}
	}
	return locality
}

// partial is a set under construction.
type partial struct {
	internal, lost, lostLater     uint64
	locality, lostLocality, level uint64
}

func (s *scorer) add(p partial, set []int, x int) partial {
	row, near := s.mbps[x], s.locality[x]
	for _, y := range set {
		p.internal += row[y]
		p.locality += near[y]
	}
	p.lost += s.mbpsOf[x]
	p.lostLater += s.laterOf[x]
	p.lostLocality += s.localityOf[x]
	p.level += s.nicLevel[x]
	return p
}

func (s *scorer) score(p partial) Score {
	return Score{
		InternalMBps:     p.internal,
		LeftMBps:         s.mbpsAll - p.lost + p.internal,
		LeftLaterMBps:    s.laterAll - p.lostLater + p.internal,
		InternalLocality: p.locality,
		LeftLocality:     s.localityAll - p.lostLocality + p.locality,
		NICLevels:        p.level,
	}
}

// alike gives, for each GPU, the one before it that could stand in its place
// without any score changing, or -1: of such GPUs only the first need be tried,
// which leaves little to do on a machine where most are alike.
func (s *scorer) alike() []int {
	before := make([]int, len(s.mbps))
	for y := range s.mbps {
		before[y] = -1
		for x := y - 1; x >= 0 && before[y] < 0; x-- {
			if s.mbpsOf[x] != s.mbpsOf[y] || s.laterOf[x] != s.laterOf[y] || s.localityOf[x] != s.localityOf[y] || s.nicLevel[x] != s.nicLevel[y] {
				continue
			}
			same := true
			for z := range s.mbps {
				same = same && (z == x || z == y || s.mbps[x][z] == s.mbps[y][z] && s.locality[x][z] == s.locality[y][z])
			}
			if same {
				before[y] = x
			}
		}
	}
	return before
}

// best goes through the subsets in lexical order; only a better one replaces
// the best so far, so that of equals the first stays.
func (s *scorer) best(count int) []int {
	n := len(s.mbps)
	before, chosen := s.alike(), make([]bool, n)
	set := make([]int, 0, count)
	var top []int
	var topScore Score
	var walk func(from int, p partial)
	walk = func(from int, p partial) {
		if len(set) == count {
			// The first key decides nearly always: look at the rest only if it ties.
			if top != nil && p.internal < topScore.InternalMBps {
				return
			}
			if score := s.score(p); top == nil || score.Compare(topScore) > 0 {
				top, topScore = slices.Clone(set), score
			}
			return
		}
		for x := from; x <= n-(count-len(set)); x++ {
			if before[x] >= 0 && !chosen[before[x]] {
				continue
			}
			next := s.add(p, set, x)
			set, chosen[x] = append(set, x), true
			walk(x+1, next)
			set, chosen[x] = set[:len(set)-1], false
		}
	}
	walk(0, partial{})
	return top
}

// climb grows a set from every start and then exchanges single GPUs while that
// improves the score.
func (s *scorer) climb(count int) []int {
	var top []int
	var topScore Score
	for start := range s.mbps {
		set := s.grow(start, count)
		score := s.exchange(set)
		slices.Sort(set)
		if top == nil || score.Compare(topScore) > 0 {
			top, topScore = set, score
		}
	}
	return top
}

func (s *scorer) scoreOf(set []int) Score {
	var p partial
	for k, x := range set {
		p = s.add(p, set[:k], x)
	}
	return s.score(p)
}

// grow always adds the GPU that brings the most bandwidth, together with what
// its best peers could still bring: a look ahead, so that a whole island is
// entered rather than the rest of a broken one.
func (s *scorer) grow(start, count int) []int {
	set := []int{start}
	for len(set) < count {
		at, top := -1, uint64(0)
		for x, row := range s.mbps {
			if slices.Contains(set, x) {
				continue
			}
			var worth uint64
			var ahead []uint64
			for y, mbps := range row {
				if slices.Contains(set, y) {
					worth += mbps
				} else {
					ahead = append(ahead, mbps)
				}
			}
			slices.Sort(ahead)
			for _, mbps := range ahead[max(0, len(ahead)-(count-len(set)-1)):] {
				worth += mbps
			}
			if at < 0 || worth > top {
				at, top = x, worth
			}
		}
		set = append(set, at)
	}
	return set
}

// exchange improves the set in place and gives its score.
func (s *scorer) exchange(set []int) Score {
	score := s.scoreOf(set)
	for improved := true; improved; {
		improved = false
		for k := range set {
			for x := range s.mbps {
				if slices.Contains(set, x) {
					continue
				}
				old := set[k]
				set[k] = x
				if other := s.scoreOf(set); other.Compare(score) > 0 {
					score, improved = other, true
				} else {
					set[k] = old
				}
			}
		}
	}
	return score
}
