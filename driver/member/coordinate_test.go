// SPDX-License-Identifier: MPL-2.0

package member

import (
	"testing"
	"time"

	"github.com/shoenig/test/must"
)

func TestAMembersPatienceGrowsWithItsPlaceUpToABound(t *testing.T) {
	const ttl = 15 * time.Second
	for at, want := range map[int]time.Duration{0: 0, 2: 0, 3: 3 * time.Second, 5: 3 * time.Second, 6: 6 * time.Second, 44: 42 * time.Second, 45: 45 * time.Second, 4095: 45 * time.Second} {
		must.Eq(t, want, patience(at, ttl), must.Sprint(at))
	}
	// Looks a second, of the largest gang: they are reads, and few.
	looks := 0.0
	for at := candidates; at < 4096; at++ {
		looks += 1 / patience(at, ttl).Seconds()
	}
	must.Less(t, 100, looks)
}
