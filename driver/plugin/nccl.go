// SPDX-License-Identifier: MPL-2.0

package plugin

import (
	"errors"
	"fmt"
	"strconv"
	"strings"

	"github.com/hashicorp/nomad/plugins/shared/hclspec"
)

// ncclSpec is what NCCL is told on this node: a client's configuration is the
// place for it, since nodes of a class are wired alike.
var ncclSpec = hclspec.NewBlock("nccl", false, hclspec.NewObject(map[string]*hclspec.Spec{
	"ib_hca":        attr("ib_hca", "string"),
	"ib_gid_index":  withDefault("ib_gid_index", "number", "-1"),
	"cross_nic":     withDefault("cross_nic", "number", "-1"),
	"traffic_class": withDefault("traffic_class", "number", "-1"),
	"service_level": withDefault("service_level", "number", "-1"),
	"traffic": hclspec.NewBlockList("traffic", hclspec.NewObject(map[string]*hclspec.Spec{
		"min_priority":  hclspec.NewAttr("min_priority", "number", true),
		"traffic_class": withDefault("traffic_class", "number", "-1"),
		"service_level": withDefault("service_level", "number", "-1"),
	})),
}))

// NCCLConfig is the decoded ncclSpec; without a block it is all empty. Numbers
// below 0 are left to NCCL.
type NCCLConfig struct {
	IBHCA        string          `codec:"ib_hca"`
	IBGIDIndex   int             `codec:"ib_gid_index"`
	CrossNIC     int             `codec:"cross_nic"`
	TrafficClass int             `codec:"traffic_class"`
	ServiceLevel int             `codec:"service_level"`
	Traffic      []TrafficConfig `codec:"traffic"`
}

// TrafficConfig is the class of traffic of gangs from a priority on.
type TrafficConfig struct {
	MinPriority  int `codec:"min_priority"`
	TrafficClass int `codec:"traffic_class"`
	ServiceLevel int `codec:"service_level"`
}

// empty: no block. A block has a -1 where nothing is set.
func (c NCCLConfig) empty() bool {
	return c.IBHCA == "" && c.IBGIDIndex == 0 && c.CrossNIC == 0 && c.TrafficClass == 0 && c.ServiceLevel == 0 && len(c.Traffic) == 0
}

func (c NCCLConfig) validate() error {
	var errs []error
	within := func(field string, value, most int) {
		if value < -1 || value > most {
			errs = append(errs, fmt.Errorf("nccl.%s: %d; allowed are -1 (NCCL's own choice) to %d", field, value, most))
		}
	}
	if len(c.IBHCA) > 1024 || strings.ContainsFunc(c.IBHCA, func(r rune) bool { return r <= ' ' || r > '~' }) {
		errs = append(errs, fmt.Errorf("nccl.ib_hca: %q; allowed are up to 1024 bytes without spaces, such as \"=mlx5_0,mlx5_1\"", c.IBHCA))
	}
	within("ib_gid_index", c.IBGIDIndex, 255)
	within("cross_nic", c.CrossNIC, 2)
	within("traffic_class", c.TrafficClass, 255)
	within("service_level", c.ServiceLevel, 15)
	for n, t := range c.Traffic {
		within(fmt.Sprintf("traffic[%d].traffic_class", n), t.TrafficClass, 255)
		within(fmt.Sprintf("traffic[%d].service_level", n), t.ServiceLevel, 15)
		if t.MinPriority < 1 || t.MinPriority > 100 {
			errs = append(errs, fmt.Errorf("nccl.traffic[%d].min_priority: %d; allowed are 1 to 100", n, t.MinPriority))
		}
	}
	return errors.Join(errs...)
}

// environment is what a task of this priority is told: of the traffic blocks
// the one with the highest min_priority that it reaches.
func (c NCCLConfig) environment(priority int) map[string]string {
	if c.empty() {
		return nil
	}
	chosen := TrafficConfig{TrafficClass: c.TrafficClass, ServiceLevel: c.ServiceLevel}
	for _, t := range c.Traffic {
		if priority >= t.MinPriority && t.MinPriority > chosen.MinPriority {
			chosen = t
		}
	}
	env := map[string]string{}
	set := func(name string, value int) {
		if value >= 0 {
			env[name] = strconv.Itoa(value)
		}
	}
	if c.IBHCA != "" {
		env["NCCL_IB_HCA"] = c.IBHCA
	}
	set("NCCL_IB_GID_INDEX", c.IBGIDIndex)
	set("NCCL_CROSS_NIC", c.CrossNIC)
	set("NCCL_IB_TC", chosen.TrafficClass)
	set("NCCL_IB_SL", chosen.ServiceLevel)
	return env
}
