// SPDX-License-Identifier: MPL-2.0

package pool

import (
	"testing"
	"time"

	"github.com/shoenig/test/must"
)

func TestANodeIsAwayForAsLongAsThatWasWatched(t *testing.T) {
	now := time.Unix(1000, 0)
	var c contact
	after := func(d time.Duration, up bool) time.Duration {
		now = now.Add(d)
		c.look(now, 10*time.Second)
		return c.lost("n1", up)
	}
	must.Eq(t, 0, after(0, false))
	must.Eq(t, time.Minute, after(time.Minute, false))
	must.Eq(t, 150*time.Second, after(90*time.Second, false))
	must.Eq(t, 0, after(10*time.Second, true))
	must.Eq(t, 0, after(10*time.Second, false), must.Sprint("it was up meanwhile"))
	must.Eq(t, 10*time.Second, after(10*time.Second, false))
	must.Eq(t, 0, after(91*time.Second, false), must.Sprint("it may have been up while nobody looked"))
	must.Eq(t, 0, after(-time.Hour, false), must.Sprint("the clock was put back"))
	must.Eq(t, time.Second, after(time.Second, false))
}
