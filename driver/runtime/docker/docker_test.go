// SPDX-License-Identifier: MPL-2.0

package docker

import (
	"bufio"
	"bytes"
	"context"
	"fmt"
	"math"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/shoenig/test/must"
	"github.com/shoenig/test/wait"

	"github.com/nomad-gpu/nomad-gpu/driver/gang"
	"github.com/nomad-gpu/nomad-gpu/driver/runtime"
	"github.com/nomad-gpu/nomad-gpu/driver/runtime/docker/dockertest"
)

var (
	engine  *dockertest.Engine
	program string // acts as the driver's own in containers
)

func TestMain(m *testing.M) {
	os.Exit(func() int {
		if why := dockertest.NeedsRoot(); why != "" {
			fmt.Println(why + ": no test is run")
			return 0
		}
		if why := dockertest.Missing(); why != "" {
			fmt.Fprintln(os.Stderr, why)
			return 1
		}
		dir, err := os.MkdirTemp("", "dk")
		if err != nil {
			fmt.Fprintln(os.Stderr, err)
			return 1
		}
		defer os.RemoveAll(dir)
		program = filepath.Join(dir, "init")
		build := exec.Command("go", "build", "-o", program, "github.com/nomad-gpu/nomad-gpu/driver")
		build.Env = append(os.Environ(), "CGO_ENABLED=0")
		if out, err := build.CombinedOutput(); err != nil {
			fmt.Fprintf(os.Stderr, "%v\n%s", err, out)
			return 1
		}
		engines := []func(context.Context, string) (*dockertest.Engine, error){
			func(ctx context.Context, dir string) (*dockertest.Engine, error) { return dockertest.Start(ctx, dir) }}
		if _, err := exec.LookPath("podman"); err == nil {
			engines = append(engines, dockertest.StartPodman)
		} else {
			fmt.Println("podman is not found: the tests run with Docker Engine alone")
		}
		for _, start := range engines {
			if code := runWith(m, start, dir); code != 0 {
				return code
			}
		}
		return 0
	}())
}

func runWith(m *testing.M, start func(context.Context, string) (*dockertest.Engine, error), dir string) int {
	var err error
	if engine, err = start(context.Background(), dir); err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	defer engine.Stop()
	return m.Run()
}

// box is a runtime with a task's pipes, read by the test.
type box struct {
	t         *testing.T
	runtime   Runtime
	dir       string
	spec      runtime.Spec
	out, errs *reader
}

// reader holds what came out of a named pipe.
type reader struct {
	mu   sync.Mutex
	data bytes.Buffer
}

func (r *reader) String() string {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.data.String()
}

func readPipe(t *testing.T, path string) *reader {
	must.NoError(t, syscall.Mkfifo(path, 0o600))
	f, err := os.OpenFile(path, os.O_RDWR, 0) // also without a writer
	must.NoError(t, err)
	t.Cleanup(func() { f.Close() })
	r := &reader{}
	go func() {
		in := bufio.NewReader(f)
		for {
			line, err := in.ReadBytes('\n')
			r.mu.Lock()
			r.data.Write(line)
			r.mu.Unlock()
			if err != nil {
				return
			}
		}
	}()
	return r
}

func newBox(t *testing.T, command string, args ...string) *box {
	t.Helper()
	e, err := New(Config{Endpoint: engine.Endpoint, GPUs: wayAuto, DriverRoot: "/", PullTimeout: time.Minute})
	must.NoError(t, err)
	b := &box{t: t, runtime: Runtime{Engine: e, Program: program}, dir: filepath.Join(t.TempDir(), "1")}
	dir := t.TempDir()
	b.out, b.errs = readPipe(t, filepath.Join(dir, "out")), readPipe(t, filepath.Join(dir, "err"))
	b.spec = runtime.Spec{Command: command, Args: args, Env: []string{"GREETING=hello"},
		Stdout: filepath.Join(dir, "out"), Stderr: filepath.Join(dir, "err"),
		Container: &runtime.Container{Image: dockertest.Image, Name: "t-" + strings.ToLower(t.Name()), ShmBytes: 64 << 20,
			Mounts: []runtime.Mount{{Source: "/usr", Target: "/usr", ReadOnly: true}}}}
	return b
}

func (b *box) create() runtime.Process {
	b.t.Helper()
	p, err := b.runtime.Create(b.t.Context(), b.dir, b.spec)
	must.NoError(b.t, err)
	b.t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), 20*time.Second)
		defer cancel()
		_ = p.Stop(ctx, syscall.SIGKILL, 0)
		names, err := engine.Names(ctx)
		must.NoError(b.t, err)
		must.SliceEmpty(b.t, names, must.Sprint("a container is left"))
	})
	return p
}

