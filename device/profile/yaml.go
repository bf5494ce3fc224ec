// SPDX-License-Identifier: MPL-2.0

package profile

import (
	"errors"
	"fmt"
	"reflect"
	"slices"
	"strings"

	"github.com/goccy/go-yaml"
	"github.com/goccy/go-yaml/ast"
	"github.com/goccy/go-yaml/parser"

	"github.com/nomad-gpu/nomad-gpu/device/gpu"
)

// document is the YAML form of a machine. The files in machines/ are examples,
// README.md there explains the keys.
type document struct {
	Name          string          `yaml:"name"`
	Description   string          `yaml:"description"`
	Sources       []string        `yaml:"sources"`
	DriverVersion string          `yaml:"driver_version"`
	CUDAVersion   string          `yaml:"cuda_version"`
	NVSwitch      bool            `yaml:"nvswitch"`
	Parts         map[string]part `yaml:"parts"`
	GPUs          []gpuEntry      `yaml:"gpus"`
	NICs          []nicEntry      `yaml:"nics"`
	Links         []linkEntry     `yaml:"links"`
}

// part is a kind of GPU.
type part struct {
	Model             string  `yaml:"model"`
	Architecture      string  `yaml:"architecture"`
	ComputeCapability string  `yaml:"compute_capability"`
	MemoryMiB         uint64  `yaml:"memory_mib"`
	BAR1MiB           uint64  `yaml:"bar1_mib"`
	CoresClockMHz     uint    `yaml:"cores_clock_mhz"`
	MemoryClockMHz    uint    `yaml:"memory_clock_mhz"`
	PowerLimitW       uint    `yaml:"power_limit_w"`
	PCIeGeneration    uint    `yaml:"pcie_generation"`
	PCIeWidth         uint    `yaml:"pcie_width"`
	NVLinkVersion     float64 `yaml:"nvlink_version"`
	NVLinks           uint    `yaml:"nvlinks"`
}

type gpuEntry struct {
	Part   string `yaml:"part"`
	BusID  string `yaml:"bus_id"`
	NUMA   *int   `yaml:"numa"`
	CPUs   string `yaml:"cpus"`
	Bridge string `yaml:"bridge"`
	Switch string `yaml:"switch"`
}

type nicEntry struct {
	Name      string `yaml:"name"`
	Device    string `yaml:"device"`
	BusID     string `yaml:"bus_id"`
	NUMA      *int   `yaml:"numa"`
	Bridge    string `yaml:"bridge"`
	Switch    string `yaml:"switch"`
	SpeedMbps uint   `yaml:"speed_mbps"`
	RDMA      *bool  `yaml:"rdma"`
}

type linkEntry struct {
	GPUs  []int `yaml:"gpus"`
	Count uint  `yaml:"count"`
}

// fieldError is a fault at a place of the document, in YAMLPath form.
type fieldError struct {
	path    string
	message string
}

func (e *fieldError) Error() string { return e.path + ": " + e.message }

func bad(path, format string, args ...any) error {
	return &fieldError{path: path, message: fmt.Sprintf(format, args...)}
}

// ParseYAML reads a profile. Errors begin with the file's name and the line.
func ParseYAML(file string, text []byte) (*gpu.Machine, error) {
	if len(text) > maxTextBytes {
		return nil, fmt.Errorf("%s: the file has %d bytes; at most %d are read", file, len(text), maxTextBytes)
	}
	tree, err := parser.ParseBytes(text, 0)
	if err != nil {
		return nil, located(file, err)
	}
	if len(tree.Docs) != 1 || tree.Docs[0].Body == nil {
		return nil, fmt.Errorf("%s: a profile is one YAML document; this file has %d", file, countBodies(tree))
	}
	if err := checkKeys(file, tree.Docs[0].Body, reflect.TypeFor[document]()); err != nil {
		return nil, err
	}
	var doc document
	if err := yaml.NodeToValue(tree.Docs[0].Body, &doc, yaml.Strict()); err != nil {
		return nil, located(file, err)
	}
	machine, err := doc.machine()
	var field *fieldError
	if errors.As(err, &field) {
		return nil, fmt.Errorf("%s:%d: %s: %s", file, lineOf(tree, field.path), strings.TrimPrefix(field.path, "$."), field.message)
	}
	return machine, err
}

func countBodies(tree *ast.File) int {
	n := 0
	for _, doc := range tree.Docs {
		if doc.Body != nil {
			n++
		}
	}
	return n
}

// located puts file and line before the YAML library's message.
func located(file string, err error) error {
	var where yaml.Error
	if errors.As(err, &where) && where.GetToken() != nil {
		return fmt.Errorf("%s:%d: %s", file, where.GetToken().Position.Line, where.GetMessage())
	}
	return fmt.Errorf("%s: %w", file, err)
}

// lineOf finds the line of a path, or of the nearest part of it that exists: a
// key that is missing is reported where its parent stands.
func lineOf(tree *ast.File, path string) int {
	for path != "" && path != "$" {
		if p, err := yaml.PathString(path); err == nil {
			if node, err := p.FilterFile(tree); err == nil && node != nil && node.GetToken() != nil {
				return firstLine(node)
			}
		}
		path = path[:max(strings.LastIndexAny(path, ".["), 0)]
	}
	return 1
}

// firstLine is the line of a node's first key: the token of a mapping is the
// colon after it, that of a flow mapping its brace.
func firstLine(node ast.Node) int {
	if mapping, ok := node.(*ast.MappingNode); ok && len(mapping.Values) > 0 {
		return mapping.Values[0].Key.GetToken().Position.Line
	}
	return node.GetToken().Position.Line
}

// checkKeys refuses keys that a document does not know and says which it does:
// the YAML library's own check names the key alone.
func checkKeys(file string, node ast.Node, kind reflect.Type) error {
	for kind.Kind() == reflect.Pointer {
		kind = kind.Elem()
	}
	switch n := node.(type) {
	case *ast.MappingValueNode:
		return checkEntry(file, n, kind)
	case *ast.MappingNode:
		for _, entry := range n.Values {
			if err := checkEntry(file, entry, kind); err != nil {
				return err
			}
		}
	case *ast.SequenceNode:
		if kind.Kind() == reflect.Slice {
			for _, value := range n.Values {
				if err := checkKeys(file, value, kind.Elem()); err != nil {
					return err
				}
			}
		}
	}
	return nil
}

func checkEntry(file string, entry *ast.MappingValueNode, kind reflect.Type) error {
	switch kind.Kind() {
	case reflect.Map:
		return checkKeys(file, entry.Value, kind.Elem())
	case reflect.Struct:
		token := entry.Key.GetToken()
		var allowed []string
		for i := range kind.NumField() {
			key := kind.Field(i).Tag.Get("yaml")
			if key == token.Value {
				return checkKeys(file, entry.Value, kind.Field(i).Type)
			}
			allowed = append(allowed, key)
		}
		slices.Sort(allowed)
		return fmt.Errorf("%s:%d: unknown key %q; allowed here: %s", file, token.Position.Line, token.Value, strings.Join(allowed, ", "))
	}
	return nil
}
