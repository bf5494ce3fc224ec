// SPDX-License-Identifier: MPL-2.0

package plugin

import (
	"errors"
	"fmt"
	"math"
	"net/url"
	"path"
	"path/filepath"
	"strconv"

	"github.com/docker/go-units"
	"github.com/hashicorp/nomad/plugins/drivers"
	"github.com/hashicorp/nomad/plugins/shared/hclspec"

	"github.com/nomad-gpu/nomad-gpu/driver/runtime"
)

const (
	defaultCgroupParent = "/nomad-nccl"
	// defaultPIDs is far above what eight ranks with their data loaders need,
	// and far below what takes a host down.
	defaultPIDs = 32768
)

// cgroupSpec is how host processes are limited, in the plugin's configuration.
var cgroupSpec = hclspec.NewDefault(hclspec.NewBlock("cgroup", false, hclspec.NewObject(map[string]*hclspec.Spec{
	"enabled":       attr("enabled", "bool"),
	"parent":        withDefault("parent", "string", strconv.Quote(defaultCgroupParent)),
	"pids_limit":    withDefault("pids_limit", "number", strconv.Itoa(defaultPIDs)),
	"limit_devices": withDefault("limit_devices", "bool", "true"),
	"devices":       attr("devices", "list(string)"),
})), hclspec.NewLiteral(fmt.Sprintf("{ parent = %q, pids_limit = %d, limit_devices = true }", defaultCgroupParent, defaultPIDs)))

// CgroupConfig is the decoded cgroupSpec.
type CgroupConfig struct {
	// Enabled: true, or it is an error; false: none; unset: where it can be had.
	Enabled      *bool    `codec:"enabled"`
	Parent       string   `codec:"parent"`
	PIDsLimit    int64    `codec:"pids_limit"`
	LimitDevices bool     `codec:"limit_devices"`
	Devices      []string `codec:"devices"`
}

func (c CgroupConfig) validate() error {
	var errs []error
	if !path.IsAbs(c.Parent) || path.Clean(c.Parent) != c.Parent || c.Parent == "/" || len(c.Parent) > 255 {
		errs = append(errs, fmt.Errorf("cgroup.parent: %q; allowed is a path below the hierarchies' root, such as %s", c.Parent, defaultCgroupParent))
	}
	if c.PIDsLimit < 0 || c.PIDsLimit > 4<<20 {
		errs = append(errs, fmt.Errorf("cgroup.pids_limit: %d; allowed are 0 (no limit) to %d", c.PIDsLimit, 4<<20))
	}
	for _, d := range c.Devices {
		if !filepath.IsAbs(d) {
			errs = append(errs, fmt.Errorf("cgroup.devices: %q; allowed is the absolute path of a device node", d))
		}
	}
	return errors.Join(errs...)
}

// cgroup is what the task's processes may use; nil: they get none. Its path
// lacks the generation.
func (c CgroupConfig) cgroup(cfg *drivers.TaskConfig, gpus []string) *runtime.Cgroup {
	if c.Enabled != nil && !*c.Enabled {
		return nil
	}
	// A task's name may hold any byte but the slash, so the escaped one is unique.
	g := reserved(c.PIDsLimit, cfg)
	g.Path, g.Required = path.Join(c.Parent, cfg.AllocID+"."+url.PathEscape(cfg.Name)), c.Enabled != nil
	if c.LimitDevices {
		g.Devices = &runtime.Devices{GPUs: gpus, Nodes: c.Devices}
		for _, d := range cfg.Devices {
			g.Devices.Nodes = append(g.Devices.Nodes, d.HostPath)
		}
	}
	return g
}

// reserved is what the task may use, in a cgroup without a place: a container's
// is made by its engine.
func reserved(pids int64, cfg *drivers.TaskConfig) *runtime.Cgroup {
	g := &runtime.Cgroup{PIDs: pids}
	if l := cfg.Resources.LinuxResources; l != nil {
		g.CPUShares, g.CPUs, g.MemoryBytes = uint64(max(l.CPUShares, 0)), l.CpusetCpus, l.MemoryLimitBytes
	}
	return g
}

// rlimitsSpec is the limits that a task asks for.
var rlimitsSpec = hclspec.NewBlock("rlimits", false, hclspec.NewObject(map[string]*hclspec.Spec{
	"memlock": attr("memlock", "string"),
	"nofile":  attr("nofile", "string"),
	"stack":   attr("stack", "string"),
	"core":    attr("core", "string"),
}))

// RlimitsConfig is the decoded rlimitsSpec: amounts such as "64MiB", for nofile
// a number, or "unlimited"; empty: the default.
type RlimitsConfig struct {
	Memlock string `codec:"memlock"`
	Nofile  string `codec:"nofile"`
	Stack   string `codec:"stack"`
	Core    string `codec:"core"`
}

const (
	unlimited = math.MaxUint64
	// leastFiles is what the supervisor itself needs, which has the same limits.
	leastFiles = 64
	leastStack = 64 << 10
)

// read gives the limits: what training needs as far as the host allows (RDMA
// locks its memory), and what the user asks for.
func (c RlimitsConfig) read() ([]runtime.Limit, error) {
	limits := []runtime.Limit{{Name: "memlock", Value: unlimited}, {Name: "nofile", Value: 1 << 20}, {Name: "stack", Value: 64 << 20}}
	var errs []error
	ask := func(name, text, allowed string, least uint64, parse func(string) (uint64, error)) {
		if text == "" {
			return
		}
		value, err := uint64(unlimited), error(nil)
		if text != "unlimited" {
			value, err = parse(text)
		}
		if err != nil || value < least {
			errs = append(errs, fmt.Errorf("rlimits.%s: %q; allowed is %s", name, text, allowed))
			return
		}
		for i := range limits {
			if limits[i].Name == name {
				limits[i].Value, limits[i].Asked = value, true
				return
			}
		}
		limits = append(limits, runtime.Limit{Name: name, Value: value, Asked: true})
	}
	size := func(text string) (uint64, error) {
		n, err := units.RAMInBytes(text)
		if n < 0 {
			err = errors.New("negative")
		}
		return uint64(n), err
	}
	number := func(text string) (uint64, error) { return strconv.ParseUint(text, 10, 32) }
	ask("memlock", c.Memlock, `"unlimited" or a size such as 8GiB`, 0, size)
	ask("nofile", c.Nofile, fmt.Sprintf("a number of at least %d", leastFiles), leastFiles, number)
	ask("stack", c.Stack, `"unlimited" or a size of at least 64KiB, such as 64MiB`, leastStack, size)
	ask("core", c.Core, `"unlimited" or a size such as 0 or 1GiB`, 0, size)
	return limits, errors.Join(errs...)
}
