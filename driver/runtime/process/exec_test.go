// SPDX-License-Identifier: MPL-2.0

package process

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/shoenig/test/must"
	"github.com/shoenig/test/wait"

	"github.com/nomad-gpu/nomad-gpu/driver/runtime"
)

// running is a bench whose process runs until the test ends.
func running(t *testing.T) (*bench, runtime.Process) {
	b := newBench(t)
	b.read(".out")
	p := b.run("echo ready; exec sleep 1000")
	must.Eq(t, "ready", b.line())
	t.Cleanup(func() { must.NoError(t, p.Stop(context.Background(), syscall.SIGTERM, 0)) })
	return b, p
}

// execute runs a script beside the process.
func execute(t *testing.T, p runtime.Process, script string, change func(*runtime.Command)) (code int, out, errs string) {
	t.Helper()
	var stdout, stderr bytes.Buffer
	c := runtime.Command{Args: []string{"sh", "-c", script}, Stdout: &stdout, Stderr: &stderr}
	if change != nil {
		change(&c)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
	defer cancel()
	code, err := p.(runtime.Executor).Exec(ctx, c)
	must.NoError(t, err)
	return code, stdout.String(), stderr.String()
}

func TestACommandsOutputAndExitAreItsOwn(t *testing.T) {
	_, p := running(t)
	code, out, errs := execute(t, p, "echo to out; echo to err >&2; exit 43", nil)
	must.Eq(t, []any{43, "to out\n", "to err\n"}, []any{code, out, errs})
	code, _, _ = execute(t, p, "kill -9 $$", nil)
	must.Eq(t, 128+9, code)
	code, out, _ = execute(t, p, "wc -c; cat", func(c *runtime.Command) { c.Stdin = strings.NewReader(strings.Repeat("x", 1<<20)) })
	must.Eq(t, []any{0, strconv.Itoa(1<<20) + "\n"}, []any{code, out})
	code, out, _ = execute(t, p, "head -c 3000000 /dev/zero", nil)
	must.Eq(t, []int{0, 3000000}, []int{code, len(out)})
	code, _, _ = execute(t, p, "cat", nil)
	must.Eq(t, 0, code, must.Sprint("without an input it is at its end"))
}

func TestACommandIsWhereTheProcessIs(t *testing.T) {
	b := newBench(t)
	defer b.read(".out")()
	spec := shell(b.dir, "ls -C -w 1000 /proc/self/fd; exec sleep 1000")
	spec.Dir, spec.CPUs = "/usr", "0"
	spec.Limits = []runtime.Limit{{Name: "nofile", Value: 777, Asked: true}}
	c, grouped := b.cgroup()
	if grouped {
		c.CPUs = "0"
		spec.Cgroup = &c
	}
	root := os.Geteuid() == 0
	if root {
		spec.User = "nobody"
	}
	p, err := Runtime{Marker: "MARK=" + b.dir}.Create(t.Context(), b.dir, spec)
	must.NoError(t, err)
	must.NoError(t, p.Start(t.Context()))
	t.Cleanup(func() {
		must.NoError(t, p.Stop(context.Background(), syscall.SIGTERM, 0))
		b.nobody()
	})
	files := b.line()
	_, out, _ := execute(t, p, `: < $(tty) && echo $TERM`, func(c *runtime.Command) { c.TTY = true })
	must.Eq(t, "xterm\r\n", out, must.Sprint("the terminal is another user's"))
	for _, tty := range []bool{false, true} {
		code, out, errs := execute(t, p, `pwd; id -un; ulimit -n; echo "$MARK"; grep Cpus_allowed_list /proc/self/status; ls -C -w 1000 /proc/self/fd; cat /proc/self/cgroup`,
			func(c *runtime.Command) { c.TTY = tty })
		must.Eq(t, 0, code, must.Sprint(out, errs))
		lines := strings.Split(strings.ReplaceAll(out, "\r", ""), "\n")
		must.Eq(t, spec.Dir, lines[0])
		if root {
			must.Eq(t, "nobody", lines[1])
		}
		must.Eq(t, "777", lines[2])
		must.Eq(t, b.dir, lines[3])
		must.StrHasSuffix(t, "\t0", lines[4])
		must.Eq(t, files, lines[5], must.Sprint("it has a file too many, or too few"))
		if grouped {
			mine, err := os.ReadFile(fmt.Sprintf("/proc/%d/cgroup", p.PID()))
			must.NoError(t, err)
			must.Eq(t, strings.TrimSpace(string(mine)), strings.TrimSpace(strings.Join(lines[6:], "\n")))
			_, g, err := b.group()
			must.NoError(t, err)
			in, err := g.processes()
			must.NoError(t, err)
			must.SliceNotContains(t, in, p.(*process).supervisor.PID)
		}
	}
}

func TestATerminalIsOneAndFollowsItsSize(t *testing.T) {
	_, p := running(t)
	sizes := make(chan runtime.Size, 2)
	sizes <- runtime.Size{Rows: 50, Columns: 40}
	input, keys := io.Pipe()
	shown := &shown{}
	var code int
	var err error
	done := make(chan struct{})
	go func() {
		defer close(done)
		code, err = p.(runtime.Executor).Exec(t.Context(), runtime.Command{TTY: true, Args: []string{"sh"}, Stdin: input, Stdout: shown, Sizes: sizes})
	}()
	press := func(line, want string) {
		t.Helper()
		_, err := keys.Write([]byte(line))
		must.NoError(t, err)
		must.Wait(t, wait.InitialSuccess(wait.ErrorFunc(func() error {
			if !strings.Contains(shown.String(), want) {
				return fmt.Errorf("no %q in %q", want, shown.String())
			}
			return nil
		}), wait.Timeout(20*time.Second), wait.Gap(10*time.Millisecond)))
	}
	press("tty; echo $TERM; test -t 2 && echo is a $((1 + 1))nd\n", "is a 2nd")
	must.StrContains(t, shown.String(), "/dev/pts/")
	must.StrContains(t, shown.String(), "xterm")
	press("until [ \"$(stty size)\" = '50 40' ]; do sleep 0.05; done; echo seen $((40 + 2))\n", "seen 42")
	sizes <- runtime.Size{Rows: 1 << 20, Columns: -1} // a client may send anything
	press("until [ \"$(stty size)\" = '65535 0' ]; do sleep 0.05; done; echo seen $((40 + 3))\n", "seen 43")
	press("sleep 1000; echo interrupted $((40 + 4))\n", "sleep 1000")
	untilThereAre(t, p, 4) // the process, the companion, the shell, its sleep
	press("\x03", "^C")
	press("exit 7\n", "exit 7")
	<-done
	must.NoError(t, err)
	must.Eq(t, 7, code)
	code, out, _ := execute(t, p, "cat; echo end", func(c *runtime.Command) { c.TTY, c.Stdin = true, strings.NewReader("one line\n") })
	must.Eq(t, 0, code)
	must.StrHasSuffix(t, "end\r\n", out)
}

// shown is what a terminal shows.
type shown struct {
	mu   sync.Mutex
	text bytes.Buffer
}

func (s *shown) Write(b []byte) (int, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.text.Write(b)
}

func (s *shown) String() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.text.String()
}

