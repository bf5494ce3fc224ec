// SPDX-License-Identifier: MPL-2.0

package nvml

import (
	"bufio"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/shoenig/test/must"

	"github.com/nomad-gpu/nomad-gpu/device/gpu"
	"github.com/nomad-gpu/nomad-gpu/device/health"
	"github.com/nomad-gpu/nomad-gpu/device/power"
)

// The real binding is driven against a library of our own, each case in a
// process of its own: a library, once loaded, stays for the process's life,
// and a missing function would end it. The test binary starts itself as that
// process; it answers each line on its standard input with a line of JSON.

const (
	childLibrary = "NVML_TEST_LIBRARY"
	childSysfs   = "NVML_TEST_SYSFS"
)

type reply struct {
	Machine *gpu.Machine
	Samples map[string]gpu.Sample
	Health  map[string]health.Observation
	Bounds  map[string]power.Bounds
	Error   string
	Stale   bool
}

func TestMain(m *testing.M) {
	if library := os.Getenv(childLibrary); library != "" {
		child(library, os.Getenv(childSysfs))
		return
	}
	os.Exit(m.Run())
}

func child(library, sysfs string) {
	reader := NewReader(library)
	reader.pci.root = sysfs
	lines := bufio.NewScanner(os.Stdin)
	for lines.Scan() {
		var r reply
		var err error
		switch lines.Text() {
		case "samples":
			r.Samples, err = reader.Samples()
		case "bounds":
			r.Bounds = reader.PowerBounds()
		case "limit": // GPU 0 to 350 W
			err = reader.SetPowerLimit("GPU-00000000-0000-0000-0000-000000000000", 350)
		case "health":
			r.Health = reader.Observe()
		default:
			r.Machine, err = reader.Machine()
		}
		if err != nil {
			r.Error, r.Stale = err.Error(), errors.Is(err, ErrStale)
		}
		if err := json.NewEncoder(os.Stdout).Encode(r); err != nil {
			os.Exit(1)
		}
	}
}

// fake is a library's state and the process that reads it.
type fake struct {
	t       *testing.T
	library string
	state   string
	sysfs   string
	in      io.WriteCloser
	out     *bufio.Reader
	stderr  *strings.Builder
}

// build compiles the library with these definitions into dir.
func build(t *testing.T, dir string, defines ...string) string {
	t.Helper()
	library := filepath.Join(dir, "libnvidia-ml.so.1")
	args := []string{"-shared", "-fPIC", "-O1", "-Wall", "-Wextra", "-Werror", "-o", library, "testdata/fake_nvml.c"}
	for _, define := range defines {
		args = append(args, "-D"+define)
	}
	if out, err := exec.Command("gcc", args...).CombinedOutput(); err != nil {
		t.Fatalf("gcc: %v\n%s", err, out)
	}
	return library
}

func newFake(t *testing.T, library string) *fake {
	dir := t.TempDir()
	f := &fake{t: t, library: library, state: filepath.Join(dir, "state"), sysfs: filepath.Join(dir, "sys")}
	f.set("gpus 2")
	return f
}

// set replaces the library's state.
func (f *fake) set(lines ...string) {
	f.t.Helper()
	must.NoError(f.t, os.WriteFile(f.state, []byte(strings.Join(lines, "\n")+"\n"), 0o600))
}

func (f *fake) start() {
	f.t.Helper()
	cmd := exec.Command(os.Args[0])
	cmd.Env = append(os.Environ(), childLibrary+"="+f.library, childSysfs+"="+f.sysfs, "FAKE_NVML_STATE="+f.state)
	f.stderr = &strings.Builder{}
	cmd.Stderr = f.stderr
	in, err := cmd.StdinPipe()
	must.NoError(f.t, err)
	out, err := cmd.StdoutPipe()
	must.NoError(f.t, err)
	must.NoError(f.t, cmd.Start())
	f.in, f.out = in, bufio.NewReader(out)
	f.t.Cleanup(func() {
		in.Close()
		if err := cmd.Wait(); err != nil {
			f.t.Errorf("the process that read the library: %v\n%s", err, f.stderr)
		}
	})
}

func (f *fake) ask(what string) reply {
	f.t.Helper()
	if f.in == nil {
		f.start()
	}
	_, err := fmt.Fprintln(f.in, what)
	must.NoError(f.t, err)
	line, err := f.out.ReadBytes('\n')
	must.NoError(f.t, err, must.Sprintf("the process ended: %s", f.stderr))
	var r reply
	must.NoError(f.t, json.Unmarshal(line, &r))
	return r
}

// machine asks for a reading that must succeed.
func (f *fake) machine() *gpu.Machine {
	f.t.Helper()
	r := f.ask("machine")
	must.EqOp(f.t, "", r.Error)
	return r.Machine
}
