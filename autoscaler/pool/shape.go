// SPDX-License-Identifier: MPL-2.0

package pool

import (
	"fmt"

	"github.com/nomad-gpu/nomad-gpu/autoscaler/plan"
)

// Bounds of a node: GPUs, and slices of each as the device plugin has them.
const (
	mostGPUs   = 1024
	mostSlices = 64
)

// Shape is what one node of the pool offers: GPUs, and others of another kind
// beside them.
type Shape struct {
	GPUs       int               `hcl:"gpus"`
	Model      string            `hcl:"model,optional"`
	Slices     int               `hcl:"slices,optional"`
	SameGPU    bool              `hcl:"allow_same_gpu,optional"`
	Island     int               `hcl:"island,optional"`
	Attributes map[string]string `hcl:"attributes,optional"`
	Also       []GPUs            `hcl:"also,block"`
	CPU        int               `hcl:"cpu,optional"`
	Memory     int               `hcl:"memory,optional"`
}

// GPUs are some alike of a node.
type GPUs struct {
	Count int    `hcl:"gpus"`
	Model string `hcl:"model,optional"`
	// Slices is how many each GPU is shared as; 0: it is whole. SameGPU: a
	// request may get several of one GPU.
	Slices  int  `hcl:"slices,optional"`
	SameGPU bool `hcl:"allow_same_gpu,optional"`
	// Island is how many GPUs an NVLink island has, where the device plugin makes
	// each a group of its own; 0: it does not.
	Island int `hcl:"island,optional"`
	// Attributes are those that the device plugin will tell of them, for jobs'
	// constraints while the pool has no node: memory = "80 GiB".
	Attributes map[string]string `hcl:"attributes,optional"`
}

// kinds are a node's GPUs, first those of the shape itself.
func (s Shape) kinds() []GPUs {
	return append([]GPUs{{s.GPUs, s.Model, s.Slices, s.SameGPU, s.Island, s.Attributes}}, s.Also...)
}

func (s Shape) validate(pool string) (errs []error) {
	for i, g := range s.kinds() {
		field := "shape"
		if i > 0 {
			field = fmt.Sprintf("shape.also[%d]", i-1)
		}
		wrong := func(key string, value any, allowed string) {
			errs = append(errs, fmt.Errorf("pool %q: %s.%s: %v; allowed %s", pool, field, key, value, allowed))
		}
		if g.Count < 1 || g.Count > mostGPUs {
			wrong("gpus", g.Count, fmt.Sprintf("are 1 to %d", mostGPUs))
		}
		if g.Slices < 0 || g.Slices == 1 || g.Slices > mostSlices {
			wrong("slices", g.Slices, fmt.Sprintf("are 0 (GPUs are whole) and 2 to %d", mostSlices))
		}
		if g.SameGPU && g.Slices == 0 {
			wrong("allow_same_gpu", g.SameGPU, "is true only with slices")
		}
		if g.Island != 0 && (g.Island < 2 || g.Count%g.Island != 0) {
			wrong("island", g.Island, fmt.Sprintf("are 0 (a model's GPUs are one group) and, from 2, what divides gpus, %d", g.Count))
		}
	}
	if s.CPU < 0 || s.Memory < 0 {
		errs = append(errs, fmt.Errorf("pool %q: shape.cpu and shape.memory: %d and %d; allowed are 0 (not looked at) and more", pool, s.CPU, s.Memory))
	}
	return errs
}

// Group is a kind of devices that a node has one or several groups of.
type Group struct {
	GPUs
	// Kind is what the planner knows it by, Size how many devices a group has.
	Kind string
	Size int
	// Islands is how many NVLink islands a node has that are groups; 0: none.
	Islands int
	many    int
}

// Groups are the groups of devices that the device plugin makes of a node's GPUs.
func (p *Definition) Groups() (all []Group) {
	for i, g := range p.Shape.kinds() {
		group := Group{GPUs: g, Kind: fmt.Sprintf("%s %d", p.Name, i), Size: g.Count, many: 1}
		if g.Island > 0 {
			group.Size, group.Islands = g.Island, g.Count/g.Island
			group.many = group.Islands
		}
		if g.Slices > 0 && g.SameGPU {
			group.Size *= g.Slices
		} else if g.Slices > 0 {
			group.many *= g.Slices
		}
		all = append(all, group)
	}
	return all
}

// shape is what the planner packs onto. CPU and memory that the file leaves out
// are no limit.
func (p *Definition) shape() plan.Shape {
	s := plan.Shape{Model: p.Shape.Model, CPU: p.Shape.CPU, Memory: p.Shape.Memory}
	if s.CPU == 0 {
		s.CPU = 1 << 30
	}
	if s.Memory == 0 {
		s.Memory = 1 << 30
	}
	for _, g := range p.Groups() {
		d := plan.Devices{Type: plan.GPU, Model: g.Model, Count: g.Size, Kind: g.Kind}
		if g.Slices > 0 {
			d.Type, d.Of = plan.Slice, g.Slices
		} else {
			s.GPUs += g.Count
		}
		for range g.many {
			s.Devices = append(s.Devices, d)
		}
	}
	return s
}
