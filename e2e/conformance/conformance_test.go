// SPDX-License-Identifier: MPL-2.0

// Package conformance runs the task driver under Nomad's own test harness for
// drivers. It is a module of its own: the harness needs an older go-plugin than
// the driver uses.
package conformance

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/hashicorp/go-hclog"
	"github.com/hashicorp/nomad/helper/pluginutils/hclutils"
	"github.com/hashicorp/nomad/helper/uuid"
	"github.com/hashicorp/nomad/nomad/structs"
	"github.com/hashicorp/nomad/plugins/base"
	"github.com/hashicorp/nomad/plugins/drivers"
	"github.com/hashicorp/nomad/plugins/drivers/testutils"
	"github.com/shoenig/test/must"
	"github.com/shoenig/test/wait"

	"github.com/nomad-gpu/nomad-gpu/driver/consul/consultest"
	"github.com/nomad-gpu/nomad-gpu/driver/plugin"
	"github.com/nomad-gpu/nomad-gpu/driver/runtime/docker"
	"github.com/nomad-gpu/nomad-gpu/driver/runtime/process"
)

// The test's program is also the tasks' supervisor, and the first process of
// their containers.
func TestMain(m *testing.M) {
	for _, role := range []func([]string) (bool, error){process.Main, docker.Main} {
		if asked, err := role(os.Args); asked {
			if err != nil {
				os.Exit(1)
			}
			return
		}
	}
	os.Exit(m.Run())
}

// bench is the driver behind Nomad's harness, on a real Consul.
type bench struct {
	*testutils.DriverHarness
	t      *testing.T
	consul *consultest.Server
	end    func()   // ends the driver as the end of its process would
	tasks  []string // to be destroyed
}

func newBench(t *testing.T, consul *consultest.Server, more ...string) *bench {
	t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	b := &bench{t: t, consul: consul, end: cancel,
		DriverHarness: testutils.NewDriverHarness(t, sending{plugin.New(ctx, hclog.NewNullLogger())})}
	schema, err := b.ConfigSchema()
	must.NoError(t, err)
	var config plugin.Config
	hclutils.NewConfigParser(schema).ParseHCL(t, fmt.Sprintf("config {\n consul { address = %q }\n session_ttl = \"10s\"\n%s}", consul.Address, strings.Join(more, "\n")), &config)
	var packed []byte
	must.NoError(t, base.MsgPackEncode(&packed, config))
	must.NoError(t, b.SetConfig(&base.Config{PluginConfig: packed}))
	events, err := b.Impl().TaskEvents(ctx)
	must.NoError(t, err)
	go func() { // as Nomad does: a driver whose events nobody reads waits
		for range events {
		}
	}()
	t.Cleanup(func() {
		for _, id := range b.tasks {
			if err := b.Impl().DestroyTask(id, true); err != nil {
				must.ErrorContains(t, err, drivers.ErrTaskNotFound.Error())
			}
		}
		cancel()
		b.Kill()
	})
	return b
}

// sending returns from a command when its output is with the client, which
// Nomad waits for itself, but the harness does not: a write to a pipe waits
// until what was read before has been sent.
type sending struct{ *plugin.Driver }

func (s sending) ExecTaskStreaming(ctx context.Context, id string, o *drivers.ExecOptions) (*drivers.ExitResult, error) {
	r, err := s.Driver.ExecTaskStreaming(ctx, id, o)
	o.Stdout.Write(nil)
	o.Stderr.Write(nil)
	return r, err
}

// script is the config block of a gang of one that runs a script of the tests' own.
func script(text string) string {
	return fmt.Sprintf("config {\n command = \"/bin/sh\"\n args = [\"-c\", %q]\n gang {\n nodes = 1\n restarts = 0\n }\n}", text)
}

var port atomic.Int32

// task is a task in an allocation's directory, with the log as Nomad keeps it.
func (b *bench) task(config string) *drivers.TaskConfig {
	b.t.Helper()
	n := 20000 + 2*int(port.Add(1))
	alloc := uuid.Generate()
	cfg := &drivers.TaskConfig{ID: alloc + "/train/" + uuid.Short(), Name: "train", AllocID: alloc, JobID: "job-" + alloc[:8], JobName: "job", Namespace: "default",
		TaskGroupName: "gang", NodeName: "node", NodeID: uuid.Generate(),
		Resources: &drivers.Resources{
			NomadResources: &structs.AllocatedTaskResources{
				Cpu: structs.AllocatedCpuResources{CpuShares: 500}, Memory: structs.AllocatedMemoryResources{MemoryMB: 256}},
			LinuxResources: &drivers.LinuxResources{CPUShares: 500, MemoryLimitBytes: 256 << 20},
			Ports:          &structs.AllocatedPorts{{Label: "gang_a", Value: n, HostIP: "127.0.0.1"}, {Label: "gang_b", Value: n + 1, HostIP: "127.0.0.1"}}}}
	schema, err := b.TaskConfigSchema()
	must.NoError(b.t, err)
	var c plugin.TaskConfig
	hclutils.NewConfigParser(schema).ParseHCL(b.t, config, &c)
	must.NoError(b.t, cfg.EncodeConcreteDriverConfig(&c))
	remove := b.MkAllocDir(cfg, true)
	b.t.Cleanup(func() {
		remove()
		must.NoError(b.t, os.Remove(filepath.Dir(cfg.AllocDir))) // which the harness forgets
	})
	return cfg
}

