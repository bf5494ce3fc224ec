// SPDX-License-Identifier: MPL-2.0

package plugin

import (
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/hashicorp/nomad/plugins/base"
	"github.com/shoenig/test/must"
)

func TestConfigurationIsCheckedFieldByField(t *testing.T) {
	broken := filepath.Join(t.TempDir(), "broken.yaml")
	must.NoError(t, os.WriteFile(broken, []byte("name: Box\nparts:\n  a: { modell: x }\n"), 0o600))
	cases := []struct {
		name string
		set  func(*rawConfig)
		want string
	}{
		{"period that is none", func(c *rawConfig) { c.FingerprintPeriod = "often" }, `fingerprint_period "often": it must be a duration from 1s to 24h0m0s`},
		{"period too short", func(c *rawConfig) { c.FingerprintPeriod = "10ms" }, `fingerprint_period "10ms"`},
		{"period too long", func(c *rawConfig) { c.FingerprintPeriod = "25h" }, `fingerprint_period "25h"`},
		{"empty ID", func(c *rawConfig) { c.IgnoredGPUIDs = []string{"GPU-1", " "} }, "ignored_gpu_ids[1] is empty"},
		{"unknown grouping", func(c *rawConfig) { c.GroupBy = "rack" }, `group_by "rack": allowed are "model" and "island"`},
		{"unknown profile", func(c *rawConfig) { c.Profile = "dgx" }, `profile: profile "dgx" is not known; allowed are dgx-a100, dgx-h100,`},
		{"broken profile", func(c *rawConfig) { c.Profile = broken }, broken + `:3: unknown key "modell"`},
		{"seed alone", func(c *rawConfig) { c.ProfileSeed = "x" }, `profile_seed "x": it is of use only together with profile`},
		{"faults alone", func(c *rawConfig) { c.ProfileFaults = "/x" }, `profile_faults "/x": it is of use only together with profile`},
		{"faults by name", func(c *rawConfig) { c.Profile, c.ProfileFaults = "dgx-h100", "x" }, `profile_faults "x": it must be an absolute path`},
		{"health period", func(c *rawConfig) { c.Health.Period = "never" }, `health.period "never": it must be a duration from 1s to 24h0m0s, such as "10s"`},
		{"health rule", func(c *rawConfig) { c.Health.DisabledRules = []string{"heat"} }, `health.disabled_rules: health rule "heat" is not known; allowed are lost,`},
		{"library and profile", func(c *rawConfig) { c.Profile, c.NVMLLibrary = "dgx-h100", "/lib/x.so" }, "either read or simulated"},
		{"placement", func(c *rawConfig) { c.Placement = "best" }, `placement "best": allowed are "nomad" and "remap"`},
		{"remap by island", func(c *rawConfig) { c.Placement, c.GroupBy = "remap", "island" }, `placement "remap" and group_by "island": a request`},
		{"state by name", func(c *rawConfig) { c.StateDir = "state" }, `state_dir "state": it must be an absolute path`},
		{"agent", func(c *rawConfig) { c.Nomad.Address = "127.0.0.1:4646" }, `nomad.address "127.0.0.1:4646": it must be a URL such as`},
		{"one slice", func(c *rawConfig) { c.TimeSlices = []rawSlices{{Replicas: 1}} }, "time_slices[0].replicas 1: allowed are 2 to 64"},
		{"memory without unit", func(c *rawConfig) { c.MPS = []rawSlices{{Replicas: 2, Memory: "10"}} }, `mps[0].memory "10": it must be a size such as "10 GiB"`},
		{"memory of another kind", func(c *rawConfig) { c.MPS = []rawSlices{{Replicas: 2, Memory: "10 MHz"}} }, `mps[0].memory "10 MHz"`},
		{"shared twice", func(c *rawConfig) {
			c.TimeSlices, c.MPS = []rawSlices{{Replicas: 2}}, []rawSlices{{Replicas: 2, Model: "A"}}
		}, `mps[0].model "A": a rule before (time_slice) shares these GPUs already`},
		{"daemon without use", func(c *rawConfig) { c.MPSControl = "/x" }, `mps_control "/x": it is of use only together with an mps block`},
		{"threshold", func(c *rawConfig) { c.Health.Thresholds = map[string]int{"xid": 1} }, `health.thresholds: rule "xid" has none; allowed are`},
		{"too hot", func(c *rawConfig) { c.Thermal.HoldOut, c.Thermal.Resume = 150, 80 }, "thermal.hold_out 150: it must be a temperature from 30 to 120 °C"},
		{"no way to cool", func(c *rawConfig) { c.Thermal.HoldOut, c.Thermal.Resume = 80, 85 }, "thermal.resume 85 °C: it must be below thermal.hold_out, 80 °C"},
		{"power without unit", func(c *rawConfig) { c.Power = limits("", "350") }, `power[0].limit "350": it must be a power such as "350W"`},
		{"no power", func(c *rawConfig) { c.Power = limits("", "0W") }, `power[0].limit "0W"`},
		{"power twice", func(c *rawConfig) { c.Power = append(limits("", "300W"), limits("A", "200W")...) }, `power[1].model "A": a block before limits these GPUs already`},
		{"metrics everywhere by chance", func(c *rawConfig) { c.Metrics.Listen = ":9500" }, `metrics.listen ":9500": it must be an IP address and a port such as`},
		{"topology by name", func(c *rawConfig) { c.NCCLTopoFile = "x.xml" }, `nccl_topo_file "x.xml": allowed are "write" and an absolute path`},
		{"topology nowhere", func(c *rawConfig) { c.Profile, c.NCCLTopoFile = "dgx-h100", "write" }, `nccl_topo_file "write": state_dir must be set`},
		{"no state", func(c *rawConfig) { c.Profile, c.Power = "dgx-h100", limits("", "350W") }, `state_dir "": it must be set where a simulated machine has power`},
		{"library by name", func(c *rawConfig) { c.NVMLLibrary = "x.so" }, `nvml_library "x.so": it must be an absolute path`},
	}
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			raw := defaults()
			c.set(&raw)
			_, err := raw.check()
			must.ErrorContains(t, err, c.want)
		})
	}
}

