// SPDX-License-Identifier: MPL-2.0

package plugin

import (
	"context"
	"errors"
	"os"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/hashicorp/go-hclog"
	goplugin "github.com/hashicorp/go-plugin"
	"github.com/hashicorp/hcl"
	"github.com/hashicorp/nomad/helper/pluginutils/hclspecutils"
	"github.com/hashicorp/nomad/helper/pluginutils/hclutils"
	"github.com/hashicorp/nomad/plugins/base"
	"github.com/hashicorp/nomad/plugins/device"
	"github.com/shoenig/test/must"
	"github.com/zclconf/go-cty/cty/msgpack"

	"github.com/nomad-gpu/nomad-gpu/device/gpu"
	"github.com/nomad-gpu/nomad-gpu/device/health"
	"github.com/nomad-gpu/nomad-gpu/device/nvml"
)

// patience bounds waiting for what must happen; nothing is timed by it.
const patience = 20 * time.Second

// scripted is a source whose answers a test sets.
type scripted struct {
	mu     sync.Mutex
	answer func() (*gpu.Machine, error)
	calls  int
	called chan struct{}
}

func newScripted(answer func() (*gpu.Machine, error)) *scripted {
	return &scripted{answer: answer, called: make(chan struct{}, 1)}
}

func (s *scripted) set(answer func() (*gpu.Machine, error)) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.answer = answer
	s.calls = 0
}

func (s *scripted) Machine() (*gpu.Machine, error) {
	s.mu.Lock()
	answer := s.answer
	s.calls++
	s.mu.Unlock()
	select {
	case s.called <- struct{}{}:
	default:
	}
	return answer()
}

func (s *scripted) Samples() (map[string]gpu.Sample, error) {
	m, err := s.Machine()
	if err != nil {
		return nil, err
	}
	return (&simulation{machine: m}).Samples()
}

func (s *scripted) Observe() map[string]health.Observation { return nil }

// awaitCalls waits until the present answer has been given n times.
func (s *scripted) awaitCalls(t *testing.T, n int) {
	t.Helper()
	deadline := time.After(patience)
	for {
		s.mu.Lock()
		calls := s.calls
		s.mu.Unlock()
		if calls >= n {
			return
		}
		select {
		case <-s.called:
		case <-deadline:
			t.Fatalf("the source was asked %d times, not %d", calls, n)
		}
	}
}

func always(m *gpu.Machine) func() (*gpu.Machine, error) {
	return func() (*gpu.Machine, error) { return m, nil }
}

func failing(err error) func() (*gpu.Machine, error) {
	return func() (*gpu.Machine, error) { return nil, err }
}

// dispense connects to the plugin over gRPC, as Nomad does.
func dispense(t *testing.T, d *Device) device.DevicePlugin {
	t.Helper()
	client, _ := goplugin.TestPluginGRPCConn(t, false, map[string]goplugin.Plugin{
		base.PluginTypeBase:   &base.PluginBase{Impl: d},
		base.PluginTypeDevice: &device.PluginDevice{Impl: d},
	})
	t.Cleanup(func() { client.Close() }) // ends the server too
	raw, err := client.Dispense(base.PluginTypeDevice)
	must.NoError(t, err)
	plugin, ok := raw.(device.DevicePlugin)
	must.True(t, ok)
	return plugin
}

// encode turns the text of a config block into what Nomad sends: through the
// plugin's own schema.
func encode(t *testing.T, plugin device.DevicePlugin, text string) []byte {
	t.Helper()
	schema, err := plugin.ConfigSchema()
	must.NoError(t, err)
	spec, diagnostics := hclspecutils.Convert(schema)
	must.False(t, diagnostics.HasErrors(), must.Sprint(diagnostics))
	var parsed any
	must.NoError(t, hcl.Decode(&parsed, text))
	value, diagnostics, errs := hclutils.ParseHclInterface(parsed, spec, nil)
	must.False(t, diagnostics.HasErrors(), must.Sprint(diagnostics, errs))
	encoded, err := msgpack.Marshal(value, value.Type())
	must.NoError(t, err)
	return encoded
}

func configure(t *testing.T, plugin device.DevicePlugin, text string) error {
	return plugin.SetConfig(&base.Config{ApiVersion: device.ApiVersion010, PluginConfig: encode(t, plugin, text)})
}

// newTestDevice is a plugin over a scripted source that reads every
// millisecond.
func newTestDevice(s *scripted) *Device {
	d := New("0.0.0", hclog.NewNullLogger())
	d.firstWait = patience
	d.source = s
	d.config = config{enabled: true, period: time.Millisecond, healthPeriod: time.Millisecond}
	d.monitor = NewMonitor(health.Rules())
	return d
}

