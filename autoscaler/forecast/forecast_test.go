// SPDX-License-Identifier: MPL-2.0

package forecast

import (
	"math"
	"testing"
	"time"

	"github.com/shoenig/test/must"
	"pgregory.net/rapid"
)

var monday = time.Date(2026, 1, 5, 0, 0, 0, 0, time.UTC)

func daily(t testing.TB, share float64) *Model {
	m, err := New(Season{Period: 24 * time.Hour, Periods: 7, Share: share, Ahead: 15 * time.Minute})
	must.NoError(t, err)
	return m
}

// workday is a load from 9 to 17 o'clock on day i.
func workday(t testing.TB, m *Model, i, gpus int) {
	day := monday.AddDate(0, 0, i)
	m.Add(day, day.Add(9*time.Hour), 0)
	m.Add(day.Add(9*time.Hour), day.Add(17*time.Hour), gpus)
	m.Add(day.Add(17*time.Hour), day.Add(24*time.Hour), 0)
}

func TestWhatRecursIsExpectedBeforeItBegins(t *testing.T) {
	m := daily(t, 0.75)
	for i, gpus := range []int{8, 10, 12, 40} {
		workday(t, m, i, gpus)
	}
	day := monday.AddDate(0, 0, 4)
	e, ok := m.Expect(day.Add(8*time.Hour + 50*time.Minute))
	must.True(t, ok)
	must.Eq(t, 12, e.GPUs, must.Sprint("three of four days had no more"))
	must.Eq(t, "12 GPUs or more were asked for between 08:50 and 09:05 UTC on 2 of the last 4 days", e.String())
	e, _ = m.Expect(day.Add(8*time.Hour + 30*time.Minute))
	must.Eq(t, 0, e.GPUs)
	e, _ = m.Expect(day.Add(20 * time.Hour))
	must.Eq(t, 0, e.GPUs)
}

func TestTwoPeriodsAreTooFew(t *testing.T) {
	m := daily(t, 1)
	workday(t, m, 0, 8)
	workday(t, m, 1, 8)
	_, ok := m.Expect(monday.AddDate(0, 0, 2).Add(9 * time.Hour))
	must.False(t, ok)
}

func TestADayOnWhichNobodyLookedDoesNotCount(t *testing.T) {
	m := daily(t, 1)
	for _, i := range []int{0, 1, 3, 4} {
		workday(t, m, i, 8)
	}
	e, ok := m.Expect(monday.AddDate(0, 0, 5).Add(10 * time.Hour))
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
	e, ok := m.Expect(monday.AddDate(0, 0, 200).Add(10 * time.Hour))
	must.True(t, ok)
	must.Eq(t, 8, e.GPUs)
	must.Less(t, 13*24*60, len(m.steps), must.Sprint("no more than a dozen days are kept"))
}

func TestAWeekTellsMondayFromSunday(t *testing.T) {
	m, err := New(Season{Period: 7 * 24 * time.Hour, Periods: 4, Share: 1, Ahead: time.Minute})
	must.NoError(t, err)
	for i := range 28 {
		gpus := 16
		if i%7 > 4 {
			gpus = 2
		}
		workday(t, m, i, gpus)
	}
	for day, want := range map[int]int{28: 16, 33: 2} {
		e, ok := m.Expect(monday.AddDate(0, 0, day).Add(10 * time.Hour))
		must.True(t, ok)
		must.Eq(t, want, e.GPUs)
	}
}

func TestSettingsAreChecked(t *testing.T) {
	for want, s := range map[string]Season{
		"period: 1h0m0s":   {time.Hour, 7, 1, time.Minute},
		"periods: 2":       {24 * time.Hour, 2, 1, time.Minute},
		"share: 0":         {24 * time.Hour, 7, 0, time.Minute},
		"share: NaN":       {24 * time.Hour, 7, math.NaN(), time.Minute},
		"ahead: 0s":        {24 * time.Hour, 7, 1, 0},
		"ahead: 24h0m0.1s": {24 * time.Hour, 7, 1, 24*time.Hour + 100*time.Millisecond},
	} {
		_, err := New(s)
		must.ErrorContains(t, err, want)
		_, err = NewLoads(s)
		must.ErrorContains(t, err, want)
	}
}

