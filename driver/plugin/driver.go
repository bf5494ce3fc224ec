// SPDX-License-Identifier: MPL-2.0

// Package plugin is the Nomad task driver "nccl": each task of it is one
// member of a gang.
package plugin

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	consulapi "github.com/hashicorp/consul/api"
	"github.com/hashicorp/go-hclog"
	cstructs "github.com/hashicorp/nomad/client/structs"
	"github.com/hashicorp/nomad/drivers/shared/eventer"
	"github.com/hashicorp/nomad/plugins/base"
	"github.com/hashicorp/nomad/plugins/drivers"
	"github.com/hashicorp/nomad/plugins/shared/hclspec"
	"github.com/hashicorp/nomad/plugins/shared/structs"

	"github.com/nomad-gpu/nomad-gpu/driver/consul"
	"github.com/nomad-gpu/nomad-gpu/driver/gang"
	"github.com/nomad-gpu/nomad-gpu/driver/metrics"
	"github.com/nomad-gpu/nomad-gpu/driver/notice"
	"github.com/nomad-gpu/nomad-gpu/driver/runtime/docker"
	"github.com/nomad-gpu/nomad-gpu/driver/trace"
)

// Name is the driver's name in a jobspec.
const Name = "nccl"

// Version is the driver's.
const Version = "0.1.0"

const (
	fingerprintPeriod = 30 * time.Second
	sweepPeriod       = time.Minute
	// sweepAge is far beyond what a live gang is without a member's session.
	sweepAge = 10 * time.Minute
)

// Driver is the plugin.
type Driver struct {
	ctx      context.Context
	logger   hclog.Logger
	events   *eventer.Eventer
	tasks    tasks
	settings settings
	consul   *consulapi.Client
	// background starts what runs as long as the driver does.
	background sync.Once
	// allowed: Consul took what members do, the last time.
	allowed atomic.Bool
	notices notices
	ledger  *metrics.Ledger
	tracer  *trace.Tracer // nil: off
	engine  *docker.Engine
}

var _ drivers.DriverPlugin = (*Driver)(nil)

// New makes the plugin; ctx is its life.
func New(ctx context.Context, logger hclog.Logger) *Driver {
	logger = logger.Named(Name)
	return &Driver{ctx: ctx, logger: logger, events: eventer.NewEventer(ctx, logger), tasks: tasks{byID: map[string]*task{}},
		notices: notices{changed: make(chan struct{}, 1)}, ledger: metrics.NewLedger()}
}

// PluginInfo names the plugin.
func (d *Driver) PluginInfo() (*base.PluginInfoResponse, error) {
	return &base.PluginInfoResponse{Type: base.PluginTypeDriver, PluginApiVersions: []string{drivers.ApiVersion010}, PluginVersion: Version, Name: Name}, nil
}

// ConfigSchema is that of the plugin's block in the agent's configuration.
func (d *Driver) ConfigSchema() (*hclspec.Spec, error) { return configSpec, nil }

// TaskConfigSchema is that of a task's config block.
func (d *Driver) TaskConfigSchema() (*hclspec.Spec, error) { return taskConfigSpec, nil }

// SetConfig checks the configuration; an error stops the agent at its start.
func (d *Driver) SetConfig(c *base.Config) error {
	var config Config
	if len(c.PluginConfig) > 0 {
		if err := base.MsgPackDecode(c.PluginConfig, &config); err != nil {
			return fmt.Errorf("nomad-driver-nccl: %w", err)
		}
	} else {
		config.ConsulGrace, config.SessionTTL = "5m", "15s"
		config.Cgroup = CgroupConfig{Parent: defaultCgroupParent, PIDsLimit: defaultPIDs, LimitDevices: true}
	}
	s, err := config.read()
	if err != nil {
		return fmt.Errorf("nomad-driver-nccl: %w", err)
	}
	client, err := consul.NewClient(s.consul)
	if err != nil {
		return fmt.Errorf("nomad-driver-nccl: %w", err)
	}
	tracer, err := d.newTracer(s.tracing)
	if err != nil {
		return fmt.Errorf("nomad-driver-nccl: %w", err)
	}
	engine, err := docker.New(s.engine)
	if err != nil {
		return fmt.Errorf("nomad-driver-nccl: %w", err)
	}
	d.settings, d.consul, d.tracer, d.engine = s, client, tracer, engine
	return nil
}

