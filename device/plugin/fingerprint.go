// SPDX-License-Identifier: MPL-2.0

package plugin

import (
	"context"
	"errors"
	"fmt"
	"reflect"
	"time"

	"github.com/hashicorp/nomad/plugins/device"

	"github.com/nomad-gpu/nomad-gpu/device/gpu"
	"github.com/nomad-gpu/nomad-gpu/device/nvml"
)

// retryPeriod bounds the time between readings while they fail, so that a
// driver that comes late is found soon.
const retryPeriod = 10 * time.Second

// reading is what one look at the source gave.
type reading struct {
	machine *gpu.Machine
	err     error
}

// fingerprint sends the devices once, and again whenever they change, until the
// context ends. Readings happen elsewhere, because NVML can hang: a first one
// that takes too long is answered by an empty fingerprint, a later one only
// delays the next.
func (d *Device) fingerprint(ctx context.Context, c config, source Source, out chan<- *device.FingerprintResponse) {
	defer close(out)
	readings := make(chan reading)
	go d.readOn(ctx, c, source, readings)

	f := follower{device: d, config: c}
	late := time.NewTimer(d.firstWait)
	defer late.Stop()
	for {
		var groups []*device.DeviceGroup
		select {
		case <-ctx.Done():
			return
		case <-late.C:
			d.logger.Warn("no reading of the GPUs yet; Nomad is told of none for now", "waited", d.firstWait.String())
		case r := <-readings:
			late.Stop()
			groups = f.follow(r)
		}
		if !f.changed(groups) {
			continue
		}
		select {
		case <-ctx.Done():
			return
		case out <- device.NewFingerprint(groups...):
		}
	}
}

// readOn reads at once and then every period, or sooner after a failure, and
// judges the GPUs' health by what was read.
func (d *Device) readOn(ctx context.Context, c config, source Source, readings chan<- reading) {
	for {
		machine, err := d.readSafely(source)
		select {
		case <-ctx.Done():
			return
		case readings <- reading{machine, err}:
		}
		wait := min(c.period, c.healthPeriod)
		if err != nil {
			wait = min(wait, retryPeriod)
		}
		timer := time.NewTimer(wait)
		select {
		case <-ctx.Done():
			timer.Stop()
			return
		case <-timer.C:
		}
	}
}

// readSafely turns a panic into an error: it must not end the process, nor the
// stream.
func (d *Device) readSafely(source Source) (machine *gpu.Machine, err error) {
	defer func() {
		if p := recover(); p != nil {
			machine, err = nil, fmt.Errorf("panic while reading the GPUs: %v", p)
		}
	}()
	return d.judge(source)
}

// follower turns readings into device groups, and says what is new in the log.
type follower struct {
	device *Device
	config config

	sent     bool
	groups   []*device.DeviceGroup
	machine  *gpu.Machine
	failure  string
	warnings []string
}

// follow gives the groups after a reading. After a failure those known before
// stay, all unhealthy with the reason: that keeps new work away and tells the
// user why, where GPUs that vanish would not.
func (f *follower) follow(r reading) []*device.DeviceGroup {
	logger := f.device.logger
	if errors.Is(r.err, nvml.ErrStale) {
		logger.Error("ending the plugin's process, so that Nomad starts it with the new library", "error", r.err)
		f.device.restart()
	}
	if r.err != nil {
		if f.failure != r.err.Error() {
			f.failure = r.err.Error()
			logger.Error("cannot read the GPUs; trying again", "error", r.err, "period", min(f.config.period, f.config.healthPeriod, retryPeriod).String())
		}
		if f.machine == nil {
			return nil
		}
		return DeviceGroups(withFault(f.machine, f.failure), f.config.bound())
	}
	if f.failure != "" {
		logger.Info("the GPUs can be read again")
		f.failure = ""
	}
	f.logVerdicts(r.machine)
	f.machine = r.machine
	if !reflect.DeepEqual(f.warnings, r.machine.Warnings) {
		f.warnings = r.machine.Warnings
		for _, warning := range f.warnings {
			logger.Warn("reading the GPUs", "warning", warning)
		}
	}
	return DeviceGroups(r.machine, f.config.bound())
}

// logVerdicts says which GPUs changed for the worse or the better.
func (f *follower) logVerdicts(m *gpu.Machine) {
	before := make(map[string]string)
	if f.machine != nil {
		for _, g := range f.machine.GPUs {
			before[g.UUID] = g.Fault + g.Degraded
		}
	}
	for _, g := range m.GPUs {
		logger := f.device.logger.With("gpu", g.UUID, "index", g.Index)
		switch now := g.Fault + g.Degraded; {
		case now == before[g.UUID]:
		case now == "":
			logger.Info("the GPU is healthy again")
		case g.Fault != "":
			logger.Error("the GPU is unhealthy and takes no new work", "reason", g.Fault)
		default:
			logger.Warn("the GPU is degraded", "reason", g.Degraded)
		}
	}
}

// changed says whether the groups must be sent, and remembers them if so.
func (f *follower) changed(groups []*device.DeviceGroup) bool {
	if f.sent && reflect.DeepEqual(f.groups, groups) || f.sent && len(f.groups) == 0 && len(groups) == 0 {
		return false
	}
	f.sent, f.groups = true, groups
	return true
}

func withFault(m *gpu.Machine, fault string) *gpu.Machine {
	failed := *m
	failed.GPUs = make([]gpu.GPU, len(m.GPUs))
	copy(failed.GPUs, m.GPUs)
	for i := range failed.GPUs {
		failed.GPUs[i].Fault = fault
	}
	return &failed
}
