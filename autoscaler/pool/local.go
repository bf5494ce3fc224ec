// SPDX-License-Identifier: MPL-2.0

package pool

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/hashicorp/go-hclog"
	"github.com/hashicorp/nomad/api"
	"github.com/moby/sys/mountinfo"
	"github.com/shirou/gopsutil/v4/process"
	"golang.org/x/sys/unix"
)

// LocalPool starts and stops Nomad clients on this machine. All that is in
// progress stands in a file for each node, so that a restarted plugin goes on
// with it.
type LocalPool struct {
	definition *Definition
	nomad      *api.Client
	logger     hclog.Logger
	mu         sync.Mutex
	// failed is when a slot's node last ended without being asked to.
	failed map[string]time.Time
}

// failurePause is how long a slot rests whose node ended by itself or did not
// come up: another slot is tried first.
const failurePause = 30 * time.Second

// Node is one node of a pool.
type Node struct {
	Name string
	// Ready: Nomad has it. Leaving: it takes no more work and goes when it is empty.
	Ready, Leaving bool
}

// record is what the file of a node says.
type record struct {
	PID     int       `json:"pid"`
	Created int64     `json:"created"` // of the process, in ms since 1970: tells it from a later one with its number
	Started time.Time `json:"started"`
	Ready   bool      `json:"ready"`
	Leaving bool      `json:"leaving"`
	// Ending: its process was asked to end; there is no way back.
	Ending bool   `json:"ending"`
	Reason string `json:"reason,omitempty"`
}

// NewLocal is the pool that a definition of kind local describes.
func NewLocal(d *Definition, client *api.Client, logger hclog.Logger) *LocalPool {
	return &LocalPool{definition: d, nomad: client, logger: logger.With("pool", d.Name), failed: map[string]time.Time{}}
}

// Nodes reads what is there: no call to Nomad.
func (p *LocalPool) Nodes() ([]Node, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	var nodes []Node
	for _, s := range p.definition.Local.Slots {
		r, err := p.load(s.Name)
		if err != nil {
			return nil, err
		}
		if r != nil {
			nodes = append(nodes, Node{Name: s.Name, Ready: r.Ready, Leaving: r.Leaving})
		}
	}
	return nodes, nil
}

// Grow brings the pool to at least count nodes, and returns when they are
// started: first those on their way out are kept, then free slots are used.
func (p *LocalPool) Grow(count int) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	have := 0
	records := map[string]*record{}
	for _, s := range p.definition.Local.Slots {
		r, err := p.load(s.Name)
		if err != nil {
			return err
		}
		records[s.Name] = r
		if r != nil && !r.Leaving {
			have++
		}
	}
	for _, s := range p.definition.Local.Slots {
		r := records[s.Name]
		if have >= count || r == nil || !r.Leaving || r.Ending || !r.alive() {
			continue
		}
		if err := p.eligible(s.Name, true); err != nil {
			p.logger.Warn("a node on its way out cannot be kept", "node", s.Name, "error", err)
			continue
		}
		r.Leaving, r.Reason = false, ""
		if err := p.save(s.Name, r); err != nil {
			return err
		}
		p.logger.Info("keeps a node that was on its way out", "node", s.Name)
		have++
	}
	var errs []error
	for _, s := range p.definition.Local.Slots {
		if have >= count || records[s.Name] != nil {
			continue
		}
		if rest := failurePause - time.Since(p.failed[s.Name]); rest > 0 {
			errs = append(errs, fmt.Errorf("node %s failed a moment ago; it is tried again in %s", s.Name, rest.Round(time.Second)))
			continue
		}
		if err := p.start(s); err != nil {
			errs = append(errs, fmt.Errorf("start node %s: %w", s.Name, err))
			continue
		}
		have++
	}
	if have < count {
		return errors.Join(append(errs, fmt.Errorf("%d nodes of %d", have, count))...)
	}
	for _, err := range errs {
		p.logger.Warn("another slot was used", "error", err)
	}
	return nil
}

func (p *LocalPool) start(s Slot) error {
	if err := os.MkdirAll(p.definition.Local.Dir, 0o700); err != nil {
		return err
	}
	log, err := os.OpenFile(filepath.Join(p.definition.Local.Dir, s.Name+".log"), os.O_CREATE|os.O_WRONLY|os.O_APPEND, 0o600)
	if err != nil {
		return err
	}
	defer log.Close()
	cmd := exec.Command(s.Command[0], s.Command[1:]...)
	cmd.Stdout, cmd.Stderr = log, log
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true} // it outlives the autoscaler
	if err := cmd.Start(); err != nil {
		return err
	}
	go cmd.Wait()
	created, err := createdAt(cmd.Process.Pid)
	if err == nil {
		err = p.save(s.Name, &record{PID: cmd.Process.Pid, Created: created, Started: time.Now()})
	}
	if err != nil {
		cmd.Process.Kill()
		return err
	}
	p.logger.Info("starts a node", "node", s.Name, "pid", cmd.Process.Pid)
	return nil
}

