// SPDX-License-Identifier: MPL-2.0

package health

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/nomad-gpu/nomad-gpu/device/gpu"
)

// Windows of the trend rules.
const (
	restartWindow   = 10 * time.Minute
	remapWindow     = 24 * time.Hour
	correctedWindow = time.Hour
	linkWindow      = time.Hour
)

// Thresholds are the counts from which the trend rules speak, by rule. They are
// judgements, not NVIDIA's: an application that fails now and then is no news,
// five in ten minutes on one GPU are; eight rows remapped in a day come before
// a bank runs out of spares; a link that had to be trained again five times in
// an hour is about to fail.
func Thresholds() map[string]int {
	return map[string]int{"remap_trend": 8, "corrected_trend": 1000, "nvlink_trend": 5, "restart_trend": 5}
}

// maxThreshold bounds what is remembered of a GPU.
const maxThreshold = 100_000

// Options choose among the rules.
type Options struct {
	// Disabled are the codes of rules to leave out.
	Disabled []string
	// Thresholds replace those of [Thresholds].
	Thresholds map[string]int
	// HoldOut is the temperature, in °C, from which a GPU takes no new work
	// until it has cooled to Resume; 0: none.
	HoldOut, Resume uint
}

// Choose gives the rules that are wanted.
func Choose(o Options) ([]Rule, error) {
	thresholds := Thresholds()
	for _, code := range slices.Sorted(maps.Keys(o.Thresholds)) {
		if _, known := thresholds[code]; !known {
			return nil, fmt.Errorf("health.thresholds: rule %q has none; allowed are %s", code, strings.Join(slices.Sorted(maps.Keys(thresholds)), ", "))
		}
		if n := o.Thresholds[code]; n < 1 || n > maxThreshold {
			return nil, fmt.Errorf("health.thresholds: %s %d: allowed are 1 to %d", code, n, maxThreshold)
		}
		thresholds[code] = o.Thresholds[code]
	}
	rules := rulesWith(thresholds)
	if o.HoldOut > 0 {
		if o.Resume >= o.HoldOut {
			return nil, fmt.Errorf("thermal.resume %d °C: it must be below thermal.hold_out, %d °C", o.Resume, o.HoldOut)
		}
		rules = append(rules, hot(o.HoldOut, o.Resume))
	}
	return without(rules, o.Disabled)
}

// Rules are all rules, gravest kind first.
func Rules() []Rule { return rulesWith(Thresholds()) }

func rulesWith(most map[string]int) []Rule {
	return []Rule{
		{Code: "lost", Meaning: "the GPU does not answer", Trips: 1, look: lost},
		{Code: "recovery", Meaning: "the driver asks for a reset or restart", Trips: 1, look: recovery},
		{Code: "xid", Meaning: "an Xid that needs a reset, a restart or a look", Trips: 1, look: xid},
		{Code: "remap_failed", Meaning: "a bad memory row could not be replaced", Trips: 1, look: remapFailed},
		{Code: "nvlink_down", Meaning: "NVLinks are down that were up, or that equal GPUs have", Trips: 3, Hold: time.Minute, look: linksDown},
		{Code: "fabric", Meaning: "the GPU is not in the fabric of its NVLink switches", Trips: 3, look: fabric},
		{Code: "thermal", Meaning: "the hardware slows the GPU down because of heat", Trips: 3, Hold: 5 * time.Minute, look: thermal},
		{Code: "power_brake", Meaning: "the power supply makes the GPU slow down", Trips: 3, Hold: 5 * time.Minute, look: powerBrake},
		{Code: "remap_pending", Meaning: "a bad memory row or page is replaced at the next reset", Trips: 1, look: remapPending},
		{Code: "uncorrected", Meaning: "new memory errors that ECC could not correct", Trips: 1, Hold: time.Hour, look: uncorrected},
		{Code: "remap_trend", Meaning: "many memory rows were replaced in a day", Trips: 1, look: remapTrend(most["remap_trend"])},
		{Code: "corrected_trend", Meaning: "many memory errors were corrected in an hour", Trips: 1, look: correctedTrend(most["corrected_trend"])},
		{Code: "nvlink_trend", Meaning: "NVLinks had to be trained again often within an hour", Trips: 1, look: linkTrend(most["nvlink_trend"])},
		{Code: "restart_trend", Meaning: "many programs failed on this GPU in ten minutes", Trips: 1, look: restartTrend(most["restart_trend"])},
	}
}

