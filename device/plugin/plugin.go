// SPDX-License-Identifier: MPL-2.0

// Package plugin is the Nomad device plugin: it joins a source of machines
// (NVML or a profile) with what is concluded from them, and speaks Nomad's
// device protocol.
//
// Three rules of that protocol shape it. A fingerprint error, or the end of
// its stream, makes Nomad give the plugin up until the agent restarts: so a
// reading that fails is logged and tried again, and never sent. Every
// fingerprint that is sent updates the node: so only changes are sent. And a
// reservation is told neither the allocation nor its end: so it depends on the
// device IDs alone.
package plugin

import (
	"context"
	"fmt"
	"os"
	"sync"
	"time"

	"github.com/hashicorp/go-hclog"
	"github.com/hashicorp/nomad/plugins/base"
	"github.com/hashicorp/nomad/plugins/device"
	"github.com/hashicorp/nomad/plugins/shared/hclspec"

	"github.com/nomad-gpu/nomad-gpu/device/gpu"
	"github.com/nomad-gpu/nomad-gpu/device/health"
	"github.com/nomad-gpu/nomad-gpu/device/mps"
	"github.com/nomad-gpu/nomad-gpu/device/nvml"
)

// Name is the plugin's name, which is also that of its executable.
const Name = "nomad-device-gpu"

// Source is where machines come from.
type Source interface {
	// Machine reads all. On an error nothing is known; a GPU that fails alone
	// is in the machine with its fault, or in its warnings.
	Machine() (*gpu.Machine, error)
	// Samples reads the momentary values of the GPUs that answer, by UUID.
	Samples() (map[string]gpu.Sample, error)
	// Observe reads what health is judged by, of the GPUs of the last Machine,
	// by UUID; time, fault and links are filled in by the caller.
	Observe() map[string]health.Observation
}

// Device implements Nomad's device.DevicePlugin.
type Device struct {
	version string
	logger  hclog.Logger
	// newSource is replaced in tests.
	newSource func(config, hclog.Logger) Source
	// restart ends the process; Nomad starts a plugin that ended at once.
	restart func()
	// firstWait is how long the first fingerprint may wait for the source. The
	// node registers only after it: Nomad waits up to 50 s.
	firstWait time.Duration

	// judging keeps readings of two streams apart: Nomad opens a new one before
	// the old has ended when its agent restarts.
	judging       sync.Mutex
	topologyError string

	mu      sync.Mutex
	monitor *Monitor // what is known of the GPUs' health; outlives streams
	config  config
	source  Source
	machine *gpu.Machine // the last that was read whole
	// verdicts and xids are those of the last judgement, for metrics.
	verdicts map[string]health.Verdict
	xids     map[string]map[uint64]uint64
	serving  bool

	sampling sync.Mutex
	samples  map[string]gpu.Sample
	sampled  time.Time
}

// New makes the plugin; it does nothing until it is configured.
func New(version string, logger hclog.Logger) *Device {
	return &Device{
		version:   version,
		logger:    logger.Named("gpu"),
		newSource: chooseSource,
		restart:   func() { os.Exit(1) },
		firstWait: 10 * time.Second,
	}
}

func chooseSource(c config, logger hclog.Logger) Source {
	if c.simulated != nil {
		return Simulate(c.simulated, c.faults)
	}
	return nvml.NewReader(c.nvmlLibrary)
}

// PluginInfo implements base.BasePlugin.
func (d *Device) PluginInfo() (*base.PluginInfoResponse, error) {
	return &base.PluginInfoResponse{
		Type:              base.PluginTypeDevice,
		PluginApiVersions: []string{device.ApiVersion010},
		PluginVersion:     d.version,
		Name:              Name,
	}, nil
}

// ConfigSchema implements base.BasePlugin.
func (d *Device) ConfigSchema() (*hclspec.Spec, error) { return configSpec, nil }

