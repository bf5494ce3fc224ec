// SPDX-License-Identifier: MPL-2.0

package pool

import (
	"os"
	"testing"
	"time"

	"github.com/shoenig/test/must"
)

func TestWhatAPolicyLeavesOfAPoolsMaximumIsRememberedForItsRetry(t *testing.T) {
	now := time.Unix(1e9, 0)
	d := &Definition{Name: "p", Min: 1, Max: 8, Command: &Command{Dir: t.TempDir()}, retry: 5 * time.Minute}
	most := func(after time.Duration) int {
		n, err := d.MostNow(now.Add(after))
		must.NoError(t, err)
		return n
	}
	must.Eq(t, 8, most(0))
	until, err := d.Cut(now, 2)
	must.NoError(t, err)
	must.Eq(t, now.Add(5*time.Minute).UTC(), until)
	must.Eq(t, []int{2, 2, 8, 8}, []int{most(0), most(299 * time.Second), most(5 * time.Minute), most(-time.Hour)})
	_, err = d.Cut(now, 0)
	must.NoError(t, err)
	must.Eq(t, 1, most(0), must.Sprint("never below min"))
	must.NoError(t, os.WriteFile(d.cutPath(), []byte(`{"max": -1}`), 0o600))
	n, err := d.MostNow(now)
	must.ErrorContains(t, err, "allowed is what the target writes")
	must.Eq(t, 8, n)
	n, err = (&Definition{Name: "t", Kind: "target", Max: 3}).MostNow(now)
	must.NoError(t, err)
	must.Eq(t, 3, n)
}
