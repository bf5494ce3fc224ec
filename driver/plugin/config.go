// SPDX-License-Identifier: MPL-2.0

package plugin

import (
	"cmp"
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"github.com/hashicorp/nomad/plugins/shared/hclspec"
	"golang.org/x/sys/unix"

	"github.com/nomad-gpu/nomad-gpu/driver/consul"
	"github.com/nomad-gpu/nomad-gpu/driver/gang"
	"github.com/nomad-gpu/nomad-gpu/driver/metrics"
	"github.com/nomad-gpu/nomad-gpu/driver/notice"
	"github.com/nomad-gpu/nomad-gpu/driver/preflight"
	"github.com/nomad-gpu/nomad-gpu/driver/runtime"
	"github.com/nomad-gpu/nomad-gpu/driver/runtime/docker"
	"github.com/nomad-gpu/nomad-gpu/driver/trace"
)

func attr(name, kind string) *hclspec.Spec { return hclspec.NewAttr(name, kind, false) }

func withDefault(name, kind, literal string) *hclspec.Spec {
	return hclspec.NewDefault(hclspec.NewAttr(name, kind, false), hclspec.NewLiteral(literal))
}

// configSpec is the plugin's configuration in the Nomad agent.
var configSpec = hclspec.NewObject(map[string]*hclspec.Spec{
	"consul": hclspec.NewBlock("consul", false, hclspec.NewObject(map[string]*hclspec.Spec{
		"address":     attr("address", "string"),
		"token":       attr("token", "string"),
		"token_file":  attr("token_file", "string"),
		"tls":         attr("tls", "bool"),
		"ca_file":     attr("ca_file", "string"),
		"cert_file":   attr("cert_file", "string"),
		"key_file":    attr("key_file", "string"),
		"server_name": attr("server_name", "string"),
		"datacenter":  attr("datacenter", "string"),
		"prefix":      withDefault("prefix", "string", `"`+consul.DefaultPrefix+`"`),
	})),
	"network": hclspec.NewBlock("network", false, hclspec.NewObject(map[string]*hclspec.Spec{
		"interface": attr("interface", "string"),
		"cidr":      attr("cidr", "string"),
		"address":   attr("address", "string"),
	})),
	"nccl":             ncclSpec,
	"max_kill_timeout": withDefault("max_kill_timeout", "string", `"30s"`),
	"notice": hclspec.NewBlock("notice", false, hclspec.NewObject(map[string]*hclspec.Spec{
		"source":    withDefault("source", "string", `"none"`),
		"path":      attr("path", "string"),
		"address":   attr("address", "string"),
		"period":    withDefault("period", "string", `"5s"`),
		"rebalance": withDefault("rebalance", "bool", "true"),
	})),
	"metrics": hclspec.NewBlock("metrics", false, hclspec.NewObject(map[string]*hclspec.Spec{
		"listen": withDefault("listen", "string", `"127.0.0.1:9501"`),
	})),
	"tracing": hclspec.NewBlock("tracing", false, hclspec.NewObject(map[string]*hclspec.Spec{
		"endpoint": attr("endpoint", "string"),
		"insecure": attr("insecure", "bool"),
		"sample":   withDefault("sample", "number", "1"),
	})),
	"cgroup":       cgroupSpec,
	"container":    containerSpec,
	"consul_grace": withDefault("consul_grace", "string", `"5m"`),
	"session_ttl":  withDefault("session_ttl", "string", `"15s"`),
	"topology":     attr("topology", "string"),
	"pool":         withDefault("pool", "string", `"default"`),
})

// Config is the decoded configSpec.
type Config struct {
	Consul struct {
		Address    string `codec:"address"`
		Token      string `codec:"token"`
		TokenFile  string `codec:"token_file"`
		TLS        bool   `codec:"tls"`
		CAFile     string `codec:"ca_file"`
		CertFile   string `codec:"cert_file"`
		KeyFile    string `codec:"key_file"`
		ServerName string `codec:"server_name"`
		Datacenter string `codec:"datacenter"`
		Prefix     string `codec:"prefix"`
	} `codec:"consul"`
	Network struct {
		Interface string `codec:"interface"`
		CIDR      string `codec:"cidr"`
		Address   string `codec:"address"`
	} `codec:"network"`
	NCCL           NCCLConfig `codec:"nccl"`
	MaxKillTimeout string     `codec:"max_kill_timeout"`
	Notice         struct {
		Source    string `codec:"source"`
		Path      string `codec:"path"`
		Address   string `codec:"address"`
		Period    string `codec:"period"`
		Rebalance bool   `codec:"rebalance"`
	} `codec:"notice"`
	Metrics struct {
		Listen string `codec:"listen"`
	} `codec:"metrics"`
	Tracing struct {
		Endpoint string  `codec:"endpoint"`
		Insecure bool    `codec:"insecure"`
		Sample   float64 `codec:"sample"`
	} `codec:"tracing"`
	Cgroup      CgroupConfig    `codec:"cgroup"`
	Container   ContainerConfig `codec:"container"`
	ConsulGrace string          `codec:"consul_grace"`
	SessionTTL  string          `codec:"session_ttl"`
	// Topology places this node for the order of ranks, such as "rack1/switch3".
	Topology string `codec:"topology"`
	// Pool names the nodes that gangs compete for.
	Pool string `codec:"pool"`
}