func (b *bench) start(config string) (*drivers.TaskConfig, *drivers.TaskHandle) {
	b.t.Helper()
	cfg := b.task(config)
	h, network, err := b.StartTask(cfg)
	must.NoError(b.t, err)
	must.Nil(b.t, network)
	b.tasks = append(b.tasks, cfg.ID)
	b.t.Cleanup(func() { b.Impl().DestroyTask(cfg.ID, true) }) // before its directory goes
	must.NoError(b.t, b.WaitUntilStarted(cfg.ID, time.Minute))
	return cfg, h
}

// exit waits for the task's end.
func (b *bench) exit(cfg *drivers.TaskConfig) *drivers.ExitResult {
	b.t.Helper()
	ch, err := b.WaitTask(b.t.Context(), cfg.ID)
	must.NoError(b.t, err)
	select {
	case r := <-ch:
		return r
	case <-time.After(time.Minute):
		b.t.Fatal("the task does not end")
		return nil
	}
}

// log waits until a file that the task writes, or its output, holds the words.
func (b *bench) log(cfg *drivers.TaskConfig, words string) {
	b.t.Helper()
	must.Wait(b.t, wait.InitialSuccess(wait.ErrorFunc(func() error {
		data, err := os.ReadFile(filepath.Join(cfg.TaskDir().LogDir, "train.stdout.0"))
		if !strings.Contains(string(data), words) {
			return fmt.Errorf("no %q in %q: %v", words, data, err)
		}
		return nil
	}), wait.Timeout(time.Minute), wait.Gap(20*time.Millisecond)))
}

func TestTheDriverSaysWhatItIs(t *testing.T) {
	b := newBench(t, consultest.Start(t))
	info, err := b.PluginInfo()
	must.NoError(t, err)
	must.Eq(t, &base.PluginInfoResponse{Type: base.PluginTypeDriver, PluginApiVersions: []string{drivers.ApiVersion010}, PluginVersion: plugin.Version, Name: plugin.Name}, info)
	caps, err := b.Capabilities()
	must.NoError(t, err)
	must.True(t, caps.Exec)
	must.True(t, caps.SendSignals)
	must.Eq(t, drivers.FSIsolationNone, caps.FSIsolation)
	ch, err := b.Fingerprint(t.Context())
	must.NoError(t, err)
	f := <-ch
	must.NoError(t, f.Err)
	must.Eq(t, drivers.HealthStateHealthy, f.Health, must.Sprint(f.HealthDescription))
	value, ok := f.Attributes["driver."+plugin.Name].GetBool()
	must.True(t, ok && value)
}

func TestATasksEndIsTold(t *testing.T) {
	consul := consultest.Start(t)
	for name, c := range map[string]struct {
		script string
		code   int
		signal int
	}{
		"success":  {"exit 0", 0, 0},
		"a code":   {"exit 43", 43, 0},
		"a signal": {"kill -9 $$", 1, 9},
	} {
		t.Run(name, func(t *testing.T) {
			b := newBench(t, consul)
			cfg, _ := b.start(script(c.script))
			x := b.exit(cfg)
			must.Eq(t, []int{c.code, c.signal}, []int{x.ExitCode, x.Signal}, must.Sprint(x.Err))
			must.Eq(t, c.code == 0 && c.signal == 0, x.Successful())
			must.Eq(t, x, b.exit(cfg), must.Sprint("it may be asked again"))
			s, err := b.InspectTask(cfg.ID)
			must.NoError(t, err)
			must.Eq(t, drivers.TaskStateExited, s.State)
			must.Eq(t, x.ExitCode, s.ExitResult.ExitCode)
			must.False(t, s.CompletedAt.Before(s.StartedAt))
			must.NoError(t, b.DestroyTask(cfg.ID, false))
			_, err = b.InspectTask(cfg.ID)
			must.ErrorContains(t, err, drivers.ErrTaskNotFound.Error())
		})
	}
}

