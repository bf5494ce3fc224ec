// SPDX-License-Identifier: MPL-2.0

package nvml

import (
	"errors"
	"fmt"

	"github.com/NVIDIA/go-nvml/pkg/nvml"

	"github.com/nomad-gpu/nomad-gpu/device/power"
)

// PowerBounds reads the power limits of the GPUs of the last reading, by UUID;
// a part that does not tell is left out.
func (r *Reader) PowerBounds() map[string]power.Bounds {
	r.mu.Lock()
	defer r.mu.Unlock()
	all := make(map[string]power.Bounds)
	if r.lib == nil {
		return all
	}
	for uuid, h := range r.devices {
		if h.device != h.whole {
			continue
		}
		q := &query{lib: r.lib, device: h.device, index: h.index}
		limits, ok := ask(q, func() ([2]uint32, nvml.Return) {
			least, most, ret := h.device.GetPowerManagementLimitConstraints()
			return [2]uint32{least, most}, ret
		}, "nvmlDeviceGetPowerManagementLimitConstraints")
		now, known := ask(q, h.device.GetPowerManagementLimit, "nvmlDeviceGetPowerManagementLimit")
		if ok && known {
			all[uuid] = power.Bounds{Least: uint(limits[0]) / 1000, Most: uint(limits[1]) / 1000, Now: uint(now) / 1000}
		}
	}
	return all
}

// SetPowerLimit sets a GPU's limit.
func (r *Reader) SetPowerLimit(uuid string, watts uint) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	h, known := r.devices[uuid]
	if r.lib == nil || !known {
		return fmt.Errorf("%s does not answer", uuid)
	}
	if !r.lib.can("nvmlDeviceSetPowerManagementLimit") {
		return errors.New("this driver cannot set power limits")
	}
	switch ret := h.device.SetPowerManagementLimit(uint32(watts) * 1000); ret {
	case nvml.SUCCESS:
		return nil
	case nvml.ERROR_NO_PERMISSION:
		return errors.New("setting a power limit needs root: the Nomad agent must run as root")
	default:
		return failure(ret)
	}
}
