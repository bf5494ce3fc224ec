// SPDX-License-Identifier: MPL-2.0

package progress

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/shoenig/test/must"
	"pgregory.net/rapid"
)

// board is a Board in memory.
type board struct {
	mu      sync.Mutex
	records map[int]Record
	writes  int
	err     error
}

func (b *board) Publish(_ context.Context, r Record) error {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.err == nil {
		b.records[r.Rank] = r
		b.writes++
	}
	return b.err
}

func (b *board) Read(context.Context) ([]Record, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	var all []Record
	for _, r := range b.records {
		all = append(all, r)
	}
	return all, b.err
}

// opinion is a Witness that says the same each time.
type opinion struct {
	Opinion
	shown int
}

func (o *opinion) Observe(context.Context, time.Time, bool) { o.shown++ }
func (o *opinion) Ask(context.Context, time.Time) Opinion   { return o.Opinion }

// scene is one member's watch with its files, on a clock of its own.
type scene struct {
	t    *testing.T
	w    *watching
	now  time.Time
	said []string
}

func newScene(t *testing.T, rank int, b Board, witnesses ...Witness) *scene {
	s := &scene{t: t, now: begin}
	w := &Watch{Place: Place{Generation: 3, Rank: rank, First: 2 * rank, Members: 3, Node: fmt.Sprintf("n%d", rank)},
		Files: Files{Dir: t.TempDir(), Name: "progress", Slots: 2}, Rule: Rule{Factor: 10, Floor: time.Minute},
		Witnesses: witnesses, Board: b, Ratio: 1.5, GPUs: []string{"GPU-a", "GPU-b"},
		Report: func(kind, text string) { s.said = append(s.said, kind+": "+text) }}
	s.w = &watching{Watch: w, pace: NewPace(begin), means: map[int]*mean{}, named: map[int]bool{}}
	return s
}

// look lets five seconds pass, then looks.
func (s *scene) look() string {
	s.now = s.now.Add(5 * time.Second)
	return s.w.step(s.t.Context(), s.now)
}

// steps makes a step before each of n looks; seconds are each process's own work.
func (s *scene) steps(n int, seconds ...float64) {
	s.t.Helper()
	for range n {
		step, _ := s.w.pace.Step()
		for local, each := range seconds {
			write(s.t, s.w.Files.Dir, fmt.Sprintf("progress.%d", local), fmt.Sprintf("%d %g\n", step+1, each))
		}
		must.Eq(s.t, "", s.look())
	}
}

func TestAStuckTrainingIsAHangWithItsReasons(t *testing.T) {
	gpus := &opinion{Opinion: Opinion{Agrees, "the GPUs draw 180 W, usually 600"}}
	b := &board{records: map[int]Record{
		1: {V: 1, Generation: 3, Rank: 1, First: 2, Node: "n1", Ranks: []Standing{{Local: 0, Step: 19}, {Local: 1, Step: 20}}},
		2: {V: 1, Generation: 2, Rank: 2, First: 4, Node: "n2", Ranks: []Standing{{Local: 0, Step: 3}}}, // of the generation before
	}}
	s := newScene(t, 0, b, gpus)
	s.steps(20, 1, 1)
	must.Eq(t, 6, gpus.shown, must.Sprint("witnesses see the first four steps, and each 30 s of the 85 s after"))
	for range 11 {
		must.Eq(t, "", s.look())
	}
	must.Eq(t, "hang: no progress for 1m0s after step 20, a step usually takes 5s; the GPUs draw 180 W, usually 600; rank 2 on n1 stopped at step 19, others at 20", s.look())
}

func TestASlowStepIsToldAndNotStopped(t *testing.T) {
	s := newScene(t, 1, nil, &opinion{Opinion: Opinion{Denies, "NCCL RAS: collectives go on"}}, &opinion{Opinion: Opinion{Agrees, "x"}})
	s.steps(5, 1, 1)
	for range 100 {
		must.Eq(t, "", s.look())
	}
	must.Eq(t, []string{"Slow: no progress for 1m30s after step 5, a step usually takes 5s; no restart yet: NCCL RAS: collectives go on; x"}, s.said)
	s.steps(1, 1, 1)
	for range 30 {
		must.Eq(t, "", s.look())
	}
	must.Len(t, 2, s.said, must.Sprint("the next one is told anew"))
}

func TestWithoutAWitnessOnlyTheUsersRuleRestarts(t *testing.T) {
	s := newScene(t, 1, nil)
	s.steps(5, 1, 1)
	for range 100 {
		must.Eq(t, "", s.look())
	}
	must.StrContains(t, s.said[0], "no restart yet: no other sign of a hang")
	s.w.Rule.Alone = true
	must.StrHasPrefix(t, "hang: no progress for 8m25s after step 5", s.look())
	s.w.Off = true
	must.Eq(t, "", s.look())
}