// without are the rules but those with these codes.
func without(rules []Rule, codes []string) ([]Rule, error) {
	var known []string
	for _, rule := range rules {
		known = append(known, rule.Code)
	}
	for _, code := range codes {
		if !slices.Contains(known, code) {
			return nil, fmt.Errorf("health.disabled_rules: health rule %q is not known; allowed are %s", code, strings.Join(known, ", "))
		}
	}
	return slices.DeleteFunc(rules, func(rule Rule) bool { return slices.Contains(codes, rule.Code) }), nil
}

const (
	cureReset  = "cured by a reset of the GPU: nvidia-smi --gpu-reset"
	cureReboot = "cured by a restart of the machine; if it comes back, the part has to be replaced"
)

func lost(_ *past, o Observation) finding {
	if o.Fault == "" {
		return finding{}
	}
	return finding{Unhealthy, o.Fault, "lifts when the GPU answers again; mostly after a reset of the GPU or a restart of the machine"}
}

func recovery(_ *past, o Observation) finding {
	switch o.Recovery {
	case RecoveryReset:
		return finding{Unhealthy, "the driver asks for a reset of the GPU", cureReset}
	case RecoveryReboot:
		return finding{Unhealthy, "the driver asks for a restart of the machine", cureReboot}
	case RecoveryDrain:
		return finding{Unhealthy, "the driver asks to drain the GPU and then reset it", cureReset}
	}
	return finding{}
}

// xid keeps the gravest Xid until the GPU starts afresh, or until the driver,
// having asked for recovery, asks no more.
func xid(p *past, o Observation) finding {
	if p.recalled {
		p.recalled, p.epoch = false, o.Epoch
	}
	if p.xid.state != Healthy && (o.Epoch != p.epoch || p.asked && o.Recovery == RecoveryNone) {
		p.xid, p.asked = finding{}, false
	}
	for _, number := range o.Xids {
		entry := Explain(number)
		found := finding{reason: fmt.Sprintf("Xid %d, %s", number, entry.Meaning)}
		switch entry.Action {
		case Reset:
			found.state, found.cure = Unhealthy, cureReset
		case Reboot:
			found.state, found.cure = Unhealthy, cureReboot
		case Inspect:
			found.state, found.cure = Degraded, "lifts with a reset of the GPU; if it comes back, have the part looked at"
		default:
			continue
		}
		if found.state >= p.xid.state {
			p.xid, p.epoch, p.asked = found, o.Epoch, false
		}
	}
	if p.xid.state != Healthy && o.Recovery > RecoveryNone {
		p.asked = true
	}
	return p.xid
}

func remapFailed(_ *past, o Observation) finding {
	if !o.RemapFailed {
		return finding{}
	}
	return finding{Unhealthy, "a bad memory row could not be replaced: no spare is left", "the part has to be replaced"}
}

func remapPending(_ *past, o Observation) finding {
	switch {
	case o.RemapPending:
		return finding{Degraded, "a bad memory row waits to be replaced", cureReset}
	case o.RetirementPending:
		return finding{Degraded, "a bad memory page waits to be retired", cureReset}
	}
	return finding{}
}

func linksDown(_ *past, o Observation) finding {
	if o.NVLinksUp >= o.NVLinksExpected {
		return finding{}
	}
	found := finding{Degraded, fmt.Sprintf("%d of %d NVLinks are up", o.NVLinksUp, o.NVLinksExpected), "lifts when the links are up again; " + cureReset}
	if o.NVLinksUp == 0 {
		found.state = Unhealthy
	}
	return found
}

func fabric(_ *past, o Observation) finding {
	if o.FabricFault == "" {
		return finding{}
	}
	return finding{Unhealthy, o.FabricFault, "lifts when it has joined; look at the fabric manager, nvidia-smi -q shows its state"}
}

func thermal(_ *past, o Observation) finding {
	if !o.ThermalSlowdown {
		return finding{}
	}
	return finding{Degraded, "the GPU is slowed down because it is hot", "lifts when it has been cool for five minutes; look at fans and air"}
}

func powerBrake(_ *past, o Observation) finding {
	if !o.PowerBrake {
		return finding{}
	}
	return finding{Degraded, "the power supply slows the GPU down", "lifts when it has not for five minutes; look at power supplies and feeds"}
}

// uncorrected looks at new errors alone: old ones have had their consequences.
func uncorrected(p *past, o Observation) finding {
	if added := growth(p, o, p.last.Uncorrected, o.Uncorrected); added > 0 {
		return finding{Degraded, fmt.Sprintf("%d new memory errors that ECC could not correct", added), "lifts after an hour without new ones"}
	}
	return finding{}
}

