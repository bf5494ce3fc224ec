// SPDX-License-Identifier: MPL-2.0

package health

import (
	"encoding/json"
	"testing"
	"time"

	"github.com/shoenig/test/must"
	"pgregory.net/rapid"

	"github.com/nomad-gpu/nomad-gpu/device/gpu"
)

var start = time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)

// at is a time so many seconds after the start.
func at(seconds int) time.Time { return start.Add(time.Duration(seconds) * time.Second) }

func count(n uint64) *uint64 { return &n }

func TestCatalogueIsWhole(t *testing.T) {
	must.Greater(t, 40, len(Catalogue()))
	for xid, want := range map[uint64]Action{13: RestartApp, 31: RestartApp, 45: Ignore, 48: Reset, 63: Ignore, 64: Reset, 74: Reset, 79: Reboot, 92: Inspect, 94: RestartApp, 95: Reset, 119: Reset, 140: Reset} {
		must.EqOp(t, want, Explain(xid).Action, must.Sprint(xid))
	}
	must.EqOp(t, RestartApp, Explain(9999).Action)
	for _, bad := range []string{"xids: [{ xid: 1, action: pray, meaning: x }]", "xids: [{ xid: 1, action: reset }]", "xids: [{ xid: 1, action: reset, meaning: x }, { xid: 1, action: reset, meaning: x }]", "xid: []", "]"} {
		_, err := parseCatalogue([]byte(bad))
		must.Error(t, err, must.Sprint(bad))
	}
}

func TestVerdictOfOneObservation(t *testing.T) {
	cases := []struct {
		name  string
		o     Observation
		state State
		code  string
	}{
		{"nothing known", Observation{}, Healthy, ""},
		{"does not answer", Observation{Fault: "GPU is lost"}, Unhealthy, "lost"},
		{"driver asks for a reset", Observation{Recovery: RecoveryReset}, Unhealthy, "recovery"},
		{"driver asks for a restart", Observation{Recovery: RecoveryReboot}, Unhealthy, "recovery"},
		{"driver asks to drain", Observation{Recovery: RecoveryDrain}, Unhealthy, "recovery"},
		{"driver asks for nothing", Observation{Recovery: RecoveryNone}, Healthy, ""},
		{"a program's error", Observation{Xids: []uint64{13, 31, 43, 45, 94}}, Healthy, ""},
		{"an Xid that needs a reset", Observation{Xids: []uint64{13, 48}}, Unhealthy, "xid"},
		{"fallen off the bus", Observation{Xids: []uint64{79}}, Unhealthy, "xid"},
		{"an Xid to look at", Observation{Xids: []uint64{92}}, Degraded, "xid"},
		{"an unknown Xid", Observation{Xids: []uint64{4711}}, Healthy, ""},
		{"remap failed", Observation{RemapFailed: true, RemapPending: true}, Unhealthy, "remap_failed"},
		{"remap pending", Observation{RemapPending: true}, Degraded, "remap_pending"},
		{"retirement pending", Observation{RetirementPending: true}, Degraded, "remap_pending"},
		{"old errors", Observation{Uncorrected: count(7), Corrected: count(1e6), Remapped: count(100)}, Healthy, ""},
		{"hot once", Observation{ThermalSlowdown: true, PowerBrake: true}, Healthy, ""},
		{"links down once", Observation{NVLinksExpected: 18}, Healthy, ""},
		{"single GPU without links", Observation{}, Healthy, ""},
	}
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			c.o.At = start
			v := NewJudge(Rules()).Observe(c.o)
			must.EqOp(t, c.state, v.State)
			must.EqOp(t, c.code, v.Code)
			must.EqOp(t, v.State == Healthy, v.String() == "")
		})
	}
}

// step is an observation and the verdict after it.
type step struct {
	o    Observation
	want State
}

func run(t *testing.T, rules []Rule, steps ...step) {
	t.Helper()
	j := NewJudge(rules)
	for n, s := range steps {
		must.EqOp(t, s.want, j.Observe(s.o).State, must.Sprintf("step %d", n))
	}
}

