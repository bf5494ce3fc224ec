// SPDX-License-Identifier: MPL-2.0

package plugin

import (
	"context"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/shoenig/test/must"
	"github.com/shoenig/test/wait"

	"github.com/nomad-gpu/nomad-gpu/driver/environ"
	"github.com/nomad-gpu/nomad-gpu/driver/gang"
	"github.com/nomad-gpu/nomad-gpu/driver/preflight"
	"github.com/nomad-gpu/nomad-gpu/driver/progress"
	"github.com/nomad-gpu/nomad-gpu/driver/runtime"
	"github.com/nomad-gpu/nomad-gpu/driver/runtime/process"
)

func TestProgressIsWatchedOnlyWhereItIsAskedFor(t *testing.T) {
	s, err := parse(t, taskBlock).read()
	must.NoError(t, err)
	must.Nil(t, s.progress)
	s, err = parse(t, withBlock("progress {}")).read()
	must.NoError(t, err)
	must.True(t, reflect.DeepEqual(&progressSettings{file: "progress", ratio: 1.5, rule: progress.Rule{Factor: 10, Floor: 5 * time.Minute},
		stacks: progress.Stacks{Timeout: 30 * time.Second}}, s.progress), must.Sprintf("%+v", s.progress))
	s, err = parse(t, withBlock(`progress {
  file = "steps.txt"
  stragglers = true
  ratio = 1.2
  hang = "progress"
  factor = 2.5
  floor = "90s"
  first_step = "1h"
  stacks = ["py-spy", "dump", "--pid", "{pid}"]
  stacks_timeout = "1m"
}`)).read()
	must.NoError(t, err)
	must.True(t, reflect.DeepEqual(&progressSettings{file: "steps.txt", stragglers: true, ratio: 1.2,
		rule:   progress.Rule{Factor: 2.5, Floor: 90 * time.Second, First: time.Hour, Alone: true},
		stacks: progress.Stacks{Command: []string{"py-spy", "dump", "--pid", "{pid}"}, Timeout: time.Minute}}, s.progress), must.Sprintf("%+v", s.progress))
	s, err = parse(t, withBlock("progress {\n hang = \"off\"\n}")).read()
	must.NoError(t, err)
	must.True(t, s.progress.off)
}

func TestEachFaultOfTheProgressBlockIsNamed(t *testing.T) {
	for want, line := range map[string]string{
		`progress.file: ""; allowed is a file's name`:              `file = ""`,
		`progress.file: "../../etc/passwd"`:                        `file = "../../etc/passwd"`,
		`progress.ratio: 1; allowed are more than 1 to 100`:        `ratio = 1`,
		`progress.ratio: "x"; allowed is a number`:                 `ratio = "x"`,
		`progress.hang: "maybe"; allowed are "both"`:               `hang = "maybe"`,
		`progress.factor: 0.5; allowed are 1 to 1000000`:           `factor = 0.5`,
		`progress.factor: NaN; allowed are`:                        `factor = "NaN"`,
		`progress.floor: "0s"; allowed is a duration of at least`:  `floor = "0s"`,
		`progress.first_step: "-1s"`:                               `first_step = "-1s"`,
		`progress.stacks_timeout: 2h0m0s; allowed are 1s to 1h`:    `stacks_timeout = "2h"`,
		`progress.stacks: the first word is ""; allowed is a path`: `stacks = [""]`,
	} {
		_, err := parse(t, withBlock("progress {\n"+line+"\n}")).read()
		must.ErrorContains(t, err, want)
	}
}

// trainer is a runner with one member's real process, and what it said.
type trainer struct {
	*runner
	t      *testing.T
	stderr *os.File
	mu     sync.Mutex
	said   []string
}

func (tr *trainer) heard() string {
	tr.mu.Lock()
	defer tr.mu.Unlock()
	return strings.Join(tr.said, "\n")
}

// newTrainer runs a script of the test's own.
func newTrainer(t *testing.T, script string, s *progressSettings) *trainer {
	dir := t.TempDir()
	local := filepath.Join(dir, "local")
	must.NoError(t, os.Mkdir(local, 0o755))
	var pipes []string
	var held *os.File
	for _, name := range []string{"out", "err"} {
		path := filepath.Join(dir, name)
		must.NoError(t, syscall.Mkfifo(path, 0o600))
		var err error
		held, err = os.OpenFile(path, os.O_RDWR|syscall.O_NONBLOCK, 0)
		must.NoError(t, err)
		t.Cleanup(func() { held.Close() })
		pipes = append(pipes, path)
	}
	tr := &trainer{t: t, stderr: held}
	report := func(kind, text string) {
		tr.mu.Lock()
		defer tr.mu.Unlock()
		tr.said = append(tr.said, kind+": "+text)
	}
	tr.runner = &runner{runtime: process.Runtime{Marker: "MARK=" + dir}, dir: filepath.Join(dir, "generations"),
		spec:     runtime.Spec{Command: "/bin/sh", Args: []string{"-c", script}, Dir: dir, Stdout: pipes[0], Stderr: pipes[1]},
		settings: environ.Settings{Task: map[string]string{"PATH": "/usr/bin:/bin", "MARK": dir}, Hostfile: filepath.Join(local, "hostfile")},
		check:    &preflight.Check{Warn: func(string) {}}, exits: make(chan gang.Exit, 8),
		signal: syscall.SIGTERM, grace: 5 * time.Second, failureGrace: 5 * time.Second,
		progress: &follower{progressSettings: s, path: filepath.Join(local, "progress"), stderr: pipes[1], report: report, every: 10 * time.Millisecond,
			files: progress.Files{Dir: dir, Name: "local/progress", Slots: 1}}}
	return tr
}