func TestRankZeroNamesAStragglerOnceUntilItHasCaughtUp(t *testing.T) {
	b := &board{records: map[int]Record{}}
	slow := func(seconds float64) {
		b.records[2] = Record{V: 1, Generation: 3, Rank: 2, First: 4, Node: "n2", Ranks: []Standing{{Local: 0, Seconds: 1}, {Local: 1, Seconds: seconds, GPU: "GPU-x"}}}
	}
	slow(2)
	s := newScene(t, 0, b)
	s.steps(12, 1, 1)
	must.SliceEmpty(t, s.said, must.Sprint("one look is no trend"))
	s.steps(60, 1, 1)
	must.Eq(t, []string{"Straggler: rank 5 on n2, GPU-x: 2 s a step, 2.00 times the median of 1 s"}, s.said)
	slow(1)
	s.steps(6, 1, 1)
	must.Eq(t, "Straggler: rank 5 has caught up", s.said[1])
	slow(2)
	s.steps(12, 1, 1)
	must.Len(t, 3, s.said)

	other := newScene(t, 1, b)
	other.steps(60, 1, 1)
	must.SliceEmpty(t, other.said, must.Sprint("rank 0 alone tells"))
}

func TestAMemberPublishesSeldomAndOnlyWhatIsNew(t *testing.T) {
	b := &board{records: map[int]Record{}}
	s := newScene(t, 1, b)
	s.w.Off = true
	s.look()
	must.Zero(t, b.writes, must.Sprint("there is nothing to tell"))
	s.steps(60, 0.5, 0.25)
	must.Eq(t, 10, b.writes, must.Sprint("each 30 s"))
	for range 60 {
		s.look()
	}
	must.Eq(t, 10, b.writes)
	must.NoError(t, b.records[1].Validate())
	must.Eq(t, Record{V: 1, Generation: 3, Rank: 1, First: 2, Node: "n1",
		Ranks: []Standing{{Local: 0, Step: 60, Seconds: 0.5, GPU: "GPU-a"}, {Local: 1, Step: 60, Seconds: 0.25, GPU: "GPU-b"}}}, b.records[1])
	b.err = errors.New("no leader")
	s.steps(60, 0.5, 0.25)
	must.Eq(t, []string{"Warning: progress is not told to the other members: no leader"}, s.said)
	must.Eq(t, 30*time.Second, Interval(2))
	must.Eq(t, 30*time.Second, Interval(256))
	must.Eq(t, 8*time.Minute, Interval(4096))
}

func TestAFaultyFileIsToldOnce(t *testing.T) {
	s := newScene(t, 0, nil)
	write(t, s.w.Files.Dir, "progress.1", "soon\n")
	s.look()
	s.look()
	must.Eq(t, []string{"Warning: progress: progress.1: a line that does not begin with a number, the step"}, s.said)
}

func TestStepsWithoutATimeOfTheirOwnAreTimedByTheFile(t *testing.T) {
	s := newScene(t, 0, nil)
	for step := range 6 {
		write(t, s.w.Files.Dir, "progress", fmt.Sprintf("%d\n", 10*step))
		s.look()
	}
	must.Eq(t, []Standing{{Local: WholeNode, Step: 50, Seconds: 0.5}}, s.w.record().Ranks)
}

func TestRunReadsRealFilesUntilTheTrainingHangs(t *testing.T) {
	dir := t.TempDir()
	w := &Watch{Files: Files{Dir: dir, Name: "progress"}, Rule: Rule{First: time.Millisecond, Alone: true}, Every: time.Millisecond,
		Report: func(string, string) {}}
	must.StrHasPrefix(t, "hang: no step within 0s of the start", w.Run(t.Context(), time.Now()))
	w.Rule.First = 0
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	must.Eq(t, "", w.Run(ctx, time.Now()))
}

func TestARecordNeverSaysWhatAnotherWouldRefuse(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		s := newScene(t, 1, nil)
		for range rapid.IntRange(1, 8).Draw(rt, "looks") {
			var lines strings.Builder
			for range rapid.IntRange(1, 3).Draw(rt, "lines") {
				fmt.Fprintf(&lines, "%d %g\n", rapid.Uint64Range(0, maxStep).Draw(rt, "step"), rapid.Float64Range(0, maxSeconds).Draw(rt, "seconds"))
			}
			write(t, s.w.Files.Dir, "progress.0", lines.String())
			s.look()
		}
		must.NoError(rt, s.w.record().Validate())
	})
}
