// SPDX-License-Identifier: MPL-2.0

package plugin

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/hashicorp/nomad/plugins/base"
	"github.com/hashicorp/nomad/plugins/shared/hclspec"

	"github.com/nomad-gpu/nomad-gpu/device/gpu"
	"github.com/nomad-gpu/nomad-gpu/device/profile"
)

// Bounds of fingerprint_period. A reading costs NVML some milliseconds a GPU.
const (
	shortestPeriod = time.Second
	longestPeriod  = 24 * time.Hour
)

// configSpec is the schema of `plugin "nomad-device-gpu" { config { … } }`.
var configSpec = hclspec.NewObject(map[string]*hclspec.Spec{
	"enabled":            hclspec.NewDefault(hclspec.NewAttr("enabled", "bool", false), hclspec.NewLiteral("true")),
	"ignored_gpu_ids":    hclspec.NewDefault(hclspec.NewAttr("ignored_gpu_ids", "list(string)", false), hclspec.NewLiteral("[]")),
	"fingerprint_period": hclspec.NewDefault(hclspec.NewAttr("fingerprint_period", "string", false), hclspec.NewLiteral(`"1m"`)),
	"group_by":           hclspec.NewDefault(hclspec.NewAttr("group_by", "string", false), hclspec.NewLiteral(`"model"`)),
	"profile":            hclspec.NewAttr("profile", "string", false),
	"profile_seed":       hclspec.NewAttr("profile_seed", "string", false),
	"nvml_library":       hclspec.NewAttr("nvml_library", "string", false),
})

// rawConfig is the configuration as Nomad sends it.
type rawConfig struct {
	Enabled           bool     `codec:"enabled"`
	IgnoredGPUIDs     []string `codec:"ignored_gpu_ids"`
	FingerprintPeriod string   `codec:"fingerprint_period"`
	GroupBy           string   `codec:"group_by"`
	Profile           string   `codec:"profile"`
	ProfileSeed       string   `codec:"profile_seed"`
	NVMLLibrary       string   `codec:"nvml_library"`
}

// config is the configuration, checked.
type config struct {
	enabled  bool
	grouping Grouping
	period   time.Duration
	// simulated is the machine to report instead of this one; nil for real GPUs.
	simulated *gpu.Machine
	// nvmlLibrary is the path of libnvidia-ml.so.1; empty for the loader's choice.
	nvmlLibrary string
}

// parseConfig decodes and checks. It reads the profile, so that a fault in it
// stops the agent with the line, but touches no hardware: Nomad starts a plugin
// several times only to look at it.
func parseConfig(c *base.Config) (config, error) {
	raw := rawConfig{Enabled: true, FingerprintPeriod: "1m", GroupBy: "model"}
	if len(c.PluginConfig) > 0 {
		if err := base.MsgPackDecode(c.PluginConfig, &raw); err != nil {
			return config{}, fmt.Errorf("decoding the configuration: %w", err)
		}
	}
	return raw.check()
}

func (raw rawConfig) check() (config, error) {
	ignored := make(map[string]bool)
	c := config{enabled: raw.Enabled, nvmlLibrary: raw.NVMLLibrary}
	period, err := time.ParseDuration(raw.FingerprintPeriod)
	if err != nil || period < shortestPeriod || period > longestPeriod {
		return config{}, fmt.Errorf("fingerprint_period %q: it must be a duration from %s to %s, such as \"1m\"",
			raw.FingerprintPeriod, shortestPeriod, longestPeriod)
	}
	c.period = period
	for i, id := range raw.IgnoredGPUIDs {
		if id = strings.TrimSpace(id); id == "" {
			return config{}, fmt.Errorf("ignored_gpu_ids[%d] is empty: it must be a GPU's UUID, as `nvidia-smi -L` prints it", i)
		}
		ignored[id] = true
	}
	switch raw.GroupBy {
	case "model", "island":
		c.grouping = Grouping{Ignored: ignored, ByIsland: raw.GroupBy == "island"}
	default:
		return config{}, fmt.Errorf("group_by %q: allowed are \"model\" and \"island\"", raw.GroupBy)
	}
	switch {
	case raw.ProfileSeed != "" && raw.Profile == "":
		return config{}, fmt.Errorf("profile_seed %q: it is of use only together with profile", raw.ProfileSeed)
	case raw.NVMLLibrary != "" && raw.Profile != "":
		return config{}, fmt.Errorf("nvml_library %q and profile %q: a machine is either read or simulated; leave one out", raw.NVMLLibrary, raw.Profile)
	case raw.NVMLLibrary != "" && !filepath.IsAbs(raw.NVMLLibrary):
		return config{}, fmt.Errorf("nvml_library %q: it must be an absolute path", raw.NVMLLibrary)
	case raw.Profile != "":
		if c.simulated, err = simulate(raw.Profile, raw.ProfileSeed); err != nil {
			return config{}, err
		}
	}
	return c, nil
}

// simulate loads a profile; the seed is the host's name unless one is given.
func simulate(name, seed string) (*gpu.Machine, error) {
	machine, err := profile.Load(name)
	if err != nil {
		return nil, fmt.Errorf("profile: %w", err)
	}
	if seed == "" {
		if seed, err = os.Hostname(); err != nil {
			return nil, fmt.Errorf("profile_seed is not set and the host's name cannot be read: %w", err)
		}
	}
	if err := profile.Simulate(machine, seed); err != nil {
		return nil, fmt.Errorf("profile %q: %w", name, err)
	}
	return machine, nil
}
