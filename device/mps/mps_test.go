// SPDX-License-Identifier: MPL-2.0

package mps

import (
	"io"
	"os"
	"os/signal"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/shoenig/test/must"
)

// The test's own program stands in for NVIDIA's: with -f it is the daemon,
// without it leaves what it is told in the pipe directory.
func TestMain(m *testing.M) {
	pipe := os.Getenv("CUDA_MPS_PIPE_DIRECTORY")
	switch {
	case pipe == "":
		os.Exit(m.Run())
	case len(os.Args) > 1 && os.Args[1] == "-f":
		if _, err := os.Stat(filepath.Join(filepath.Dir(pipe), "broken")); err == nil {
			os.Exit(3)
		}
		stop := make(chan os.Signal, 1)
		signal.Notify(stop, syscall.SIGTERM)
		os.WriteFile(filepath.Join(pipe, "control"), []byte(os.Getenv("CUDA_VISIBLE_DEVICES")), 0o600)
		<-stop
	default:
		if _, err := os.Stat(filepath.Join(pipe, "control")); err != nil {
			os.Exit(1)
		}
		told, _ := io.ReadAll(os.Stdin)
		os.WriteFile(filepath.Join(pipe, "told"), told, 0o600)
	}
}

var limits = []Limit{{UUID: "GPU-a", Threads: 25, MemoryMiB: 20000}, {UUID: "GPU-b", Threads: 25, MemoryMiB: 10000}}

func start(t *testing.T) (*Daemon, string) {
	t.Helper()
	dir := t.TempDir()
	d := New(os.Args[0], dir)
	must.NoError(t, d.Ensure(t.Context(), limits))
	t.Cleanup(func() { must.NoError(t, d.Stop()) })
	return d, dir
}

func TestTheDaemonIsStartedWithItsGPUsAndLimits(t *testing.T) {
	_, dir := start(t)
	visible, err := os.ReadFile(filepath.Join(PipeDirectory(dir), "control"))
	must.NoError(t, err)
	must.Eq(t, "GPU-a,GPU-b", string(visible))
	told, err := os.ReadFile(filepath.Join(PipeDirectory(dir), "told"))
	must.NoError(t, err)
	must.Eq(t, "set_default_active_thread_percentage 25\nset_default_device_pinned_mem_limit 0 20000M\nset_default_device_pinned_mem_limit 1 10000M\n", string(told))
}

func TestALaterLifeOfThePluginTakesTheDaemonUp(t *testing.T) {
	d, dir := start(t)
	before, running := d.recorded()
	must.True(t, running)
	again := New(os.Args[0], dir)
	must.NoError(t, again.Ensure(t.Context(), limits))
	after, running := again.recorded()
	must.True(t, running)
	must.Eq(t, before, after)
}

func TestADaemonThatEndedIsStartedAgain(t *testing.T) {
	d, _ := start(t)
	before, _ := d.recorded()
	must.NoError(t, syscall.Kill(before.PID, syscall.SIGKILL))
	for {
		if _, running := d.recorded(); !running {
			break
		}
		time.Sleep(10 * time.Millisecond)
	}
	must.NoError(t, d.Ensure(t.Context(), limits))
	after, running := d.recorded()
	must.True(t, running)
	must.NotEq(t, before.PID, after.PID)
}

func TestOtherGPUsGetADaemonOfTheirOwn(t *testing.T) {
	d, dir := start(t)
	before, _ := d.recorded()
	must.NoError(t, os.Remove(filepath.Join(PipeDirectory(dir), "control")))
	must.NoError(t, d.Ensure(t.Context(), limits[:1]))
	after, running := d.recorded()
	must.True(t, running)
	must.NotEq(t, before.PID, after.PID)
	must.ErrorIs(t, syscall.Kill(before.PID, 0), syscall.ESRCH)
}

func TestWhyItDoesNotRunIsSaidAndTriedLessAndLessOften(t *testing.T) {
	dir := t.TempDir()
	must.NoError(t, os.WriteFile(filepath.Join(dir, "broken"), nil, 0o600))
	for program, want := range map[string]string{os.Args[0]: "ended: exit status 3", "/no/such/program": "no such file"} {
		d := New(program, dir)
		now := time.Date(2026, 1, 1, 12, 0, 0, 0, time.UTC)
		d.now = func() time.Time { return now }
		for _, wait := range []time.Duration{10 * time.Second, 20 * time.Second, 40 * time.Second} {
			err := d.Ensure(t.Context(), limits)
			must.ErrorContains(t, err, want)
			must.StrHasSuffix(t, "tried again at "+now.Add(wait).Format(time.TimeOnly), err.Error())
			must.Eq(t, err, d.Ensure(t.Context(), limits), must.Sprint("not at once"))
			now = now.Add(wait)
		}
	}
}

func TestAStrangersProcessIsNotTakenForTheDaemon(t *testing.T) {
	for _, text := range []string{"", "{", `{"pid":0}`, `{"pid":1}`, `{"pid":-5}`, `{"pid":` + strings.Repeat("9", 30) + `}`} {
		d := New(os.Args[0], t.TempDir())
		must.NoError(t, os.WriteFile(d.statePath(), []byte(text), 0o600))
		_, running := d.recorded()
		must.False(t, running)
	}
	d := New(os.Args[0], t.TempDir())
	must.NoError(t, d.keep(os.Getpid(), nil))
	state, running := d.recorded()
	must.True(t, running)
	state.Created--
	must.NoError(t, d.keep(os.Getpid(), nil))
	data, err := os.ReadFile(d.statePath())
	must.NoError(t, err)
	must.NoError(t, os.WriteFile(d.statePath(), []byte(strings.Replace(string(data), `"created":`, `"created":1`, 1)), 0o600))
	_, running = d.recorded()
	must.False(t, running, must.Sprint("it was created at another time"))
}
