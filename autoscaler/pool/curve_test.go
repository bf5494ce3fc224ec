// SPDX-License-Identifier: MPL-2.0

package pool

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/shoenig/test/must"
)

var night = time.Date(2026, 12, 3, 22, 30, 0, 0, time.UTC)

func hours(at map[int]float64) []float64 {
	all := make([]float64, 24)
	for i := range all {
		all[i] = 1
		if v, ok := at[i]; ok {
			all[i] = v
		}
	}
	return all
}

func TestACurveOfTheDaysHoursIsLaidOutFromNow(t *testing.T) {
	rates, err := (*Curve)(nil).Rates(night)
	must.NoError(t, err)
	must.Nil(t, rates)
	rates, err = (&Curve{Price: hours(map[int]float64{3: 0.5})}).Rates(night)
	must.NoError(t, err)
	must.Len(t, 7*24, rates)
	must.Eq(t, time.Date(2026, 12, 3, 22, 0, 0, 0, time.UTC), rates[0].From)
	must.Eq(t, 1.0, rates[0].Factor)
	must.Eq(t, "2026-12-04T03:00:00Z 0.5", fmt.Sprint(rates[5].From.Format(time.RFC3339), " ", rates[5].Factor))
}

func TestCarbonCountsByItsWeightAndItsMean(t *testing.T) {
	carbon := make([]float64, 24)
	for i := range carbon {
		carbon[i] = 200
		if i >= 12 {
			carbon[i] = 600
		}
	}
	all := 1.0
	for _, c := range []struct {
		weight *float64
		want   [2]float64 // at 22 and at 0 o'clock
	}{{nil, [2]float64{1.25, 0.75}}, {&all, [2]float64{1.5, 0.5}}} {
		rates, err := (&Curve{Carbon: carbon, CarbonWeight: c.weight}).Rates(night)
		must.NoError(t, err)
		must.InDelta(t, c.want[0], rates[0].Factor, 1e-9)
		must.InDelta(t, c.want[1], rates[2].Factor, 1e-9)
	}
}

func TestACurvesFileIsReadAndEachFaultNamed(t *testing.T) {
	path := filepath.Join(t.TempDir(), "curve.csv")
	c := &Curve{File: path}
	_, err := c.Rates(night)
	must.ErrorContains(t, err, "curve.file: open "+path)
	for text, want := range map[string]string{
		"from,price\n2026-12-03T22:00:00Z,1\n2026-12-04T03:00:00+01:00,0.25\n": "",
		"price,from,note\n1,2026-12-03T22:00:00Z,x\n":                          "",
		"":                                    "its first line: EOF; allowed are the columns from, price and carbon",
		"hour,price\n":                        `columns: ["hour" "price"]`,
		"from\n":                              "allowed are from, and price, carbon or both",
		"from,price\nmidnight,1\n":            `line 2: from: "midnight"`,
		"from,price\n2026-12-03T22:00:00Z,\n": `line 2: price: ""; allowed are 0 to`,
		"from,carbon\n2026-12-03T22:00:00Z,NaN\n":                            `line 2: carbon: "NaN"`,
		"from,price\n2026-12-03T22:00:00Z,1\n2026-12-03T22:00:00Z,1\n":       "line 3: from:",
		"from,price\n2026-12-03T22:00:00Z,1,2\n":                             "wrong number of fields",
		"from,price\n" + strings.Repeat("x", maxCurve+1) + ",1\n":            "curve.csv: ",
		"from,price\n2026-12-03T22:00:00Z,1\n" + strings.Repeat("\n", 5<<20): "larger than",
	} {
		must.NoError(t, os.WriteFile(path, []byte(text), 0o600))
		rates, err := c.Rates(night)
		if want == "" {
			must.NoError(t, err)
			must.Positive(t, len(rates))
			continue
		}
		must.ErrorContains(t, err, want)
	}
}

func FuzzCurve(f *testing.F) {
	f.Add("from,price,carbon\n2026-12-03T22:00:00Z,1,300\n2026-12-04T03:00:00+01:00,0.25,100\n")
	f.Fuzz(func(t *testing.T, text string) {
		all, hasCarbon, err := readCurve(strings.NewReader(text))
		if err != nil {
			return
		}
		for i, r := range weigh(all, map[bool]float64{true: carbonWeight}[hasCarbon]) {
			must.True(t, r.Factor >= 0 && r.Factor <= 1e12)
			must.True(t, i == 0 || r.From.After(all[i-1].from))
		}
	})
}
