// SPDX-License-Identifier: MPL-2.0

package replay

import (
	"bytes"
	"fmt"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/shoenig/test/must"
	"pgregory.net/rapid"
)

func TestAnAxisHasRoundLabels(t *testing.T) {
	for _, c := range []struct {
		most  float64
		whole bool
		want  string
		top   float64
	}{
		{0, true, "0.0 0.2 0.4 0.6 0.8 1.0", 1},
		{1, true, "0.0 0.2 0.4 0.6 0.8 1.0", 1},
		{24, true, "0 5 10 15 20 25", 25},
		{100, true, "0 20 40 60 80 100", 100},
		{13000, true, "0 5000 10000 15000", 15000},
		{4.4, false, "0 1 2 3 4", 4.4},
		{0.03, true, "0.00 0.01 0.02 0.03", 0.03},
	} {
		all, top := ticks(c.most, 5, c.whole)
		var texts []string
		for _, l := range all {
			texts = append(texts, l.Text)
		}
		must.Eq(t, c.want, strings.Join(texts, " "))
		must.InDelta(t, c.top, top, 1e-9)
	}
}

func TestAnAxisHasFewLabelsWhateverItsLength(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		most, count := rapid.Float64Range(1e-6, 1e9).Draw(t, "most"), rapid.IntRange(3, 10).Draw(t, "count")
		for _, whole := range []bool{true, false} {
			all, top := ticks(most, count, whole)
			must.GreaterEq(t, most*(1-1e-9), top)
			must.Between(t, 2, len(all), count+2)
			for i, l := range all {
				v, err := strconv.ParseFloat(l.Text, 64)
				must.NoError(t, err)
				must.InDelta(t, v, l.At*top/100, top/1e4)
				must.True(t, i == 0 || l.At > all[i-1].At)
			}
		}
	})
}

func TestMorePoliciesThanColoursAreDashed(t *testing.T) {
	var policies []Policy
	for i := range colours + 1 {
		policies = append(policies, Planner{Label: fmt.Sprint("policy ", i)})
	}
	r, err := Compare(small(task(0, time.Hour, 1)), policies)
	must.NoError(t, err)
	var b bytes.Buffer
	must.NoError(t, r.HTML(&b))
	for _, c := range curves {
		must.StrContains(t, b.String(), "<strong>"+c.title+"</strong>")
	}
	must.Eq(t, len(curves), strings.Count(b.String(), `class="policy-7 c0 dashed"`))
	must.StrContains(t, b.String(), `<i class="c0 dashed"></i>policy 7`)
	must.StrNotContains(t, b.String(), "ZgotmplZ")
}