// Capabilities of the driver.
func (d *Driver) Capabilities() (*drivers.Capabilities, error) {
	return &drivers.Capabilities{SendSignals: true, Exec: true, FSIsolation: drivers.FSIsolationNone,
		NetIsolationModes: []drivers.NetIsolationMode{drivers.NetIsolationModeHost}, MountConfigs: drivers.MountConfigSupportAll}, nil
}

// Fingerprint tells Nomad whether gangs can be joined from here: a node that
// does not reach Consul, or is about to be taken away, takes no new tasks.
func (d *Driver) Fingerprint(ctx context.Context) (<-chan *drivers.Fingerprint, error) {
	ch := make(chan *drivers.Fingerprint)
	go func() {
		d.background.Do(func() {
			go d.sweepGangs()
			go d.watchNotices()
			go d.serveMetrics()
		})
		failures := 1 // at the start the first failure counts
		for {
			err := d.reachConsul(ctx)
			if err == nil {
				failures = 0
			} else {
				failures++
			}
			select {
			case <-ctx.Done():
				return
			case ch <- d.withEngine(ctx, fingerprint(err, failures, d.notices.current())):
			}
			select {
			case <-ctx.Done():
				return
			case <-d.notices.changed:
			case <-time.After(fingerprintPeriod):
			}
		}
	}()
	return ch, nil
}

// fingerprint forgives one failure: a leader election is short.
func fingerprint(err error, failures int, n *notice.Notice) *drivers.Fingerprint {
	f := &drivers.Fingerprint{Health: drivers.HealthStateHealthy, HealthDescription: "gangs can be joined",
		Attributes: map[string]*structs.Attribute{
			"driver." + Name:              structs.NewBoolAttribute(true),
			"driver." + Name + ".version": structs.NewStringAttribute(Version),
		}}
	if err != nil && failures >= 2 {
		f.Health, f.HealthDescription = drivers.HealthStateUnhealthy, err.Error()
	}
	if n != nil {
		f.Health, f.HealthDescription = drivers.HealthStateUnhealthy, n.String()+"; "+notice.NoNewGangs
	}
	return f
}

// withEngine adds the container engine to what the node has, where there is one.
func (d *Driver) withEngine(ctx context.Context, f *drivers.Fingerprint) *drivers.Fingerprint {
	if d.engine == nil {
		return f
	}
	ctx, cancel := context.WithTimeout(ctx, 3*time.Second)
	defer cancel()
	if facts, err := d.engine.Facts(ctx); err == nil {
		f.Attributes["driver."+Name+".container.engine"] = structs.NewStringAttribute(facts.Name)
		f.Attributes["driver."+Name+".container.version"] = structs.NewStringAttribute(facts.Version)
	}
	return f
}

func (d *Driver) reachConsul(ctx context.Context) error {
	if d.consul == nil {
		return errors.New("the driver is not configured yet")
	}
	ctx, cancel := context.WithTimeout(ctx, 3*time.Second)
	defer cancel()
	err := consul.Reach(ctx, d.consul, d.settings.consul.Prefix, !d.allowed.Load())
	d.allowed.Store(err == nil)
	return err
}

// sweepGangs removes what gangs leave whose members all died at once, in Consul
// and in the container engine.
func (d *Driver) sweepGangs() {
	s := consul.NewSweeper(d.consul, d.settings.consul.Prefix)
	for {
		d.sweepContainers()
		select {
		case <-d.ctx.Done():
			return
		case <-time.After(sweepPeriod):
		}
		removed, err := s.Sweep(d.ctx, time.Now(), sweepAge)
		if err != nil {
			d.logger.Debug("leftovers of gangs cannot be looked for", "error", err)
		}
		for _, key := range removed {
			d.logger.Info("removed what a gang without members left", "namespace", key.Namespace, "job", key.Job, "group", key.Group)
		}
	}
}

// emit writes a task event: the kind leads the message.
func (d *Driver) emit(cfg *drivers.TaskConfig, kind, message string) {
	err := d.events.EmitEvent(&drivers.TaskEvent{TaskID: cfg.ID, TaskName: cfg.Name, AllocID: cfg.AllocID, Timestamp: time.Now(),
		Message: message, Annotations: map[string]string{"kind": kind}})
	d.logger.Info(message, "kind", kind, "alloc", cfg.AllocID)
	if err != nil {
		d.logger.Warn("a task event is lost", "error", err)
	}
}

