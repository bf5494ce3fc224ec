// SPDX-License-Identifier: MPL-2.0

package gang

import (
	"flag"
	"maps"
	"strings"
	"testing"

	"github.com/shoenig/test/must"
)

var (
	schedules = flag.Int("schedules", 20000, "how many simulated schedules to run")
	firstSeed = flag.Uint64("seed", 1, "seed of the first schedule; with -schedules 1 it replays that one and prints it")
)

func TestTheInvariantsHoldInEverySimulatedSchedule(t *testing.T) {
	n := uint64(*schedules)
	if testing.Short() {
		n = min(n, 2000)
	}
	states := map[string]bool{}
	for seed := *firstSeed; seed < *firstSeed+n; seed++ {
		s := newSimulation(seed, 1+int(seed%5), int(seed%9))
		var err error
		for i := 0; i < 600 && err == nil; i++ {
			err = s.step()
		}
		if err == nil {
			err = s.finish(60000)
		}
		if err != nil || n == 1 {
			t.Log(strings.Join(s.log, "\n"))
		}
		must.NoError(t, err, must.Sprintf("seed %d: replay with go test ./driver/gang -run Simulated -args -schedules 1 -seed %d", seed, seed))
		maps.Copy(states, s.states)
	}
	t.Logf("%d schedules, %d distinct states of the gang", n, len(states))
}
