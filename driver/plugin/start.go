// SPDX-License-Identifier: MPL-2.0

package plugin

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"strconv"
	"sync"
	"time"

	"github.com/hashicorp/nomad/plugins/drivers"

	"github.com/nomad-gpu/nomad-gpu/driver/consul"
	"github.com/nomad-gpu/nomad-gpu/driver/environ"
	"github.com/nomad-gpu/nomad-gpu/driver/gang"
	"github.com/nomad-gpu/nomad-gpu/driver/member"
	"github.com/nomad-gpu/nomad-gpu/driver/notice"
	"github.com/nomad-gpu/nomad-gpu/driver/runtime"
	"github.com/nomad-gpu/nomad-gpu/driver/runtime/docker"
	"github.com/nomad-gpu/nomad-gpu/driver/runtime/process"
)

const (
	handleVersion = 1
	// disagreeGrace is longer than a stop with Nomad's default max_kill_timeout.
	disagreeGrace = time.Minute
)

// handleState is what Nomad keeps of a task. It is saved once, after
// StartTask; what is learnt later stands in the task's own directory.
type handleState struct {
	StartedAt time.Time
}

// StartTask checks the task and returns; the gang is waited for in the
// background, since nothing can stop a task whose StartTask still waits.
func (d *Driver) StartTask(cfg *drivers.TaskConfig) (*drivers.TaskHandle, *drivers.DriverNetwork, error) {
	if _, ok := d.tasks.get(cfg.ID); ok {
		return nil, nil, fmt.Errorf("task %s is started already", cfg.ID)
	}
	if n := d.notices.current(); n != nil {
		return nil, nil, fmt.Errorf("%s; %s", n, notice.NoNewGangs)
	}
	t, err := d.newTask(cfg, time.Now())
	if err != nil {
		return nil, nil, err
	}
	if t.runner.spec.Container != nil {
		if err := d.reachEngine(); err != nil {
			return nil, nil, err
		}
	}
	handle := drivers.NewTaskHandle(handleVersion)
	handle.Config = cfg
	if err := handle.SetDriverState(&handleState{StartedAt: t.started}); err != nil {
		return nil, nil, fmt.Errorf("keep the task's state: %w", err)
	}
	d.begin(t)
	return handle, nil, nil
}

// RecoverTask goes on with a task of the driver's former life.
func (d *Driver) RecoverTask(handle *drivers.TaskHandle) error {
	if handle == nil || handle.Config == nil {
		return errors.New("recover: the handle holds no task")
	}
	if _, ok := d.tasks.get(handle.Config.ID); ok {
		return nil
	}
	var kept handleState
	if err := handle.GetDriverState(&kept); err != nil {
		return fmt.Errorf("recover task %s: %w", handle.Config.ID, err)
	}
	t, err := d.newTask(handle.Config, kept.StartedAt)
	if err != nil {
		return fmt.Errorf("recover task %s: %w", handle.Config.ID, err)
	}
	state, err := t.state.load()
	if err != nil {
		return fmt.Errorf("recover task %s: %w", handle.Config.ID, err)
	}
	if state != nil {
		ctx, cancel := context.WithTimeout(d.ctx, 10*time.Second)
		defer cancel()
		t.options.Resume = state
		if g := state.Record.Generation; g > 0 && t.runner.attach(ctx, g) == nil {
			t.options.Running = true
			if state.Record.Phase == gang.Started {
				t.runner.watch(g, t.runner.current(), t.runner.madeAt(g))
			}
		}
		d.logger.Info("recovered", "alloc", handle.Config.AllocID, "generation", state.Record.Generation, "phase", state.Record.Phase, "attached", t.options.Running)
	}
	d.begin(t)
	return nil
}

// begin runs a task; a notice that came while it was made counts for it too.
func (d *Driver) begin(t *task) {
	d.tasks.put(t)
	if n := d.notices.current(); n != nil {
		d.interrupt(t, *n)
	}
	go t.run(d.ctx)
}

