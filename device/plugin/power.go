// SPDX-License-Identifier: MPL-2.0

package plugin

import (
	"cmp"
	"path/filepath"
	"reflect"
	"sync"

	"github.com/hashicorp/go-hclog"

	"github.com/nomad-gpu/nomad-gpu/device/gpu"
	"github.com/nomad-gpu/nomad-gpu/device/power"
)

// limiter is a source whose GPUs' power can be limited.
type limiter interface {
	PowerBounds() map[string]power.Bounds
	SetPowerLimit(uuid string, watts uint) error
}

// powerKeeper brings GPUs to their limits, and back. The limits that were there
// before are on disk before the first is changed.
type powerKeeper struct {
	path   string
	rules  []power.Rule
	logger hclog.Logger

	mu       sync.Mutex
	loaded   bool
	original power.Original
	refused  map[string]string
	machine  *gpu.Machine
	source   limiter
}

// apply costs nothing where there is neither a rule nor a limit to put back.
func (k *powerKeeper) apply(m *gpu.Machine, source Source) {
	limits, able := source.(limiter)
	if !able {
		return
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	k.machine, k.source = m, limits
	if !k.loaded {
		k.loaded = true
		if _, err := loadState(k.path, &k.original); err != nil {
			k.logger.Error("cannot read which power limits GPUs had before", "error", err)
		}
	}
	refused := k.bring(k.rules)
	for i := range m.GPUs {
		if why := refused[m.GPUs[i].UUID]; why != "" {
			m.GPUs[i].Degraded = cmp.Or(m.GPUs[i].Degraded, "power: "+why)
		}
	}
	if !reflect.DeepEqual(refused, k.refused) {
		for uuid, why := range refused {
			k.logger.Error("a power limit is not set", "gpu", uuid, "error", why)
		}
		k.refused = refused
	}
}

// bring makes the changes that rules ask for, and says which it could not.
func (k *powerKeeper) bring(rules []power.Rule) map[string]string {
	if len(rules) == 0 && len(k.original) == 0 {
		return nil
	}
	changes, original, refused := power.Plan(k.machine, rules, k.source.PowerBounds(), k.original)
	if !reflect.DeepEqual(original, k.original) {
		if err := saveState(k.path, original); err != nil {
			for _, c := range changes {
				refused[c.UUID] = "the limit it had cannot be kept: " + err.Error()
			}
			return refused
		}
		k.original = original
	}
	for _, c := range changes {
		if err := k.source.SetPowerLimit(c.UUID, c.Watts); err != nil {
			refused[c.UUID] = err.Error()
			continue
		}
		k.logger.Info("power limit set", "gpu", c.UUID, "watts", c.Watts, "original", c.Back)
	}
	return refused
}

// restore puts every limit back.
func (k *powerKeeper) restore() {
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.machine == nil {
		return
	}
	for range 2 { // the second finds nothing to do, and forgets
		for uuid, why := range k.bring(nil) {
			k.logger.Error("a power limit is not put back", "gpu", uuid, "error", why)
		}
	}
}

func powerPath(dir string) string { return filepath.Join(dir, "power.json") }