// Shrink lets go all but count nodes: only ones without work, the wanted
// first. It marks them; Tend does the rest.
func (p *LocalPool) Shrink(ctx context.Context, count int, wanted []string) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	var names []string
	records := map[string]*record{}
	for _, s := range p.definition.Local.Slots {
		r, err := p.load(s.Name)
		if err != nil {
			return err
		}
		if r != nil && !r.Leaving {
			names = append(names, s.Name)
			records[s.Name] = r
		}
	}
	surplus := len(names) - count
	for _, name := range append(append([]string{}, wanted...), names...) {
		r := records[name]
		if surplus <= 0 || r == nil || r.Leaving {
			continue
		}
		idle, err := p.idle(ctx, name)
		if err != nil {
			return err
		}
		if !idle {
			continue
		}
		if r.Ready {
			if err := p.eligible(name, false); err != nil {
				return err
			}
		}
		r.Leaving, r.Reason = true, "not needed"
		if err := p.save(name, r); err != nil {
			return err
		}
		p.logger.Info("lets a node go", "node", name)
		surplus--
	}
	if surplus > 0 {
		return fmt.Errorf("%d of the nodes to let go have work; they stay", surplus)
	}
	return nil
}

// Tend moves on what is in progress: nodes that came up, that did not come
// up in time, that are empty and go. It is to be called now and then.
func (p *LocalPool) Tend(ctx context.Context, now time.Time) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	nodes, _, err := p.nomad.Nodes().List((&api.QueryOptions{}).WithContext(ctx))
	if err != nil {
		return fmt.Errorf("list the nodes: %w", err)
	}
	byName := map[string]*api.NodeListStub{}
	for _, n := range nodes {
		if old := byName[n.Name]; old == nil || n.CreateIndex > old.CreateIndex {
			byName[n.Name] = n
		}
	}
	var errs []error
	for _, s := range p.definition.Local.Slots {
		r, err := p.load(s.Name)
		if err != nil {
			errs = append(errs, err)
		} else if r != nil {
			errs = append(errs, p.tend(ctx, now, s, r, byName[s.Name]))
		}
	}
	return errors.Join(errs...)
}

func (p *LocalPool) tend(ctx context.Context, now time.Time, s Slot, r *record, n *api.NodeListStub) error {
	alive := r.alive()
	switch {
	case !alive:
		if !r.Leaving {
			p.failed[s.Name] = now
			p.logger.Warn("the process of a node has ended", "node", s.Name, "last words", p.lastWords(s.Name))
		}
		return p.remove(ctx, s, r, n)
	case r.Leaving:
		idle, err := p.idle(ctx, s.Name)
		if err != nil {
			return err
		}
		if !idle {
			// Work was placed between the look and the mark: the node stays.
			p.logger.Info("keeps a node: work was placed on it meanwhile", "node", s.Name)
			r.Leaving, r.Reason = false, ""
			return errors.Join(p.eligible(s.Name, true), p.save(s.Name, r))
		}
		return p.remove(ctx, s, r, n)
	case !r.Ready && n != nil && n.Status == api.NodeStatusReady:
		r.Ready = true
		p.logger.Info("a node is ready", "node", s.Name, "after", now.Sub(r.Started).Round(100*time.Millisecond))
		return p.save(s.Name, r)
	case !r.Ready && now.Sub(r.Started) > p.definition.start:
		p.failed[s.Name] = now
		p.logger.Warn("gives a node up: it is not ready within start_timeout", "node", s.Name, "start_timeout", p.definition.start, "last words", p.lastWords(s.Name))
		return p.remove(ctx, s, r, n)
	}
	return nil
}

// idle reports whether nothing runs or is placed on a node.
func (p *LocalPool) idle(ctx context.Context, name string) (bool, error) {
	n, err := p.node(ctx, name)
	if err != nil || n == nil {
		return err == nil, err
	}
	allocs, _, err := p.nomad.Nodes().Allocations(n.ID, (&api.QueryOptions{}).WithContext(ctx))
	if err != nil {
		return false, fmt.Errorf("list what runs on %s: %w", name, err)
	}
	for _, a := range allocs {
		if !a.ClientTerminalStatus() {
			return false, nil
		}
	}
	return true, nil
}