// newTask checks all that can be checked before the gang is joined.
func (d *Driver) newTask(cfg *drivers.TaskConfig, started time.Time) (*task, error) {
	var tc TaskConfig
	if err := cfg.DecodeDriverConfig(&tc); err != nil {
		return nil, fmt.Errorf("config: %w", err)
	}
	ts, err := tc.read()
	if err != nil {
		return nil, fmt.Errorf("config: %w", err)
	}
	if err := environ.Validate(cfg.Env, cfg.DeviceEnv); err != nil {
		return nil, err
	}
	if cfg.NetworkIsolation != nil && cfg.NetworkIsolation.Path != "" {
		return nil, errors.New(`network: mode "bridge" gives each allocation a network of its own that the other nodes do not reach; allowed is mode "host"`)
	}
	if cfg.Resources == nil {
		return nil, errors.New("resources: none")
	}
	numbers, host, err := ports(cfg.Resources.Ports, tc.Gang.Ports)
	if err != nil {
		return nil, err
	}
	address, err := d.settings.trainingAddress(host)
	if err != nil {
		return nil, err
	}
	gpus := environ.Devices(cfg.DeviceEnv)
	cores, memory := "", int64(0)
	if l := cfg.Resources.LinuxResources; l != nil {
		cores, memory = l.CpusetCpus, max(l.MemoryLimitBytes, 0)
	}
	box, err := tc.container(d.settings.container, cfg, gpus, memory)
	if err != nil {
		return nil, fmt.Errorf("config: %w", err)
	}
	slots := tc.NprocPerNode
	if slots == 0 {
		slots = max(len(gpus), 1)
	}
	index, _ := strconv.Atoi(cfg.Env["NOMAD_ALLOC_INDEX"])
	self := gang.Member{Alloc: cfg.AllocID, Index: index, Node: cfg.NodeName, Topology: d.settings.topology, Address: address,
		Ports: numbers, GPUs: gpus, Slots: slots, Version: Version}
	if err := self.Validate(); err != nil {
		return nil, err
	}
	ras := 0
	if p, ok := cfg.Resources.Ports.Get(rasLabel); ok {
		ras = p.Value
	}
	key := gang.Key{Region: cfg.Env["NOMAD_REGION"], Namespace: cfg.Namespace, Job: cfg.JobID, Group: cfg.TaskGroupName, Run: tc.Gang.Run}
	dir := cfg.TaskDir()
	workDir := tc.WorkDir
	if workDir == "" && box == nil {
		workDir = dir.Dir // a container has its image's
	}
	own := filepath.Join(dir.Dir, ".nccl")
	var where runtime.Runtime = process.Runtime{Marker: "NOMAD_ALLOC_ID=" + cfg.AllocID}
	group := d.settings.cgroup.cgroup(cfg, gpus)
	if box != nil {
		where = docker.Runtime{Engine: d.engine, Report: func(text string) { d.emit(cfg, "Image", text) }}
		group = reserved(d.settings.cgroup.PIDsLimit, cfg)
	}
	t := &task{cfg: cfg, started: started, leave: make(chan gang.LeaveAsked, 1), done: make(chan struct{}),
		state: &stateFile{path: filepath.Join(own, "state.json")},
		runner: &runner{
			runtime: where,
			dir:     filepath.Join(own, "generations"),
			spec: runtime.Spec{Command: tc.Command, Args: tc.Args, Dir: workDir, User: cfg.User, Stdout: cfg.StdoutPath, Stderr: cfg.StderrPath,
				Limits: ts.limits, Cgroup: group, Container: box, Warn: d.warnOnce(cfg)},
			locality: tc.Locality, cores: cores,
			settings: environ.Settings{Task: cfg.Env, Device: cfg.DeviceEnv, Interface: interfaceOf(address), Hostfile: filepath.Join(dir.LocalDir, "hostfile"),
				CheckpointDir: tc.Checkpoint.Dir, Framework: tc.Framework, CheckpointKeep: tc.Checkpoint.Keep,
				RASPort: ras, PerGPU: tc.Launch == launchPerGPU, NCCL: d.settings.nccl.environment(tc.Gang.Priority)},
			check: d.preflightOf(cfg, ts.preflight, len(gpus), box, ts.limits),
			exits: make(chan gang.Exit, 8), signal: ts.signal, grace: ts.grace, failureGrace: ts.failureGrace,
		}}
	t.runner.progress = d.followerOf(cfg, ts.progress, key, slots, ras, gpus)
	t.options = member.Options{Spec: ts.spec, Self: self, Key: key, Runner: t.runner, Leave: t.leave,
		Pool: cmp.Or(tc.Gang.Pool, d.settings.pool), Priority: tc.Gang.Priority,
		Store:      consul.New(d.consul, d.settings.consul.Prefix, key, "nccl "+cfg.AllocID, d.settings.sessionTTL),
		SessionTTL: d.settings.sessionTTL, ConsulGrace: d.settings.consulGrace, DisagreeGrace: disagreeGrace,
		Save: t.state.save, Report: func(e member.Event) { d.emit(cfg, e.Kind, e.Message) }}
	d.watched(t)
	return t, nil
}

// warnOnce tells each warning of a task once, however many generations meet it.
func (d *Driver) warnOnce(cfg *drivers.TaskConfig) func(string) {
	var mu sync.Mutex
	told := map[string]bool{}
	return func(message string) {
		mu.Lock()
		defer mu.Unlock()
		if !told[message] {
			told[message] = true
			d.emit(cfg, "Warning", message)
		}
	}
}