func TestAnXidStaysUntilItsCureIsSeen(t *testing.T) {
	run(t, Rules(),
		step{Observation{At: at(0), Epoch: "a"}, Healthy},
		step{Observation{At: at(1), Epoch: "a", Xids: []uint64{48}}, Unhealthy},
		step{Observation{At: at(2), Epoch: "a", Xids: []uint64{92}}, Unhealthy}, // the graver one stays
		step{Observation{At: at(999999), Epoch: "a", Recovery: RecoveryNone}, Unhealthy},
		step{Observation{At: at(1000000), Epoch: "b"}, Healthy},
	)
	run(t, Rules(),
		step{Observation{At: at(1), Xids: []uint64{140}, Recovery: RecoveryReset}, Unhealthy},
		step{Observation{At: at(2), Recovery: RecoveryReset}, Unhealthy},
		step{Observation{At: at(3), Recovery: RecoveryNone}, Healthy},
	)
	run(t, Rules(), // a new one with the new epoch counts
		step{Observation{At: at(1), Epoch: "a", Xids: []uint64{79}}, Unhealthy},
		step{Observation{At: at(2), Epoch: "b", Xids: []uint64{79}}, Unhealthy},
		step{Observation{At: at(3), Epoch: "c"}, Healthy},
	)
}

func TestConditionsThatComeAndGoHaveHysteresis(t *testing.T) {
	hot := func(s int) Observation { return Observation{At: at(s), ThermalSlowdown: true} }
	cool := func(s int) Observation { return Observation{At: at(s)} }
	run(t, Rules(),
		step{hot(0), Healthy}, step{hot(1), Healthy}, step{cool(2), Healthy}, // two in a row do not count
		step{hot(3), Healthy}, step{hot(4), Healthy}, step{hot(5), Degraded},
		step{cool(6), Degraded}, step{cool(5 + 299), Degraded}, step{hot(310), Degraded},
		step{cool(310 + 299), Degraded}, step{cool(310 + 300), Healthy},
	)
	links := func(s int, up uint) Observation { return Observation{At: at(s), NVLinksUp: up, NVLinksExpected: 18} }
	run(t, Rules(),
		step{links(0, 17), Healthy}, step{links(1, 17), Healthy}, step{links(2, 17), Degraded},
		step{links(3, 0), Unhealthy}, step{links(4, 18), Unhealthy}, step{links(64, 18), Healthy},
	)
}

func TestASingleLookNeedsNoPatience(t *testing.T) {
	run(t, AtOnce(Rules()), step{Observation{At: at(0), ThermalSlowdown: true}, Degraded})
	run(t, Rules(), step{Observation{At: at(0), ThermalSlowdown: true}, Healthy}) // the rules themselves are as before
}

func TestTrendsRaiseDegradedAndPass(t *testing.T) {
	programs := func(s, n int) Observation { return Observation{At: at(s), Xids: make([]uint64, n)} } // Xid 0: not listed
	run(t, Rules(),
		step{programs(0, 4), Healthy}, step{programs(100, 1), Degraded},
		step{programs(599, 0), Degraded}, step{programs(600, 0), Healthy},
	)
	rows := func(s int, n uint64) Observation { return Observation{At: at(s), Epoch: "a", Remapped: count(n)} }
	run(t, Rules(),
		step{rows(0, 50), Healthy}, step{rows(10, 57), Healthy}, step{rows(20, 58), Degraded}, step{rows(86420, 58), Healthy},
	)
	corrected := func(s int, n uint64) Observation { return Observation{At: at(s), Corrected: count(n)} }
	run(t, Rules(),
		step{corrected(0, 5000), Healthy}, step{corrected(1, 5999), Healthy}, step{corrected(2, 1<<60), Degraded},
		step{corrected(3, 5), Degraded}, step{corrected(3700, 5), Healthy},
	)
	uncorrected := func(s int, n uint64) Observation { return Observation{At: at(s), Uncorrected: count(n)} }
	run(t, Rules(),
		step{uncorrected(0, 1), Healthy}, step{uncorrected(1, 2), Degraded}, step{uncorrected(3600, 2), Degraded}, step{uncorrected(3601, 2), Healthy},
	)
}

func TestCountersBeginAnewWithAnEpoch(t *testing.T) {
	run(t, Rules(),
		step{Observation{At: at(0), Epoch: "a", Uncorrected: count(1)}, Healthy},
		step{Observation{At: at(1), Epoch: "b", Uncorrected: count(5)}, Healthy},
	)
}

func TestRulesCanBeSwitchedOff(t *testing.T) {
	rules, err := Choose(Options{Disabled: []string{"xid", "recovery"}})
	must.NoError(t, err)
	must.Len(t, len(Rules())-2, rules)
	run(t, rules, step{Observation{At: at(0), Xids: []uint64{79}, Recovery: RecoveryReset}, Healthy})
	_, err = Choose(Options{Disabled: []string{"xids"}})
	must.ErrorContains(t, err, `health rule "xids" is not known; allowed are lost, recovery, xid,`)
}

