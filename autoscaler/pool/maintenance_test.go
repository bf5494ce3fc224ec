// SPDX-License-Identifier: MPL-2.0

package pool

import (
	"testing"
	"time"

	"github.com/shoenig/test/must"
	"pgregory.net/rapid"

	"github.com/nomad-gpu/nomad-gpu/autoscaler/plan"
)

func maintenance(t must.T, start, duration string) *Maintenance {
	m := &Maintenance{Start: start, Duration: duration, Want: map[string]string{"meta.image": "2", "device.driver_version": "550.54.15"}}
	must.SliceEmpty(t, m.validate("spot", "command"))
	return m
}

func TestAWindowIsOpenFromItsStartForItsDuration(t *testing.T) {
	m := maintenance(t, "0 22 * * SAT", "4h")
	saturday := time.Date(2026, 12, 5, 22, 0, 0, 0, time.UTC)
	for after, open := range map[time.Duration]bool{-time.Second: false, 0: true, time.Hour: true, 4*time.Hour - time.Second: true, 4 * time.Hour: false, 24 * time.Hour: false} {
		w := m.Open(saturday.Add(after).In(time.FixedZone("CET", 3600)))
		must.Eq(t, open, w != nil, must.Sprint(after))
		if open {
			must.Eq(t, plan.Maintenance{Since: saturday, AtOnce: 1}, *w)
		}
	}
	must.Nil(t, (*Maintenance)(nil).Open(saturday))
	must.Nil(t, maintenance(t, "0 0 31 2 *", "4h").Open(saturday), must.Sprint("a day that never is"))
}

func TestAWindowThatIsOpenBeganWithinItsDuration(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		m := maintenance(t, rapid.SampledFrom([]string{"* * * * *", "0 * * * *", "30 2 * * SUN", "0 0 1 * *"}).Draw(t, "start"),
			rapid.SampledFrom([]string{"1m", "90m", "25h", "168h"}).Draw(t, "duration"))
		now := time.Unix(1_700_000_000+rapid.Int64Range(0, 1e8).Draw(t, "now"), 0)
		if w := m.Open(now); w != nil {
			must.True(t, !w.Since.After(now) && now.Sub(w.Since) < m.duration)
			must.True(t, m.start.Next(w.Since).After(now), must.Sprint("it is the latest start"))
		} else {
			must.True(t, m.start.Next(now.UTC().Add(-m.duration)).After(now))
		}
	})
}

func TestWhatOfANodeIsOld(t *testing.T) {
	m := maintenance(t, "0 22 * * SAT", "4h")
	must.Eq(t, "", m.Old(map[string]string{"meta.image": "2", "device.driver_version": "550.54.15"}))
	must.Eq(t, `meta.image is "1", wanted is "2"`, m.Old(map[string]string{"meta.image": "1", "device.driver_version": "550.54.15"}))
	must.Eq(t, `device.driver_version is "535", wanted is "550.54.15"`, m.Old(map[string]string{"device.driver_version": "535"}))
	must.Eq(t, "", m.Old(nil), must.Sprint("what it does not tell is not old"))
	must.Eq(t, "", (*Maintenance)(nil).Old(map[string]string{"meta.image": "1"}))
	must.NonZero(t, len((&Maintenance{Start: "0 22 * * SAT", Duration: "1h", Want: m.Want}).validate("asg", "target")))
}