func TestNothingIsExpectedThatNeverWas(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		m, _ := New(Season{Period: 24 * time.Hour, Periods: rapid.IntRange(3, 9).Draw(t, "periods"), Share: rapid.Float64Range(0.01, 1).Draw(t, "share"),
			Ahead: time.Duration(rapid.IntRange(1, 7200).Draw(t, "ahead")) * time.Second})
		now, most := monday, 0
		for range rapid.IntRange(0, 60).Draw(t, "spans") {
			to := now.Add(time.Duration(rapid.IntRange(1, 48*3600).Draw(t, "length")) * time.Second)
			if rapid.IntRange(0, 9).Draw(t, "clock") == 0 {
				now = now.Add(time.Duration(rapid.IntRange(-90, 900).Draw(t, "jump")) * 24 * time.Hour)
				to = now.Add(time.Hour)
			}
			gpus := rapid.IntRange(0, 100).Draw(t, "gpus")
			most = max(most, gpus)
			if rapid.IntRange(0, 4).Draw(t, "looked") > 0 {
				m.Add(now, to, gpus)
			}
			now = to
			must.LessEq(t, 15*24*60, len(m.steps), must.Sprint("more is kept than half as much again as is remembered"))
		}
		e, ok := m.Expect(now)
		if ok {
			must.Between(t, 0, e.GPUs, e.Usual)
			must.LessEq(t, most, e.Usual)
			must.Between(t, 1, e.Reached, e.Known)
		}
	})
}

func TestADayThatGoesAnotherWayEndsWhatIsUsual(t *testing.T) {
	m := daily(t, 0.5)
	for i := range 5 {
		workday(t, m, i, 40)
	}
	holiday := monday.AddDate(0, 0, 5)
	expect := func(after time.Duration) Expected {
		m.Add(holiday, holiday.Add(after), 0)
		e, ok := m.Expect(holiday.Add(after))
		must.True(t, ok)
		return e
	}
	must.Eq(t, 40, expect(8*time.Hour+50*time.Minute).GPUs)
	must.Eq(t, 40, expect(9*time.Hour+14*time.Minute).GPUs, must.Sprint("it is waited for"))
	e := expect(9*time.Hour + 21*time.Minute)
	must.Eq(t, 0, e.GPUs, must.Sprint("it does not come today"))
	must.StrHasSuffix(t, "; today's load is lower, 0 are expected", e.String())
	// A load that begins late is no less usual the day after.
	m.Add(holiday.Add(9*time.Hour), holiday.Add(24*time.Hour), 0)
	e, _ = m.Expect(holiday.Add(33*time.Hour - time.Minute))
	must.Eq(t, 40, e.GPUs)
}

func TestTheLoadOfAWeekIsToldByItsDay(t *testing.T) {
	m, err := New(Usual)
	must.NoError(t, err)
	for i := range 21 {
		gpus := 0
		if i%7 == 1 {
			gpus = 24
		}
		workday(t, m, i, gpus)
	}
	e, ok := m.Expect(monday.AddDate(0, 0, 22).Add(9*time.Hour - 10*time.Minute))
	must.True(t, ok)
	must.Eq(t, "24 GPUs or more were asked for between 08:50 and 09:05 UTC on 3 of the last 3 Tuesdays", e.String())
}

func TestALoadThatIsNotNamedIsNotKnown(t *testing.T) {
	l, err := NewLoads(Season{Period: 24 * time.Hour, Periods: 5, Share: 0.5, Ahead: time.Minute})
	must.NoError(t, err)
	for i := range 4 {
		day := monday.AddDate(0, 0, i)
		loads := map[string]int{"a": i}
		if i > 1 {
			loads["b"] = 9
		}
		l.Add(day, day.Add(24*time.Hour), loads)
	}
	names, all := l.Expect(monday.AddDate(0, 0, 4))
	must.Eq(t, []string{"a", "b"}, names)
	must.Eq(t, 1, all[0].GPUs)
	must.Eq(t, 0, all[1].GPUs)
	must.Eq(t, "nothing is expected yet: 2 of the 3 periods of 24h0m0s that are needed are known", all[1].String())
}
