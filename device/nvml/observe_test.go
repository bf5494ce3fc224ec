// SPDX-License-Identifier: MPL-2.0

package nvml

import (
	"fmt"
	"testing"

	"github.com/shoenig/test/must"

	"github.com/nomad-gpu/nomad-gpu/device/health"
)

const first = "GPU-00000000-0000-0000-0000-000000000000"

func TestWhatHealthIsJudgedBy(t *testing.T) {
	f := newFake(t, build(t, t.TempDir()))
	must.MapLen(t, 0, f.ask("health").Health)
	f.machine()
	f.set("gpus 2", "health 0 3 7 1 1 192 2") // 192 is hardware thermal slowdown and power brake
	all := f.ask("health").Health
	must.MapLen(t, 2, all)
	o := all[first]
	must.EqOp(t, 3, *o.Uncorrected)
	must.EqOp(t, 0, *o.Corrected)
	must.EqOp(t, 7, *o.Remapped)
	must.True(t, o.RemapPending && o.RemapFailed && o.ThermalSlowdown && o.PowerBrake)
	must.EqOp(t, health.RecoveryReboot, o.Recovery)
	other := all["GPU-00000000-0000-0000-0000-000000000001"]
	must.False(t, other.RemapPending || other.RemapFailed || other.ThermalSlowdown || other.PowerBrake || other.RetirementPending)
	must.EqOp(t, health.RecoveryNone, other.Recovery)
	must.NotEqOp(t, "", other.Epoch)
}

func TestXidsAreDeliveredOnce(t *testing.T) {
	f := newFake(t, build(t, t.TempDir()))
	f.machine()
	must.Len(t, 0, f.ask("health").Health[first].Xids)
	f.set("gpus 2", "xid 0 48 1", "xid 0 63 2", "xid 1 79 3")
	all := f.ask("health").Health
	must.Eq(t, []uint64{48, 63}, all[first].Xids)
	must.Eq(t, []uint64{79}, all["GPU-00000000-0000-0000-0000-000000000001"].Xids)
	must.Len(t, 0, f.ask("health").Health[first].Xids)
}

func TestAStormOfXidsEnds(t *testing.T) {
	lines := []string{"gpus 1"}
	for serial := range 1500 {
		lines = append(lines, fmt.Sprintf("xid 0 31 %d", serial+1))
	}
	f := newFake(t, build(t, t.TempDir()))
	f.machine()
	f.ask("health")
	f.set(lines...)
	must.Len(t, maxEvents, f.ask("health").Health[first].Xids)
	must.Len(t, 500, f.ask("health").Health[first].Xids)
}

func TestALostGPUsXidIsStillHeard(t *testing.T) {
	f := newFake(t, build(t, t.TempDir()))
	f.machine()
	f.ask("health")
	f.set("gpus 2", "error nvmlDeviceGetHandleByIndex_v2 0 15", "xid 0 79 1")
	must.NotEqOp(t, "", f.machine().GPUs[0].Fault)
	must.Eq(t, []uint64{79}, f.ask("health").Health[first].Xids)
}

func TestTheEpochTellsWhenAGPUStartsAfresh(t *testing.T) {
	f := newFake(t, build(t, t.TempDir()))
	epoch := func(state ...string) string {
		f.set(append([]string{"gpus 2"}, state...)...)
		f.machine()
		return f.ask("health").Health[first].Epoch
	}
	start := epoch()
	must.EqOp(t, start, epoch())
	must.EqOp(t, start, epoch("health 0 5 0 0 0 0 0"))
	reset := epoch() // the error counter is back at zero
	must.NotEqOp(t, start, reset)

	f.set("gpus 2", "error nvmlDeviceGetHandleByIndex_v2 0 15")
	f.machine()
	answers := epoch() // it answers again
	must.NotEqOp(t, reset, answers)

	f.set("gpus 2", "error nvmlDeviceGetCount_v2 * 9")
	must.NotEqOp(t, "", f.ask("machine").Error)
	must.NotEqOp(t, answers, epoch()) // the driver was loaded anew
}

func TestAnOldLibraryIsObservedWithoutNewerFunctions(t *testing.T) {
	f := newFake(t, build(t, t.TempDir(), "OLD"))
	f.machine()
	o := f.ask("health").Health[first]
	must.Nil(t, o.Remapped)
	must.NotNil(t, o.Uncorrected)
	must.EqOp(t, health.RecoveryUnknown, o.Recovery)
}
