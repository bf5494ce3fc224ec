// SPDX-License-Identifier: MPL-2.0

package docker

import (
	"fmt"
	"path/filepath"
	"slices"
	"strings"

	"github.com/moby/moby/api/types/container"
	"tags.cncf.io/container-device-interface/pkg/cdi"

	"github.com/nomad-gpu/nomad-gpu/driver/runtime/process"
)

// Ways to give a container its GPUs.
const (
	wayAuto    = "auto"    // the first of the others that can be had
	wayCDI     = "cdi"     // by name, as the Container Device Interface says
	wayNVIDIA  = "nvidia"  // by the runtime of NVIDIA's container toolkit
	wayDevices = "devices" // their device nodes alone
)

var gpuWays = []string{wayAuto, wayCDI, wayNVIDIA, wayDevices}

// cdiKind is that of the names that NVIDIA's toolkit gives
// (nvidia-ctk cdi generate --device-name-strategy=uuid).
const cdiKind = "nvidia.com/gpu="

// gpuAccess is what a container is created with to have its GPUs.
type gpuAccess struct {
	way      string
	runtime  string
	requests []container.DeviceRequest
	nodes    []string
	env      []string
}

// gpus chooses the way. Without GPUs there is none to choose.
func (c Config) gpus(f Facts, uuids []string) (gpuAccess, error) {
	if len(uuids) == 0 {
		return gpuAccess{}, nil
	}
	var refused []string
	for _, way := range gpuWays[1:] {
		if c.GPUs != wayAuto && c.GPUs != way {
			continue
		}
		a, err := c.access(way, f, uuids)
		if err == nil {
			return a, nil
		}
		refused = append(refused, fmt.Sprintf("%s: %v", way, err))
	}
	return gpuAccess{}, fmt.Errorf("container.gpus: %q cannot give the GPUs %s: %s", c.GPUs, strings.Join(uuids, ", "), strings.Join(refused, "; "))
}

func (c Config) access(way string, f Facts, uuids []string) (gpuAccess, error) {
	a := gpuAccess{way: way}
	switch way {
	case wayCDI:
		if len(f.CDIDirs) == 0 {
			return a, fmt.Errorf("the engine does not know CDI")
		}
		cache, err := cdi.NewCache(cdi.WithSpecDirs(f.CDIDirs...), cdi.WithAutoRefresh(false))
		if err != nil {
			return a, err
		}
		var names []string
		for _, uuid := range uuids {
			name := cdiKind + uuid
			if cache.GetDevice(name) == nil {
				return a, fmt.Errorf("no specification in %s names %s", strings.Join(f.CDIDirs, ", "), name)
			}
			names = append(names, name)
		}
		a.requests = []container.DeviceRequest{{Driver: "cdi", DeviceIDs: names}}
		a.env = []string{"NVIDIA_VISIBLE_DEVICES=void"} // else a runtime that is the default gives them twice
	case wayNVIDIA:
		if !slices.Contains(f.Runtimes, "nvidia") {
			return a, fmt.Errorf("the engine has no runtime nvidia")
		}
		a.runtime = "nvidia" // reads NVIDIA_VISIBLE_DEVICES
	case wayDevices:
		nodes, err := process.GPUNodes(c.DriverRoot, uuids)
		if err != nil {
			return a, err
		}
		a.nodes = nodes
	}
	return a, nil
}

// rdmaNodes are what RDMA opens, where the host has it.
func rdmaNodes(root string) []string {
	var nodes []string
	for _, pattern := range []string{"dev/infiniband/uverbs*", "dev/infiniband/rdma_cm"} {
		found, _ := filepath.Glob(filepath.Join(root, pattern)) // the patterns are sound
		nodes = append(nodes, found...)
	}
	return nodes
}