// settings are a Config with its values read.
type settings struct {
	consul      consul.Config
	iface       string
	cidr        netip.Prefix
	address     netip.Addr
	notice      notice.Config
	metrics     string // where to listen; empty: nowhere
	tracing     trace.Config
	consulGrace time.Duration
	sessionTTL  time.Duration
	topology    string
	pool        string
	nccl        NCCLConfig
	// maxKillTimeout is the client's: no stop by Nomad takes longer.
	maxKillTimeout time.Duration
	cgroup         CgroupConfig
	container      ContainerConfig
	engine         docker.Config
}

// read checks each field; it looks at no network.
func (c Config) read() (settings, error) {
	s := settings{iface: c.Network.Interface, topology: c.Topology, pool: cmp.Or(c.Pool, defaultPool), consul: consul.Config(c.Consul), cgroup: c.Cgroup, container: c.Container, nccl: c.NCCL}
	errs := []error{s.consul.Validate(), c.Cgroup.validate(), c.NCCL.validate()}
	var err error
	s.engine, err = c.Container.read()
	errs = append(errs, err)
	if len(s.pool) > maxPool {
		errs = append(errs, fmt.Errorf("pool: %q; allowed are 1 to %d bytes", s.pool, maxPool))
	}
	if c.Network.CIDR != "" {
		if s.cidr, err = netip.ParsePrefix(c.Network.CIDR); err != nil {
			errs = append(errs, fmt.Errorf("network.cidr: %q; allowed is a prefix such as 10.0.0.0/16", c.Network.CIDR))
		}
	}
	if c.Network.Address != "" {
		if s.address, err = netip.ParseAddr(c.Network.Address); err != nil {
			errs = append(errs, fmt.Errorf("network.address: %q; allowed is an IP literal", c.Network.Address))
		}
	}
	s.notice = notice.Config{Source: c.Notice.Source, Path: c.Notice.Path, Address: c.Notice.Address, Rebalance: c.Notice.Rebalance}
	if s.notice.On() {
		s.notice.Period, err = duration("notice.period", c.Notice.Period, 0)
		errs = append(errs, err)
	}
	errs = append(errs, s.notice.Validate(), metrics.Validate(c.Metrics.Listen))
	s.metrics, s.tracing = c.Metrics.Listen, trace.Config(c.Tracing)
	errs = append(errs, s.tracing.Validate())
	s.maxKillTimeout, err = duration("max_kill_timeout", cmp.Or(c.MaxKillTimeout, "30s"), time.Second)
	errs = append(errs, err)
	s.consulGrace, err = duration("consul_grace", c.ConsulGrace, 0)
	errs = append(errs, err)
	if s.sessionTTL, err = duration("session_ttl", c.SessionTTL, 10*time.Second); err == nil && s.sessionTTL > 24*time.Hour {
		err = fmt.Errorf("session_ttl: %s; allowed are 10s to 24h", s.sessionTTL)
	}
	errs = append(errs, err)
	return s, errors.Join(errs...)
}

func duration(field, text string, least time.Duration) (time.Duration, error) {
	d, err := time.ParseDuration(text)
	if err != nil || d < least {
		return 0, fmt.Errorf("%s: %q; allowed is a duration of at least %s, such as 90s or 5m", field, text, least)
	}
	return d, nil
}

