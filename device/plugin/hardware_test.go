// SPDX-License-Identifier: MPL-2.0

//go:build gpu

package plugin

import (
	"strings"
	"testing"
	"time"

	"github.com/hashicorp/go-hclog"
	"github.com/prometheus/client_golang/prometheus/testutil"
	"github.com/shoenig/test/must"

	"github.com/nomad-gpu/nomad-gpu/device/health"
	"github.com/nomad-gpu/nomad-gpu/device/metrics"
)

// TestThisHostThroughThePlugin goes Nomad's way with the GPUs that are really
// here: fingerprint, statistics, health, reservation (go test -tags gpu).
func TestThisHostThroughThePlugin(t *testing.T) {
	d := New("0.0.0", hclog.NewNullLogger())
	plugin := dispense(t, d)
	must.NoError(t, configure(t, plugin, `
		state_dir = "`+t.TempDir()+`"
		health { period = "1s" }
	`))
	fingerprints, err := plugin.Fingerprint(t.Context())
	must.NoError(t, err)
	first := receive(t, fingerprints)
	must.Positive(t, len(first.Devices), must.Sprint("this test needs a GPU and its driver"))
	var ids []string
	for _, group := range first.Devices {
		must.NoError(t, group.Validate())
		a := shown(group)
		t.Logf("%s: %v", group.Name, a)
		for _, name := range []string{"memory", "architecture", "compute_capability", "cuda_version", "driver_version", "count", "healthy_count", "sharing"} {
			must.MapContainsKey(t, a, name)
		}
		must.EqOp(t, "false", a["simulated"])
		for _, instance := range group.Devices {
			must.True(t, instance.Healthy, must.Sprint(instance.HealthDesc))
			ids = append(ids, instance.ID)
		}
	}
	reservation, err := plugin.Reserve(ids)
	must.NoError(t, err)
	t.Log(reservation.Envs)
	must.EqOp(t, len(ids), len(strings.Split(reservation.Envs[EnvCUDA], ",")))
	stats, err := plugin.Stats(t.Context(), time.Second)
	must.NoError(t, err)
	for _, group := range receive(t, stats).Groups {
		for id, instance := range group.InstanceStats {
			t.Logf("%s: %d values", id, len(instance.Stats.Attributes))
			must.MapContainsKeys(t, instance.Stats.Attributes, []string{"Temperature", "Power usage", "Memory state"})
		}
	}
	d.mu.Lock()
	for uuid, v := range d.verdicts {
		must.EqOp(t, health.Healthy, v.State, must.Sprint(uuid, v))
	}
	snapshot := metrics.Snapshot{Machine: d.machine, Verdicts: d.verdicts}
	d.mu.Unlock()
	must.EqOp(t, len(ids), testutil.CollectAndCount(metrics.New(func() (metrics.Snapshot, error) { return snapshot, nil }), "gpu_info"))
}
