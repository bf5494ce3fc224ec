// SPDX-License-Identifier: MPL-2.0

package nvml

import (
	"github.com/NVIDIA/go-nvml/pkg/nvml"
	"github.com/google/uuid"

	"github.com/nomad-gpu/nomad-gpu/device/gpu"
)

// fabric asks for the GPU's place in a fabric of NVLink switches. One within a
// single machine has a cluster of zeroes.
func (q *query) fabric() *gpu.Fabric {
	type place struct {
		cluster [16]uint8
		status  uint32
		clique  uint32
		state   uint8
	}
	var p place
	var ok bool
	if q.lib.can("nvmlDeviceGetGpuFabricInfoV") {
		p, ok = ask(q, func() (place, nvml.Return) {
			info, ret := q.device.GetGpuFabricInfoV().V2()
			return place{info.ClusterUuid, info.Status, info.CliqueId, info.State}, ret
		}, "nvmlDeviceGetGpuFabricInfoV")
	} else {
		p, ok = ask(q, func() (place, nvml.Return) {
			info, ret := q.device.GetGpuFabricInfo()
			return place{info.ClusterUuid, info.Status, info.CliqueId, info.State}, ret
		}, "nvmlDeviceGetGpuFabricInfo")
	}
	if !ok || p.state == nvml.GPU_FABRIC_STATE_NOT_SUPPORTED {
		return nil
	}
	f := &gpu.Fabric{Clique: p.clique, Registered: p.state == nvml.GPU_FABRIC_STATE_COMPLETED}
	if p.cluster != [16]uint8{} {
		f.Cluster = uuid.UUID(p.cluster).String()
	}
	if f.Registered && nvml.Return(p.status) != nvml.SUCCESS {
		f.Status = failure(nvml.Return(p.status)).Error()
	}
	return f
}
