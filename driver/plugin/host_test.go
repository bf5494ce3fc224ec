// SPDX-License-Identifier: MPL-2.0

package plugin

import (
	"strings"
	"testing"

	"github.com/hashicorp/nomad/helper/pluginutils/hclutils"
	"github.com/hashicorp/nomad/plugins/drivers"
	"github.com/shoenig/test/must"

	"github.com/nomad-gpu/nomad-gpu/driver/runtime"
)

// parseConfig reads the plugin's configuration as Nomad does, through the schema.
func parseConfig(t *testing.T, text string) Config {
	t.Helper()
	var c Config
	hclutils.NewConfigParser(configSpec).ParseHCL(t, "config {\n"+text+"\n}", &c)
	return c
}

func hostTask() *drivers.TaskConfig {
	return &drivers.TaskConfig{AllocID: "alloc", Name: "a b", Devices: []*drivers.DeviceConfig{{HostPath: "/dev/x"}},
		Resources: &drivers.Resources{LinuxResources: &drivers.LinuxResources{CPUShares: 500, CpusetCpus: "2,3", MemoryLimitBytes: 1 << 30}}}
}

func TestATaskGetsACgroupOfWhatNomadReserved(t *testing.T) {
	whole := runtime.Cgroup{Path: "/nomad-nccl/alloc.a%20b", CPUShares: 500, CPUs: "2,3", MemoryBytes: 1 << 30, PIDs: 32768,
		Devices: &runtime.Devices{GPUs: []string{"GPU-a"}, Nodes: []string{"/dev/x"}}}
	for name, c := range map[string]struct {
		config string
		want   func(*runtime.Cgroup) *runtime.Cgroup
	}{
		"by default":          {"", func(g *runtime.Cgroup) *runtime.Cgroup { return g }},
		"with an empty block": {"cgroup {}", func(g *runtime.Cgroup) *runtime.Cgroup { return g }},
		"asked for":           {"cgroup {\n enabled = true\n}", func(g *runtime.Cgroup) *runtime.Cgroup { g.Required = true; return g }},
		"not wanted":          {"cgroup {\n enabled = false\n}", func(g *runtime.Cgroup) *runtime.Cgroup { return nil }},
		"without devices":     {"cgroup {\n limit_devices = false\n}", func(g *runtime.Cgroup) *runtime.Cgroup { g.Devices = nil; return g }},
		"all is set": {"cgroup {\n parent = \"/x/y\"\n pids_limit = 0\n devices = [\"/dev/kvm\"]\n}", func(g *runtime.Cgroup) *runtime.Cgroup {
			g.Path, g.PIDs, g.Devices.Nodes = "/x/y/alloc.a%20b", 0, []string{"/dev/kvm", "/dev/x"}
			return g
		}},
	} {
		t.Run(name, func(t *testing.T) {
			config := parseConfig(t, c.config)
			_, err := config.read()
			must.NoError(t, err)
			want := whole
			want.Devices = &runtime.Devices{GPUs: whole.Devices.GPUs, Nodes: whole.Devices.Nodes}
			must.Eq(t, c.want(&want), config.Cgroup.cgroup(hostTask(), []string{"GPU-a"}))
		})
	}
	bare := hostTask()
	bare.Resources.LinuxResources = nil
	must.Zero(t, parseConfig(t, "").Cgroup.cgroup(bare, nil).MemoryBytes)
}

func TestEachFaultOfTheCgroupBlockIsNamed(t *testing.T) {
	for want, line := range map[string]string{
		`cgroup.parent: "nomad"; allowed is a path below`:    `parent = "nomad"`,
		`cgroup.parent: "/"`:                                 `parent = "/"`,
		`cgroup.parent: "/a/../.."`:                          `parent = "/a/../.."`,
		`cgroup.pids_limit: -1; allowed are 0 (no limit) to`: `pids_limit = -1`,
		`cgroup.devices: "kvm"; allowed is the absolute`:     `devices = ["kvm"]`,
	} {
		_, err := parseConfig(t, "cgroup {\n"+line+"\n}").read()
		must.ErrorContains(t, err, want)
	}
}

func TestLimitsAreWhatTrainingNeedsAndWhatTheUserAsksFor(t *testing.T) {
	at := func(lines string) TaskConfig {
		return parse(t, strings.Replace(taskBlock, "gang {", "rlimits {\n"+lines+"\n}\n gang {", 1))
	}
	limits, err := parse(t, taskBlock).Rlimits.read()
	must.NoError(t, err)
	must.Eq(t, []runtime.Limit{{Name: "memlock", Value: unlimited}, {Name: "nofile", Value: 1 << 20}, {Name: "stack", Value: 64 << 20}}, limits)
	limits, err = at("memlock = \"2GiB\"\n nofile = 4096\n stack = \"unlimited\"\n core = 0").Rlimits.read()
	must.NoError(t, err)
	must.Eq(t, []runtime.Limit{{Name: "memlock", Value: 2 << 30, Asked: true}, {Name: "nofile", Value: 4096, Asked: true},
		{Name: "stack", Value: unlimited, Asked: true}, {Name: "core", Asked: true}}, limits)
	for want, line := range map[string]string{
		`rlimits.memlock: "much"; allowed is "unlimited" or a size such as 8GiB`: `memlock = "much"`,
		`rlimits.memlock: "-1"`: `memlock = -1`,
		`rlimits.nofile: "1GiB"; allowed is a number of at least 64`: `nofile = "1GiB"`,
		`rlimits.nofile: "3"`:     `nofile = 3`,
		`rlimits.stack: "1KiB"`:   `stack = "1KiB"`,
		`rlimits.core: "nothing"`: `core = "nothing"`,
	} {
		_, err := at(line).read()
		must.ErrorContains(t, err, want)
	}
}

func TestLocalityIsOnUnlessItIsSwitchedOff(t *testing.T) {
	must.True(t, parse(t, taskBlock).Locality)
	must.False(t, parse(t, strings.Replace(taskBlock, "gang {", "locality = false\n gang {", 1)).Locality)
}