func receive[T any](t *testing.T, ch <-chan T) T {
	t.Helper()
	select {
	case v, ok := <-ch:
		must.True(t, ok, must.Sprint("the stream was closed"))
		return v
	case <-time.After(patience):
		t.Fatal("nothing was sent")
		panic("unreachable")
	}
}

func TestNomadsWayThroughASimulatedMachine(t *testing.T) {
	plugin := dispense(t, New("0.1.0", hclog.NewNullLogger()))
	info, err := plugin.PluginInfo()
	must.NoError(t, err)
	must.Eq(t, &base.PluginInfoResponse{
		Type: base.PluginTypeDevice, PluginApiVersions: []string{device.ApiVersion010}, PluginVersion: "0.1.0", Name: "nomad-device-gpu",
	}, info)

	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	must.NoError(t, configure(t, plugin, `
		profile            = "dgx-h100"
		profile_seed       = "node-1"
		fingerprint_period = "1h"
		group_by           = "island"
		health {
			period         = "1h"
			disabled_rules = ["thermal"]
		}
		state_dir          = "`+t.TempDir()+`"
		nccl_topo_file     = "write"
		ignored_gpu_ids    = ["`+simulated(t, "dgx-h100").GPUs[7].UUID+`"]
	`))
	fingerprints, err := plugin.Fingerprint(ctx)
	must.NoError(t, err)
	first := receive(t, fingerprints)
	must.NoError(t, first.Error)
	must.Len(t, 1, first.Devices)
	must.NoError(t, first.Devices[0].Validate())
	must.Len(t, 7, first.Devices[0].Devices)

	var ids []string
	for _, d := range first.Devices[0].Devices[:4] {
		ids = append(ids, d.ID)
	}
	reservation, err := plugin.Reserve(ids)
	must.NoError(t, err)
	must.Len(t, 0, reservation.Mounts)
	must.Len(t, 0, reservation.Devices)
	must.MapContainsKeys(t, reservation.Envs, []string{EnvNVIDIA, EnvCUDA, EnvTopology})
	topology, err := os.ReadFile(reservation.Envs[EnvTopology])
	must.NoError(t, err)
	must.StrContains(t, string(topology), `<cpu numaid="1"`)
	must.EqOp(t, reservation.Envs[EnvCUDA], reservation.Envs["GPU_DEVICES_NVIDIA_H100_80GB_HBM3"])
	_, err = plugin.Reserve([]string{"GPU-none"})
	must.ErrorContains(t, err, `"GPU-none"`)

	stats, err := plugin.Stats(ctx, time.Millisecond)
	must.NoError(t, err)
	for range 3 {
		s := receive(t, stats)
		must.Len(t, 1, s.Groups)
		must.MapLen(t, 7, s.Groups[0].InstanceStats)
		for _, instance := range s.Groups[0].InstanceStats {
			must.NotNil(t, instance.Summary)
			must.NotNil(t, instance.Stats)
		}
	}
}

func TestABadConfigurationIsRefusedOverTheWire(t *testing.T) {
	plugin := dispense(t, New("0.1.0", hclog.NewNullLogger()))
	must.ErrorContains(t, configure(t, plugin, `profile = "dgx-2"`), `profile "dgx-2" is not known; allowed are dgx-a100`)
	must.NoError(t, configure(t, plugin, ``))
	must.NoError(t, configure(t, plugin, `enabled = false`))
	fingerprints, err := plugin.Fingerprint(t.Context())
	must.NoError(t, err)
	must.ErrorContains(t, receive(t, fingerprints).Error, device.ErrPluginDisabled.Error())
}

func TestNothingWorksBeforeTheConfiguration(t *testing.T) {
	d := New("0.1.0", hclog.NewNullLogger())
	_, err := d.Fingerprint(t.Context())
	must.ErrorContains(t, err, "not been configured")
	_, err = d.Stats(t.Context(), time.Second)
	must.ErrorContains(t, err, "not been configured")
	_, err = d.Reserve([]string{"GPU-1"})
	must.ErrorContains(t, err, "not been configured")
}

func TestOnlyChangesAreSent(t *testing.T) {
	m := simulated(t, "dgx-a100")
	source := newScripted(always(m))
	plugin := dispense(t, newTestDevice(source))
	fingerprints, err := plugin.Fingerprint(t.Context())
	must.NoError(t, err)
	must.Len(t, 8, receive(t, fingerprints).Devices[0].Devices)

	source.set(always(simulated(t, "dgx-a100"))) // equal, but not the same
	source.awaitCalls(t, 10)
	must.EqOp(t, 0, len(fingerprints))

	fewer := simulated(t, "dgx-a100")
	fewer.GPUs, fewer.Paths = fewer.GPUs[:7], fewer.Paths[:7]
	source.set(always(fewer))
	must.Len(t, 7, receive(t, fingerprints).Devices[0].Devices)
}