// taskConfigSpec is the config block of a task.
var taskConfigSpec = hclspec.NewObject(withImage(map[string]*hclspec.Spec{
	"command":        attr("command", "string"),
	"args":           attr("args", "list(string)"),
	"work_dir":       attr("work_dir", "string"),
	"nproc_per_node": withDefault("nproc_per_node", "number", "0"),
	"framework":      attr("framework", "string"),
	"launch":         withDefault("launch", "string", `"per_node"`),
	"locality":       withDefault("locality", "bool", "true"),
	"rlimits":        rlimitsSpec,
	"gang": hclspec.NewBlock("gang", true, hclspec.NewObject(map[string]*hclspec.Spec{
		"nodes":           hclspec.NewAttr("nodes", "number", true),
		"ports":           withDefault("ports", "list(string)", `["gang_a", "gang_b"]`),
		"restarts":        withDefault("restarts", "number", "3"),
		"form_timeout":    withDefault("form_timeout", "string", `"10m"`),
		"prepare_timeout": withDefault("prepare_timeout", "string", `"10m"`),
		"fence_delay":     withDefault("fence_delay", "string", `"5s"`),
		"min_nodes":       withDefault("min_nodes", "number", "0"),
		"last_call":       withDefault("last_call", "string", `"30s"`),
		"grow_interval":   withDefault("grow_interval", "string", `"10m"`),
		"completion":      withDefault("completion", "string", `"all"`),
		"no_progress":     withDefault("no_progress", "number", "5"),
		"pool":            attr("pool", "string"),
		"priority":        withDefault("priority", "number", "50"),
		"run":             withDefault("run", "string", `"0"`),
	})),
	"checkpoint": hclspec.NewBlock("checkpoint", false, hclspec.NewObject(map[string]*hclspec.Spec{
		"signal":        withDefault("signal", "string", `"SIGTERM"`),
		"grace":         withDefault("grace", "string", `"30s"`),
		"failure_grace": withDefault("failure_grace", "string", `"5s"`),
		"dir":           attr("dir", "string"),
		"keep":          withDefault("keep", "number", "0"),
	})),
	"preflight": preflightSpec,
	"progress":  progressSpec,
}))

// withImage joins a task's options with those of its container, which stand
// beside them.
func withImage(own map[string]*hclspec.Spec) map[string]*hclspec.Spec {
	maps.Copy(own, imageSpec)
	return own
}

// TaskConfig is the decoded taskConfigSpec.
type TaskConfig struct {
	ImageConfig `codec:",squash"`

	Command      string   `codec:"command"`
	Args         []string `codec:"args"`
	WorkDir      string   `codec:"work_dir"`
	NprocPerNode int      `codec:"nproc_per_node"`
	Framework    string   `codec:"framework"`
	Launch       string   `codec:"launch"`
	// Locality: the processes keep to the CPUs and the memory near their GPUs.
	Locality bool          `codec:"locality"`
	Rlimits  RlimitsConfig `codec:"rlimits"`
	Gang     struct {
		Nodes          int      `codec:"nodes"`
		Ports          []string `codec:"ports"`
		Restarts       int      `codec:"restarts"`
		FormTimeout    string   `codec:"form_timeout"`
		PrepareTimeout string   `codec:"prepare_timeout"`
		FenceDelay     string   `codec:"fence_delay"`
		MinNodes       int      `codec:"min_nodes"`
		LastCall       string   `codec:"last_call"`
		GrowInterval   string   `codec:"grow_interval"`
		Completion     string   `codec:"completion"`
		NoProgress     int      `codec:"no_progress"`
		Pool           string   `codec:"pool"`
		Priority       int      `codec:"priority"`
		Run            string   `codec:"run"`
	} `codec:"gang"`
	Checkpoint struct {
		Signal       string `codec:"signal"`
		Grace        string `codec:"grace"`
		FailureGrace string `codec:"failure_grace"`
		Dir          string `codec:"dir"`
		Keep         int    `codec:"keep"`
	} `codec:"checkpoint"`
	Preflight PreflightConfig `codec:"preflight"`
	Progress  ProgressConfig  `codec:"progress"`
}

// taskSettings are a TaskConfig with its values read.
type taskSettings struct {
	spec   gang.Spec
	signal syscall.Signal
	grace  time.Duration
	// failureGrace is the grace where the stop is not planned.
	failureGrace time.Duration
	preflight    preflight.Steps
	progress     *progressSettings // nil: not asked for
	limits       []runtime.Limit
}

// defaultPool is the pool of nodes whose configuration names none.
const (
	defaultPool = "default"
	maxPool     = 128
)

// How a node's processes are started: one, which starts the others itself
// (torchrun, mpirun), or one for each GPU.
const (
	launchPerNode = "per_node"
	launchPerGPU  = "per_gpu"
)

// rasLabel is the port label that NCCL's RAS gets, where the group reserves one.
const rasLabel = "gang_ras"

