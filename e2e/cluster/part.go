// SPDX-License-Identifier: MPL-2.0

package cluster

import (
	"bytes"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"syscall"
	"time"

	"github.com/vishvananda/netns"
)

// part is one program of the cluster.
type part struct {
	name  string
	log   string
	cmd   *exec.Cmd
	ended chan struct{}
}

// startPart runs a program, in a namespace where one is named. It has a
// process group of its own, so that a terminal's interrupt does not reach it.
func startPart(name, dir, namespace string, argv ...string) (*part, error) {
	p := &part{name: name, log: filepath.Join(dir, name+".log"), ended: make(chan struct{})}
	out, err := os.OpenFile(p.log, os.O_CREATE|os.O_WRONLY|os.O_APPEND, 0o600)
	if err != nil {
		return nil, err
	}
	defer out.Close()
	p.cmd = exec.Command(argv[0], argv[1:]...)
	p.cmd.Stdout, p.cmd.Stderr = out, out
	p.cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	if err := inNamespace(namespace, p.cmd.Start); err != nil {
		return nil, fmt.Errorf("start %s: %w", name, err)
	}
	go func() { p.cmd.Wait(); close(p.ended) }()
	return p, nil
}

// inNamespace runs a function on a thread in a network namespace: what it
// starts is born there.
func inNamespace(name string, do func() error) error {
	if name == "" {
		return do()
	}
	space, err := netns.GetFromName(name)
	if err != nil {
		return fmt.Errorf("namespace %s: %w", name, err)
	}
	defer space.Close()
	result := make(chan error, 1)
	go func() {
		// Never unlocked: the thread ends with this goroutine, and no other
		// runs in the wrong namespace.
		runtime.LockOSThread()
		if err := netns.Set(space); err != nil {
			result <- err
			return
		}
		result <- do()
	}()
	return <-result
}

func (p *part) running() bool {
	select {
	case <-p.ended:
		return false
	default:
		return true
	}
}

// stop asks, waits, and kills.
func (p *part) stop(patience time.Duration) {
	p.cmd.Process.Signal(syscall.SIGTERM)
	select {
	case <-p.ended:
	case <-time.After(patience):
		p.kill()
	}
}

func (p *part) kill() {
	p.cmd.Process.Kill()
	<-p.ended
}

// words are the last lines of its log.
func (p *part) words(lines int) string {
	data, err := os.ReadFile(p.log)
	if err != nil {
		return err.Error()
	}
	all := bytes.Split(bytes.TrimRight(data, "\n"), []byte("\n"))
	return string(bytes.Join(all[max(0, len(all)-lines):], []byte("\n")))
}
