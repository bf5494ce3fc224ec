// SPDX-License-Identifier: MPL-2.0

package plugin

import (
	"errors"
	"fmt"
	"net/netip"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"github.com/hashicorp/nomad/plugins/shared/hclspec"
	"golang.org/x/sys/unix"

	"github.com/nomad-gpu/nomad-gpu/driver/consul"
	"github.com/nomad-gpu/nomad-gpu/driver/gang"
	"github.com/nomad-gpu/nomad-gpu/driver/runtime"
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
	"cgroup":       cgroupSpec,
	"consul_grace": withDefault("consul_grace", "string", `"5m"`),
	"session_ttl":  withDefault("session_ttl", "string", `"15s"`),
	"topology":     attr("topology", "string"),
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
	Cgroup      CgroupConfig `codec:"cgroup"`
	ConsulGrace string       `codec:"consul_grace"`
	SessionTTL  string       `codec:"session_ttl"`
	// Topology places this node for the order of ranks, such as "rack1/switch3".
	Topology string `codec:"topology"`
}

// settings are a Config with its values read.
type settings struct {
	consul      consul.Config
	iface       string
	cidr        netip.Prefix
	address     netip.Addr
	consulGrace time.Duration
	sessionTTL  time.Duration
	topology    string
	cgroup      CgroupConfig
}

// read checks each field; it looks at no network.
func (c Config) read() (settings, error) {
	s := settings{iface: c.Network.Interface, topology: c.Topology, consul: consul.Config(c.Consul), cgroup: c.Cgroup}
	errs := []error{s.consul.Validate(), c.Cgroup.validate()}
	var err error
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
var taskConfigSpec = hclspec.NewObject(map[string]*hclspec.Spec{
	"command":        hclspec.NewAttr("command", "string", true),
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
		"form_timeout":    withDefault("form_timeout", "string", `"0s"`),
		"prepare_timeout": withDefault("prepare_timeout", "string", `"10m"`),
		"fence_delay":     withDefault("fence_delay", "string", `"5s"`),
		"run":             withDefault("run", "string", `"0"`),
	})),
	"checkpoint": hclspec.NewBlock("checkpoint", false, hclspec.NewObject(map[string]*hclspec.Spec{
		"signal": withDefault("signal", "string", `"SIGTERM"`),
		"grace":  withDefault("grace", "string", `"30s"`),
		"dir":    attr("dir", "string"),
	})),
})

// TaskConfig is the decoded taskConfigSpec.
type TaskConfig struct {
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
		Run            string   `codec:"run"`
	} `codec:"gang"`
	Checkpoint struct {
		Signal string `codec:"signal"`
		Grace  string `codec:"grace"`
		Dir    string `codec:"dir"`
	} `codec:"checkpoint"`
}

// taskSettings are a TaskConfig with its values read.
type taskSettings struct {
	spec   gang.Spec
	signal syscall.Signal
	grace  time.Duration
	limits []runtime.Limit
}

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
	if c.Command == "" {
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
	if c.Gang.Run == "" || len(c.Gang.Run) > 128 {
		take(fmt.Errorf("gang.run: %q; allowed are 1 to 128 bytes", c.Gang.Run))
	}
	var err error
	s.limits, err = c.Rlimits.read()
	take(err)
	s.spec = gang.Spec{Nodes: c.Gang.Nodes, Restarts: c.Gang.Restarts}
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
		signal, grace = "SIGTERM", "30s"
	}
	if s.signal, err = parseSignal(signal); err != nil {
		take(fmt.Errorf("checkpoint.signal: %w", err))
	}
	s.grace, err = duration("checkpoint.grace", grace, 0)
	take(err)
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
