// SPDX-License-Identifier: MPL-2.0

package scenarios

import (
	"bytes"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/creack/pty"
	"github.com/shoenig/test/must"

	"github.com/nomad-gpu/nomad-gpu/e2e/cluster"
	"github.com/nomad-gpu/nomad-gpu/e2e/peers"
)

// documentedExec are the commands of the driver's reference, as they stand there.
func documentedExec(t *testing.T) []string {
	t.Helper()
	page, err := os.ReadFile(filepath.Join(peers.Root(), "driver", "README.md"))
	must.NoError(t, err)
	_, after, ok := strings.Cut(string(page), "\n## A command in a running task\n")
	must.True(t, ok)
	_, after, ok = strings.Cut(after, "\n```sh\n")
	must.True(t, ok)
	block, _, ok := strings.Cut(after, "\n```")
	must.True(t, ok)
	return strings.Split(block, "\n")
}

// typed is a line in a user's shell.
func (w *world) typed(line, alloc string) *exec.Cmd {
	cmd := exec.CommandContext(w.t.Context(), "/bin/sh", "-c", line)
	cmd.Env = append(os.Environ(), "NOMAD_ADDR="+w.NomadAddress(), "ALLOC="+alloc, fmt.Sprintf("PATH=%s:%s", filepath.Dir(w.Program("nomad")), os.Getenv("PATH")))
	return cmd
}

// screen is what a terminal has shown.
type screen struct {
	mu   sync.Mutex
	text bytes.Buffer
}

func (s *screen) Write(b []byte) (int, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.text.Write(b)
}

func (s *screen) String() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.text.String()
}

func TestCommandsRunInATaskByNomadAllocExec(t *testing.T) {
	w := newWorld(t)
	lines := documentedExec(t)
	must.Len(t, 2, lines)
	w.gang("exec", "setsid sleep 1000 & exec sleep 1000", `task "t"`, `task "train"`)
	w.untilEvent("exec", "all 2 members are prepared and start")
	ranks := ""
	var alloc string
	for _, a := range w.allocs("exec") {
		alloc = a.ID
		out, err := w.typed(lines[0], alloc).CombinedOutput()
		must.NoError(t, err, must.Sprint(string(out)))
		ranks += string(out)
	}
	must.StrContains(t, ranks, "node 0 of 2\n")
	must.StrContains(t, ranks, "node 1 of 2\n")

	t.Run("with the exit code passed through and the streams apart", func(t *testing.T) {
		w.t = t
		cmd := w.typed(`nomad alloc exec -t=false -task train $ALLOC /bin/sh -c 'cat; echo oh >&2; exit 7'`, alloc)
		var out, errs bytes.Buffer
		cmd.Stdin, cmd.Stdout, cmd.Stderr = strings.NewReader("from here\n"), &out, &errs
		must.Error(t, cmd.Run())
		must.Eq(t, []any{7, "from here\n", "oh\n"}, []any{cmd.ProcessState.ExitCode(), out.String(), errs.String()})
	})
	t.Run("in a terminal", func(t *testing.T) {
		w.t = t
		cmd := w.typed(lines[1], alloc)
		terminal, err := pty.StartWithSize(cmd, &pty.Winsize{Rows: 33, Cols: 77})
		must.NoError(t, err)
		defer terminal.Close()
		shown := &screen{}
		go io.Copy(shown, terminal)
		press := func(keys, want string) {
			t.Helper()
			_, err := terminal.WriteString(keys)
			must.NoError(t, err)
			must.NoError(t, cluster.WaitFor(t.Context(), time.Minute, "the terminal shows "+want, func() (bool, string, error) {
				return strings.Contains(shown.String(), want), shown.String(), nil
			}))
		}
		press("until [ \"$(stty size)\" = '33 77' ]; do sleep 0.1; done; echo user $USER_SET, $((40 + 2))\r", "user yes, 42")
		must.NoError(t, pty.Setsize(terminal, &pty.Winsize{Rows: 44, Cols: 88}))
		press("until [ \"$(stty size)\" = '44 88' ]; do sleep 0.1; done; echo now $((40 + 3))\r", "now 43")
		press("exit 9\r", "exit 9")
		must.Error(t, cmd.Wait())
		must.Eq(t, 9, cmd.ProcessState.ExitCode())
	})
	t.Run("until the task is stopped", func(t *testing.T) {
		w.t = t
		cmd := w.typed(`nomad alloc exec -t=false -i=false -task train $ALLOC /bin/sh -c 'setsid sleep 1000 & echo begun; sleep 1000'`, alloc)
		out, err := cmd.StdoutPipe()
		must.NoError(t, err)
		must.NoError(t, cmd.Start())
		_, err = io.ReadFull(out, make([]byte, len("begun\n")))
		must.NoError(t, err)
		_, _, err = w.Nomad().Jobs().Deregister("exec", false, nil)
		must.NoError(t, err)
		must.Error(t, cmd.Wait())
		w.untilAll("exec", "complete")
		w.nothingLeft("exec")
	})
	w.t = t
	w.gang("waits", "exec sleep 1000", "nodes    = 2", "nodes    = 3", `task "t"`, `task "train"`)
	w.untilEvent("waits", "2 of 3 members")
	out, err := w.typed(lines[0], w.allocs("waits")[0].ID).CombinedOutput()
	must.Error(t, err)
	must.StrContains(t, string(out), "the gang has not formed, no process runs yet")
}
