// SPDX-License-Identifier: MPL-2.0

package preflight

import (
	"context"
	"fmt"
	"math"
	"slices"

	"github.com/nomad-gpu/nomad-gpu/driver/gang"
)

// Baseline is what a pair of nodes has reached lately, in one direction.
type Baseline struct {
	// Gbps are the newest measurements that were not slow, in 10^9 bits a
	// second, oldest first.
	Gbps []float64 `json:"gbps"`
}

// maxMeasures is how many measurements a baseline is made of.
const maxMeasures = 8

// Baselines keeps what pairs of nodes reach, by the nodes' names.
type Baselines interface {
	// Baseline is empty where none was kept.
	Baseline(ctx context.Context, from, to string) (Baseline, error)
	Keep(ctx context.Context, from, to string, b Baseline) error
}

// Usual is the median; 0 where nothing was measured.
func (b Baseline) Usual() float64 {
	if len(b.Gbps) == 0 {
		return 0
	}
	sorted := slices.Sorted(slices.Values(b.Gbps))
	return sorted[len(sorted)/2]
}

// With adds a measurement. One that was slow must not be added: a link that
// fails by and by would become the usual.
func (b Baseline) With(gbps float64) Baseline {
	all := append(slices.Clone(b.Gbps), gbps)
	return Baseline{Gbps: all[max(0, len(all)-maxMeasures):]}
}

// Validate checks a baseline that anybody may have written.
func (b Baseline) Validate() error {
	if len(b.Gbps) > maxMeasures {
		return fmt.Errorf("baseline: %d measurements; allowed are %d", len(b.Gbps), maxMeasures)
	}
	for _, g := range b.Gbps {
		if !plausible(g) {
			return fmt.Errorf("baseline: %g Gbit/s; allowed are more than 0 to %g", g, maxGbps)
		}
	}
	return nil
}

// maxGbps is above what any network between two nodes carries.
const maxGbps = 1e6

func plausible(gbps float64) bool { return gbps > 0 && gbps <= maxGbps && !math.IsNaN(gbps) }

func (p Pair) validate(from, n int) error {
	if p.From != from || p.To != (from+1)%n {
		return fmt.Errorf("pair %d to %d, told by rank %d; allowed is its own", p.From, p.To, from)
	}
	if !plausible(p.Gbps) || p.Baseline != 0 && !plausible(p.Baseline) {
		return fmt.Errorf("pair %d to %d: %g Gbit/s, baseline %g; allowed are more than 0 to %g", p.From, p.To, p.Gbps, p.Baseline, maxGbps)
	}
	return nil
}

// SlowPair is the error for a pair of neighbours that is under what it
// usually reaches, or under the least that the user allows.
type SlowPair struct {
	Pair Pair
	// Worse is the rank of the one of the two that is slow with its other
	// neighbour too; -1 where that tells nothing.
	Worse int

	text string
}

func (s *SlowPair) Error() string { return s.text }

// judge finds out whether a pair is slow, and which of its nodes is to blame.
// pairs holds those that are known, by the sending rank.
func judge(members []gang.Member, own Pair, pairs map[int]Pair, minGbps, ratio float64) error {
	// share is what a pair reaches of what it should; 1 and more is enough.
	share := func(p Pair) float64 {
		s := math.Inf(1)
		if minGbps > 0 {
			s = p.Gbps / minGbps
		}
		if p.Baseline > 0 {
			s = min(s, p.Gbps/(ratio*p.Baseline))
		}
		return s
	}
	if share(own) >= 1 {
		return nil
	}
	slow := &SlowPair{Pair: own, Worse: -1}
	slow.text = fmt.Sprintf("bandwidth from %s to %s: %.3g Gbit/s", describe(members, own.From), describe(members, own.To), own.Gbps)
	if own.Baseline > 0 {
		slow.text += fmt.Sprintf(", usually %.3g", own.Baseline)
	}
	if minGbps > 0 {
		slow.text += fmt.Sprintf(", min_gbps is %g", minGbps)
	}
	n := len(members)
	if n > 2 {
		from, to := math.Inf(1), math.Inf(1)
		if p, ok := pairs[(own.From+n-1)%n]; ok {
			from = share(p)
		}
		if p, ok := pairs[own.To]; ok {
			to = share(p)
		}
		switch {
		case min(from, to) >= 1:
		case from < to:
			slow.Worse = own.From
		case to < from:
			slow.Worse = own.To
		}
	}
	if slow.Worse >= 0 {
		slow.text += fmt.Sprintf("; %s is slow with its other neighbour too: look at its NIC, cable and PCIe link", describe(members, slow.Worse))
	} else {
		slow.text += "; look at the path between the two: cables, switch ports, other traffic"
	}
	return slow
}
