// SPDX-License-Identifier: MPL-2.0

package progress

import (
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/shoenig/test/must"
)

func write(t *testing.T, dir, name, text string) {
	t.Helper()
	must.NoError(t, os.WriteFile(filepath.Join(dir, name), []byte(text), 0o644))
}

func TestANodesFilesAreReadEach(t *testing.T) {
	dir := t.TempDir()
	f := Files{Dir: dir, Name: "local/progress", Slots: 3}
	must.NoError(t, os.Mkdir(filepath.Join(dir, "local"), 0o755))
	samples, err := f.Read()
	must.NoError(t, err)
	must.SliceEmpty(t, samples)
	_, ok := f.LastStep()
	must.False(t, ok)

	write(t, dir, "local/progress", "4\n")
	write(t, dir, "local/progress.0", strings.Repeat("5 0.5\n", 1<<17)+"6 0.25\n7")
	write(t, dir, "local/progress.2", "")
	write(t, dir, "local/progress.3", "99\n") // there is no such process
	samples, err = f.Read()
	must.NoError(t, err)
	must.Len(t, 2, samples)
	must.Eq(t, WholeNode, samples[0].Local)
	must.Eq(t, Line{Step: 4}, samples[0].Line)
	must.Eq(t, 0, samples[1].Local)
	must.Eq(t, Line{Step: 6, Seconds: 0.25}, samples[1].Line)
	must.False(t, samples[1].Changed.IsZero())
	step, ok := f.LastStep()
	must.True(t, ok)
	must.Eq(t, 6, step)
	step, ok = LastStep(filepath.Join(dir, "local", "progress"))
	must.True(t, ok)
	must.Eq(t, 4, step)

	write(t, dir, "local/progress.1", "password: hunter2\n")
	samples, err = f.Read()
	must.Len(t, 2, samples, must.Sprint("the others count all the same"))
	must.ErrorContains(t, err, "progress: local/progress.1: a line that does not begin with a number")

	must.NoError(t, f.Remove())
	must.NoError(t, f.Remove(), must.Sprint("what is gone is no fault"))
	left, err := os.ReadDir(filepath.Join(dir, "local"))
	must.NoError(t, err)
	must.Len(t, 1, left)
}

func TestATaskCannotLeadTheDriverElsewhere(t *testing.T) {
	dir, outside := t.TempDir(), t.TempDir()
	write(t, outside, "secret", "42\n")
	f := Files{Dir: dir, Name: "local/progress", Slots: 1}
	must.NoError(t, os.Symlink(outside, filepath.Join(dir, "local")))
	write(t, outside, "progress", "43\n")
	samples, err := f.Read()
	must.SliceEmpty(t, samples)
	must.ErrorContains(t, err, "progress: local/progress: ")
	must.Error(t, f.Remove())
	must.FileExists(t, filepath.Join(outside, "progress"))

	must.NoError(t, os.Remove(filepath.Join(dir, "local")))
	must.NoError(t, os.Mkdir(filepath.Join(dir, "local"), 0o755))
	must.NoError(t, os.Symlink(filepath.Join(outside, "secret"), filepath.Join(dir, "local", "progress")))
	must.NoError(t, syscall.Mkfifo(filepath.Join(dir, "local", "progress.0"), 0o644))
	samples, err = f.Read()
	must.SliceEmpty(t, samples)
	must.ErrorContains(t, err, "progress: local/progress.0: it is no regular file")
	must.NoError(t, f.Remove())
	must.FileExists(t, filepath.Join(outside, "secret"))
}