func (tr *trainer) run(generation uint64) {
	tr.t.Helper()
	a := gang.Assignment{Generation: generation, Members: []gang.Member{{Alloc: "a", Node: "n0", Slots: 1, Address: netip.MustParseAddr("127.0.0.1"), Ports: [2]int{1, 2}}}}
	must.NoError(tr.t, tr.Prepare(tr.t.Context(), a))
	must.NoError(tr.t, tr.Start(tr.t.Context(), generation))
	tr.t.Cleanup(func() { tr.Stop(context.Background(), generation, false) })
}

func (tr *trainer) exit() gang.Exit {
	tr.t.Helper()
	select {
	case x := <-tr.exits:
		return x
	case <-time.After(time.Minute):
		tr.t.Fatalf("the process did not end; it said:\n%s", tr.heard())
		return gang.Exit{}
	}
}

// stuck makes a few steps in the file it is told, then none.
const stuck = `for i in 1 2 3 4 5 6; do echo "$i 0.02" >> "$GANG_PROGRESS_FILE"; sleep 0.05; done; sleep 1000`

func hasty() *progressSettings {
	return &progressSettings{ratio: 1.5, rule: progress.Rule{Factor: 1, Floor: 400 * time.Millisecond, Alone: true}}
}

func TestAHungProcessIsStoppedAndItsExitSaysWhy(t *testing.T) {
	s := hasty()
	s.stacks = progress.Stacks{Command: []string{"/bin/echo", "stack of", "{pid}"}, Timeout: time.Minute}
	tr := newTrainer(t, stuck, s)
	tr.run(1)
	x := tr.exit()
	must.Eq(t, 1, x.Generation)
	must.StrHasPrefix(t, "hang: no progress for ", x.Err)
	must.StrContains(t, x.Err, " after step 6, a step usually takes ")
	must.Eq(t, 6, x.Step)
	must.StrContains(t, tr.heard(), "Hang: Generation 1: hang: no progress for ")
	buffer := make([]byte, 4096)
	n, err := tr.stderr.Read(buffer)
	must.NoError(t, err)
	must.StrContains(t, string(buffer[:n]), "\nstack of ")

	// The next generation begins anew: the old file is no progress of its own.
	tr.run(2)
	x = tr.exit()
	must.Eq(t, 2, x.Generation)
	must.StrContains(t, x.Err, "after step 6")
}

func TestAProcessWithoutAGPUThatIdlesAgreesThatItHangs(t *testing.T) {
	p := &busy{}
	f := &follower{progressSettings: hasty()}
	all := f.witnesses(progress.Place{Rank: 1}, p)
	must.Len(t, 1, all)
	now := time.Now()
	for range 3 {
		p.used, now = p.used+10*time.Second, now.Add(10*time.Second)
		all[0].Observe(t.Context(), now, true)
	}
	must.Eq(t, progress.Opinion{Verdict: progress.Agrees, Reason: "the processes use 0 CPUs, usually 1"}, all[0].Ask(t.Context(), now.Add(time.Second)))
	f.ras = 12345
	must.Len(t, 2, f.witnesses(progress.Place{Rank: 0}, p))
	must.Len(t, 1, f.witnesses(progress.Place{Rank: 1}, p), must.Sprint("one member asks NCCL for all"))
}

// busy is a process of which only the usage is known.
type busy struct {
	runtime.Process
	used time.Duration
}

func (b *busy) Usage() (runtime.Usage, error) {
	return runtime.Usage{User: b.used, PIDs: []int{1}}, nil
}

func TestAProcessThatEndsByItselfTellsItsLastStepAlone(t *testing.T) {
	tr := newTrainer(t, `echo '{"step": 41}' > "$GANG_PROGRESS_FILE"; exit 3`, &progressSettings{ratio: 1.5, rule: progress.Rule{Factor: 10, Floor: time.Hour}})
	tr.run(1)
	x := tr.exit()
	must.Eq(t, "", x.Err)
	must.Eq(t, 3, x.Code)
	must.Eq(t, 41, x.Step)
}

func TestAnotherLifeOfTheDriverGoesOnWatching(t *testing.T) {
	tr := newTrainer(t, stuck, &progressSettings{ratio: 1.5, off: true})
	tr.run(1)
	must.Wait(t, wait.InitialSuccess(wait.BoolFunc(func() bool {
		step, _ := tr.progress.files.LastStep()
		return step >= 2
	}), wait.Timeout(time.Minute), wait.Gap(5*time.Millisecond)))
	tr.detach()
	again := &runner{runtime: tr.runtime, dir: tr.dir, spec: tr.spec, settings: tr.settings, check: tr.check, exits: make(chan gang.Exit, 8),
		signal: syscall.SIGKILL, grace: time.Second, failureGrace: time.Second, progress: tr.progress}
	again.progress.progressSettings = hasty()
	must.NoError(t, again.attach(t.Context(), 1))
	again.watch(1, again.current(), again.madeAt(1))
	tr.exits = again.exits
	must.StrHasPrefix(t, "hang: ", tr.exit().Err)

	must.NoError(t, os.WriteFile(filepath.Join(tr.dir, placeFile), []byte(`{"generation":9}`), 0o600))
	must.Eq(t, "", tr.progress.follow(t.Context(), tr.dir, 1, again.current(), time.Now()))
	must.StrContains(t, tr.heard(), fmt.Sprintf("progress is not watched: %s is of generation 9, not 1", placeFile))
}
