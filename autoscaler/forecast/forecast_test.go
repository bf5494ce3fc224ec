// SPDX-License-Identifier: MPL-2.0

package forecast

import (
	"testing"
	"time"

	"github.com/shoenig/test/must"
	"pgregory.net/rapid"
)

var monday = time.Date(2026, 1, 5, 0, 0, 0, 0, time.UTC)

func daily(t testing.TB, share float64) *Model {
	m, err := New(Season{Period: 24 * time.Hour, Periods: 7, Share: share})
	must.NoError(t, err)
	return m
}

// workday is a load from 9 to 17 o'clock on day i.
func workday(t testing.TB, m *Model, i, gpus int) {
	day := monday.AddDate(0, 0, i)
	must.NoError(t, m.Add(day, day.Add(9*time.Hour), 0))
	must.NoError(t, m.Add(day.Add(9*time.Hour), day.Add(17*time.Hour), gpus))
	must.NoError(t, m.Add(day.Add(17*time.Hour), day.Add(24*time.Hour), 0))
}

func TestWhatRecursIsExpectedBeforeItBegins(t *testing.T) {
	m := daily(t, 0.75)
	for i, gpus := range []int{8, 10, 12, 40} {
		workday(t, m, i, gpus)
	}
	day := monday.AddDate(0, 0, 4)
	e, ok := m.Expect(day.Add(8*time.Hour+50*time.Minute), 15*time.Minute)
	must.True(t, ok)
	must.Eq(t, 12, e.GPUs, must.Sprint("three of four days had no more"))
	must.Eq(t, "at most 12 GPUs were in use between 08:50 and 09:05 in 3 of the last 4 days", e.String())
	e, _ = m.Expect(day.Add(8*time.Hour+30*time.Minute), 15*time.Minute)
	must.Eq(t, 0, e.GPUs)
	e, _ = m.Expect(day.Add(20*time.Hour), 15*time.Minute)
	must.Eq(t, 0, e.GPUs)
}

func TestTwoPeriodsAreTooFew(t *testing.T) {
	m := daily(t, 1)
	workday(t, m, 0, 8)
	workday(t, m, 1, 8)
	_, ok := m.Expect(monday.AddDate(0, 0, 2).Add(9*time.Hour), time.Minute)
	must.False(t, ok)
}

func TestADayOnWhichNobodyLookedDoesNotCount(t *testing.T) {
	m := daily(t, 1)
	for _, i := range []int{0, 1, 3, 4} {
		workday(t, m, i, 8)
	}
	e, ok := m.Expect(monday.AddDate(0, 0, 5).Add(10*time.Hour), time.Minute)
	must.True(t, ok)
	must.Eq(t, 4, e.Known)
}

func TestWhatIsOlderThanAllPeriodsIsForgotten(t *testing.T) {
	m := daily(t, 1)
	for i := range 200 {
		gpus := 8
		if i == 0 {
			gpus = 100
		}
		workday(t, m, i, gpus)
	}
	e, ok := m.Expect(monday.AddDate(0, 0, 200).Add(10*time.Hour), time.Minute)
	must.True(t, ok)
	must.Eq(t, 8, e.GPUs)
	must.Less(t, 13*24*12, len(m.steps), must.Sprint("no more than a dozen days are kept"))
}

func TestAWeekTellsMondayFromSunday(t *testing.T) {
	m, err := New(Season{Period: 7 * 24 * time.Hour, Periods: 4, Share: 1})
	must.NoError(t, err)
	for i := range 28 {
		gpus := 16
		if i%7 > 4 {
			gpus = 2
		}
		workday(t, m, i, gpus)
	}
	for day, want := range map[int]int{28: 16, 33: 2} {
		e, ok := m.Expect(monday.AddDate(0, 0, day).Add(10*time.Hour), time.Minute)
		must.True(t, ok)
		must.Eq(t, want, e.GPUs)
	}
}

func TestSettingsAreChecked(t *testing.T) {
	for want, s := range map[string]Season{
		"period: 1h0m0s": {time.Hour, 7, 1},
		"periods: 2":     {24 * time.Hour, 2, 1},
		"share: 0":       {24 * time.Hour, 7, 0},
		"share: NaN":     {24 * time.Hour, 7, nan()},
	} {
		_, err := New(s)
		must.ErrorContains(t, err, want)
	}
}

func nan() float64 { z := 0.0; return z / z }

func TestNothingIsExpectedThatNeverWas(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		m, _ := New(Season{Period: 24 * time.Hour, Periods: rapid.IntRange(3, 9).Draw(t, "periods"), Share: rapid.Float64Range(0.01, 1).Draw(t, "share")})
		now, most := monday, 0
		for range rapid.IntRange(0, 60).Draw(t, "spans") {
			to := now.Add(time.Duration(rapid.IntRange(1, 48*3600).Draw(t, "length")) * time.Second)
			gpus := rapid.IntRange(0, 100).Draw(t, "gpus")
			most = max(most, gpus)
			if rapid.IntRange(0, 4).Draw(t, "looked") > 0 {
				must.NoError(t, m.Add(now, to, gpus))
			}
			now = to
		}
		e, ok := m.Expect(now, time.Duration(rapid.IntRange(0, 7200).Draw(t, "ahead"))*time.Second)
		if ok {
			must.Between(t, 0, e.GPUs, most)
			must.Between(t, 1, e.Within, e.Known)
		}
	})
}