func (b *box) start() runtime.Process {
	b.t.Helper()
	p := b.create()
	must.NoError(b.t, p.Start(b.t.Context()))
	return p
}

func ended(t *testing.T, p runtime.Process) gang.Exit {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
	defer cancel()
	x, err := p.Wait(ctx)
	must.NoError(t, err)
	return x
}

func (b *box) until(r *reader, text string) {
	b.t.Helper()
	must.Wait(b.t, wait.InitialSuccess(wait.BoolFunc(func() bool { return strings.Contains(r.String(), text) }), wait.Timeout(20*time.Second), wait.Gap(20*time.Millisecond)),
		must.Sprintf("%q never came; there is %q", text, r.String()))
}

func TestAContainerRunsTheCommandAndTellsHowItEnded(t *testing.T) {
	for _, c := range []struct {
		name, script string
		want         gang.Exit
	}{
		{"well", `echo $GREETING; echo oops >&2`, gang.Exit{Tail: []string{"oops"}}},
		{"code", `echo last >&2; exit 3`, gang.Exit{Code: 3, Tail: []string{"last"}}},
		{"signal", `kill -SEGV $$`, gang.Exit{Signal: int(syscall.SIGSEGV)}},
	} {
		t.Run(c.name, func(t *testing.T) {
			b := newBox(t, "sh", "-c", c.script)
			b.spec.Container.Name = "t-ends-" + c.name
			p := b.start()
			must.Eq(t, c.want, ended(t, p))
			must.Eq(t, c.want, ended(t, p), must.Sprint("asked again"))
			must.NotEq(t, 0, p.PID(), must.Sprint("it ran"))
			again, err := b.runtime.Attach(t.Context(), b.dir)
			must.NoError(t, err)
			must.Eq(t, c.want, ended(t, again), must.Sprint("asked by another life"))
			if c.name == "well" {
				must.Eq(t, "hello\n", b.out.String())
				must.Eq(t, "oops\n", b.errs.String())
			}
		})
	}
}

func TestTheImagesOwnCommandRunsWhereTheTaskNamesNone(t *testing.T) {
	b := newBox(t, "")
	must.True(t, func() bool { x := ended(t, b.start()); return x.OK() }())
	must.Eq(t, "what the image runs\n", b.out.String())
}

func TestACommandThatTheImageLacksFailsBeforeTheBarrier(t *testing.T) {
	for _, command := range []string{"no-such-program", "/no/such/program"} {
		b := newBox(t, command)
		_, err := b.runtime.Create(t.Context(), b.dir, b.spec)
		must.ErrorContains(t, err, command)
		names, err := engine.Names(t.Context())
		must.NoError(t, err)
		must.SliceEmpty(t, names)
	}
}

func TestACreatedContainerDoesNotRunAndCanBeStopped(t *testing.T) {
	b := newBox(t, "sh", "-c", "echo ran")
	p := b.create()
	names, err := engine.Names(t.Context())
	must.NoError(t, err)
	must.Eq(t, []string{b.spec.Container.Name + "-1 created"}, names)
	must.NoError(t, p.Stop(t.Context(), syscall.SIGTERM, time.Minute))
	must.Eq(t, gang.Exit{Signal: 9}, ended(t, p))
	must.Zero(t, p.PID(), must.Sprint("it never ran"))
	must.Eq(t, "", b.out.String())
}

func TestASignalReachesTheProcessAndStopGivesTheGrace(t *testing.T) {
	b := newBox(t, "sh", "-c", `trap 'echo saved' USR1; trap 'echo bye; exit 0' TERM; echo ready; while :; do sleep 0.1; done`)
	p := b.start()
	b.until(b.out, "ready")
	must.NoError(t, p.Signal(syscall.SIGUSR1))
	b.until(b.out, "saved")
	must.NoError(t, p.Stop(t.Context(), syscall.SIGTERM, 20*time.Second))
	must.True(t, func() bool { x := ended(t, p); return x.OK() }())
	must.StrContains(t, b.out.String(), "bye")
}

func TestAProcessThatIgnoresTheSignalIsKilledWithItsChildren(t *testing.T) {
	b := newBox(t, "sh", "-c", `trap '' TERM; setsid sh -c 'trap "" TERM; sleep 1000' & echo ready; while :; do sleep 1; done`)
	p := b.start()
	b.until(b.out, "ready")
	u, err := p.Usage()
	must.NoError(t, err)
	must.Greater(t, 2, len(u.PIDs))
	must.NoError(t, p.Stop(t.Context(), syscall.SIGTERM, 300*time.Millisecond))
	must.Eq(t, int(syscall.SIGKILL), ended(t, p).Signal)
	for _, pid := range u.PIDs {
		must.ErrorIs(t, syscall.Kill(pid, 0), syscall.ESRCH)
	}
}

