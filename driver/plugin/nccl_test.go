// SPDX-License-Identifier: MPL-2.0

package plugin

import (
	"testing"

	"github.com/hashicorp/nomad/helper/pluginutils/hclutils"
	"github.com/shoenig/test/must"
)

func parseNCCL(t *testing.T, block string) NCCLConfig {
	t.Helper()
	var c Config
	hclutils.NewConfigParser(configSpec).ParseHCL(t, "config {\n"+block+"\n}", &c)
	must.NoError(t, c.NCCL.validate())
	return c.NCCL
}

func TestWhatNCCLIsToldFollowsTheNodeAndThePriority(t *testing.T) {
	must.MapEmpty(t, parseNCCL(t, "").environment(50))
	must.MapEmpty(t, parseNCCL(t, "nccl {}").environment(50))
	c := parseNCCL(t, `nccl {
		ib_hca        = "=mlx5_0,mlx5_1"
		ib_gid_index  = 3
		traffic_class = 0
		traffic {
			min_priority  = 60
			traffic_class = 106
		}
		traffic {
			min_priority  = 90
			traffic_class = 162
			service_level = 5
		}
	}`)
	base := map[string]string{"NCCL_IB_HCA": "=mlx5_0,mlx5_1", "NCCL_IB_GID_INDEX": "3"}
	for priority, more := range map[int]map[string]string{
		50: {"NCCL_IB_TC": "0"}, 60: {"NCCL_IB_TC": "106"}, 89: {"NCCL_IB_TC": "106"}, 100: {"NCCL_IB_TC": "162", "NCCL_IB_SL": "5"},
	} {
		want := map[string]string{}
		for _, part := range []map[string]string{base, more} {
			for name, value := range part {
				want[name] = value
			}
		}
		must.Eq(t, want, c.environment(priority), must.Sprint(priority))
	}
}

func TestWhatNCCLCannotBeToldIsNamed(t *testing.T) {
	for want, c := range map[string]NCCLConfig{
		`nccl.ib_hca: "mlx5_0, mlx5_1"; allowed`:            {IBHCA: "mlx5_0, mlx5_1"},
		"nccl.ib_gid_index: 256; allowed are -1 (NCCL's":    {IBGIDIndex: 256},
		"nccl.cross_nic: 3":                                 {CrossNIC: 3},
		"nccl.traffic_class: -2":                            {TrafficClass: -2},
		"nccl.service_level: 16":                            {ServiceLevel: 16},
		"nccl.traffic[0].min_priority: 0; allowed are 1 to": {Traffic: []TrafficConfig{{}}},
		"nccl.traffic[0].service_level: 99":                 {Traffic: []TrafficConfig{{MinPriority: 1, ServiceLevel: 99}}},
	} {
		must.ErrorContains(t, c.validate(), want)
	}
}