// SetConfig implements base.BasePlugin. It checks everything and touches no
// hardware.
func (d *Device) SetConfig(c *base.Config) error {
	parsed, err := parseConfig(c)
	if err != nil {
		return err
	}
	parsed.open(d.logger)
	d.mu.Lock()
	defer d.mu.Unlock()
	d.config, d.source, d.machine = parsed, d.newSource(parsed, d.logger), nil
	d.monitor = NewMonitor(parsed.rules)
	if parsed.memory != nil {
		d.monitor.Recall(parsed.memory.recall())
	}
	return nil
}

// Close puts back what must not outlive the plugin.
func (d *Device) Close() {
	d.mu.Lock()
	keeper := d.config.power
	d.mu.Unlock()
	if keeper != nil {
		keeper.restore()
	}
}

// configured gives the configuration and the source that goes with it.
func (d *Device) configured() (config, Source, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	switch {
	case d.source == nil:
		return config{}, nil, fmt.Errorf("the plugin has not been configured")
	case !d.config.enabled:
		return config{}, nil, device.ErrPluginDisabled
	}
	return d.config, d.source, nil
}

// read takes a reading and keeps it for reservations.
func (d *Device) read(source Source) (*gpu.Machine, error) {
	machine, err := source.Machine()
	if err != nil {
		return nil, err
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.source == source {
		d.machine = machine
	}
	return machine, nil
}

// judge takes a reading and judges the GPUs' health by it.
func (d *Device) judge(source Source) (*gpu.Machine, error) {
	d.judging.Lock()
	defer d.judging.Unlock()
	machine, err := d.read(source)
	if err != nil {
		return nil, err
	}
	d.mu.Lock()
	monitor, c := d.monitor, d.config
	d.mu.Unlock()
	verdicts := monitor.Judge(machine, source.Observe(), time.Now())
	judged := withVerdicts(machine, verdicts)
	if c.memory != nil {
		c.memory.keep(monitor.Memories())
	}
	if c.power != nil {
		c.power.apply(judged, source)
	}
	d.serveMPS(context.Background(), c, judged)
	if err := writeTopology(c, judged); err != nil && d.topologyError != err.Error() {
		d.topologyError = err.Error()
		d.logger.Warn("tasks get no topology file for NCCL", "error", err)
	}
	if c.slots != nil {
		c.slots.look(context.Background(), judged, c.grouping)
	}
	d.mu.Lock()
	if d.source == source {
		d.machine = judged // with what is wrong, so that it is not chosen
		d.xids, d.verdicts = monitor.Xids(), make(map[string]health.Verdict, len(verdicts))
		for i, v := range verdicts {
			d.verdicts[machine.GPUs[i].UUID] = v
		}
	}
	d.mu.Unlock()
	return judged, nil
}

// known is the last machine that was read; if there is none yet, it is read
// now: a plugin that was restarted is asked for reservations at once.
func (d *Device) known(source Source) (*gpu.Machine, error) {
	d.mu.Lock()
	machine := d.machine
	d.mu.Unlock()
	if machine != nil {
		return machine, nil
	}
	return d.read(source)
}

// Fingerprint implements device.DevicePlugin.
func (d *Device) Fingerprint(ctx context.Context) (<-chan *device.FingerprintResponse, error) {
	c, source, err := d.configured()
	if err != nil {
		return nil, err
	}
	if c.mps == nil {
		if err := mps.New(mps.Program, c.grouping.MPSDir).Stop(); err != nil {
			d.logger.Warn("cannot stop the MPS control daemon of a former configuration", "error", err)
		}
	}
	d.serveMetrics(c, source)
	out := make(chan *device.FingerprintResponse)
	go d.fingerprint(ctx, c, source, out)
	return out, nil
}

// Stats implements device.DevicePlugin.
func (d *Device) Stats(ctx context.Context, interval time.Duration) (<-chan *device.StatsResponse, error) {
	c, source, err := d.configured()
	if err != nil {
		return nil, err
	}
	out := make(chan *device.StatsResponse)
	go d.stats(ctx, c, source, interval, out)
	return out, nil
}