// untilThereAre waits until the process and what runs beside it are so many.
func untilThereAre(t *testing.T, p runtime.Process, n int) {
	t.Helper()
	must.Wait(t, wait.InitialSuccess(wait.ErrorFunc(func() error {
		if u, err := p.Usage(); err != nil || len(u.PIDs) != n {
			return fmt.Errorf("processes %v, error %v", u.PIDs, err)
		}
		return nil
	}), wait.Timeout(20*time.Second), wait.Gap(10*time.Millisecond)))
}

// stubborn leaves an orphan in a session of its own and does not listen.
const stubborn = `trap "" TERM HUP; setsid env -i sh -c 'sleep 1000; :' & (setsid sleep 1000 &); echo $$; sleep 1000; sleep 1000`

// begin runs a command that goes on, and waits for its first line.
func begin(t *testing.T, ctx context.Context, p runtime.Process, tty bool) (ended chan error) {
	t.Helper()
	out, said := io.Pipe()
	ended = make(chan error, 1)
	go func() {
		_, err := p.(runtime.Executor).Exec(ctx, runtime.Command{Args: []string{"sh", "-c", stubborn}, TTY: tty, Stdout: said})
		ended <- err
	}()
	_, err := out.Read(make([]byte, 100))
	must.NoError(t, err)
	go io.Copy(io.Discard, out)
	return ended
}

