// SPDX-License-Identifier: MPL-2.0

package plugin

import (
	"context"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/hashicorp/go-hclog"
	"github.com/hashicorp/nomad/plugins/device"
	"github.com/shoenig/test/must"

	"github.com/nomad-gpu/nomad-gpu/device/health"
)

// write replaces a file at once, as a reader at any time must see it whole.
func write(t *testing.T, file, text string) {
	t.Helper()
	must.NoError(t, os.WriteFile(file+".new", []byte(text), 0o600))
	must.NoError(t, os.Rename(file+".new", file))
}

func TestSimulatedFaultsReachNomadAndAreCured(t *testing.T) {
	m := simulated(t, "dgx-h100")
	faults := filepath.Join(t.TempDir(), "faults.yaml")
	d := New("0.0.0", hclog.NewNullLogger())
	d.firstWait = patience
	d.source = &simulation{machine: m, faults: faults}
	d.config = config{enabled: true, period: time.Millisecond, healthPeriod: time.Millisecond}
	d.monitor = NewMonitor(health.Rules())
	fingerprints, err := dispense(t, d).Fingerprint(t.Context())
	must.NoError(t, err)
	next := func() (map[string]*device.Device, map[string]string) {
		group := receive(t, fingerprints).Devices[0]
		must.NoError(t, group.Validate())
		byID := make(map[string]*device.Device)
		for _, instance := range group.Devices {
			byID[instance.ID] = instance
		}
		return byID, shown(group)
	}
	_, attributes := next()
	must.EqOp(t, "8", attributes["healthy_count"])

	write(t, faults, "faults:\n  - { gpu: 3, xids: [13, 48] }\n")
	devices, attributes := next()
	must.EqOp(t, "7", attributes["healthy_count"])
	must.False(t, devices[m.GPUs[3].UUID].Healthy)
	must.StrContains(t, devices[m.GPUs[3].UUID].HealthDesc, "xid: Xid 48, memory error that ECC could not correct (cured by a reset of the GPU")
	must.StrContains(t, attributes["fault"], "Xid 48")

	write(t, faults, "faults:\n  - { gpu: 3, xids: [13, 48], epoch: after the reset }\n")
	devices, attributes = next()
	must.EqOp(t, "8", attributes["healthy_count"])
	must.EqOp(t, "", devices[m.GPUs[3].UUID].HealthDesc)
	must.MapNotContainsKey(t, attributes, "fault")

	write(t, faults, "faults:\n  - { gpu: 0, remap_pending: true }\n  - { gpu: 1, lost: fallen off the bus }\n")
	devices, attributes = next()
	must.EqOp(t, "7", attributes["healthy_count"])
	must.True(t, devices[m.GPUs[0].UUID].Healthy) // degraded: still takes work, and says why
	must.StrContains(t, devices[m.GPUs[0].UUID].HealthDesc, "remap_pending: ")
	must.StrContains(t, devices[m.GPUs[1].UUID].HealthDesc, "lost: fallen off the bus")

	write(t, faults, "faults:\n  - { gpu: 8 }\n")
	devices, _ = next()
	must.StrContains(t, devices[m.GPUs[5].UUID].HealthDesc, faults+":2: faults[0].gpu: 8; allowed is 0 to 7")

	must.NoError(t, os.Remove(faults))
	_, attributes = next()
	must.EqOp(t, "8", attributes["healthy_count"])
}

func TestHealthIsRememberedFromStreamToStream(t *testing.T) {
	m := simulated(t, "dgx-h100")
	faults := filepath.Join(t.TempDir(), "faults.yaml")
	write(t, faults, "faults:\n  - { gpu: 3, xids: [48] }\n")
	d := New("0.0.0", hclog.NewNullLogger())
	d.firstWait = patience
	d.source = Simulate(m, faults)
	d.config = config{enabled: true, period: time.Millisecond, healthPeriod: time.Millisecond}
	d.monitor = NewMonitor(health.Rules())
	for range 2 { // an Xid is reported once; the second stream never sees it
		ctx, cancel := context.WithCancel(t.Context())
		fingerprints, err := d.Fingerprint(ctx)
		must.NoError(t, err)
		must.EqOp(t, "7", shown(receive(t, fingerprints).Devices[0])["healthy_count"])
		cancel()
	}
}

func TestLinksThatGoDownAreMissed(t *testing.T) {
	m := simulated(t, "pcie-nvlink-pairs")
	monitor := NewMonitor(health.Rules())
	at := time.Unix(0, 0)
	judge := func() []health.Verdict {
		at = at.Add(time.Second)
		return monitor.Judge(m, nil, at)
	}
	must.EqOp(t, health.Healthy, judge()[2].State)
	m.GPUs[2].NVLinks = 8
	judge()
	judge()
	verdicts := judge()
	must.EqOp(t, health.Degraded, verdicts[2].State)
	must.EqOp(t, "8 of 12 NVLinks are up", verdicts[2].Reason)
	must.EqOp(t, health.Healthy, verdicts[3].State)
	m.GPUs[2].NVLinks = 0
	must.EqOp(t, health.Unhealthy, judge()[2].State)
}

func TestGPUsWithoutUUIDAreJudgedEachForItself(t *testing.T) {
	m := simulated(t, "dgx-h100")
	for i := range m.GPUs {
		m.GPUs[i].UUID = ""
	}
	m.GPUs[1].Fault = "lost"
	verdicts := NewMonitor(health.Rules()).Judge(m, nil, time.Unix(0, 0))
	must.EqOp(t, health.Unhealthy, verdicts[1].State)
	must.EqOp(t, health.Healthy, verdicts[2].State)
}
