// SPDX-License-Identifier: MPL-2.0

package nvml

import (
	"strings"

	"github.com/NVIDIA/go-nvml/pkg/nvml"

	"github.com/nomad-gpu/nomad-gpu/device/gpu"
)

// maxInstances bounds what is believed of the number of a GPU's MIG instances;
// no part has more than 7 so far.
const maxInstances = 64

// instances are the MIG instances of a GPU, and whether MIG is on: then the GPU
// itself cannot be used as a whole. Each has its own UUID, name and memory; all
// else is that of the GPU.
func (q *query) instances(whole gpu.GPU) ([]found, bool) {
	mode, ok := ask(q, func() (int, nvml.Return) {
		current, _, ret := q.device.GetMigMode()
		return current, ret
	}, "nvmlDeviceGetMigMode")
	if !ok || mode != nvml.DEVICE_MIG_ENABLE {
		return nil, false
	}
	most, _ := ask(q, q.device.GetMaxMigDeviceCount, "nvmlDeviceGetMaxMigDeviceCount")
	var all []found
	for n := range min(most, maxInstances) {
		// Places that are not taken answer "not found".
		device, ok := ask(q, func() (nvml.Device, nvml.Return) { return q.device.GetMigDeviceHandleByIndex(n) }, "nvmlDeviceGetMigDeviceHandleByIndex")
		if !ok {
			continue
		}
		part := &query{lib: q.lib, device: device, index: q.index}
		instance := whole
		instance.Parent = whole.UUID
		instance.UUID, _ = ask(part, device.GetUUID, "nvmlDeviceGetUUID")
		if instance.UUID == "" {
			continue
		}
		if name, ok := ask(part, device.GetName, "nvmlDeviceGetName"); ok {
			instance.Model = printable(name)
		}
		if _, shape, ok := strings.Cut(instance.Model, " MIG "); ok {
			instance.MIGProfile = shape
		} else {
			// Never under the name of the whole GPU.
			instance.Model += " MIG"
		}
		instance.MemoryMiB, instance.BAR1MiB = 0, 0
		if memory, ok := ask(part, device.GetMemoryInfo, "nvmlDeviceGetMemoryInfo"); ok {
			instance.MemoryMiB = memory.Total / mib
		}
		all = append(all, found{instance, part})
	}
	return all, true
}
