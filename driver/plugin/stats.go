// SPDX-License-Identifier: MPL-2.0

package plugin

import (
	"context"
	"time"

	cstructs "github.com/hashicorp/nomad/client/structs"

	"github.com/nomad-gpu/nomad-gpu/driver/runtime"
)

// stats sends the usage each interval until the task or ctx ends. Before the
// gang has formed it is all zero, which is true.
func (t *task) stats(ctx context.Context, interval time.Duration, ch chan<- *cstructs.TaskResourceUsage) {
	defer close(ch)
	if interval <= 0 {
		interval = time.Second
	}
	var before runtime.Usage
	var at time.Time
	for {
		var now runtime.Usage
		if p := t.runner.current(); p != nil {
			if u, err := p.Usage(); err == nil {
				now = u
			}
		}
		cpu := &cstructs.CpuStats{Measured: []string{"System Mode", "User Mode", "Percent"}}
		if elapsed := time.Since(at); !at.IsZero() && now.User >= before.User && now.System >= before.System {
			cpu.UserMode = 100 * (now.User - before.User).Seconds() / elapsed.Seconds()
			cpu.SystemMode = 100 * (now.System - before.System).Seconds() / elapsed.Seconds()
			cpu.Percent = cpu.UserMode + cpu.SystemMode
		}
		before, at = now, time.Now()
		usage := &cstructs.TaskResourceUsage{Timestamp: at.UnixNano(), ResourceUsage: &cstructs.ResourceUsage{
			CpuStats: cpu, MemoryStats: &cstructs.MemoryStats{RSS: now.RSS, Measured: []string{"RSS"}}}}
		select {
		case <-ctx.Done():
			return
		case <-t.done:
			return
		case ch <- usage:
		}
		select {
		case <-ctx.Done():
			return
		case <-t.done:
			return
		case <-time.After(interval):
		}
	}
}
