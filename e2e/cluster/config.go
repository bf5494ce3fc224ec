// SPDX-License-Identifier: MPL-2.0

package cluster

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
)

// AgentURL stands in Client.Devices for the URL of the client's own agent, and
// HostAddress for its host's IP address.
const (
	AgentURL    = "<agent>"
	HostAddress = "<host>"
)

func consulConfig(c *Cluster) string {
	return fmt.Sprintf(`
server               = true
bootstrap_expect     = 1
data_dir             = %q
bind_addr            = %q
client_addr          = %[2]q
disable_update_check = true
log_level            = "info"
performance { raft_multiplier = 1 }
ports {
  http     = %d
  dns      = -1
  grpc     = -1
  grpc_tls = -1
  serf_lan = %d
  serf_wan = -1
  server   = %d
}
`, filepath.Join(c.dir, "consul"), c.network.server(), c.port+5, c.port+6, c.port+7)
}

func agentConfig(c *Cluster, name, address string) string {
	return fmt.Sprintf(`
name                 = %q
data_dir             = %q
bind_addr            = %q
disable_update_check = true
log_level            = "info"
ports {
  http = %d
  rpc  = %d
  serf = %d
}
advertise {
  http = %[3]q
  rpc  = %[3]q
  serf = %[3]q
}
consul {
  address             = %[7]q
  auto_advertise      = false
  server_auto_join    = false
  client_auto_join    = false
}
acl {
  enabled = %[8]t
}
`, name, filepath.Join(c.dir, name), address, c.port, c.port+1, c.port+2, c.ConsulAddress(), c.options.ACL)
}

func serverConfig(c *Cluster) string {
	return agentConfig(c, "server", c.network.server()) + `
server {
  enabled            = true
  bootstrap_expect   = 1
  heartbeat_grace    = "5s"
  min_heartbeat_ttl  = "3s"
  raft_multiplier    = 1
  num_schedulers     = 2
}
`
}

func clientConfig(c *Cluster, wanted Client, h host, n int) string {
	var b strings.Builder
	b.WriteString(agentConfig(c, wanted.Name, h.address))
	if c.options.PluginDir != "" {
		fmt.Fprintf(&b, "plugin_dir = %q\n", c.options.PluginDir)
	}
	// All hosts on the loopback interface share its ports: each takes a range
	// of its own, below the kernel's for outgoing connections.
	// The name of the cgroup is no path on purpose: Nomad then leaves the
	// machine's cpusets alone, which all clusters here would share.
	low := 10000 + (c.port-20000)/20*18 + n%16*60
	fmt.Fprintf(&b, `
server { enabled = false }
leave_on_terminate = false
client {
  enabled           = true
  servers           = ["%s:%d"]
  network_interface = %q
  no_host_uuid      = true
  min_dynamic_port  = %d
  max_dynamic_port  = %d
  cgroup_parent     = %q
  options = {
    "driver.denylist"      = "docker,java,qemu,exec"
    "fingerprint.denylist" = "env_aws,env_gce,env_azure,env_digitalocean"
  }
`, c.network.server(), c.port+1, h.iface, low, low+59, "nomad-"+filepath.Base(c.dir))
	if wanted.NodePool != "" {
		fmt.Fprintf(&b, "  node_pool  = %q\n", wanted.NodePool)
	}
	if wanted.NodeClass != "" {
		fmt.Fprintf(&b, "  node_class = %q\n", wanted.NodeClass)
	}
	b.WriteString("  meta {\n")
	names := []string{}
	for name := range wanted.Meta {
		names = append(names, name)
	}
	slices.Sort(names)
	for _, name := range names {
		fmt.Fprintf(&b, "    %q = %q\n", name, wanted.Meta[name])
	}
	fmt.Fprintf(&b, "  }\n}\nplugin \"raw_exec\" {\n  config {\n    enabled    = true\n    no_cgroups = %t\n  }\n}\n", os.Geteuid() != 0)
	if c.options.PluginDir == "" {
		return b.String()
	}
	profile := ""
	if wanted.Profile != "" {
		profile = fmt.Sprintf("profile      = %q\n    profile_seed = %q", wanted.Profile, wanted.Name)
	}
	fmt.Fprintf(&b, `
plugin "nomad-device-gpu" {
  config {
    %s
    %s
  }
}
plugin "nomad-driver-nccl" {
  config {
    consul {
      address = %q
    }
    network {
      address = %q
    }
    %s
  }
}
`, profile, strings.NewReplacer(AgentURL, fmt.Sprintf("http://%s:%d", h.address, c.port), HostAddress, h.address).Replace(wanted.Devices), c.ConsulAddress(), h.address, wanted.Driver)
	return b.String()
}
