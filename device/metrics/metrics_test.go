// SPDX-License-Identifier: MPL-2.0

package metrics

import (
	"context"
	"errors"
	"io"
	"net"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"
	"github.com/shoenig/test/must"

	"github.com/nomad-gpu/nomad-gpu/device/gpu"
	"github.com/nomad-gpu/nomad-gpu/device/health"
)

func p[T any](v T) *T { return &v }

func snapshot() Snapshot {
	return Snapshot{
		Machine: &gpu.Machine{DriverVersion: "550.54.15", CUDAVersion: "12.4", GPUs: []gpu.GPU{
			{UUID: "GPU-a", Index: 0, Model: "H100", Architecture: "hopper", BusID: "0000:1b:00.0", NVLinks: 18, PowerLimitW: 700},
			{UUID: "GPU-b", Index: 1, Model: "H100"},
			{Index: 2, Model: "no UUID"},
		}},
		Samples: map[string]gpu.Sample{"GPU-a": {
			UtilizationPercent: p(uint(42)), MemoryUsedMiB: p(uint64(2)), TemperatureC: p(uint(35)), MemoryTemperatureC: p(uint(41)),
			PowerW: p(uint(120)), EnergyJ: p(uint64(5000)), SMClockMHz: p(uint(345)), PCIeSentMBps: p(uint(12)), NVLinkSentMiB: p(uint64(3)),
			ECCMemory: p(uint64(4)), Processes: p(uint(1)), ClockReasons: []string{"sw_power_cap"},
		}},
		Verdicts: map[string]health.Verdict{"GPU-a": {}, "GPU-b": {State: health.Unhealthy, Code: "xid"}},
		Xids:     map[string]map[uint64]uint64{"GPU-b": {48: 2}},
		Owners: map[string][]Owner{
			"GPU-a": {{"team", "train", "gang", "t", "1111"}},
			"GPU-b": {{"team", "nb", "g", "t", "2222"}, {"team", "nb", "g", "t", "3333"}, {"team", "nb", "g", "t", "3333"}},
		},
	}
}

func TestMetricsOfGPUs(t *testing.T) {
	c := New(func() (Snapshot, error) { return snapshot(), nil })
	a := `allocation="1111",gpu="0",job="train",model="H100",namespace="team",uuid="GPU-a"`
	b := `allocation="",gpu="1",job="",model="H100",namespace="",uuid="GPU-b"`
	for name, want := range map[string]string{
		"gpu_up":                  "gpu_up 1\n",
		"gpu_utilization_ratio":   "gpu_utilization_ratio{" + a + "} 0.42\n",
		"gpu_memory_used_bytes":   "gpu_memory_used_bytes{" + a + "} 2.097152e+06\n",
		"gpu_energy_joules_total": "gpu_energy_joules_total{" + a + "} 5000\n",
		"gpu_power_limit_watts":   "gpu_power_limit_watts{" + a + "} 700\n",
		"gpu_temperature_celsius": `gpu_temperature_celsius{` + strings.Replace(a, `,uuid`, `,sensor="gpu",uuid`, 1) + "} 35\n" + `gpu_temperature_celsius{` + strings.Replace(a, `,uuid`, `,sensor="memory",uuid`, 1) + "} 41\n",
		"gpu_clock_hertz":         `gpu_clock_hertz{` + strings.Replace(a, `,gpu=`, `,clock="sm",gpu=`, 1) + "} 3.45e+08\n",
		"gpu_clocks_lowered":      `gpu_clocks_lowered{` + strings.Replace(a, `,uuid`, `,reason="sw_power_cap",uuid`, 1) + "} 1\n",
		"gpu_nvlink_bytes_total":  `gpu_nvlink_bytes_total{` + strings.Replace(a, `,gpu=`, `,direction="sent",gpu=`, 1) + "} 3.145728e+06\n",
		"gpu_verdict":             `gpu_verdict{` + strings.Replace(b, `,uuid`, `,rule="xid",state="unhealthy",uuid`, 1) + "} 1\n",
		"gpu_xids_total":          `gpu_xids_total{` + b + `,xid="48"` + "} 2\n",
		"gpu_allocation_info":     `gpu_allocation_info{allocation="1111",gpu="0",group="gang",job="train",model="H100",namespace="team",task="t",uuid="GPU-a"} 1` + "\n" + `gpu_allocation_info{allocation="2222",gpu="1",group="g",job="nb",model="H100",namespace="team",task="t",uuid="GPU-b"} 1` + "\n" + `gpu_allocation_info{allocation="3333",gpu="1",group="g",job="nb",model="H100",namespace="team",task="t",uuid="GPU-b"} 1` + "\n",
	} {
		registry := prometheus.NewPedanticRegistry()
		must.NoError(t, registry.Register(c))
		families, err := registry.Gather()
		must.NoError(t, err)
		var header string
		for _, f := range families {
			if f.GetName() == name {
				header = "# HELP " + name + " " + f.GetHelp() + "\n# TYPE " + name + " " + strings.ToLower(f.GetType().String()) + "\n"
			}
		}
		must.NoError(t, testutil.GatherAndCompare(registry, strings.NewReader(header+want), name))
	}
	problems, err := testutil.CollectAndLint(c)
	must.NoError(t, err)
	must.SliceEmpty(t, problems)
}

func TestGPUsThatCannotBeReadAreDown(t *testing.T) {
	c := New(func() (Snapshot, error) { return Snapshot{}, errors.New("no driver") })
	must.NoError(t, testutil.CollectAndCompare(c, strings.NewReader("# HELP gpu_up 1 if the GPUs could be read.\n# TYPE gpu_up gauge\ngpu_up 0\n")))
}

func TestTheEndpointServesUntilItsEnd(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	must.NoError(t, err)
	address := l.Addr().String()
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	must.ErrorContains(t, Serve(ctx, address, New(nil)), "metrics.listen: listen tcp", must.Sprint("the port is taken"))
	must.NoError(t, l.Close())
	done := make(chan error, 1)
	go func() { done <- Serve(ctx, address, New(func() (Snapshot, error) { return snapshot(), nil })) }()
	var text []byte
	for end := time.Now().Add(20 * time.Second); time.Now().Before(end); {
		r, err := http.Get("http://" + address + "/metrics")
		if err != nil {
			continue
		}
		must.EqOp(t, http.StatusOK, r.StatusCode)
		text, err = io.ReadAll(r.Body)
		must.NoError(t, err)
		r.Body.Close()
		break
	}
	must.StrContains(t, string(text), "gpu_up 1")
	cancel()
	must.NoError(t, <-done)
}

func TestAnAddressHasToNameTheInterface(t *testing.T) {
	for _, good := range []string{"127.0.0.1:9500", "0.0.0.0:9500", "[::1]:9500"} {
		must.NoError(t, CheckListen(good))
	}
	for _, bad := range []string{"", ":9500", "9500", "localhost:9500", "127.0.0.1", "127.0.0.1:0", "127.0.0.1:99999"} {
		must.ErrorContains(t, CheckListen(bad), "metrics.listen")
	}
}