func limits(model, limit string) []rawPower { return []rawPower{{Model: model, Limit: limit}} }

func TestSizesAreReadAsInConstraints(t *testing.T) {
	for text, want := range map[string]uint64{"": 0, "10 GiB": 10240, "10GiB": 10240, "512 MiB": 512, "1 TiB": 1 << 20} {
		got, err := parseMiB(text)
		must.NoError(t, err, must.Sprint(text))
		must.EqOp(t, want, got)
	}
	for _, text := range []string{"x", "1.5 GiB", "-1 GiB", "10 KiB", "99999999999 TiB", "10 GB/s"} {
		_, err := parseMiB(text)
		must.Error(t, err, must.Sprint(text))
	}
}

func TestConfigurationDefaults(t *testing.T) {
	c, err := parseConfig(&base.Config{})
	must.NoError(t, err)
	must.True(t, c.enabled)
	must.EqOp(t, time.Minute, c.period)
	must.Nil(t, c.simulated)
	must.EqOp(t, 10*time.Second, c.healthPeriod)
	must.Positive(t, len(c.rules))

	_, err = parseConfig(&base.Config{PluginConfig: []byte{0xc1}})
	must.ErrorContains(t, err, "decoding the configuration")
}

func TestProfileSeedDefaultsToTheHost(t *testing.T) {
	host, err := os.Hostname()
	must.NoError(t, err)
	unset, err := simulate("dgx-h100", "")
	must.NoError(t, err)
	named, err := simulate("dgx-h100", host)
	must.NoError(t, err)
	other, err := simulate("dgx-h100", host+"2")
	must.NoError(t, err)
	must.Eq(t, named.GPUs, unset.GPUs)
	must.NotEqOp(t, named.GPUs[0].UUID, other.GPUs[0].UUID)
}
