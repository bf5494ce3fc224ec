// SPDX-License-Identifier: MPL-2.0

package process

import (
	"bufio"
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/shoenig/test/must"
	"github.com/shoenig/test/wait"

	"github.com/nomad-gpu/nomad-gpu/driver/gang"
	"github.com/nomad-gpu/nomad-gpu/driver/runtime"
)

// The test's program is also its own supervisor, and the driver that dies.
func TestMain(m *testing.M) {
	if asked, err := Main(os.Args); asked {
		if err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		return
	}
	if dir := os.Getenv("CREATE_AND_DIE"); dir != "" {
		p, err := Runtime{}.Create(context.Background(), dir, shell(dir, "sleep 0.3; echo late words; exit 3"))
		if err == nil {
			err = p.Start(context.Background())
		}
		if err != nil {
			fmt.Println(err)
			os.Exit(1)
		}
		syscall.Kill(os.Getpid(), syscall.SIGKILL)
	}
	if dir := os.Getenv("EXECUTE_IN"); dir != "" {
		p, err := Runtime{}.Attach(context.Background(), dir)
		if err == nil {
			_, err = p.(runtime.Executor).Exec(context.Background(), runtime.Command{Args: []string{"sh", "-c", stubborn}, Stdout: os.Stdout})
		}
		fmt.Println(err)
		os.Exit(1)
	}
	if dir := os.Getenv("MAKE_CGROUP_AND_DIE"); dir != "" {
		if _, err := newSupervisor(dir); err != nil {
			os.Exit(1)
		}
		syscall.Kill(os.Getpid(), syscall.SIGKILL)
	}
	code := m.Run()
	parents, _ := filepath.Glob("/sys/fs/cgroup/*/nomad-nccl-test")
	for _, dir := range append(parents, "/sys/fs/cgroup/nomad-nccl-test") {
		os.Remove(dir)
	}
	os.Exit(code)
}

// shell runs a script; the tests' own, no user's string is in it.
func shell(dir, script string) runtime.Spec {
	return runtime.Spec{Command: "sh", Args: []string{"-c", script}, Dir: "/", Env: []string{"PATH=/usr/bin:/bin", "MARK=" + dir},
		Stdout: dir + ".out", Stderr: dir + ".err"}
}

// bench is one directory with the two log pipes, read as Nomad reads them.
type bench struct {
	t   *testing.T
	dir string
	out chan string
}

func newBench(t *testing.T) *bench {
	b := &bench{t: t, dir: filepath.Join(t.TempDir(), strings.Repeat("long", 30)), out: make(chan string, 1000)}
	must.NoError(t, syscall.Mkfifo(b.dir+".out", 0o600))
	must.NoError(t, syscall.Mkfifo(b.dir+".err", 0o600))
	t.Cleanup(func() { killMarked("MARK=" + b.dir) })
	return b
}

func (b *bench) read(name string) (stop func()) {
	f, err := os.OpenFile(b.dir+name, os.O_RDWR|syscall.O_NONBLOCK, 0) // with a writer in hand the end of one is not the end of file
	must.NoError(b.t, err)
	go func() {
		for lines := bufio.NewScanner(f); lines.Scan(); {
			b.out <- lines.Text()
		}
	}()
	return func() { f.Close() }
}

func (b *bench) run(script string) runtime.Process {
	b.t.Helper()
	p, err := Runtime{Marker: "MARK=" + b.dir}.Create(b.t.Context(), b.dir, shell(b.dir, script))
	must.NoError(b.t, err)
	must.NoError(b.t, p.Start(b.t.Context()))
	return p
}

func (b *bench) exit(p runtime.Process) gang.Exit {
	b.t.Helper()
	ctx, cancel := context.WithTimeout(b.t.Context(), 30*time.Second)
	defer cancel()
	x, err := p.Wait(ctx)
	must.NoError(b.t, err)
	return x
}

func (b *bench) line() string {
	b.t.Helper()
	select {
	case l := <-b.out:
		return l
	case <-time.After(20 * time.Second):
		b.t.Fatal("no line came")
		return ""
	}
}

