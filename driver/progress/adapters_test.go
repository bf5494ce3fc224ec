// SPDX-License-Identifier: MPL-2.0

package progress

import (
	"context"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/shoenig/test/must"
)

func script(t *testing.T, text string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "program")
	must.NoError(t, os.WriteFile(path, []byte("#!/bin/sh\n"+text), 0o755))
	return path
}

func TestThePowerOfTheReservedGPUsIsSummed(t *testing.T) {
	smi := script(t, `[ "$*" = "--query-gpu=uuid,power.draw --format=csv,noheader,nounits" ] || exit 1
printf 'GPU-a, 300.5\nGPU-b, 200.00\nGPU-c, [N/A]\n'`)
	for _, c := range []struct {
		devices []string
		watts   float64
		ok      bool
	}{{[]string{"GPU-a", "GPU-b"}, 500.5, true}, {[]string{"GPU-a", "GPU-c"}, 0, false}, {[]string{"MIG-x"}, 0, false}, {nil, 0, false}} {
		watts, ok := PowerOf(smi, c.devices).Read(t.Context(), begin)
		must.Eq(t, c.ok, ok, must.Sprint(c.devices))
		must.Eq(t, c.watts, watts)
	}
	_, ok := PowerOf(script(t, "exit 9"), []string{"GPU-a"}).Read(t.Context(), begin)
	must.False(t, ok)
	_, ok = PowerOf("/no/such/program", []string{"GPU-a"}).Read(t.Context(), begin)
	must.False(t, ok)
	_, ok = PowerOf(script(t, "yes GPU-a, 1 | head -c 100000"), []string{"GPU-a"}).Read(t.Context(), begin)
	must.False(t, ok, must.Sprint("too much output is none"))
}

func TestTheCPUsInUseComeFromTheTimeUsed(t *testing.T) {
	used := time.Duration(0)
	m := CPUOf(func() (time.Duration, bool) { return used, true })
	read := func(seconds float64) (float64, bool) { return m.Read(t.Context(), at(seconds)) }
	_, ok := read(0)
	must.False(t, ok, must.Sprint("one reading is no rate"))
	used = 20 * time.Second
	rate, ok := read(10)
	must.True(t, ok)
	must.Eq(t, 2, rate)
	rate, _ = read(10)
	must.Eq(t, 2, rate, must.Sprint("asked twice at once"))
	used = time.Second // another process
	_, ok = read(20)
	must.False(t, ok)
}

func TestStacksAreCollectedOfEachProcess(t *testing.T) {
	show := script(t, `echo "stack of $1"; echo warned >&2`)
	var out strings.Builder
	must.NoError(t, Stacks{Command: []string{show, "{pid}"}, Timeout: time.Minute}.Collect(t.Context(), []int{7, 8}, &out))
	must.Eq(t, "--- "+show+" 7\nstack of 7\nwarned\n--- "+show+" 8\nstack of 8\nwarned\n", out.String())
	out.Reset()
	must.NoError(t, Stacks{Command: []string{show, "$HOME; {x}"}, Timeout: time.Minute}.Collect(t.Context(), []int{7, 8}, &out))
	must.StrContains(t, out.String(), "stack of $HOME; {x}", must.Sprint("no shell, and once"))
	must.Eq(t, 1, strings.Count(out.String(), "---"))
	must.NoError(t, Stacks{}.Collect(t.Context(), []int{7}, &out))
}

func TestStacksAreBoundedInTimeSizeAndNumber(t *testing.T) {
	var out strings.Builder
	err := Stacks{Command: []string{script(t, "sleep 1000 & sleep 1000")}, Timeout: 50 * time.Millisecond}.Collect(t.Context(), nil, &out)
	must.ErrorContains(t, err, "not done within 50ms")
	out.Reset()
	must.NoError(t, Stacks{Command: []string{script(t, "head -c 1000000 /dev/zero")}, Timeout: time.Minute}.Collect(t.Context(), nil, &out))
	must.Eq(t, maxStacks, out.Len())
	out.Reset()
	must.NoError(t, Stacks{Command: []string{"/bin/echo", "{pid}"}, Timeout: time.Minute}.Collect(t.Context(), make([]int, 100), &out))
	must.Eq(t, maxStacked, strings.Count(out.String(), "---"))
	err = Stacks{Command: []string{script(t, "exit 3"), "{pid}"}, Timeout: time.Minute}.Collect(context.Background(), []int{1, 2}, &out)
	must.ErrorContains(t, err, "2 of 2 runs failed: exit status 3")
}