func TestWhatOnesContextEndsIsTheCommandsWholeTreeAndNothingElse(t *testing.T) {
	for _, tty := range []bool{false, true} {
		_, p := running(t)
		ctx, cancel := context.WithCancel(t.Context())
		first := begin(t, ctx, p, tty)
		second := begin(t, t.Context(), p, tty)
		untilThereAre(t, p, 13) // the process, and of each command the companion and five
		cancel()
		must.ErrorIs(t, <-first, context.Canceled)
		untilThereAre(t, p, 7)
		must.NoError(t, p.Stop(t.Context(), syscall.SIGTERM, 0))
		must.ErrorContains(t, <-second, "the process ended, and the command with it")
	}
}

func TestWhatACommandLeavesEndsWithIt(t *testing.T) {
	_, p := running(t)
	for _, tty := range []bool{false, true} {
		code, out, _ := execute(t, p, "setsid sleep 1000 & (sleep 1000 &); echo main", func(c *runtime.Command) { c.TTY = tty })
		must.Eq(t, 0, code)
		must.Eq(t, "main", strings.TrimSpace(out))
		untilThereAre(t, p, 1)
	}
}

func TestACommandEndsWithItsDriver(t *testing.T) {
	b, p := running(t)
	driver := exec.Command(os.Args[0])
	driver.Env = append(os.Environ(), "EXECUTE_IN="+b.dir)
	out, err := driver.StdoutPipe()
	must.NoError(t, err)
	must.NoError(t, driver.Start())
	_, err = out.Read(make([]byte, 100))
	must.NoError(t, err)
	must.NoError(t, driver.Process.Kill())
	driver.Wait()
	untilThereAre(t, p, 1)
	again, err := Runtime{}.Attach(t.Context(), b.dir)
	must.NoError(t, err)
	code, _, _ := execute(t, again, "exit 5", nil)
	must.Eq(t, 5, code, must.Sprint("the next driver runs commands too"))
}

func TestWhatCannotBeExecutedIsSaid(t *testing.T) {
	b := newBench(t)
	p, err := Runtime{}.Create(t.Context(), b.dir, shell(b.dir, "sleep 1000"))
	must.NoError(t, err)
	try := func(args ...string) error {
		_, err := p.(runtime.Executor).Exec(t.Context(), runtime.Command{Args: args})
		return err
	}
	must.ErrorContains(t, try("true"), "exec: it has not started")
	must.NoError(t, p.Start(t.Context()))
	must.ErrorContains(t, try("no-such-program"), `command: "no-such-program" is not found in the task's PATH`)
	must.ErrorContains(t, try("/etc/passwd"), `command: "/etc/passwd" is not executable`)
	must.ErrorContains(t, try(), `command: ""`)
	must.NoError(t, p.Stop(t.Context(), syscall.SIGTERM, 0))
	must.ErrorContains(t, try("true"), "exec: ")
	must.FileExists(t, filepath.Join(b.dir, "exit.json"))
	b.nobody()
}

func TestACommandIsRefusedWhileTheProcessIsBeingStopped(t *testing.T) {
	b := newBench(t)
	defer b.read(".out")()
	p := b.run(`trap "echo asked to stop" TERM; echo ready; while true; do sleep 0.05; done`)
	must.Eq(t, "ready", b.line())
	stopped := make(chan error, 1)
	ctx, cancel := context.WithCancel(t.Context())
	go func() { stopped <- p.Stop(ctx, syscall.SIGTERM, time.Hour) }()
	must.Eq(t, "asked to stop", b.line())
	_, err := p.(runtime.Executor).Exec(t.Context(), runtime.Command{Args: []string{"true"}})
	must.ErrorContains(t, err, "exec: it is being stopped")
	must.NoError(t, syscall.Kill(p.PID(), syscall.SIGKILL))
	must.NoError(t, <-stopped)
	cancel()
	b.nobody()
}
