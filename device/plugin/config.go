// SPDX-License-Identifier: MPL-2.0

package plugin

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/hashicorp/go-hclog"
	"github.com/hashicorp/nomad/plugins/base"
	"github.com/hashicorp/nomad/plugins/shared/hclspec"

	"github.com/nomad-gpu/nomad-gpu/device/gpu"
	"github.com/nomad-gpu/nomad-gpu/device/health"
	"github.com/nomad-gpu/nomad-gpu/device/mps"
	"github.com/nomad-gpu/nomad-gpu/device/power"
	"github.com/nomad-gpu/nomad-gpu/device/profile"
)

// Bounds of periods. A reading costs NVML some milliseconds a GPU.
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
	"profile_faults":     hclspec.NewAttr("profile_faults", "string", false),
	"nvml_library":       hclspec.NewAttr("nvml_library", "string", false),
	"nccl_topo_file":     hclspec.NewAttr("nccl_topo_file", "string", false),
	"state_dir":          hclspec.NewAttr("state_dir", "string", false),
	"placement":          hclspec.NewDefault(hclspec.NewAttr("placement", "string", false), hclspec.NewLiteral(`"nomad"`)),
	"mps_control":        hclspec.NewAttr("mps_control", "string", false),
	"nomad": hclspec.NewBlock("nomad", false, hclspec.NewObject(map[string]*hclspec.Spec{
		"address":    hclspec.NewAttr("address", "string", true),
		"token_file": hclspec.NewAttr("token_file", "string", false),
		"ca_file":    hclspec.NewAttr("ca_file", "string", false),
	})),
	"time_slices": hclspec.NewBlockList("time_slices", hclspec.NewObject(map[string]*hclspec.Spec{
		"model":          hclspec.NewAttr("model", "string", false),
		"replicas":       hclspec.NewAttr("replicas", "number", true),
		"allow_same_gpu": hclspec.NewAttr("allow_same_gpu", "bool", false),
	})),
	"mps": hclspec.NewBlockList("mps", hclspec.NewObject(map[string]*hclspec.Spec{
		"model":          hclspec.NewAttr("model", "string", false),
		"replicas":       hclspec.NewAttr("replicas", "number", true),
		"memory":         hclspec.NewAttr("memory", "string", false),
		"threads":        hclspec.NewDefault(hclspec.NewAttr("threads", "number", false), hclspec.NewLiteral("0")),
		"allow_same_gpu": hclspec.NewAttr("allow_same_gpu", "bool", false),
	})),
	"health": hclspec.NewDefault(hclspec.NewBlock("health", false, hclspec.NewObject(map[string]*hclspec.Spec{
		"period":         hclspec.NewDefault(hclspec.NewAttr("period", "string", false), hclspec.NewLiteral(`"10s"`)),
		"disabled_rules": hclspec.NewDefault(hclspec.NewAttr("disabled_rules", "list(string)", false), hclspec.NewLiteral("[]")),
		"thresholds":     hclspec.NewAttr("thresholds", "map(number)", false),
	})), hclspec.NewLiteral(`{ period = "10s", disabled_rules = [], thresholds = {} }`)),
	"thermal": hclspec.NewBlock("thermal", false, hclspec.NewObject(map[string]*hclspec.Spec{
		"hold_out": hclspec.NewAttr("hold_out", "number", true),
		"resume":   hclspec.NewAttr("resume", "number", true),
	})),
	"power": hclspec.NewBlockList("power", hclspec.NewObject(map[string]*hclspec.Spec{
		"model": hclspec.NewAttr("model", "string", false),
		"limit": hclspec.NewAttr("limit", "string", true),
	})),
	"metrics": hclspec.NewBlock("metrics", false, hclspec.NewObject(map[string]*hclspec.Spec{
		"listen": hclspec.NewAttr("listen", "string", true),
	})),
})

// rawConfig is the configuration as Nomad sends it.
type rawConfig struct {
	Enabled           bool     `codec:"enabled"`
	IgnoredGPUIDs     []string `codec:"ignored_gpu_ids"`
	FingerprintPeriod string   `codec:"fingerprint_period"`
	GroupBy           string   `codec:"group_by"`
	Profile           string   `codec:"profile"`
	ProfileSeed       string   `codec:"profile_seed"`
	ProfileFaults     string   `codec:"profile_faults"`
	NVMLLibrary       string   `codec:"nvml_library"`
	NCCLTopoFile      string   `codec:"nccl_topo_file"`
	StateDir          string   `codec:"state_dir"`
	Placement         string   `codec:"placement"`
	MPSControl        string   `codec:"mps_control"`
	Nomad             struct {
		Address   string `codec:"address"`
		TokenFile string `codec:"token_file"`
		CAFile    string `codec:"ca_file"`
	} `codec:"nomad"`
	TimeSlices []rawSlices `codec:"time_slices"`
	MPS        []rawSlices `codec:"mps"`
	Health     struct {
		Period        string         `codec:"period"`
		DisabledRules []string       `codec:"disabled_rules"`
		Thresholds    map[string]int `codec:"thresholds"`
	} `codec:"health"`
	Thermal struct {
		HoldOut int `codec:"hold_out"`
		Resume  int `codec:"resume"`
	} `codec:"thermal"`
	Power   []rawPower `codec:"power"`
	Metrics struct {
		Listen string `codec:"listen"`
	} `codec:"metrics"`
}

