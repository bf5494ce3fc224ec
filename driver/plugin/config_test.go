// SPDX-License-Identifier: MPL-2.0

package plugin

import (
	"net/netip"
	"os"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/hashicorp/nomad/helper/pluginutils/hclutils"
	"github.com/hashicorp/nomad/nomad/structs"
	"github.com/shoenig/test/must"

	"github.com/nomad-gpu/nomad-gpu/driver/gang"

	"github.com/nomad-gpu/nomad-gpu/driver/runtime/process"
)

// The test's program is also its own supervisor.
func TestMain(m *testing.M) {
	if asked, err := process.Main(os.Args); asked {
		if err != nil {
			os.Exit(1)
		}
		return
	}
	os.Exit(m.Run())
}

const taskBlock = `config {
  command = "/bin/sh"
  gang {
    nodes = 2
  }
}`

// parse reads a task's config as Nomad does, through the schema.
func parse(t *testing.T, text string) TaskConfig {
	t.Helper()
	var c TaskConfig
	hclutils.NewConfigParser(taskConfigSpec).ParseHCL(t, text, &c)
	return c
}

func TestATaskGetsTheDefaults(t *testing.T) {
	s, err := parse(t, taskBlock).read()
	must.NoError(t, err)
	must.Eq(t, 2, s.spec.Nodes)
	must.Eq(t, 3, s.spec.Restarts)
	must.Eq(t, 10*time.Minute, s.spec.FormTimeout)
	must.False(t, s.spec.Elastic())
	must.Eq(t, gang.CompletionAll, s.spec.Completion)
	must.Eq(t, 5, s.spec.NoProgress)
	must.Eq(t, 10*time.Minute, s.spec.PrepareTimeout)
	must.Eq(t, 5*time.Second, s.spec.FenceDelay)
	must.Eq(t, syscall.SIGTERM, s.signal)
	must.Eq(t, "per_node", parse(t, taskBlock).Launch)
	must.Eq(t, 30*time.Second, s.grace)
	whole := parse(t, strings.Replace(taskBlock, "gang {", "checkpoint {\n signal = \"sigusr1\"\n dir = \"/x\"\n}\n gang {", 1))
	s, err = whole.read()
	must.NoError(t, err)
	must.Eq(t, syscall.SIGUSR1, s.signal)
	must.Eq(t, 30*time.Second, s.grace)
	must.Eq(t, 5*time.Second, s.failureGrace)
	must.Eq(t, "/x", whole.Checkpoint.Dir)
}

func TestEachFaultOfATaskIsNamedWithWhatIsAllowed(t *testing.T) {
	in := func(line string) string { return strings.Replace(taskBlock, "nodes = 2", "nodes = 2\n"+line, 1) }
	at := func(line string) string {
		return strings.Replace(taskBlock, `command = "/bin/sh"`, "command = \"/bin/sh\"\n"+line, 1)
	}
	for want, text := range map[string]string{
		`gang.nodes: 0; allowed are 1 to 4096`:                     strings.Replace(taskBlock, "nodes = 2", "nodes = 0", 1),
		`gang.nodes: -1; allowed are 1 to 4096`:                    strings.Replace(taskBlock, "nodes = 2", "nodes = -1", 1),
		`gang.restarts: -1`:                                        in(`restarts = -1`),
		`gang.form_timeout: "soon"; allowed is a duration`:         in(`form_timeout = "soon"`),
		`gang.prepare_timeout: "0s"; allowed is a duration of at`:  in(`prepare_timeout = "0s"`),
		`gang.ports: ["a"]; allowed are two different labels`:      in(`ports = ["a"]`),
		`gang.ports: ["a" "a"]`:                                    in(`ports = ["a", "a"]`),
		`gang.min_nodes: 3; allowed are 0 (all) to gang.nodes, 2`:  in(`min_nodes = 3`),
		`gang.last_call: "x"`:                                      in(`last_call = "x"`),
		`gang.grow_interval: "-1s"`:                                in(`grow_interval = "-1s"`),
		`gang.completion: "some"; allowed are "all" and "rank0"`:   in(`completion = "some"`),
		`gang.no_progress: -1`:                                     in(`no_progress = -1`),
		`gang.priority: 0; allowed are 1 to 100`:                   in(`priority = 0`),
		`gang.run: ""`:                                             in(`run = ""`),
		`command: ""`:                                              strings.Replace(taskBlock, "/bin/sh", "", 1),
		`work_dir: "here"; allowed is an absolute path`:            at(`work_dir = "here"`),
		`nproc_per_node: -1`:                                       at(`nproc_per_node = -1`),
		`framework: "tf"; allowed are "" and "jax"`:                at(`framework = "tf"`),
		`checkpoint.signal: "SIGNO"; allowed are names such as`:    at("checkpoint {\n signal = \"SIGNO\"\n}"),
		`checkpoint.failure_grace: "x"`:                            at("checkpoint {\n failure_grace = \"x\"\n}"),
		`checkpoint.grace: "-1s"`:                                  at("checkpoint {\n grace = \"-1s\"\n}"),
		`checkpoint.dir: "ckpt"; allowed is an absolute path`:      at("checkpoint {\n dir = \"ckpt\"\n}"),
		`launch: "per_rank"; allowed are "per_node" and "per_gpu"`: at(`launch = "per_rank"`),
	} {
		_, err := parse(t, text).read()
		must.ErrorContains(t, err, want)
	}
}