func (p *LocalPool) node(ctx context.Context, name string) (*api.NodeListStub, error) {
	nodes, _, err := p.nomad.Nodes().List((&api.QueryOptions{}).WithContext(ctx))
	if err != nil {
		return nil, fmt.Errorf("list the nodes: %w", err)
	}
	var newest *api.NodeListStub
	for _, n := range nodes {
		if n.Name == name && (newest == nil || n.CreateIndex > newest.CreateIndex) {
			newest = n
		}
	}
	return newest, nil
}

func (p *LocalPool) eligible(name string, yes bool) error {
	n, err := p.node(context.Background(), name)
	if err != nil || n == nil {
		return err
	}
	if _, err := p.nomad.Nodes().ToggleEligibility(n.ID, yes, nil); err != nil {
		return fmt.Errorf("make %s eligible %t: %w", name, yes, err)
	}
	return nil
}

// remove ends the client's process and takes its node and its files away.
func (p *LocalPool) remove(ctx context.Context, s Slot, r *record, n *api.NodeListStub) error {
	r.Leaving, r.Ending = true, true
	if err := p.save(s.Name, r); err != nil {
		return err
	}
	if err := r.end(ctx); err != nil {
		return fmt.Errorf("end node %s: %w", s.Name, err)
	}
	if n != nil {
		if _, _, err := p.nomad.Nodes().Purge(n.ID, (&api.QueryOptions{}).WithContext(ctx)); err != nil && !strings.Contains(err.Error(), "404") {
			return fmt.Errorf("take node %s out of Nomad: %w", s.Name, err)
		}
	}
	if s.DataDir != "" {
		unmount(s.DataDir)
		if err := os.RemoveAll(s.DataDir); err != nil {
			return err
		}
	}
	p.logger.Info("a node is gone", "node", s.Name)
	return os.Remove(p.path(s.Name))
}

// lastWords is the last line of a node's log.
func (p *LocalPool) lastWords(name string) string {
	data, err := os.ReadFile(filepath.Join(p.definition.Local.Dir, name+".log"))
	if err != nil {
		return err.Error()
	}
	lines := strings.Split(strings.TrimSpace(string(data)), "\n")
	return lines[len(lines)-1]
}

func unmount(dir string) {
	mounts, err := mountinfo.GetMounts(mountinfo.PrefixFilter(dir))
	if err != nil {
		return
	}
	for i := len(mounts) - 1; i >= 0; i-- {
		unix.Unmount(mounts[i].Mountpoint, unix.MNT_DETACH)
	}
}

func (p *LocalPool) path(name string) string {
	return filepath.Join(p.definition.Local.Dir, name+".json")
}

func (p *LocalPool) load(name string) (*record, error) {
	data, err := os.ReadFile(p.path(name))
	if errors.Is(err, os.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	var r record
	if err := json.Unmarshal(data, &r); err != nil {
		return nil, fmt.Errorf("%s: %w", p.path(name), err)
	}
	return &r, nil
}

func (p *LocalPool) save(name string, r *record) error {
	data, err := json.Marshal(r)
	if err != nil {
		return err
	}
	partial := p.path(name) + ".partial"
	if err := os.WriteFile(partial, data, 0o600); err != nil {
		return err
	}
	return os.Rename(partial, p.path(name))
}

func createdAt(pid int) (int64, error) {
	proc, err := process.NewProcess(int32(pid))
	if err != nil {
		return 0, err
	}
	return proc.CreateTime()
}

func (r *record) alive() bool {
	created, err := createdAt(r.PID)
	if err != nil || created != r.Created {
		return false
	}
	proc, err := process.NewProcess(int32(r.PID))
	if err != nil {
		return false
	}
	status, err := proc.Status()
	return err == nil && (len(status) == 0 || status[0] != process.Zombie)
}

// end asks the client to end, waits ten seconds, and kills it and what it
// started: its plugins are in its process group.
func (r *record) end(ctx context.Context) error {
	if !r.alive() {
		return nil
	}
	syscall.Kill(r.PID, syscall.SIGINT)
	kill := time.After(10 * time.Second)
	for r.alive() {
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-kill:
			syscall.Kill(-r.PID, syscall.SIGKILL)
		case <-time.After(50 * time.Millisecond):
		}
	}
	syscall.Kill(-r.PID, syscall.SIGKILL)
	return nil
}
