// SPDX-License-Identifier: MPL-2.0

// Build builds the real Nomad, Consul and Nomad Autoscaler into the project's
// cache, each once, and shows how far it is: the first time takes minutes.
package main

import (
	"bufio"
	"bytes"
	"context"
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"github.com/nomad-gpu/nomad-gpu/e2e/peers"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	if err := run(ctx); err != nil {
		fmt.Fprintln(os.Stderr, "peers:", err)
		os.Exit(1)
	}
}

func run(ctx context.Context) error {
	if err := os.MkdirAll(peers.Cache(), 0o755); err != nil {
		return err
	}
	// Two makes at once build once: the second waits here.
	lock, err := os.OpenFile(filepath.Join(peers.Cache(), ".lock"), os.O_CREATE|os.O_RDWR, 0o644)
	if err != nil {
		return err
	}
	defer lock.Close()
	if err := syscall.Flock(int(lock.Fd()), syscall.LOCK_EX); err != nil {
		return fmt.Errorf("wait for another build: %w", err)
	}
	for _, name := range peers.Names {
		if path, err := peers.Find(name); err == nil {
			fmt.Printf("%-17s %s\n", name, path)
			continue
		}
		if err := build(ctx, name); err != nil {
			return fmt.Errorf("build %s: %w", name, err)
		}
	}
	return nil
}

// build compiles one program in its module's folder, and moves it into the
// cache only when it is whole.
func build(ctx context.Context, name string) error {
	dir := filepath.Join(peers.Root(), "e2e", "peers", name)
	target := filepath.Join(peers.Cache(), name)
	partial := target + ".partial"
	defer os.Remove(partial)
	p := progress{name: name, begin: time.Now(), terminal: isTerminal()}
	p.show("fetching its modules", true)
	list := exec.CommandContext(ctx, "go", "list", "-deps", "github.com/hashicorp/"+name)
	list.Dir = dir
	out, err := list.Output()
	if err != nil {
		return fmt.Errorf("list its packages: %w\n%s", err, stderrOf(err))
	}
	p.total = bytes.Count(out, []byte("\n"))
	cmd := exec.CommandContext(ctx, "go", "build", "-v", "-ldflags", "-s -w", "-o", partial, "github.com/hashicorp/"+name)
	cmd.Dir = dir
	pipe, err := cmd.StderrPipe()
	if err != nil {
		return err
	}
	if err := cmd.Start(); err != nil {
		return err
	}
	var last []string
	lines := bufio.NewScanner(pipe)
	for lines.Scan() {
		if strings.HasPrefix(lines.Text(), "go: ") {
			continue
		}
		p.done++
		last = append(last[max(0, len(last)-20):], lines.Text())
		p.show(lines.Text(), false)
	}
	if err := cmd.Wait(); err != nil {
		return fmt.Errorf("%w\n%s", err, strings.Join(last, "\n"))
	}
	if err := os.Rename(partial, target); err != nil {
		return err
	}
	p.show("built "+target, true)
	if p.terminal {
		fmt.Println()
	}
	return nil
}

func stderrOf(err error) []byte {
	if exit, ok := err.(*exec.ExitError); ok {
		return exit.Stderr
	}
	return nil
}

// progress is one line that changes on a terminal, and a line now and then elsewhere.
type progress struct {
	name        string
	begin, last time.Time
	total, done int
	terminal    bool
}

func (p *progress) show(what string, always bool) {
	now := time.Now()
	gap := 20 * time.Second
	if p.terminal {
		gap = 200 * time.Millisecond
	}
	if !always && now.Sub(p.last) < gap {
		return
	}
	p.last = now
	line := fmt.Sprintf("%-17s %4.0fs  %.70s", p.name, now.Sub(p.begin).Seconds(), what)
	if p.total > 0 {
		line = fmt.Sprintf("%-17s %4.0fs  %4d of at most %d packages  %.70s", p.name, now.Sub(p.begin).Seconds(), p.done, p.total, what)
	}
	if p.terminal {
		fmt.Printf("\r\x1b[K%s", line)
	} else {
		fmt.Println(line)
	}
}

func isTerminal() bool {
	info, err := os.Stdout.Stat()
	return err == nil && info.Mode()&os.ModeCharDevice != 0
}
