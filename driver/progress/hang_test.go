// SPDX-License-Identifier: MPL-2.0

package progress

import (
	"context"
	"testing"
	"time"

	"github.com/shoenig/test/must"
)

func TestAHangNeedsAWitnessUnlessTheUserSaysOtherwise(t *testing.T) {
	agrees, denies, silent := Opinion{Agrees, "a"}, Opinion{Denies, "d"}, Opinion{Silent, "s"}
	for _, c := range []struct {
		name     string
		alone    bool
		opinions []Opinion
		hang     bool
		why      string
	}{
		{"nobody else saw it", false, nil, false, ""},
		{"nobody can tell", false, []Opinion{silent, silent}, false, ""},
		{"one agrees", false, []Opinion{silent, agrees}, true, "a"},
		{"two agree", false, []Opinion{agrees, agrees}, true, "a; a"},
		{"one denies", false, []Opinion{agrees, denies}, false, "a"},
		{"progress alone", true, nil, true, ""},
		{"progress alone, whatever they say", true, []Opinion{agrees, denies}, true, "a"},
	} {
		t.Run(c.name, func(t *testing.T) {
			hang, why := Decide(Rule{Alone: c.alone}, c.opinions)
			must.Eq(t, c.hang, hang)
			must.Eq(t, c.why, why)
		})
	}
}

func TestAMeterAgreesWhenTheFigureFallsFarBelowWhatIsUsual(t *testing.T) {
	value, there := 600.0, true
	m := &Meter{What: "power of the GPUs", Unit: "W", Read: func(context.Context, time.Time) (float64, bool) { return value, there }}
	ask := func() Opinion { return m.Ask(t.Context(), begin) }
	must.Eq(t, Opinion{}, ask(), must.Sprint("nothing is usual yet"))
	value = 90
	m.Observe(t.Context(), begin, false) // loading data
	value = 600
	for range 5 {
		m.Observe(t.Context(), begin, true)
	}
	must.Eq(t, Denies, ask().Verdict)
	value = 420
	must.Eq(t, Silent, ask().Verdict)
	value = 180
	must.Eq(t, Opinion{Agrees, "power of the GPUs 180 W, usually 600"}, ask())
	there = false
	must.Eq(t, Opinion{}, ask())
}
