// SPDX-License-Identifier: MPL-2.0

package progress

import (
	"fmt"
	"math"
	"strings"
	"testing"

	"github.com/shoenig/test/must"
)

// twoNodes have four processes each; the times are theirs in seconds.
func twoNodes(times ...float64) []Record {
	records := []Record{{V: 1, Rank: 0, First: 0, Node: "a"}, {V: 1, Rank: 1, First: 4, Node: "b"}}
	for i, seconds := range times {
		r := &records[i/4]
		r.Ranks = append(r.Ranks, Standing{Local: i % 4, Step: 100, Seconds: seconds, GPU: fmt.Sprintf("GPU-%d", i)})
	}
	return records
}

func TestAStragglerIsNamedByRankNodeAndGPUWithItsRatio(t *testing.T) {
	found := Stragglers(twoNodes(1, 1.1, 0.9, 1, 1, 2.5, 1, 1.6), 1.5)
	must.Len(t, 2, found)
	must.Eq(t, "rank 5 on b, GPU-5: 2.5 s a step, 2.50 times the median of 1 s", found[0].String())
	must.Eq(t, 7, found[1].Rank)
	must.SliceEmpty(t, Stragglers(twoNodes(1, 1.1, 0.9, 1, 1, 1.4, 1, 1), 1.5))
	must.SliceEmpty(t, Stragglers(twoNodes(0, 0, 0, 0, 0, 0, 1, 9), 1.5), must.Sprint("two tell no median"))
	whole := []Record{{Rank: 0, Node: "a"}, {Rank: 1, Node: "b"}, {Rank: 2, Node: "c"}}
	for i := range whole {
		whole[i].First = 8 * i
		whole[i].Ranks = []Standing{{Local: WholeNode, Seconds: 1}}
	}
	whole[2].Ranks[0].Seconds = 2
	must.Eq(t, "rank 2 on c: 2 s a step, 2.00 times the median of 1 s", Stragglers(whole, 1.5)[0].String())
}

func TestWhoStoppedFirstIsNamed(t *testing.T) {
	records := twoNodes(1, 1, 1, 1, 1, 1, 1, 1)
	must.Eq(t, "", Behind(records))
	must.Eq(t, "", Behind(nil))
	records[1].Ranks[2].Step = 99
	must.Eq(t, "rank 6 on b stopped at step 99, others at 100", Behind(records))
	for i := range records[0].Ranks {
		records[0].Ranks[i].Step = 99
	}
	must.Eq(t, "rank 0 on a, rank 1 on a, rank 2 on a and 2 more stopped at step 99, others at 100", Behind(records))
}

func TestARecordOfAnotherIsBelievedOnlyWhereItCanBe(t *testing.T) {
	must.NoError(t, twoNodes(1, 1)[0].Validate())
	for want, change := range map[string]func(*Record){
		"version 2; this driver reads version 1": func(r *Record) { r.V = 2 },
		"rank -1, first 0":                       func(r *Record) { r.Rank = -1 },
		"65 processes; allowed are 64":           func(r *Record) { r.Ranks = make([]Standing, 65) },
		"process -2: step":                       func(r *Record) { r.Ranks[0].Local = -2 },
		"process 0: step 100, NaN s":             func(r *Record) { r.Ranks[0].Seconds = math.NaN() },
		"a name of 257 bytes":                    func(r *Record) { r.Node = strings.Repeat("x", 257) },
		"a name of 4 bytes; allowed are up to":   func(r *Record) { r.Ranks[0].GPU = "\x1b[2J" },
	} {
		r := twoNodes(1, 1)[0]
		change(&r)
		must.ErrorContains(t, r.Validate(), want)
	}
}