// rawPower is a block that limits the power of GPUs.
type rawPower struct {
	Model string `codec:"model"`
	Limit string `codec:"limit"`
}

// rawSlices is a block that shares GPUs.
type rawSlices struct {
	Model        string `codec:"model"`
	Replicas     int    `codec:"replicas"`
	AllowSameGPU bool   `codec:"allow_same_gpu"`
	Memory       string `codec:"memory"`
	Threads      int    `codec:"threads"`
}

// defaults are those of the schema, for a configuration that is empty.
func defaults() rawConfig {
	raw := rawConfig{Enabled: true, FingerprintPeriod: "1m", GroupBy: "model", Placement: "nomad"}
	raw.Health.Period = "10s"
	return raw
}

// config is the configuration, checked.
type config struct {
	enabled  bool
	grouping Grouping
	period   time.Duration
	// simulated is the machine to report instead of this one; nil for real GPUs.
	simulated *gpu.Machine
	// faults is the path of the file with the simulated machine's faults.
	faults string
	// rules of health, and how often GPUs are looked at for them.
	rules        []health.Rule
	healthPeriod time.Duration
	// nvmlLibrary is the path of libnvidia-ml.so.1; empty for the loader's choice.
	nvmlLibrary string
	// stateDir holds what must outlive the plugin's process.
	stateDir string
	// mpsProgram is the MPS control daemon's program; empty: none is run.
	mpsProgram string
	// remap lets the plugin choose GPUs; the agent at nomad is asked which are taken.
	remap bool
	nomad struct{ address, tokenFile, caFile string }

	// topoFile is what tasks get as NCCL_TOPO_FILE; the plugin writes it where
	// writeTopo is set.
	topoFile  string
	writeTopo bool
	// limits are the power limits of GPUs, by model.
	limits []power.Rule
	// listen is where metrics are served; empty: nowhere.
	listen string

	// These are made by open; nil where they are not wanted.
	mps    *mps.Daemon
	slots  *slots
	agent  *agent
	power  *powerKeeper
	memory *memory
}

// open makes what the configuration asks for. It touches nothing yet.
func (c *config) open(logger hclog.Logger) {
	if c.nomad.address != "" {
		c.agent = newAgent(c.nomad.address, c.nomad.tokenFile, c.nomad.caFile)
	}
	if c.stateDir == "" {
		return
	}
	c.memory = openMemory(c.stateDir, logger)
	c.power = &powerKeeper{path: powerPath(c.stateDir), rules: c.limits, logger: logger}
	dir := filepath.Join(c.stateDir, "mps")
	c.grouping.MPSDir = dir
	if c.mpsProgram != "" {
		c.mps = mps.New(c.mpsProgram, dir)
	}
	if c.remap {
		c.slots = &slots{path: filepath.Join(c.stateDir, "slots.json"), logger: logger}
		if c.agent != nil {
			c.slots.agent = c.agent
		}
	}
}

// bound is the grouping with the slots as they are bound now.
func (c config) bound() Grouping {
	g := c.grouping
	if c.slots != nil {
		g.SlotOf = c.slots.ids()
	}
	return g
}

// parseConfig decodes and checks. It reads the profile, so that a fault in it
// stops the agent with the line, but touches no hardware: Nomad starts a plugin
// several times only to look at it.
func parseConfig(c *base.Config) (config, error) {
	raw := defaults()
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
	var err error
	if c.period, err = parsePeriod("fingerprint_period", raw.FingerprintPeriod, "1m"); err != nil {
		return config{}, err
	}
	if c.healthPeriod, err = parsePeriod("health.period", raw.Health.Period, "10s"); err != nil {
		return config{}, err
	}
	if err := raw.judge(&c); err != nil {
		return config{}, err
	}
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
	if err := raw.share(&c); err != nil {
		return config{}, err
	}
	switch {
	case raw.ProfileSeed != "" && raw.Profile == "":
		return config{}, fmt.Errorf("profile_seed %q: it is of use only together with profile", raw.ProfileSeed)
	case raw.ProfileFaults != "" && raw.Profile == "":
		return config{}, fmt.Errorf("profile_faults %q: it is of use only together with profile", raw.ProfileFaults)
	case raw.ProfileFaults != "" && !filepath.IsAbs(raw.ProfileFaults):
		return config{}, fmt.Errorf("profile_faults %q: it must be an absolute path", raw.ProfileFaults)
	case raw.NVMLLibrary != "" && raw.Profile != "":
		return config{}, fmt.Errorf("nvml_library %q and profile %q: a machine is either read or simulated; leave one out", raw.NVMLLibrary, raw.Profile)
	case raw.NVMLLibrary != "" && !filepath.IsAbs(raw.NVMLLibrary):
		return config{}, fmt.Errorf("nvml_library %q: it must be an absolute path", raw.NVMLLibrary)
	case raw.Profile != "":
		c.faults = raw.ProfileFaults
		if c.simulated, err = simulate(raw.Profile, raw.ProfileSeed); err != nil {
			return config{}, err
		}
	}
	return c, nil
}

func parsePeriod(field, text, example string) (time.Duration, error) {
	period, err := time.ParseDuration(text)
	if err != nil || period < shortestPeriod || period > longestPeriod {
		return 0, fmt.Errorf("%s %q: it must be a duration from %s to %s, such as %q", field, text, shortestPeriod, longestPeriod, example)
	}
	return period, nil
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
