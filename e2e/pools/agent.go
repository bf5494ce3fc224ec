// SPDX-License-Identifier: MPL-2.0

package pools

import (
	"cmp"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"github.com/nomad-gpu/nomad-gpu/e2e/cluster"
)

// Agent is how one Nomad Autoscaler is set up; the zero value does for one that is alone.
type Agent struct {
	// Nomad is the address that it asks itself; empty: the cluster's server.
	// Its plugins always ask the server.
	Nomad string
	// Port of its HTTP, counted from the tenth after Nomad's.
	Port int
	// Token is its own. Reads is that of the APM and the strategy, Acts that of the target.
	Token, Reads, Acts string
	// More of its configuration.
	More string
}

// Config is the configuration of an autoscaler with our plugins, a pools file
// and the policies beside it.
func (a Agent) Config(c *cluster.Cluster, pluginDir, file string) string {
	var b strings.Builder
	fmt.Fprintf(&b, `
log_level  = "info"
log_json   = true
plugin_dir = %q
http {
  bind_address = "127.0.0.1"
  bind_port    = %d
}
nomad {
  address = %q
  token   = %q
}
policy {
  dir                         = %q
  default_evaluation_interval = "1s"
  source "nomad" {
    enabled = false
  }
}
%s
`, pluginDir, c.HTTPPort()+10+a.Port, cmp.Or(a.Nomad, c.NomadAddress()), a.Token, filepath.Join(filepath.Dir(file), "policies"), a.More)
	files, _ := filepath.Glob(filepath.Join(filepath.Dir(file), "pools*.hcl"))
	for _, file := range files {
		region := strings.TrimPrefix(strings.TrimSuffix(strings.TrimPrefix(filepath.Base(file), "pools"), ".hcl"), "-")
		for _, p := range [][3]string{{"apm", "gpu-queue", a.Reads}, {"strategy", "gpu-pool", a.Reads}, {"target", "gpu-pool", a.Acts}} {
			record, metrics := "", ""
			if p[0] == "strategy" {
				record = strings.TrimSuffix(file, ".hcl") + ".record"
				if region == "" && a.Port == 0 {
					metrics = MetricsAddress(c)
				}
			}
			fmt.Fprintf(&b, `
%[1]s %[2]q {
  driver = "nomad-autoscaler-gpu"
  args   = [%[1]q]
  config = {
    pools_file     = %[3]q
    nomad_address  = %[4]q
    nomad_region   = %[5]q
    nomad_token    = %[6]q
    record_file    = %[7]q
    metrics_listen = %[8]q
  }
}
`, p[0], p[1]+suffix(region), file, c.NomadAddress(), region, p[2], record, metrics)
		}
	}
	return b.String()
}

// MetricsAddress is where the strategy of a cluster's first autoscaler serves its metrics.
func MetricsAddress(c *cluster.Cluster) string { return fmt.Sprintf("127.0.0.1:%d", c.HTTPPort()+15) }

// policies writes one for each pool.
func policies(c *cluster.Cluster, pools []Pool) error {
	dir := filepath.Join(c.Dir(), "policies")
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return err
	}
	for _, p := range pools {
		text := fmt.Sprintf(`
scaling %q {
  enabled = true
  min     = %d
  max     = %d
  policy {
    cooldown            = %q
    evaluation_interval = "1s"
    check "queue" {
      group  = %[7]q
      source = "gpu-queue%[8]s"
      query  = "queued_gpus"
      strategy "gpu-pool%[8]s" {
        pool = %[1]q
      }
    }
    %[5]s
    target "gpu-pool%[8]s" {
      pool = %[1]q
      %[6]s
    }
  }
}
`, p.Name, p.Min, cmp.Or(p.PolicyMax, p.Max), cmp.Or(p.Cooldown, "1s"), p.Checks, p.Target, p.Group, suffix(p.Region))
		if err := os.WriteFile(filepath.Join(dir, p.Name+".hcl"), []byte(text), 0o600); err != nil {
			return err
		}
	}
	return nil
}