// nobody: no process of the bench is left.
func (b *bench) nobody() {
	b.t.Helper()
	must.Wait(b.t, wait.InitialSuccess(wait.BoolFunc(func() bool {
		entries, _ := filepath.Glob("/proc/[0-9]*/environ")
		for _, e := range entries {
			if env, err := os.ReadFile(e); err == nil && strings.Contains(string(env), "MARK="+b.dir) {
				return false
			}
		}
		return true
	}), wait.Timeout(10*time.Second), wait.Gap(10*time.Millisecond)), must.Sprint("a process is left"))
}

func TestNothingRunsBeforeTheStart(t *testing.T) {
	b := newBench(t)
	marker := filepath.Join(t.TempDir(), "ran")
	p, err := Runtime{}.Create(t.Context(), b.dir, shell(b.dir, "touch "+marker))
	must.NoError(t, err)
	must.ErrorContains(t, p.Signal(syscall.SIGTERM), "has not started")
	must.FileNotExists(t, marker)
	must.NoError(t, p.Start(t.Context()))
	must.True(t, b.exit(p).OK())
	must.FileExists(t, marker)
	must.FileNotExists(t, filepath.Join(b.dir, "spec.json"), must.Sprint("the environment stays on the disk"))
}

func TestExitsAreTold(t *testing.T) {
	cases := map[string]struct {
		script string
		want   gang.Exit
	}{
		"success":         {"exit 0", gang.Exit{}},
		"a code":          {"echo one >&2; echo two >&2; exit 42", gang.Exit{Code: 42, Tail: []string{"one", "two"}}},
		"a signal":        {"kill -9 $$", gang.Exit{Signal: 9}},
		"an endless line": {"printf '%1000s' x | tr ' ' y >&2; exit 1", gang.Exit{Code: 1, Tail: []string{strings.Repeat("y", tailWidth)}}},
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			b := newBench(t)
			p := b.run(c.script)
			must.Eq(t, c.want, b.exit(p))
			must.Eq(t, c.want, b.exit(p), must.Sprint("it may be asked again"))
			b.nobody()
		})
	}
}

func TestWhatCannotRunIsAnErrorBeforeTheStart(t *testing.T) {
	dir := t.TempDir()
	must.NoError(t, os.WriteFile(filepath.Join(dir, "plain"), nil, 0o600))
	cases := map[string]struct {
		change func(*runtime.Spec)
		want   string
	}{
		"no such path":   {func(s *runtime.Spec) { s.Command = "/no/such/program" }, `command: "/no/such/program" does not exist`},
		"no such name":   {func(s *runtime.Spec) { s.Command = "no-such-program" }, `command: "no-such-program" is not found in the task's PATH`},
		"not executable": {func(s *runtime.Spec) { s.Command = filepath.Join(dir, "plain") }, "is not executable"},
		"no directory":   {func(s *runtime.Spec) { s.Dir = "/no/such/dir" }, `work_dir: "/no/such/dir" is no directory`},
		"no such user":   {func(s *runtime.Spec) { s.User = "no-such-user" }, `user: "no-such-user"`},
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			b := newBench(t)
			spec := shell(b.dir, "true")
			c.change(&spec)
			_, err := Runtime{}.Create(t.Context(), b.dir, spec)
			must.ErrorContains(t, err, c.want)
		})
	}
}

func TestTheSignalComesFirstAndTheWholeTreeIsKilledAfterTheGrace(t *testing.T) {
	b := newBench(t)
	defer b.read(".out")()
	// A child in a session of its own, an orphan, and a process that will not listen.
	p := b.run(`setsid sh -c 'trap "" TERM; sleep 1000' & (sh -c 'trap "" TERM; sleep 1000' &) ; trap "echo asked to stop" TERM; echo ready; while true; do sleep 0.05; done`)
	must.Eq(t, "ready", b.line())
	must.NoError(t, p.Stop(t.Context(), syscall.SIGTERM, 300*time.Millisecond))
	must.Eq(t, "asked to stop", b.line())
	must.Eq(t, int(syscall.SIGKILL), b.exit(p).Signal)
	b.nobody()
}