func (c TaskConfig) read() (taskSettings, error) {
	var s taskSettings
	var errs []error
	take := func(err error) {
		if err != nil {
			errs = append(errs, err)
		}
	}
	if c.Command == "" && c.Image == "" {
		take(errors.New(`command: ""; allowed is a path or a name in the task's PATH`))
	}
	if c.WorkDir != "" && !filepath.IsAbs(c.WorkDir) {
		take(fmt.Errorf("work_dir: %q; allowed is an absolute path", c.WorkDir))
	}
	if c.NprocPerNode < 0 || c.NprocPerNode > 1024 {
		take(fmt.Errorf("nproc_per_node: %d; allowed are 0 (one for each GPU) to 1024", c.NprocPerNode))
	}
	if c.Framework != "" && c.Framework != "jax" {
		take(fmt.Errorf(`framework: %q; allowed are "" and "jax"`, c.Framework))
	}
	if c.Launch != "" && c.Launch != launchPerNode && c.Launch != launchPerGPU {
		take(fmt.Errorf("launch: %q; allowed are %q and %q", c.Launch, launchPerNode, launchPerGPU))
	}
	if len(c.Gang.Ports) != 2 || c.Gang.Ports[0] == c.Gang.Ports[1] {
		take(fmt.Errorf("gang.ports: %q; allowed are two different labels of ports in the group's network block", c.Gang.Ports))
	}
	if c.Gang.Priority < 1 || c.Gang.Priority > gang.MaxPriority {
		take(fmt.Errorf("gang.priority: %d; allowed are 1 to %d", c.Gang.Priority, gang.MaxPriority))
	}
	if len(c.Gang.Pool) > maxPool {
		take(fmt.Errorf("gang.pool: %q; allowed are up to %d bytes", c.Gang.Pool, maxPool))
	}
	if c.Gang.Run == "" || len(c.Gang.Run) > 128 {
		take(fmt.Errorf("gang.run: %q; allowed are 1 to 128 bytes", c.Gang.Run))
	}
	var err error
	s.limits, err = c.Rlimits.read()
	take(err)
	s.spec = gang.Spec{Nodes: c.Gang.Nodes, MinNodes: c.Gang.MinNodes, Restarts: c.Gang.Restarts,
		Completion: gang.Completion(c.Gang.Completion), NoProgress: c.Gang.NoProgress}
	s.spec.LastCall, err = duration("gang.last_call", c.Gang.LastCall, 0)
	take(err)
	s.spec.GrowInterval, err = duration("gang.grow_interval", c.Gang.GrowInterval, 0)
	take(err)
	s.spec.FormTimeout, err = duration("gang.form_timeout", c.Gang.FormTimeout, 0)
	take(err)
	s.spec.PrepareTimeout, err = duration("gang.prepare_timeout", c.Gang.PrepareTimeout, time.Second)
	take(err)
	s.spec.FenceDelay, err = duration("gang.fence_delay", c.Gang.FenceDelay, 0)
	take(err)
	if len(errs) == 0 {
		take(s.spec.Validate())
	} else if c.Gang.Nodes < 1 {
		take(fmt.Errorf("gang.nodes: %d; allowed are 1 to %d", c.Gang.Nodes, gang.MaxNodes))
	}
	signal, grace := c.Checkpoint.Signal, c.Checkpoint.Grace
	if signal == "" && grace == "" { // no checkpoint block
		signal, grace, c.Checkpoint.FailureGrace = "SIGTERM", "30s", "5s"
	}
	if s.signal, err = parseSignal(signal); err != nil {
		take(fmt.Errorf("checkpoint.signal: %w", err))
	}
	s.grace, err = duration("checkpoint.grace", grace, 0)
	take(err)
	s.failureGrace, err = duration("checkpoint.failure_grace", c.Checkpoint.FailureGrace, 0)
	take(err)
	s.progress, err = c.Progress.read()
	take(err)
	s.preflight, err = c.Preflight.read(s.spec.PrepareTimeout)
	take(err)
	if k := c.Checkpoint.Keep; k < 0 || k > 1_000_000 {
		take(fmt.Errorf("checkpoint.keep: %d; allowed are 0 (the training's own choice) to 1000000", k))
	}
	if d := c.Checkpoint.Dir; d != "" && !filepath.IsAbs(d) {
		take(fmt.Errorf("checkpoint.dir: %q; allowed is an absolute path", d))
	}
	return s, errors.Join(errs...)
}

func parseSignal(name string) (syscall.Signal, error) {
	if sig := unix.SignalNum(strings.ToUpper(name)); sig != 0 {
		return sig, nil
	}
	return 0, fmt.Errorf("%q; allowed are names such as SIGTERM and SIGUSR1", name)
}