func TestATaskHasItsDirectoriesAndItsLog(t *testing.T) {
	b := newBench(t, consultest.Start(t))
	cfg, _ := b.start(script(`echo it is said; echo written > $NOMAD_TASK_DIR/file; echo shared > $NOMAD_ALLOC_DIR/data/file; pwd > $NOMAD_SECRETS_DIR/file`))
	must.True(t, b.exit(cfg).Successful())
	b.log(cfg, "it is said\n")
	for file, want := range map[string]string{
		filepath.Join(cfg.TaskDir().LocalDir, "file"):               "written",
		filepath.Join(cfg.TaskDir().SharedAllocDir, "data", "file"): "shared",
		filepath.Join(cfg.TaskDir().SecretsDir, "file"):             cfg.TaskDir().Dir,
	} {
		data, err := os.ReadFile(file)
		must.NoError(t, err)
		must.Eq(t, want, strings.TrimSpace(string(data)))
	}
}

func TestATaskIsStoppedByItsSignalAndThenKilled(t *testing.T) {
	b := newBench(t, consultest.Start(t))
	cfg, _ := b.start(script(`trap "echo interrupted; exit 0" INT; echo ready; while true; do sleep 0.05; done`))
	b.log(cfg, "ready")
	must.ErrorContains(t, b.DestroyTask(cfg.ID, false), "still runs")
	must.NoError(t, b.StopTask(cfg.ID, time.Minute, "SIGINT"))
	b.log(cfg, "interrupted")
	must.True(t, b.exit(cfg).Successful())

	cfg, _ = b.start(script(`trap "" TERM INT; setsid sleep 1000 & echo ready; while true; do sleep 0.05; done`))
	b.log(cfg, "ready")
	must.NoError(t, b.StopTask(cfg.ID, 100*time.Millisecond, "SIGINT"))
	must.Eq(t, 9, b.exit(cfg).Signal)
	must.NoError(t, b.DestroyTask(cfg.ID, false))

	cfg, _ = b.start(script("exec sleep 1000"))
	must.NoError(t, b.DestroyTask(cfg.ID, true))
	must.ErrorContains(t, b.StopTask(cfg.ID, 0, "SIGINT"), drivers.ErrTaskNotFound.Error())
}

func TestATaskGetsSignals(t *testing.T) {
	b := newBench(t, consultest.Start(t))
	cfg, _ := b.start(script(`trap "echo got usr1" USR1; echo ready; while true; do sleep 0.05; done`))
	b.log(cfg, "ready")
	must.ErrorContains(t, b.SignalTask(cfg.ID, "SIGNOTHING"), `"SIGNOTHING"`)
	must.NoError(t, b.SignalTask(cfg.ID, "SIGUSR1"))
	b.log(cfg, "got usr1")
	must.ErrorContains(t, b.SignalTask("no such task", "SIGUSR1"), drivers.ErrTaskNotFound.Error())
}

func TestCommandsRunBesideATask(t *testing.T) {
	b := newBench(t, consultest.Start(t))
	cfg, _ := b.start(script("echo ready; exec sleep 1000"))
	b.log(cfg, "ready")
	r, err := b.ExecTask(cfg.ID, []string{"/bin/sh", "-c", "echo $GANG_GENERATION in $PWD; echo oh >&2; exit 5"}, time.Minute)
	must.NoError(t, err)
	must.Eq(t, []any{5, "1 in " + cfg.TaskDir().Dir + "\n", "oh\n"}, []any{r.ExitResult.ExitCode, string(r.Stdout), string(r.Stderr)})
	_, err = b.ExecTask(cfg.ID, []string{"sleep", "1000"}, 100*time.Millisecond)
	must.ErrorContains(t, err, context.DeadlineExceeded.Error())
	if os.Geteuid() == 0 {
		testutils.ExecTaskStreamingConformanceTests(t, b.DriverHarness, cfg.ID)
	} else { // the rest looks for the task's cgroup, which only root may make
		testutils.TestExecTaskStreamingBasicResponses(t, b.DriverHarness, cfg.ID)
	}
}

func TestATasksUseIsTold(t *testing.T) {
	b := newBench(t, consultest.Start(t))
	cfg, _ := b.start(script("echo ready; while true; do :; done"))
	b.log(cfg, "ready")
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	ch, err := b.TaskStats(ctx, cfg.ID, 100*time.Millisecond)
	must.NoError(t, err)
	for {
		u, ok := <-ch
		must.True(t, ok)
		if r := u.ResourceUsage; r.MemoryStats.RSS > 0 && r.CpuStats.Percent > 0 {
			must.SliceContains(t, r.MemoryStats.Measured, "RSS")
			must.SliceContains(t, r.CpuStats.Measured, "Percent")
			break
		}
	}
	must.NoError(t, b.StopTask(cfg.ID, 0, "SIGKILL"))
	for range ch { // it ends with the task
	}
}