func TestStoppingWhatNeverStartedLeavesNothing(t *testing.T) {
	b := newBench(t)
	p, err := Runtime{}.Create(t.Context(), b.dir, shell(b.dir, "true"))
	must.NoError(t, err)
	must.NoError(t, p.Stop(t.Context(), syscall.SIGTERM, time.Minute))
	must.NoError(t, p.Stop(t.Context(), syscall.SIGTERM, time.Minute), must.Sprint("it may be stopped again"))
	must.Error(t, p.Start(t.Context()))
	b.nobody()
}

func TestChildrenThatOutliveTheProcessAreKilled(t *testing.T) {
	b := newBench(t)
	p := b.run("setsid sleep 1000 & setsid setsid sleep 1000 & exit 0")
	must.True(t, b.exit(p).OK())
	b.nobody()
}

func TestTheExitAndTheLastWordsSurviveTheDriver(t *testing.T) {
	b := newBench(t)
	defer b.read(".out")()
	driver := exec.Command(os.Args[0])
	driver.Env = append(os.Environ(), "CREATE_AND_DIE="+b.dir)
	out, err := driver.CombinedOutput()
	must.ErrorContains(t, err, "killed", must.Sprint(string(out)))
	p, err := Runtime{}.Attach(t.Context(), b.dir)
	must.NoError(t, err)
	must.Eq(t, 3, b.exit(p).Code)
	must.Eq(t, "late words", b.line())
	again, err := Runtime{}.Attach(t.Context(), b.dir)
	must.NoError(t, err)
	must.Eq(t, 3, b.exit(again).Code, must.Sprint("the exit stands after the supervisor has ended too"))
}

func TestAKilledSupervisorTakesItsTreeAlong(t *testing.T) {
	b := newBench(t)
	defer b.read(".out")()
	p := b.run("setsid sleep 1000 & echo ready; sleep 1000")
	must.Eq(t, "ready", b.line())
	must.NoError(t, syscall.Kill(p.(*process).supervisor.PID, syscall.SIGKILL))
	must.StrContains(t, b.exit(p).Err, "lost its supervisor")
	b.nobody()
}

func TestAnotherProcessWithTheSupervisorsNumberIsNotTakenForIt(t *testing.T) {
	own, err := identify(os.Getpid())
	must.NoError(t, err)
	must.True(t, own.alive())
	own.Start--
	must.False(t, own.alive())
}

func TestOutputSurvivesAReaderThatGoesAndComes(t *testing.T) {
	b := newBench(t)
	stop := b.read(".out")
	p := b.run("echo first; while [ ! -e " + b.dir + ".go ]; do sleep 0.02; done; echo second; echo third")
	must.Eq(t, "first", b.line())
	stop()
	must.NoError(t, os.WriteFile(b.dir+".go", nil, 0o600))
	defer b.read(".out")()
	must.Eq(t, "second", b.line())
	must.Eq(t, "third", b.line())
	must.True(t, b.exit(p).OK())
}

func TestWithoutAReaderTheProcessGoesOnAndTheLossIsTold(t *testing.T) {
	b := newBench(t)
	p := b.run("yes 0123456789 | head -c 3000000; touch " + b.dir + ".done; while [ ! -e " + b.dir + ".go ]; do sleep 0.02; done")
	must.Wait(t, wait.InitialSuccess(wait.BoolFunc(func() bool {
		_, err := os.Stat(b.dir + ".done")
		return err == nil
	}), wait.Timeout(20*time.Second), wait.Gap(20*time.Millisecond)), must.Sprint("it is held up"))
	defer b.read(".out")()
	must.StrContains(t, b.line(), "bytes of output are lost: nobody read the log")
	go func() {
		for range b.out {
		}
	}()
	must.NoError(t, os.WriteFile(b.dir+".go", nil, 0o600))
	must.True(t, b.exit(p).OK())
}

func TestUsageCountsTheWholeTree(t *testing.T) {
	b := newBench(t)
	defer b.read(".out")()
	p := b.run("sleep 1000 & sleep 1000 & echo ready; wait")
	must.Eq(t, "ready", b.line())
	u, err := p.Usage()
	must.NoError(t, err)
	must.Eq(t, 3, len(u.PIDs))
	must.Positive(t, u.RSS)
	must.Eq(t, strconv.Itoa(p.PID()), strconv.Itoa(u.PIDs[0]))
	must.NoError(t, p.Stop(t.Context(), syscall.SIGTERM, time.Second))
}
