// SPDX-License-Identifier: MPL-2.0

package nvml

import (
	"testing"

	"github.com/shoenig/test/must"

	"github.com/nomad-gpu/nomad-gpu/device/power"
)

func TestPowerLimitsAreReadAndSet(t *testing.T) {
	const first, second = "GPU-00000000-0000-0000-0000-000000000000", "GPU-00000000-0000-0000-0000-000000000001"
	f := newFake(t, build(t, t.TempDir()))
	must.StrContains(t, f.ask("limit").Error, "does not answer", must.Sprint("before the first reading"))
	f.machine()
	must.Eq(t, map[string]power.Bounds{first: {Least: 200, Most: 700, Now: 700}, second: {Least: 200, Most: 700, Now: 700}}, f.ask("bounds").Bounds)
	must.EqOp(t, "", f.ask("limit").Error)
	must.EqOp(t, 350, f.ask("bounds").Bounds[first].Now)
	must.EqOp(t, 350, f.machine().GPUs[0].PowerLimitW)

	f.set("gpus 2", "error nvmlDeviceSetPowerManagementLimit 0 4", "error nvmlDeviceGetPowerManagementLimitConstraints 1 3")
	must.StrContains(t, f.ask("limit").Error, "needs root")
	must.MapLen(t, 1, f.ask("bounds").Bounds)
	f.set("gpus 2", "error nvmlDeviceSetPowerManagementLimit 0 2")
	must.StrContains(t, f.ask("limit").Error, "NVML error 2")
}