func TestATaskSurvivesTheDriver(t *testing.T) {
	consul := consultest.Start(t)
	first := newBench(t, consul)
	flag := filepath.Join(t.TempDir(), "go")
	cfg, handle := first.start(script("echo ready $$; while [ ! -e " + flag + " ]; do sleep 0.05; done; exit 6"))
	first.log(cfg, "ready")
	before, err := first.InspectTask(cfg.ID)
	must.NoError(t, err)
	first.end()

	second := newBench(t, consul)
	must.NoError(t, second.RecoverTask(handle))
	second.tasks = append(second.tasks, cfg.ID)
	must.NoError(t, second.RecoverTask(handle), must.Sprint("once more changes nothing"))
	after, err := second.InspectTask(cfg.ID)
	must.NoError(t, err)
	must.Eq(t, drivers.TaskStateRunning, after.State)
	must.Eq(t, before.DriverAttributes["pid"], after.DriverAttributes["pid"])
	must.True(t, before.StartedAt.Equal(after.StartedAt))
	code, out, _ := testutils.ExecTask(t, second.DriverHarness, cfg.ID, "echo still here", false, "")
	must.Eq(t, []any{0, "still here\n"}, []any{code, out})
	must.NoError(t, os.WriteFile(flag, nil, 0o600))
	must.Eq(t, 6, second.exit(cfg).ExitCode)
	must.NoError(t, second.DestroyTask(cfg.ID, false))

	handle.Config = nil
	must.Error(t, second.Impl().RecoverTask(handle))
	must.Error(t, second.Impl().RecoverTask(nil))
}

func TestMilestonesAreTheTasksEvents(t *testing.T) {
	b := newBench(t, consultest.Start(t))
	ch, err := b.Impl().TaskEvents(t.Context())
	must.NoError(t, err)
	cfg, _ := b.start(script("exit 0"))
	for {
		select {
		case e := <-ch:
			must.NoError(t, e.Err)
			must.Eq(t, []string{cfg.ID, cfg.AllocID, cfg.Name}, []string{e.TaskID, e.AllocID, e.TaskName})
			must.False(t, e.Timestamp.IsZero())
			if strings.Contains(e.Message, "all 1 members are prepared and start") {
				return
			}
		case <-time.After(time.Minute):
			t.Fatal("no event tells of the start")
		}
	}
}

// A process of the host has the host's resolver and the host's files: what it
// would run without is refused.
func TestWhatAHostProcessCannotHaveIsRefused(t *testing.T) {
	b := newBench(t, consultest.Start(t))
	caps, err := b.Impl().Capabilities() // Nomad's own client loses it
	must.NoError(t, err)
	must.Eq(t, drivers.MountConfigSupportAll, caps.MountConfigs, must.Sprint("containers mount"))
	for want, change := range map[string]func(*drivers.TaskConfig){
		"network: dns: a process of the host asks the host's resolver": func(cfg *drivers.TaskConfig) {
			cfg.DNS = &drivers.DNSConfig{Servers: []string{"192.0.2.1"}}
		},
		`allowed is mode "host"`: func(cfg *drivers.TaskConfig) {
			cfg.NetworkIsolation = &drivers.NetworkIsolationSpec{Mode: drivers.NetIsolationModeGroup, Path: "/var/run/netns/x"}
		},
		`volume_mount: destination "/data"; a process of the host sees the host's paths, allowed is "/mnt/shared"`: func(cfg *drivers.TaskConfig) {
			cfg.Mounts = []*drivers.MountConfig{{TaskPath: "/data", HostPath: "/mnt/shared", PropagationMode: structs.VolumeMountPropagationPrivate}}
		},
	} {
		cfg := b.task(script("exit 0"))
		change(cfg)
		_, _, err := b.StartTask(cfg)
		must.ErrorContains(t, err, want)
	}
	cfg := b.task(script("exit 0"))
	cfg.Mounts = []*drivers.MountConfig{
		{TaskPath: "/mnt/shared", HostPath: "/mnt/shared", PropagationMode: structs.VolumeMountPropagationPrivate},
		{TaskPath: "/usr/local/tool", HostPath: "/opt/tool", Readonly: true}} // a device plugin's
	_, _, err = b.StartTask(cfg)
	must.NoError(t, err)
	must.True(t, b.exit(cfg).Successful())
	// Nomad's own test of a resolver, which it skips for tasks on the host.
	testutils.TestTaskDNSConfig(t, b.DriverHarness, cfg.ID, nil)
}