// TaskEvents streams what emit writes.
func (d *Driver) TaskEvents(ctx context.Context) (<-chan *drivers.TaskEvent, error) {
	return d.events.TaskEvents(ctx)
}

// WaitTask tells the task's end.
func (d *Driver) WaitTask(ctx context.Context, id string) (<-chan *drivers.ExitResult, error) {
	t, ok := d.tasks.get(id)
	if !ok {
		return nil, drivers.ErrTaskNotFound
	}
	ch := make(chan *drivers.ExitResult, 1)
	go func() {
		defer close(ch)
		select {
		case <-ctx.Done():
		case <-d.ctx.Done():
		case <-t.done:
			ch <- t.exit()
		}
	}()
	return ch, nil
}

// StopTask leaves the gang: the signal, up to the timeout for the process,
// then a kill. It returns when the process is gone.
func (d *Driver) StopTask(id string, timeout time.Duration, signal string) error {
	t, ok := d.tasks.get(id)
	if !ok {
		return drivers.ErrTaskNotFound
	}
	sig, want := t.runner.stopsWith()
	if signal != "" {
		var err error
		if sig, err = parseSignal(signal); err != nil {
			return fmt.Errorf("signal: %w", err)
		}
	}
	if want > timeout {
		d.emit(t.cfg, "Warning", fmt.Sprintf("kill_timeout, as the client allows it, is %s: shorter than checkpoint.grace %s", timeout, want))
	}
	t.runner.stopWith(sig, timeout)
	t.askLeave(gang.LeaveAsked{})
	select {
	case <-t.done:
	case <-d.ctx.Done():
	}
	return nil
}

// DestroyTask forgets a task; with force it stops a running one first.
func (d *Driver) DestroyTask(id string, force bool) error {
	t, ok := d.tasks.get(id)
	if !ok {
		return drivers.ErrTaskNotFound
	}
	select {
	case <-t.done:
	default:
		if !force {
			return fmt.Errorf("task %s still runs", id)
		}
		if err := d.StopTask(id, 0, "SIGKILL"); err != nil {
			return err
		}
	}
	d.tasks.remove(id)
	return nil
}

// InspectTask tells how a task stands.
func (d *Driver) InspectTask(id string) (*drivers.TaskStatus, error) {
	t, ok := d.tasks.get(id)
	if !ok {
		return nil, drivers.ErrTaskNotFound
	}
	return t.status(), nil
}

// SignalTask sends a signal to this node's process of the running generation.
func (d *Driver) SignalTask(id string, signal string) error {
	t, ok := d.tasks.get(id)
	if !ok {
		return drivers.ErrTaskNotFound
	}
	sig, err := parseSignal(signal)
	if err != nil {
		return fmt.Errorf("signal: %w", err)
	}
	p := t.runner.current()
	if p == nil {
		return fmt.Errorf("signal: %w", errNotFormed)
	}
	return p.Signal(sig)
}

// TaskStats streams what the process and its children use.
func (d *Driver) TaskStats(ctx context.Context, id string, interval time.Duration) (<-chan *cstructs.TaskResourceUsage, error) {
	t, ok := d.tasks.get(id)
	if !ok {
		return nil, drivers.ErrTaskNotFound
	}
	ch := make(chan *cstructs.TaskResourceUsage)
	go t.stats(ctx, interval, ch)
	return ch, nil
}

// tasks are the driver's, by Nomad's task ID.
type tasks struct {
	mu   sync.Mutex
	byID map[string]*task
}

func (ts *tasks) get(id string) (*task, bool) {
	ts.mu.Lock()
	defer ts.mu.Unlock()
	t, ok := ts.byID[id]
	return t, ok
}

func (ts *tasks) put(t *task) {
	ts.mu.Lock()
	defer ts.mu.Unlock()
	ts.byID[t.cfg.ID] = t
}

func (ts *tasks) all() []*task {
	ts.mu.Lock()
	defer ts.mu.Unlock()
	return slices.Collect(maps.Values(ts.byID))
}

func (ts *tasks) remove(id string) {
	ts.mu.Lock()
	defer ts.mu.Unlock()
	delete(ts.byID, id)
}