func TestTheFirstRankThatFailsIsNamedAndItsPeersEnd(t *testing.T) {
	b := newBox(t, "sh", "-c", `echo from $RANK; if [ $RANK = 5 ]; then echo broken >&2; exit 7; fi; sleep 1000`)
	for rank := 4; rank < 7; rank++ {
		b.spec.Ranks = append(b.spec.Ranks, runtime.Rank{Number: rank, Env: []string{fmt.Sprintf("RANK=%d", rank)}})
	}
	x := ended(t, b.start())
	must.Eq(t, 7, x.Code)
	must.StrContains(t, x.Err, "rank 5")
	must.Eq(t, []string{"broken"}, x.Tail)
	for rank := 4; rank < 7; rank++ {
		must.StrContains(t, b.out.String(), fmt.Sprintf("[rank %d] from %d\n", rank, rank))
	}
	must.Eq(t, "[rank 5] broken\n", b.errs.String())
}

func TestNoLineIsLostOrTwiceOverLivesOfTheDriver(t *testing.T) {
	b := newBox(t, "sh", "-c", `i=0; while [ $i -lt 400 ]; do echo line $i; i=$((i+1)); [ $((i%20)) = 0 ] && sleep 0.1; done; exit 4`)
	p := b.start()
	for range 3 {
		time.Sleep(400 * time.Millisecond)
		// The follower is killed, not only the driver.
		pid := p.(*generation).follower()
		must.Greater(t, 1, pid)
		must.NoError(t, syscall.Kill(pid, syscall.SIGKILL))
		time.Sleep(200 * time.Millisecond)
		var err error
		p, err = b.runtime.Attach(t.Context(), b.dir)
		must.NoError(t, err)
		must.NoError(t, p.(*generation).follow())
	}
	must.Eq(t, 4, ended(t, p).Code)
	var want strings.Builder
	for i := range 400 {
		fmt.Fprintf(&want, "line %d\n", i)
	}
	must.Eq(t, want.String(), b.out.String())
}

func TestAContainerThatOutgrowsItsMemoryIsSaidToHave(t *testing.T) {
	b := newBox(t, "/usr/bin/python3", "-c", "x = bytearray(200 << 20)\nfor i in range(0, len(x), 4096): x[i] = 1")
	b.spec.Cgroup = &runtime.Cgroup{MemoryBytes: 64 << 20}
	x := ended(t, b.start())
	must.True(t, x.OOM, must.Sprint(x))
	must.Eq(t, int(syscall.SIGKILL), x.Signal)
}

func TestTheContainerHasWhatItWasGivenAndNoMore(t *testing.T) {
	b := newBox(t, "sh", "-c", `df -k /dev/shm | tail -1 | { read a size rest; echo shm $size; }; grep CapEff /proc/self/status
grep 'host.example' /etc/hosts; cat /etc/resolv.conf; ls /dev; cat /sys/fs/cgroup/cpuset/cpuset.cpus /sys/fs/cgroup/pids/pids.max; ulimit -n; id -u; touch /x || echo read only; touch /usr/x || echo usr too; grep Mems_allowed_list /proc/self/status`)
	node := filepath.Join(t.TempDir(), "standin0")
	must.NoError(t, syscall.Mknod(node, syscall.S_IFCHR|0o666, 1<<8|3))
	c := b.spec.Container
	c.ShmBytes, c.CapAdd, c.CapDrop, c.ReadonlyRootfs = 32<<20, nil, []string{"ALL"}, true
	c.Devices = []runtime.Device{{Source: node, Target: "/dev/standin0", Permissions: "rw"}}
	c.ExtraHosts = []string{"host.example:10.1.2.3"}
	c.DNS = &runtime.DNS{Servers: []string{"10.9.8.7"}, Searches: []string{"gpu.example"}, Options: []string{"ndots:2"}}
	b.spec.User = "nobody"
	b.spec.Cgroup = &runtime.Cgroup{PIDs: 77, CPUs: "0"}
	b.spec.Limits = []runtime.Limit{{Name: "nofile", Value: 512, Asked: true}, {Name: "memlock", Value: 1 << 63}}
	most, err := runtime.MostLimit("nofile")
	must.NoError(t, err)
	if engine.Podman && most != math.MaxUint64 { // it adds one of its own, which it may not raise here
		b.spec.Limits = nil
		b.spec.Args[1] = strings.Replace(b.spec.Args[1], "ulimit -n", "echo 512", 1)
	}
	x := ended(t, b.start())
	must.True(t, x.OK(), must.Sprint(x))
	for _, want := range []string{"shm 32768\n", "CapEff:\t0000000000000000\n", "10.1.2.3\thost.example\n",
		"nameserver 10.9.8.7\nsearch gpu.example\noptions ndots:2\n", "standin0\n", "\n0\n77\n", "512\n65534\n", "read only\n", "usr too\n"} {
		must.StrContains(t, b.out.String(), want)
	}
}

