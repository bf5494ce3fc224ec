// SPDX-License-Identifier: MPL-2.0

package cluster

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// guardVariable names the directory of all that a guarded program makes. It
// stands in the environment of everything it starts, too: that is how
// leftovers are found.
const guardVariable = "NOMAD_GPU_GUARD_DIR"

// Guard runs a program that starts clusters so that nothing is left of them,
// however it ends. The program runs a second time as a child of itself; the
// first one waits, and then ends every process, namespace, link, mount and
// file of the guard's directory. A signal goes to the child; a second one
// ends it at once. Where the guard itself is killed the child cleans up, and
// what even that leaves is swept by the next guard.
func Guard(program func(ctx context.Context) int) int {
	if dir := os.Getenv(guardVariable); dir != "" {
		return guarded(dir, program)
	}
	sweepDead()
	dir, err := os.MkdirTemp("", "nomad-gpu-")
	if err != nil {
		fmt.Fprintln(os.Stderr, "guard:", err)
		return 1
	}
	defer clean(dir)
	// Others must reach their files below it, and nobody list it.
	if err := os.Chmod(dir, 0o711); err != nil {
		fmt.Fprintln(os.Stderr, "guard:", err)
		return 1
	}
	if err := record(dir); err != nil {
		fmt.Fprintln(os.Stderr, "guard:", err)
		return 1
	}
	// What loses its parent below comes to the guard, which ends it.
	if err := unix.Prctl(unix.PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0); err != nil {
		fmt.Fprintln(os.Stderr, "guard:", err)
		return 1
	}
	signals := make(chan os.Signal, 4)
	signal.Notify(signals, os.Interrupt, syscall.SIGTERM, syscall.SIGHUP, syscall.SIGQUIT)
	self, err := os.Executable()
	if err != nil {
		fmt.Fprintln(os.Stderr, "guard:", err)
		return 1
	}
	child := exec.Command(self, os.Args[1:]...)
	child.Stdin, child.Stdout, child.Stderr = os.Stdin, os.Stdout, os.Stderr
	child.Env = append(os.Environ(), guardVariable+"="+dir)
	// A group of its own: a terminal's interrupt reaches the guard alone.
	child.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	if err := child.Start(); err != nil {
		fmt.Fprintln(os.Stderr, "guard:", err)
		return 1
	}
	ended := make(chan int, 1)
	go reap(child.Process.Pid, ended)
	asked := 0
	for {
		select {
		case s := <-signals:
			if asked++; asked > 1 {
				s = syscall.SIGKILL
			}
			child.Process.Signal(s)
		case code := <-ended:
			return code
		}
	}
}

// reap takes the exits of all that the guard adopts, as init does: a new
// agent of Nomad waits for its predecessor's plugins to be gone, and a zombie
// is not. It tells the exit code of the child.
func reap(child int, code chan<- int) {
	for {
		var status syscall.WaitStatus
		pid, err := syscall.Wait4(-1, &status, 0, nil)
		switch {
		case err == syscall.EINTR:
		case err != nil: // nobody is left
			return
		case pid == child && status.Exited():
			code <- status.ExitStatus()
		case pid == child:
			code <- 1
		}
	}
}

// guarded is the program's own life below a guard.
func guarded(dir string, program func(ctx context.Context) int) int {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM, syscall.SIGHUP)
	defer stop()
	guard := os.Getppid()
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	go func() {
		for os.Getppid() == guard {
			time.Sleep(200 * time.Millisecond)
		}
		cancel() // the guard was killed
	}()
	code := program(ctx)
	if os.Getppid() != guard {
		clean(dir)
	}
	return code
}

// owner is whose directory it is.
type owner struct {
	PID   int    `json:"pid"`
	Start string `json:"start"`
}

func record(dir string) error {
	data, err := json.Marshal(owner{PID: os.Getpid(), Start: startTime(os.Getpid())})
	if err != nil {
		return err
	}
	return os.WriteFile(filepath.Join(dir, "guard.json"), data, 0o600)
}

// sweepDead cleans what guards left that were killed with their children.
func sweepDead() {
	found, _ := filepath.Glob(filepath.Join(os.TempDir(), "nomad-gpu-*", "guard.json"))
	for _, path := range found {
		data, err := os.ReadFile(path)
		var o owner
		if err != nil || json.Unmarshal(data, &o) != nil || o.PID == 0 {
			continue // another user's, or being made
		}
		if startTime(o.PID) != o.Start {
			clean(filepath.Dir(path))
		}
	}
}
