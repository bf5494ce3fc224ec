// SPDX-License-Identifier: MPL-2.0

package plugin

import (
	"errors"
	"fmt"
	"strconv"
	"time"

	"github.com/hashicorp/nomad/plugins/drivers"
	"github.com/hashicorp/nomad/plugins/shared/hclspec"

	"github.com/nomad-gpu/nomad-gpu/driver/consul"
	"github.com/nomad-gpu/nomad-gpu/driver/preflight"
	"github.com/nomad-gpu/nomad-gpu/driver/runtime"
)

// preflightSpec is a task's preflight block. Fractions are texts in it, which
// HCL makes of numbers by itself: Nomad does not hand all of them over as numbers.
var preflightSpec = hclspec.NewBlock("preflight", false, hclspec.NewObject(map[string]*hclspec.Spec{
	"reach":       withDefault("reach", "bool", "true"),
	"versions":    withDefault("versions", "bool", "true"),
	"limits":      withDefault("limits", "bool", "true"),
	"rdma":        withDefault("rdma", "bool", "true"),
	"bandwidth":   withDefault("bandwidth", "bool", "false"),
	"min_gbps":    withDefault("min_gbps", "string", `"0"`),
	"ratio":       withDefault("ratio", "string", `"0.5"`),
	"leave_out":   withDefault("leave_out", "bool", "false"),
	"shm_mib":     withDefault("shm_mib", "number", "0"),
	"memlock_mib": withDefault("memlock_mib", "number", "0"),
	"timeout":     withDefault("timeout", "string", `"`+preflight.DefaultTimeout.String()+`"`),
}))

// PreflightConfig is the decoded preflightSpec; the zero value stands for no block.
type PreflightConfig struct {
	Reach      bool   `codec:"reach"`
	Versions   bool   `codec:"versions"`
	Limits     bool   `codec:"limits"`
	RDMA       bool   `codec:"rdma"`
	Bandwidth  bool   `codec:"bandwidth"`
	MinGbps    string `codec:"min_gbps"`
	Ratio      string `codec:"ratio"`
	LeaveOut   bool   `codec:"leave_out"`
	ShmMiB     int    `codec:"shm_mib"`
	MemlockMiB int    `codec:"memlock_mib"`
	Timeout    string `codec:"timeout"`
}

// read checks the block. What is left of prepare after the calls is for the
// process itself: members may differ in when they begin.
func (c PreflightConfig) read(prepare time.Duration) (preflight.Steps, error) {
	s := preflight.Defaults()
	if c != (PreflightConfig{}) {
		timeout, err := duration("preflight.timeout", c.Timeout, time.Second)
		gbps, gbpsErr := fraction("preflight.min_gbps", c.MinGbps)
		ratio, ratioErr := fraction("preflight.ratio", c.Ratio)
		if err := errors.Join(err, gbpsErr, ratioErr); err != nil {
			return s, err
		}
		s = preflight.Steps{Reach: c.Reach, Versions: c.Versions, Limits: c.Limits, RDMA: c.RDMA, Bandwidth: c.Bandwidth,
			MinGbps: gbps, Ratio: ratio, LeaveOut: c.LeaveOut, ShmMiB: c.ShmMiB, MemlockMiB: c.MemlockMiB, Timeout: timeout}
	}
	if err := s.Validate(); err != nil {
		return s, err
	}
	if prepare > 0 {
		s.Timeout = min(s.Timeout, prepare*3/4)
	}
	return s, nil
}

func fraction(field, text string) (float64, error) {
	f, err := strconv.ParseFloat(text, 64)
	if err != nil {
		return 0, fmt.Errorf("%s: %q; allowed is a number such as 0.5", field, text)
	}
	return f, nil
}

// preflightOf is one task's.
func (d *Driver) preflightOf(cfg *drivers.TaskConfig, steps preflight.Steps, gpus int, box *runtime.Container, limits []runtime.Limit) *preflight.Check {
	// Nomad's environment of the task has the devices' variables in it too.
	list, set := cfg.Env["NCCL_IB_HCA"]
	asked := set && list != cfg.DeviceEnv["NCCL_IB_HCA"]
	c := &preflight.Check{Steps: steps, Versions: preflight.LocalVersions("/sys"), Host: preflight.Host{GPUs: gpus, AskedHCA: asked},
		Warn: func(text string) { d.emit(cfg, "Preflight", text) }}
	c.Host.Memlock = func() (uint64, error) {
		most, err := runtime.MostLimit("memlock")
		for _, l := range limits {
			if l.Name == "memlock" {
				most = min(l.Value, most)
			}
		}
		return most, err
	}
	if box != nil { // a container has its own
		c.Host.ShmSize = uint64(box.ShmBytes)
	}
	if steps.Bandwidth {
		c.Baselines = consul.NewBaselines(d.consul, d.settings.consul.Prefix)
	}
	return c
}