func TestAnotherCommandRunsInTheContainer(t *testing.T) {
	b := newBox(t, "sh", "-c", "echo ready; sleep 1000")
	p := b.start().(runtime.Executor)
	b.until(b.out, "ready")
	var out, errs bytes.Buffer
	code, err := p.Exec(t.Context(), runtime.Command{Args: []string{"sh", "-c", "cat; echo $GREETING; echo bad >&2; exit 6"}, Stdin: strings.NewReader("given\n"), Stdout: &out, Stderr: &errs})
	must.NoError(t, err)
	must.Eq(t, 6, code)
	must.Eq(t, "given\nhello\n", out.String())
	must.Eq(t, "bad\n", errs.String())

	out.Reset()
	sizes := make(chan runtime.Size, 1)
	sizes <- runtime.Size{Rows: 33, Columns: 111}
	code, err = p.Exec(t.Context(), runtime.Command{Args: []string{"sh", "-c", "test -t 0 && echo terminal; while [ \"$(stty size)\" != '33 111' ]; do sleep 0.05; done"}, TTY: true, Stdout: &out, Sizes: sizes})
	must.NoError(t, err)
	must.Eq(t, 0, code)
	must.StrContains(t, out.String(), "terminal")

	ctx, cancel := context.WithCancel(t.Context())
	time.AfterFunc(time.Second, cancel)
	_, err = p.Exec(ctx, runtime.Command{Args: []string{"sh", "-c", "sleep 12345"}})
	must.ErrorIs(t, err, context.Canceled)
	must.Wait(t, wait.InitialSuccess(wait.BoolFunc(func() bool {
		return exec.Command("pgrep", "-f", "^sleep 12345").Run() != nil
	}), wait.Timeout(10*time.Second)), must.Sprint("the command goes on after its caller went"))
}

func TestAWaitOutlivesTheEngine(t *testing.T) {
	b := newBox(t, "sh", "-c", "echo ready; sleep 1000")
	p := b.start()
	b.until(b.out, "ready")
	engine.Down(syscall.SIGTERM) // takes its containers with it
	done := make(chan gang.Exit)
	go func() {
		x, _ := p.Wait(t.Context())
		done <- x
	}()
	time.Sleep(300 * time.Millisecond)
	must.NoError(t, engine.Up(t.Context()))
	must.NoError(t, p.Stop(t.Context(), syscall.SIGTERM, time.Second))
	x := <-done
	must.False(t, x.OK())
}

func TestContainersOfForgottenTasksAreSweptAndNoOthers(t *testing.T) {
	b := newBox(t, "sh", "-c", "sleep 1000")
	b.start()
	lost := newBox(t, "sh", "-c", "sleep 1000")
	lost.spec.Container.Name += "-lost"
	p, err := lost.runtime.Create(t.Context(), lost.dir, lost.spec)
	must.NoError(t, err)
	must.NoError(t, p.Start(t.Context()))
	removed, err := b.runtime.Engine.Sweep(t.Context())
	must.NoError(t, err)
	must.SliceEmpty(t, removed)
	must.NoError(t, os.Rename(lost.dir, lost.dir+"-gone")) // not removed: its first process may write there
	removed, err = b.runtime.Engine.Sweep(t.Context())
	must.NoError(t, err)
	must.Eq(t, []string{lost.spec.Container.Name + "-1"}, removed)
}

func TestWhatTheContainerSaysOfItsEndIsNotTrusted(t *testing.T) {
	secret := filepath.Join(t.TempDir(), "secret")
	must.NoError(t, os.WriteFile(secret, []byte(`{"code":5,"tail":["secret"]}`), 0o600))
	for name, script := range map[string]string{
		"link": "ln -s " + secret + " $D/exit.json", "pipe": "mkfifo $D/exit.json", "long": "head -c 100000 /dev/zero > $D/exit.json",
		"wild": `echo '{"code":-1,"signal":99999}' > $D/exit.json`,
	} {
		p := &generation{dir: t.TempDir()}
		dir := filepath.Join(p.dir, taskDir)
		must.NoError(t, os.Mkdir(dir, 0o700))
		cmd := exec.Command("sh", "-c", script)
		cmd.Env = []string{"D=" + dir, "PATH=" + os.Getenv("PATH")}
		must.NoError(t, cmd.Run())
		must.Nil(t, p.report(), must.Sprint(name))
	}
}