func remapTrend(most int) func(*past, Observation) finding {
	return func(p *past, o Observation) finding {
		n := p.remapped.add(o.At, growth(p, o, p.last.Remapped, o.Remapped), remapWindow, most)
		if n < most {
			return finding{}
		}
		return finding{Degraded, fmt.Sprintf("%d memory rows or more replaced in a day", n), "lifts after a day with fewer; plan to replace the part"}
	}
}

func correctedTrend(most int) func(*past, Observation) finding {
	return func(p *past, o Observation) finding {
		n := p.corrected.add(o.At, growth(p, o, p.last.Corrected, o.Corrected), correctedWindow, most)
		if n < most {
			return finding{}
		}
		return finding{Degraded, fmt.Sprintf("%d memory errors or more corrected in an hour", n), "lifts after an hour with fewer; watch the part"}
	}
}

func linkTrend(most int) func(*past, Observation) finding {
	return func(p *past, o Observation) finding {
		n := p.links.add(o.At, growth(p, o, p.last.NVLinkRecoveries, o.NVLinkRecoveries), linkWindow, most)
		if n < most {
			return finding{}
		}
		return finding{Degraded, fmt.Sprintf("NVLinks had to be trained again %d times or more in an hour", n), "lifts after an hour with fewer; look at the links' cables and seats"}
	}
}

func restartTrend(most int) func(*past, Observation) finding {
	return func(p *past, o Observation) finding {
		var hits uint64
		for _, number := range o.Xids {
			if Explain(number).Action == RestartApp {
				hits++
			}
		}
		if n := p.restarts.add(o.At, hits, restartWindow, most); n < most {
			return finding{}
		}
		return finding{Degraded, fmt.Sprintf("%d programs or more failed in ten minutes", most), "lifts after ten minutes with fewer; if other programs fail too, have the part looked at"}
	}
}

// hot holds a GPU out of new placements from one temperature until it has
// cooled to another.
func hot(holdOut, resume uint) Rule {
	return Rule{Code: "hot", Meaning: "the GPU is too hot for new work", Trips: 1, look: func(p *past, o Observation) finding {
		if o.TemperatureC == nil {
			return finding{}
		}
		switch celsius := *o.TemperatureC; {
		case celsius >= holdOut:
			p.hot = true
		case celsius <= resume:
			p.hot = false
		}
		if !p.hot {
			return finding{}
		}
		// No figure that changes with each reading: every change updates the node.
		return finding{Unhealthy, fmt.Sprintf("it has reached %d °C", holdOut), fmt.Sprintf("lifts when it has cooled to %d °C", resume)}
	}}
}

// growth is how much a counter grew since the observation before. Counters
// begin anew with an epoch.
func growth(p *past, o Observation, before, now *uint64) uint64 {
	if !p.seen || before == nil || now == nil || p.last.Epoch != o.Epoch || *now < *before {
		return 0
	}
	return *now - *before
}

// ExpectedLinks is the number of NVLinks that each GPU should have up: the most
// it has had, given by UUID, and behind switches the most that any of its model
// has. Nothing is taken from a data sheet: parts with fewer links by design, or
// without a bridge, are whole.
func ExpectedLinks(m *gpu.Machine, most map[string]uint) []uint {
	expected := make([]uint, len(m.GPUs))
	for i := range m.GPUs {
		expected[i] = max(m.GPUs[i].NVLinks, most[m.GPUs[i].UUID])
		if m.NVSwitch != gpu.Present {
			continue
		}
		for j := range m.GPUs {
			if m.GPUs[j].Model == m.GPUs[i].Model {
				expected[i] = max(expected[i], m.GPUs[j].NVLinks)
			}
		}
	}
	return expected
}

// FabricFault judges a GPU's place in its fabric by state and status both: a
// registration can be complete and have failed. Only a GPU that has links up,
// on a machine with switches, has to be in one: a single GPU that was passed to
// a virtual machine works without.
func FabricFault(m *gpu.Machine, g *gpu.GPU) string {
	switch {
	case g.Fabric == nil || m.NVSwitch != gpu.Present || g.NVLinks == 0 || len(m.GPUs) < 2:
		return ""
	case !g.Fabric.Registered:
		return "it has not joined the fabric of its NVLink switches"
	case g.Fabric.Status != "":
		return "it could not join the fabric of its NVLink switches: " + g.Fabric.Status
	}
	return ""
}
