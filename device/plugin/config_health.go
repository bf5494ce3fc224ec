// SPDX-License-Identifier: MPL-2.0

package plugin

import (
	"fmt"
	"strconv"
	"strings"

	"github.com/nomad-gpu/nomad-gpu/device/health"
	"github.com/nomad-gpu/nomad-gpu/device/metrics"
	"github.com/nomad-gpu/nomad-gpu/device/power"
)

// Bounds of a temperature that a GPU can be held out by, in °C.
const (
	coolest = 30
	hottest = 120
)

// judge checks how health is judged, and what is limited and shown.
func (raw rawConfig) judge(c *config) (err error) {
	options := health.Options{Disabled: raw.Health.DisabledRules, Thresholds: raw.Health.Thresholds}
	if t := raw.Thermal; t.HoldOut != 0 || t.Resume != 0 {
		for field, celsius := range map[string]int{"hold_out": t.HoldOut, "resume": t.Resume} {
			if celsius < coolest || celsius > hottest {
				return fmt.Errorf("thermal.%s %d: it must be a temperature from %d to %d °C", field, celsius, coolest, hottest)
			}
		}
		options.HoldOut, options.Resume = uint(t.HoldOut), uint(t.Resume)
	}
	if c.rules, err = health.Choose(options); err != nil {
		return err
	}
	seen := map[string]bool{}
	for n, p := range raw.Power {
		watts, err := strconv.ParseUint(strings.TrimSpace(strings.TrimSuffix(p.Limit, "W")), 10, 16)
		if err != nil || watts == 0 || !strings.HasSuffix(p.Limit, "W") {
			return fmt.Errorf("power[%d].limit %q: it must be a power such as \"350W\"", n, p.Limit)
		}
		if seen[p.Model] || seen[""] {
			return fmt.Errorf("power[%d].model %q: a block before limits these GPUs already", n, p.Model)
		}
		seen[p.Model] = true
		c.limits = append(c.limits, power.Rule{Model: p.Model, Watts: uint(watts)})
	}
	if raw.Metrics.Listen != "" {
		if err := metrics.CheckListen(raw.Metrics.Listen); err != nil {
			return err
		}
		c.listen = raw.Metrics.Listen
	}
	return nil
}
