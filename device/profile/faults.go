// SPDX-License-Identifier: MPL-2.0

package profile

import (
	"errors"
	"fmt"
	"io/fs"
	"reflect"

	"github.com/goccy/go-yaml"
	"github.com/goccy/go-yaml/parser"

	"github.com/nomad-gpu/nomad-gpu/device/gpu"
)

// Fault is what is wrong with one GPU of a simulated machine.
type Fault struct {
	// GPU is its position.
	GPU int `yaml:"gpu"`
	// Lost is why it does not answer; empty if it does.
	Lost string `yaml:"lost"`
	// Xids that the driver reported. They count until Epoch changes, as they do
	// on a real GPU until it is reset.
	Xids  []uint64 `yaml:"xids"`
	Epoch string   `yaml:"epoch"`
	// NVLinksDown is how many of its NVLinks are down.
	NVLinksDown     uint `yaml:"nvlinks_down"`
	ThermalSlowdown bool `yaml:"thermal_slowdown"`
	PowerBrake      bool `yaml:"power_brake"`
	RemapPending    bool `yaml:"remap_pending"`
	RemapFailed     bool `yaml:"remap_failed"`
	// TemperatureC is the die's; nil: as it is without a fault.
	TemperatureC *uint `yaml:"temperature_c"`
}

type faultFile struct {
	Faults []Fault `yaml:"faults"`
}

// LoadFaults reads a file of faults for a machine with so many GPUs:
//
//	faults:
//	  - { gpu: 3, xids: [48] }
//	  - { gpu: 5, lost: fallen off the bus }
//
// A file that is missing or empty means that nothing is wrong.
func LoadFaults(file string, gpus int) ([]Fault, error) {
	text, err := ReadFile(file)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("reading faults: %w", err)
	}
	tree, err := parser.ParseBytes(text, 0)
	if err != nil {
		return nil, located(file, err)
	}
	if countBodies(tree) == 0 {
		return nil, nil
	}
	body := tree.Docs[0].Body
	if body == nil || len(tree.Docs) > 1 {
		return nil, fmt.Errorf("%s: faults are one YAML document", file)
	}
	if err := checkKeys(file, body, reflect.TypeFor[faultFile]()); err != nil {
		return nil, err
	}
	var parsed faultFile
	if err := yaml.NodeToValue(body, &parsed, yaml.Strict()); err != nil {
		return nil, located(file, err)
	}
	seen := make(map[int]bool)
	for n, fault := range parsed.Faults {
		path := fmt.Sprintf("$.faults[%d]", n)
		switch {
		case fault.GPU < 0 || fault.GPU >= gpus:
			return nil, fmt.Errorf("%s:%d: faults[%d].gpu: %d; allowed is 0 to %d", file, lineOf(tree, path), n, fault.GPU, gpus-1)
		case seen[fault.GPU]:
			return nil, fmt.Errorf("%s:%d: faults[%d].gpu: %d is listed earlier", file, lineOf(tree, path), n, fault.GPU)
		}
		seen[fault.GPU] = true
	}
	return parsed.Faults, nil
}

// WithFaults is the machine with what the faults show at once: GPUs that do not
// answer, and NVLinks that are down.
func WithFaults(m *gpu.Machine, faults []Fault) *gpu.Machine {
	faulty := *m
	faulty.GPUs = make([]gpu.GPU, len(m.GPUs))
	copy(faulty.GPUs, m.GPUs)
	for _, fault := range faults {
		g := &faulty.GPUs[fault.GPU]
		g.Fault = fault.Lost
		g.NVLinks -= min(g.NVLinks, fault.NVLinksDown)
	}
	return &faulty
}
