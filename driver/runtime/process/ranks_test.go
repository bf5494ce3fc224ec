// SPDX-License-Identifier: MPL-2.0

package process

import (
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"syscall"
	"testing"
	"time"

	"github.com/shoenig/test/must"

	"github.com/nomad-gpu/nomad-gpu/driver/runtime"
)

// ranks makes the spec of n processes, beginning with rank 4.
func ranks(spec runtime.Spec, n int) runtime.Spec {
	for local := range n {
		spec.Ranks = append(spec.Ranks, runtime.Rank{Number: 4 + local, Env: []string{"LOCAL_RANK=" + strconv.Itoa(local)}})
	}
	return spec
}

func (b *bench) runRanks(n int, script string) runtime.Process {
	b.t.Helper()
	p, err := Runtime{Marker: "MARK=" + b.dir}.Create(b.t.Context(), b.dir, ranks(shell(b.dir, script), n))
	must.NoError(b.t, err)
	must.NoError(b.t, p.Start(b.t.Context()))
	return p
}

func TestEachRankRunsWithItsEnvironmentAndItsPrefix(t *testing.T) {
	b := newBench(t)
	defer b.read(".out")()
	p := b.runRanks(3, `echo local $LOCAL_RANK; printf 'no end'`)
	must.True(t, b.exit(p).OK())
	var got []string
	for range 6 {
		got = append(got, b.line())
	}
	slices.Sort(got)
	must.Eq(t, []string{"[rank 4] local 0", "[rank 4] no end", "[rank 5] local 1", "[rank 5] no end", "[rank 6] local 2", "[rank 6] no end"}, got)
	b.nobody()
}

func TestABeginningOfALineIsPassedOnAfterAWhile(t *testing.T) {
	b := newBench(t)
	defer b.read(".out")()
	p := b.runRanks(1, "printf 'step 1 of'; sleep 1000")
	must.Eq(t, "[rank 4] step 1 of", b.line())
	must.NoError(t, p.Stop(t.Context(), syscall.SIGTERM, time.Second))
}

func TestTheFirstRankThatFailsIsNamedAndTheOthersAreStopped(t *testing.T) {
	b := newBench(t)
	p := b.runRanks(3, `case $LOCAL_RANK in
		1) echo before >&2; echo out of memory >&2; exit 7;;
		2) trap 'echo my peer is gone >&2; exit 9' TERM; while true; do sleep 0.02; done;;
		*) setsid sleep 1000 & wait;;
	esac`)
	x := b.exit(p)
	must.Eq(t, "failed: rank 5 exited with code 7", x.Err)
	must.Eq(t, 7, x.Code)
	must.Eq(t, 5, *x.Rank)
	must.Eq(t, []string{"before", "out of memory"}, x.Tail)
	must.Eq(t, "failed: rank 5 exited with code 7: out of memory", x.String())
	b.nobody()
}

func TestARankThatFailsTakesDownThoseThatWillNotListen(t *testing.T) {
	b := newBench(t)
	p := b.runRanks(2, `if [ $LOCAL_RANK = 0 ]; then kill -ABRT $$; fi; trap "" TERM; while true; do sleep 0.05; done`)
	x := b.exit(p)
	must.Eq(t, 6, x.Signal)
	must.StrHasPrefix(t, "failed: rank 4 was ended by signal 6", x.Err)
	b.nobody()
}

func TestRanksThatFinishAreNotMissed(t *testing.T) {
	b := newBench(t)
	gate := filepath.Join(t.TempDir(), "gate")
	p := b.runRanks(2, `[ $LOCAL_RANK = 0 ] && exit 0; while [ ! -e `+gate+` ]; do sleep 0.02; done; exit 0`)
	must.NoError(t, p.Signal(0)) // whether one of the two has ended yet or not
	must.NoError(t, os.WriteFile(gate, nil, 0o600))
	must.True(t, b.exit(p).OK())
}

func TestNoRankRunsBeforeTheStartAndAStopReachesEach(t *testing.T) {
	b := newBench(t)
	defer b.read(".out")()
	p, err := Runtime{}.Create(t.Context(), b.dir, ranks(shell(b.dir, `trap "echo asked; exit 0" TERM; echo ready; while true; do sleep 0.02; done`), 2))
	must.NoError(t, err)
	must.Zero(t, p.PID())
	must.NoError(t, p.Start(t.Context()))
	must.Positive(t, p.PID())
	for range 2 {
		must.StrHasSuffix(t, "ready", b.line())
	}
	must.NoError(t, p.Stop(t.Context(), syscall.SIGTERM, time.Minute))
	asked := []string{b.line(), b.line()}
	slices.Sort(asked)
	must.Eq(t, []string{"[rank 4] asked", "[rank 5] asked"}, asked)
	must.True(t, b.exit(p).OK())
}

func TestAKilledSupervisorTakesAllItsRanksAlong(t *testing.T) {
	b := newBench(t)
	defer b.read(".out")()
	p := b.runRanks(3, "setsid sleep 1000 & echo ready; sleep 1000")
	for range 3 {
		must.StrHasSuffix(t, "ready", b.line())
	}
	again, err := Runtime{Marker: "MARK=" + b.dir}.Attach(t.Context(), b.dir)
	must.NoError(t, err)
	must.Eq(t, p.PID(), again.PID())
	must.NoError(t, syscall.Kill(p.(*process).supervisor.PID, syscall.SIGKILL))
	must.StrContains(t, b.exit(again).Err, "lost its supervisor")
	b.nobody()
}
