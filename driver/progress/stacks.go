// SPDX-License-Identifier: MPL-2.0

package progress

import (
	"context"
	"fmt"
	"io"
	"os/exec"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"
)

// Stacks is a command that shows what the task's processes do, such as
// `py-spy dump --pid {pid}`. It never goes through a shell.
type Stacks struct {
	// Command is the program and its arguments. Where one holds {pid} the
	// command runs once for each process, else once.
	Command []string
	// Timeout bounds all runs together.
	Timeout time.Duration
}

const (
	// maxStacked is for how many processes the command runs, and maxStacks the
	// most bytes of all its output.
	maxStacked = 16
	maxStacks  = 256 << 10
	pidToken   = "{pid}"
)

// Collect runs the command and writes its output. The error says what did
// not work; the restart does not wait for it.
func (s Stacks) Collect(ctx context.Context, pids []int, out io.Writer) error {
	if len(s.Command) == 0 {
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, s.Timeout)
	defer cancel()
	if !slices.ContainsFunc(s.Command, func(arg string) bool { return strings.Contains(arg, pidToken) }) {
		pids = []int{0}
	}
	w := &cutWriter{out: out, room: maxStacks}
	failed := 0
	var first error
	for _, pid := range pids[:min(len(pids), maxStacked)] {
		argv := make([]string, len(s.Command))
		for i, arg := range s.Command {
			argv[i] = strings.ReplaceAll(arg, pidToken, strconv.Itoa(pid))
		}
		fmt.Fprintf(w, "--- %s\n", strings.Join(argv, " "))
		cmd := exec.CommandContext(ctx, argv[0], argv[1:]...)
		cmd.Stdout, cmd.Stderr = w, w
		// What the command starts goes with it.
		cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
		cmd.Cancel = func() error { return syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL) }
		cmd.WaitDelay = time.Second
		if err := cmd.Run(); err != nil {
			failed++
			if first == nil {
				first = err
			}
		}
		if ctx.Err() != nil {
			return fmt.Errorf("stacks: %s: not done within %s", s.Command[0], s.Timeout)
		}
	}
	if failed > 0 {
		return fmt.Errorf("stacks: %s: %d of %d runs failed: %w", s.Command[0], failed, min(len(pids), maxStacked), first)
	}
	return nil
}

// cutWriter passes on so many bytes and takes the rest for written.
type cutWriter struct {
	out  io.Writer
	room int
}

func (w *cutWriter) Write(p []byte) (int, error) {
	if take := min(len(p), w.room); take > 0 {
		w.room -= take
		if _, err := w.out.Write(p[:take]); err != nil {
			return 0, err
		}
	}
	return len(p), nil
}