func TestEachFaultOfThePluginsConfigurationIsNamed(t *testing.T) {
	for want, change := range map[string]func(*Config){
		`network.cidr: "10.0"`:                                     func(c *Config) { c.Network.CIDR = "10.0" },
		`network.address: "node1"; allowed is an IP`:               func(c *Config) { c.Network.Address = "node1" },
		`consul_grace: "x"`:                                        func(c *Config) { c.ConsulGrace = "x" },
		`session_ttl: "5s"; allowed is a duration of at least 10s`: func(c *Config) { c.SessionTTL = "5s" },
		`session_ttl: 48h0m0s; allowed are 10s to 24h`:             func(c *Config) { c.SessionTTL = "48h" },
		`consul.token and consul.token_file`:                       func(c *Config) { c.Consul.Token, c.Consul.TokenFile = "secret", "/dev/null" },
		`consul.ca_file: stat /no/such`:                            func(c *Config) { c.Consul.CAFile = "/no/such" },
		`consul.cert_file and consul.key_file: only one`:           func(c *Config) { c.Consul.CertFile = "/dev/null" },
		`notice.source: "gcp"`:                                     func(c *Config) { c.Notice.Source = "gcp" },
		`notice.period: "often"`:                                   func(c *Config) { c.Notice.Source, c.Notice.Period = "aws", "often" },
		`metrics.listen: ":9501"`:                                  func(c *Config) { c.Metrics.Listen = ":9501" },
		`tracing.endpoint: "otel"`:                                 func(c *Config) { c.Tracing.Endpoint = "otel" },
		`consul.prefix: "/x"`:                                      func(c *Config) { c.Consul.Prefix = "/x" },
	} {
		c := Config{ConsulGrace: "5m", SessionTTL: "15s"}
		change(&c)
		_, err := c.read()
		must.ErrorContains(t, err, want)
		must.StrNotContains(t, err.Error(), "secret")
	}
}

func TestPortsComeFromWhatNomadReserved(t *testing.T) {
	labels := []string{"gang_a", "gang_b"}
	reserved := &structs.AllocatedPorts{{Label: "gang_a", Value: 1000, HostIP: "10.0.0.7"}, {Label: "gang_b", Value: 1001, HostIP: "10.0.0.7"}}
	numbers, host, err := ports(reserved, labels)
	must.NoError(t, err)
	must.Eq(t, [2]int{1000, 1001}, numbers)
	must.Eq(t, netip.MustParseAddr("10.0.0.7"), host)
	_, _, err = ports(&structs.AllocatedPorts{{Label: "gang_a", Value: 1000}}, labels)
	must.ErrorContains(t, err, "the group reserves no port \"gang_b\"; add `port \"gang_b\" {}` to the group's network block")
	_, _, err = ports(nil, labels)
	must.ErrorContains(t, err, `"gang_a"`)
	_, _, err = ports(&structs.AllocatedPorts{{Label: "gang_a", Value: 1000, To: 80}}, labels)
	must.ErrorContains(t, err, "is mapped from 1000 to 80")
}

func TestTheTrainingAddress(t *testing.T) {
	reserved, fixed := netip.MustParseAddr("10.0.0.7"), netip.MustParseAddr("10.9.9.9")
	for name, c := range map[string]struct {
		s    settings
		want netip.Addr
	}{
		"Nomad's where nothing is set": {settings{}, reserved},
		"the configured one first":     {settings{address: fixed, iface: "lo"}, fixed},
		"of an interface":              {settings{iface: "lo"}, netip.MustParseAddr("127.0.0.1")},
		"in a prefix":                  {settings{cidr: netip.MustParsePrefix("127.0.0.0/8")}, netip.MustParseAddr("127.0.0.1")},
	} {
		got, err := c.s.trainingAddress(reserved)
		must.NoError(t, err)
		must.Eq(t, c.want, got, must.Sprint(name))
	}
	_, err := settings{iface: "no-such-if"}.trainingAddress(reserved)
	must.ErrorContains(t, err, `interface "no-such-if"`)
	_, err = settings{}.trainingAddress(netip.Addr{})
	must.ErrorContains(t, err, "set network.interface")
	must.Eq(t, "lo", interfaceOf(netip.MustParseAddr("127.3.4.5")))
	must.Eq(t, "", interfaceOf(netip.MustParseAddr("192.0.2.1")))
}
