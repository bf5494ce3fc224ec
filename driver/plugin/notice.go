// SPDX-License-Identifier: MPL-2.0

package plugin

import (
	"fmt"
	"sync"
	"time"

	"github.com/nomad-gpu/nomad-gpu/driver/gang"
	"github.com/nomad-gpu/nomad-gpu/driver/notice"
)

// notices holds the interruption notice that stands for this node.
type notices struct {
	mu      sync.Mutex
	stands  *notice.Notice
	changed chan struct{} // wakes the fingerprint
}

func (ns *notices) current() *notice.Notice {
	ns.mu.Lock()
	defer ns.mu.Unlock()
	return ns.stands
}

func (ns *notices) set(n *notice.Notice) {
	ns.mu.Lock()
	ns.stands = n
	ns.mu.Unlock()
	select {
	case ns.changed <- struct{}{}:
	default:
	}
}

// watchNotices reads the configured source as long as the driver lives.
func (d *Driver) watchNotices() {
	c := d.settings.notice
	if !c.On() {
		return
	}
	ticker := time.NewTicker(c.Period)
	defer ticker.Stop()
	notice.Watch(d.ctx, notice.New(c), ticker.C, d.announce, func(err error) {
		if err != nil {
			d.logger.Warn("interruption notices cannot be read", "source", c.Source, "error", err)
			return
		}
		d.logger.Info("interruption notices are read again", "source", c.Source)
	})
}

// announce takes a notice, or nil for one withdrawn: the node takes no new
// gangs, and every member on it leaves its gang while there is time.
func (d *Driver) announce(n *notice.Notice) {
	d.notices.set(n)
	if n == nil {
		d.logger.Info("the interruption notice is withdrawn: this node takes gangs again")
		return
	}
	d.logger.Warn(n.String() + "; " + notice.NoNewGangs)
	for _, t := range d.tasks.all() {
		d.interrupt(t, *n)
	}
}

// interrupt makes one member leave. The coordinator then stops the whole
// generation, with every member's own grace for its checkpoint.
func (d *Driver) interrupt(t *task, n notice.Notice) {
	select {
	case <-t.done:
		return
	default:
	}
	if t.leaving.Load() {
		return
	}
	d.emit(t.cfg, "Interruption", fmt.Sprintf("%s; this member leaves, so that the gang writes its checkpoint and goes on elsewhere", n))
	signal, grace := t.runner.stopsWith()
	if !n.At.IsZero() {
		grace = timely(grace, time.Until(n.At))
	}
	t.runner.stopWith(signal, grace)
	t.askLeave(gang.LeaveAsked{Cause: gang.CauseNotice, Why: n.String()})
}

// farewell is what leaving itself takes: the session, the record, Nomad's word of the end.
const farewell = 5 * time.Second

// timely shortens a grace that would outlast the node.
func timely(grace, left time.Duration) time.Duration {
	return min(grace, max(left-farewell, time.Second))
}