func TestReadingsThatFailNeverEndTheStream(t *testing.T) {
	m := simulated(t, "dgx-a100")
	source := newScripted(failing(errors.New("no driver")))
	d := newTestDevice(source)
	plugin := dispense(t, d)
	fingerprints, err := plugin.Fingerprint(t.Context())
	must.NoError(t, err)
	must.Len(t, 0, receive(t, fingerprints).Devices)

	source.set(always(m))
	must.True(t, receive(t, fingerprints).Devices[0].Devices[0].Healthy)

	source.set(failing(errors.New("driver gone")))
	group := receive(t, fingerprints).Devices[0]
	must.NoError(t, group.Validate())
	must.Len(t, 8, group.Devices)
	for _, instance := range group.Devices {
		must.False(t, instance.Healthy)
		must.EqOp(t, "driver gone", instance.HealthDesc)
	}
	must.EqOp(t, "0", shown(group)["healthy_count"])
	must.EqOp(t, "driver gone", shown(group)["fault"])

	source.set(func() (*gpu.Machine, error) { panic("a bug in the source") })
	must.StrContains(t, receive(t, fingerprints).Devices[0].Devices[0].HealthDesc, "a bug in the source")

	source.set(always(m))
	must.True(t, receive(t, fingerprints).Devices[0].Devices[0].Healthy)
	must.EqOp(t, "", m.GPUs[0].Fault) // what was read is not written to
}

func TestASourceThatHangsDoesNotHoldUpTheNode(t *testing.T) {
	release := make(chan struct{})
	source := newScripted(func() (*gpu.Machine, error) {
		<-release
		return simulated(t, "dgx-a100"), nil
	})
	d := newTestDevice(source)
	d.firstWait = time.Millisecond
	plugin := dispense(t, d)
	fingerprints, err := plugin.Fingerprint(t.Context())
	must.NoError(t, err)
	must.Len(t, 0, receive(t, fingerprints).Devices)
	close(release)
	must.Len(t, 8, receive(t, fingerprints).Devices[0].Devices)
}

func TestAReplacedDriverEndsTheProcess(t *testing.T) {
	source := newScripted(failing(nvml.ErrStale))
	d := newTestDevice(source)
	restarted := make(chan struct{}, 100)
	d.restart = func() { restarted <- struct{}{} }
	_, err := dispense(t, d).Fingerprint(t.Context())
	must.NoError(t, err)
	receive(t, restarted)
}

func TestTheStreamsEndWithTheirContext(t *testing.T) {
	d := newTestDevice(newScripted(always(simulated(t, "dgx-a100"))))
	ctx, cancel := context.WithCancel(t.Context())
	fingerprints, err := d.Fingerprint(ctx)
	must.NoError(t, err)
	stats, err := d.Stats(ctx, 0)
	must.NoError(t, err)
	receive(t, fingerprints)
	receive(t, stats)
	cancel()
	ended := make(chan struct{})
	go func() {
		for range fingerprints {
		}
		for range stats {
		}
		close(ended)
	}()
	select {
	case <-ended:
	case <-time.After(patience):
		t.Fatal("a stream outlived its context")
	}
}

func TestAReservationDoesNotWaitForAFingerprint(t *testing.T) {
	m := simulated(t, "dgx-a100")
	source := newScripted(always(m))
	plugin := dispense(t, newTestDevice(source))
	reservation, err := plugin.Reserve([]string{m.GPUs[2].UUID})
	must.NoError(t, err)
	must.EqOp(t, m.GPUs[2].UUID, reservation.Envs[EnvNVIDIA])

	source.set(failing(errors.New("no driver")))
	_, err = dispense(t, newTestDevice(source)).Reserve([]string{"GPU-1"})
	must.ErrorContains(t, err, "cannot reserve GPU-1: the GPUs cannot be read: no driver")
}

func TestStatisticsThatFailAreLeftOut(t *testing.T) {
	m := simulated(t, "dgx-a100")
	source := newScripted(failing(errors.New("no driver")))
	plugin := dispense(t, newTestDevice(source))
	stats, err := plugin.Stats(t.Context(), time.Millisecond)
	must.NoError(t, err)
	source.awaitCalls(t, 3)
	source.set(func() (*gpu.Machine, error) { panic("a bug in the source") })
	source.awaitCalls(t, 3)
	source.set(always(m))
	s := receive(t, stats)
	must.NoError(t, s.Error)
	ids := make([]string, 0, 8)
	for id := range s.Groups[0].InstanceStats {
		ids = append(ids, id)
	}
	must.Len(t, 8, ids)
	must.True(t, slices.Contains(ids, m.GPUs[0].UUID))
}
