// SPDX-License-Identifier: MPL-2.0

package pool

import (
	"context"
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
)

// LocalPool starts and stops Nomad clients on this machine. All that is in
// progress stands in a file for each node, so that a restarted plugin goes on
// with it.
type LocalPool struct {
	definition *Definition
	nomad      nomadNodes
	logger     hclog.Logger
	mu         sync.Mutex
	contact    contact
}

var _ Pool = (*LocalPool)(nil)

// tendPeriod is about how often Tend is called.
const tendPeriod = time.Second

// failurePause is how long a slot rests whose node ended by itself or did not
// come up: another slot is tried first.
const failurePause = 30 * time.Second

// NewLocal is the pool that a definition of kind local describes.
func NewLocal(d *Definition, client *api.Client, logger hclog.Logger) *LocalPool {
	return &LocalPool{definition: d, nomad: nomadNodes{client}, logger: logger.With("pool", d.Name)}
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
			nodes = append(nodes, Node{Name: s.Name, Ready: r.Ready, Leaving: r.Leaving, Since: r.Started})
		}
	}
	return nodes, nil
}

// Grow brings the pool to at least count nodes, and returns when they are
// started: first those on their way out are kept, then free slots are used.
func (p *LocalPool) Grow(ctx context.Context, now time.Time, count int) error {
	unhold, err := hold(&p.mu, p.definition.Local.Dir, p.definition.Name)
	if err != nil {
		return err
	}
	defer unhold()
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
		if have >= count || r == nil || !r.Leaving || r.Ending || r.Moving || !r.Process.alive() {
			continue
		}
		if err := p.nomad.eligible(ctx, s.Name, true); err != nil {
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
		if rest := failurePause - now.Sub(p.failedAt(s.Name)); rest > 0 {
			errs = append(errs, fmt.Errorf("node %s failed a moment ago; it is tried again in %s", s.Name, rest.Round(time.Second)))
			continue
		}
		if err := p.start(s, now); err != nil {
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

func (p *LocalPool) start(s Slot, now time.Time) error {
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
	// Before it is waited for: one that has ended at once is still told by its number.
	is, err := processOf(cmd.Process.Pid)
	go cmd.Wait()
	if err == nil {
		err = p.save(s.Name, &record{Process: is, Started: now})
	}
	if err != nil {
		cmd.Process.Kill()
		return err
	}
	p.logger.Info("starts a node", "node", s.Name, "pid", cmd.Process.Pid)
	return nil
}

// History is empty: a slot that failed rests by itself, and no node is taken away.
func (p *LocalPool) History(time.Time) (History, error) { return History{}, nil }

// Tend moves on what is in progress: nodes that came up, that did not come
// up in time, that are empty and go. It is to be called now and then.
func (p *LocalPool) Tend(ctx context.Context, now time.Time) error {
	unhold, err := hold(&p.mu, p.definition.Local.Dir, p.definition.Name)
	if err != nil {
		return err
	}
	defer unhold()
	nodes, err := p.nomad.list(ctx)
	if err != nil {
		return err
	}
	p.contact.look(now, tendPeriod)
	var errs []error
	unheard := map[string]*record{}
	for _, s := range p.definition.Local.Slots {
		r, err := p.load(s.Name)
		if err != nil || r == nil {
			errs = append(errs, err)
			continue
		}
		what, err := p.tend(ctx, now, s, r, newest(nodes, func(n *api.NodeListStub) bool { return n.Name == s.Name }))
		errs = append(errs, err)
		if err == nil && what == ask {
			unheard[s.Name] = r
		}
	}
	errs = append(errs, p.vacate(ctx, unheard))
	return errors.Join(errs...)
}

// tend moves one node on; ask is left to the caller, who asks all at once.
func (p *LocalPool) tend(ctx context.Context, now time.Time, s Slot, r *record, n *api.NodeListStub) (move, error) {
	if err := p.nomad.close(ctx, n, r.Leaving && !r.Ending); err != nil {
		return stay, err
	}
	up := n != nil && n.Status == api.NodeStatusReady
	what, err := next(situation{Exists: r.Process.alive(), Ready: r.Ready, Up: up, Leaving: r.Leaving, Ending: r.Ending, Moving: r.Moving, Draining: n != nil && n.Drain,
		Age: now.Sub(r.Started), Start: p.definition.start, Lost: p.contact.lost(s.Name, up || !r.Ready), Patience: p.definition.down}, func() (bool, error) { return p.nomad.idle(ctx, s.Name) })
	if err != nil {
		return stay, err
	}
	switch what {
	case forget:
		if !r.Leaving {
			p.logger.Warn("the process of a node has ended", "node", s.Name, "last words", p.lastWords(s.Name))
			if err := p.noteFailure(s.Name, now); err != nil {
				return stay, err
			}
		}
		return what, p.remove(ctx, s, r, n)
	case remove:
		return what, p.remove(ctx, s, r, n)
	case keep:
		p.logger.Info("keeps a node: work was placed on it meanwhile", "node", s.Name)
		r.Leaving, r.Ending, r.Reason = false, false, ""
		return what, errors.Join(p.nomad.eligible(ctx, s.Name, true), p.save(s.Name, r))
	case welcome:
		r.Ready = true
		p.logger.Info("a node is ready", "node", s.Name, "after", now.Sub(r.Started).Round(100*time.Millisecond))
		return what, p.save(s.Name, r)
	case giveUp:
		p.logger.Warn("gives a node up: it is not ready within start_timeout", "node", s.Name, "start_timeout", p.definition.start, "last words", p.lastWords(s.Name))
		return what, errors.Join(p.noteFailure(s.Name, now), p.remove(ctx, s, r, n))
	case lose:
		p.logger.Warn("gives a node up: it is out of Nomad's contact for longer than down_timeout", "node", s.Name, "down_timeout", p.definition.down, "last words", p.lastWords(s.Name))
		return what, errors.Join(p.noteFailure(s.Name, now), p.remove(ctx, s, r, n))
	}
	return what, nil
}

// Resting: no slot is free but such as have just failed.
func (p *LocalPool) Resting(now time.Time) (string, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	var failed []string
	for _, s := range p.definition.Local.Slots {
		r, err := p.load(s.Name)
		if err != nil {
			return "", err
		}
		switch {
		case r != nil && !r.Leaving:
		case r == nil && now.Sub(p.failedAt(s.Name)) < failurePause:
			failed = append(failed, s.Name)
		default:
			return "", nil
		}
	}
	if len(failed) == 0 {
		return "", nil
	}
	return fmt.Sprintf("node %s ended or did not come up; it is tried again after %s", strings.Join(failed, ", "), failurePause), nil
}

// remove ends the client's process and takes its node and its files away.
func (p *LocalPool) remove(ctx context.Context, s Slot, r *record, n *api.NodeListStub) error {
	r.Leaving, r.Ending = true, true
	if err := p.save(s.Name, r); err != nil {
		return err
	}
	if err := r.Process.end(ctx); err != nil {
		return fmt.Errorf("end node %s: %w", s.Name, err)
	}
	if n != nil {
		if err := p.nomad.purge(ctx, n.ID, s.Name); err != nil {
			return err
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