func TestExpectedLinksFollowTheDesign(t *testing.T) {
	cases := []struct {
		name     string
		nvswitch gpu.Presence
		up       []uint
		most     map[string]uint
		want     []uint
	}{
		{"behind switches a GPU without links is broken", gpu.Present, []uint{18, 0, 18}, nil, []uint{18, 18, 18}},
		{"a PCIe part with twelve of eighteen links is whole", gpu.Absent, []uint{12, 12}, nil, []uint{12, 12}},
		{"a part without a bridge is whole", gpu.Absent, []uint{12, 12, 0}, nil, []uint{12, 12, 0}},
		{"a single GPU without fabric is whole", gpu.Unknown, []uint{0}, nil, []uint{0}},
		{"a link that was up is missed", gpu.Absent, []uint{8}, map[string]uint{"GPU-0": 12}, []uint{12}},
	}
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			m := &gpu.Machine{NVSwitch: c.nvswitch}
			for i, up := range c.up {
				m.GPUs = append(m.GPUs, gpu.GPU{UUID: "GPU-" + string(rune('0'+i)), Model: "M", NVLinks: up})
			}
			must.Eq(t, c.want, ExpectedLinks(m, c.most))
		})
	}
}

// TestNoVerdictWithoutACure also shows that any history ends healthy once the
// GPU starts afresh and all is well for a day.
func TestNoVerdictWithoutACure(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		j := NewJudge(Rules())
		now := start
		for range rapid.IntRange(1, 40).Draw(t, "steps") {
			now = now.Add(time.Duration(rapid.IntRange(0, 4000).Draw(t, "seconds")) * time.Second)
			o := Observation{
				At: now, Epoch: rapid.SampledFrom([]string{"", "a", "b"}).Draw(t, "epoch"),
				Fault:        rapid.SampledFrom([]string{"", "", "lost"}).Draw(t, "fault"),
				Xids:         rapid.SliceOfN(rapid.Uint64Range(0, 180), 0, 4).Draw(t, "xids"),
				RemapPending: rapid.Bool().Draw(t, "pending"), RemapFailed: rapid.Bool().Draw(t, "failed"),
				Remapped: count(rapid.Uint64Range(0, 40).Draw(t, "rows")), Corrected: count(rapid.Uint64Range(0, 9000).Draw(t, "corrected")),
				Uncorrected: count(rapid.Uint64Range(0, 5).Draw(t, "uncorrected")),
				NVLinksUp:   uint(rapid.IntRange(0, 18).Draw(t, "links")), NVLinksExpected: 18,
				ThermalSlowdown: rapid.Bool().Draw(t, "hot"), PowerBrake: rapid.Bool().Draw(t, "brake"),
				Recovery: Recovery(rapid.IntRange(0, 4).Draw(t, "recovery")),
			}
			if v := j.Observe(o); v.State != Healthy {
				must.NotEqOp(t, "", v.Code)
				must.NotEqOp(t, "", v.Reason)
				must.NotEqOp(t, "", v.Cure)
				must.False(t, v.Since.IsZero())
			}
		}
		j.Observe(Observation{At: now.Add(time.Second), Epoch: "fresh", NVLinksUp: 18, NVLinksExpected: 18})
		last := j.Observe(Observation{At: now.Add(25 * time.Hour), Epoch: "fresh", NVLinksUp: 18, NVLinksExpected: 18})
		must.EqOp(t, Healthy, last.State, must.Sprint(last))
	})
}

func celsius(c uint) *uint { return &c }

func TestAHotGPUTakesNoNewWorkUntilItHasCooled(t *testing.T) {
	rules, err := Choose(Options{HoldOut: 85, Resume: 75})
	must.NoError(t, err)
	at := func(s int, c uint) Observation { return Observation{At: at(s), TemperatureC: celsius(c)} }
	run(t, rules,
		step{at(0, 84), Healthy}, step{at(1, 85), Unhealthy}, step{at(2, 90), Unhealthy}, step{at(3, 76), Unhealthy},
		step{Observation{At: start.Add(4 * time.Second)}, Healthy}, step{at(5, 76), Unhealthy}, step{at(6, 75), Healthy}, step{at(7, 84), Healthy},
	)
	_, err = Choose(Options{HoldOut: 80, Resume: 80})
	must.ErrorContains(t, err, "thermal.resume 80 °C: it must be below thermal.hold_out, 80 °C")
}

