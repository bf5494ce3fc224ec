// SPDX-License-Identifier: MPL-2.0

package progress

import (
	"cmp"
	"errors"
	"fmt"
	"slices"
	"strings"
)

// Standing is one process, or one node where Local is WholeNode.
type Standing struct {
	Local int    `json:"local"`
	Step  uint64 `json:"step"`
	// Seconds is the usual time of its own work in a step; 0: not known.
	Seconds float64 `json:"seconds,omitempty"`
	// GPU is the reserved device; may be empty.
	GPU string `json:"gpu,omitempty"`
}

// Record is what one member publishes of its processes.
type Record struct {
	V          int    `json:"v"`
	Generation uint64 `json:"generation"`
	// Rank is the member's, First that of its first process.
	Rank  int        `json:"rank"`
	First int        `json:"first"`
	Node  string     `json:"node"`
	Ranks []Standing `json:"ranks"`
}

// RecordVersion is that of the records this release writes and reads.
const RecordVersion = 1

// Validate checks a record that anybody may have written.
func (r Record) Validate() error {
	var errs []error
	if r.V != RecordVersion {
		errs = append(errs, fmt.Errorf("version %d; this driver reads version %d", r.V, RecordVersion))
	}
	if r.Rank < 0 || r.Rank > 1<<16 || r.First < 0 || r.First > 1<<24 {
		errs = append(errs, fmt.Errorf("rank %d, first %d; allowed are 0 to 65536 and to 16777216", r.Rank, r.First))
	}
	if len(r.Ranks) > maxStandings {
		errs = append(errs, fmt.Errorf("%d processes; allowed are %d", len(r.Ranks), maxStandings))
	}
	for _, s := range r.Ranks {
		if s.Local < WholeNode || s.Local > 1024 || s.Step > maxStep || !(s.Seconds >= 0 && s.Seconds <= maxSeconds) {
			errs = append(errs, fmt.Errorf("process %d: step %d, %g s; allowed are -1 to 1024, up to 2^53, 0 to %d", s.Local, s.Step, s.Seconds, maxSeconds))
		}
	}
	for _, text := range append([]string{r.Node}, gpus(r.Ranks)...) {
		if len(text) > 256 || strings.ContainsFunc(text, func(c rune) bool { return c < ' ' || c == 0x7f }) {
			errs = append(errs, fmt.Errorf("a name of %d bytes; allowed are up to 256 without control characters", len(text)))
		}
	}
	return errors.Join(errs...)
}

func gpus(ranks []Standing) []string {
	var all []string
	for _, s := range ranks {
		all = append(all, s.GPU)
	}
	return all
}

// maxStandings bounds a record.
const maxStandings = 64

// Straggler is a process whose steps take longer than the others'.
type Straggler struct {
	// Rank is the process's in the whole gang, or the member's where one file
	// speaks for the node.
	Rank int
	Node string
	GPU  string
	// Ratio is its time of a step to the median of all.
	Ratio float64
	// Seconds and Median are the times.
	Seconds, Median float64
}

// String names it for people.
func (s Straggler) String() string {
	gpu := ""
	if s.GPU != "" {
		gpu = ", " + s.GPU
	}
	return fmt.Sprintf("rank %d on %s%s: %.3g s a step, %.2f times the median of %.3g s", s.Rank, s.Node, gpu, s.Seconds, s.Ratio, s.Median)
}

// Stragglers are the processes at or above a ratio to the median, slowest
// first. Fewer than three processes have no median that tells who is slow.
func Stragglers(records []Record, ratio float64) []Straggler {
	var all []Straggler
	var times []float64
	for _, r := range records {
		for _, s := range r.Ranks {
			if s.Seconds <= 0 {
				continue
			}
			rank := r.Rank
			if s.Local != WholeNode {
				rank = r.First + s.Local
			}
			all = append(all, Straggler{Rank: rank, Node: r.Node, GPU: s.GPU, Seconds: s.Seconds})
			times = append(times, s.Seconds)
		}
	}
	if len(all) < 3 {
		return nil
	}
	m := median(times)
	for i := range all {
		all[i].Median, all[i].Ratio = m, all[i].Seconds/m
	}
	all = slices.DeleteFunc(all, func(s Straggler) bool { return s.Ratio < ratio })
	slices.SortFunc(all, func(a, b Straggler) int { return cmp.Or(cmp.Compare(b.Ratio, a.Ratio), cmp.Compare(a.Rank, b.Rank)) })
	return all
}

// Behind names those whose last step is lower than the others'; empty where
// all stand at the same.
func Behind(records []Record) string {
	var least, most uint64
	var names []string
	first := true
	for _, r := range records {
		for _, s := range r.Ranks {
			if first || s.Step < least {
				least, names = s.Step, nil
			}
			if s.Step == least {
				rank := r.Rank
				if s.Local != WholeNode {
					rank = r.First + s.Local
				}
				names = append(names, fmt.Sprintf("rank %d on %s", rank, r.Node))
			}
			most, first = max(most, s.Step), false
		}
	}
	if least == most {
		return ""
	}
	const few = 3
	more := ""
	if len(names) > few {
		more = fmt.Sprintf(" and %d more", len(names)-few)
	}
	return fmt.Sprintf("%s%s stopped at step %d, others at %d", strings.Join(names[:min(few, len(names))], ", "), more, least, most)
}

func median(values []float64) float64 {
	if len(values) == 0 {
		return 0
	}
	sorted := slices.Sorted(slices.Values(values))
	return sorted[(len(sorted)-1)/2]
}
