// SPDX-License-Identifier: MPL-2.0

package health

import (
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/nomad-gpu/nomad-gpu/device/gpu"
)

// Windows and counts of the trend rules. They are judgements, not NVIDIA's:
// an application that fails now and then is no news, five in ten minutes on one
// GPU are; eight rows remapped in a day come before a bank runs out of spares.
const (
	restartWindow   = 10 * time.Minute
	restartMost     = 5
	remapWindow     = 24 * time.Hour
	remapMost       = 8
	correctedWindow = time.Hour
	correctedMost   = 1000
)

// Rules are all rules, gravest kind first.
func Rules() []Rule {
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
		{Code: "remap_trend", Meaning: "many memory rows were replaced in a day", Trips: 1, look: remapTrend},
		{Code: "corrected_trend", Meaning: "many memory errors were corrected in an hour", Trips: 1, look: correctedTrend},
		{Code: "restart_trend", Meaning: "many programs failed on this GPU in ten minutes", Trips: 1, look: restartTrend},
	}
}

// RulesWithout are all rules but those with these codes.
func RulesWithout(codes []string) ([]Rule, error) {
	all := Rules()
	var known []string
	for _, rule := range all {
		known = append(known, rule.Code)
	}
	for _, code := range codes {
		if !slices.Contains(known, code) {
			return nil, fmt.Errorf("health rule %q is not known; allowed are %s", code, strings.Join(known, ", "))
		}
	}
	return slices.DeleteFunc(all, func(rule Rule) bool { return slices.Contains(codes, rule.Code) }), nil
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

func remapTrend(p *past, o Observation) finding {
	n := p.remapped.add(o.At, growth(p, o, p.last.Remapped, o.Remapped), remapWindow, remapMost)
	if n < remapMost {
		return finding{}
	}
	return finding{Degraded, fmt.Sprintf("%d memory rows or more replaced in a day", n), "lifts after a day with fewer; plan to replace the part"}
}

func correctedTrend(p *past, o Observation) finding {
	n := p.corrected.add(o.At, growth(p, o, p.last.Corrected, o.Corrected), correctedWindow, correctedMost)
	if n < correctedMost {
		return finding{}
	}
	return finding{Degraded, fmt.Sprintf("%d memory errors or more corrected in an hour", n), "lifts after an hour with fewer; watch the part"}
}

func restartTrend(p *past, o Observation) finding {
	var hits uint64
	for _, number := range o.Xids {
		if Explain(number).Action == RestartApp {
			hits++
		}
	}
	if n := p.restarts.add(o.At, hits, restartWindow, restartMost); n < restartMost {
		return finding{}
	}
	return finding{Degraded, fmt.Sprintf("%d programs or more failed in ten minutes", restartMost), "lifts after ten minutes with fewer; if other programs fail too, have the part looked at"}
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