func TestThresholdsCanBeSet(t *testing.T) {
	rules, err := Choose(Options{Thresholds: map[string]int{"nvlink_trend": 2}, Disabled: []string{"xid"}})
	must.NoError(t, err)
	links := func(s int, n uint64) Observation { return Observation{At: at(s), NVLinkRecoveries: count(n)} }
	run(t, rules, step{links(0, 7), Healthy}, step{links(1, 8), Healthy}, step{links(2, 9), Degraded}, step{links(3700, 9), Healthy})
	run(t, Rules(), step{links(0, 7), Healthy}, step{links(1, 11), Healthy}, step{links(2, 12), Degraded})
	_, err = Choose(Options{Thresholds: map[string]int{"xid": 2}})
	must.ErrorContains(t, err, `thresholds: rule "xid" has none; allowed are corrected_trend, nvlink_trend, remap_trend, restart_trend`)
	_, err = Choose(Options{Thresholds: map[string]int{"nvlink_trend": 0}})
	must.ErrorContains(t, err, "nvlink_trend 0: allowed are 1 to 100000")
}

func TestAJudgeRemembersOverAProcess(t *testing.T) {
	first := NewJudge(Rules())
	first.Observe(Observation{At: at(0), Epoch: "boot/7/3", Xids: []uint64{48, 0, 0, 0}})
	memory := first.Memory()
	must.NoError(t, memory.Validate())
	must.False(t, memory.Empty())
	text, err := json.Marshal(memory)
	must.NoError(t, err)
	var read Memory
	must.NoError(t, json.Unmarshal(text, &read))

	second := NewJudge(Rules())
	second.Recall(read)
	v := second.Observe(Observation{At: at(10), Epoch: "boot/1/0"})
	must.EqOp(t, Unhealthy, v.State)
	must.StrContains(t, v.Reason, "Xid 48")
	must.EqOp(t, Unhealthy, second.Observe(Observation{At: at(20), Epoch: "boot/1/0"}).State)
	must.EqOp(t, Healthy, second.Observe(Observation{At: at(30), Epoch: "boot/1/1"}).State, must.Sprint("the cure lifts it"))
	must.EqOp(t, Degraded, second.Observe(Observation{At: at(40), Epoch: "boot/1/1", Xids: []uint64{0, 0}}).State, must.Sprint("three programs before, two now"))
	must.True(t, NewJudge(Rules()).Memory().Empty())

	for want, m := range map[string]Memory{
		`xid.state "well"`: {Xid: &Ailment{State: "well", Reason: "r", Cure: "c"}},
		"reason and cure":  {Xid: &Ailment{State: "unhealthy"}},
		"allowed are 1000": {Links: make([]time.Time, 1001)},
	} {
		must.ErrorContains(t, m.Validate(), want)
	}
}

func TestAGPUHasToBeInItsFabric(t *testing.T) {
	m := &gpu.Machine{NVSwitch: gpu.Present, GPUs: make([]gpu.GPU, 2)}
	joined, failed, out := &gpu.Fabric{Registered: true}, &gpu.Fabric{Registered: true, Status: "NVML error 999"}, &gpu.Fabric{}
	for _, c := range []struct {
		name   string
		fabric *gpu.Fabric
		links  uint
		want   string
	}{
		{"no fabric", nil, 18, ""}, {"joined", joined, 18, ""}, {"without links up", out, 0, ""},
		{"complete but failed", failed, 18, "it could not join the fabric of its NVLink switches: NVML error 999"},
		{"not joined", out, 18, "it has not joined the fabric of its NVLink switches"},
	} {
		must.EqOp(t, c.want, FabricFault(m, &gpu.GPU{Fabric: c.fabric, NVLinks: c.links}), must.Sprint(c.name))
	}
	single := &gpu.Machine{NVSwitch: gpu.Present, GPUs: make([]gpu.GPU, 1)}
	must.EqOp(t, "", FabricFault(single, &gpu.GPU{Fabric: out, NVLinks: 18}))
	lost := func(s int) Observation { return Observation{At: at(s), FabricFault: "out"} }
	run(t, Rules(), step{lost(0), Healthy}, step{lost(1), Healthy}, step{lost(2), Unhealthy}, step{Observation{At: at(3)}, Healthy})
}
