// SPDX-License-Identifier: MPL-2.0

package story

import (
	"bufio"
	"bytes"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"github.com/nomad-gpu/nomad-gpu/e2e/cluster"
)

// Names in the story.
const (
	nodePool     = "gpu"
	spotPool     = "h100-spot"
	onDemandPool = "h100-on-demand"
	profile      = "dgx-h100"
	model        = "NVIDIA H100 80GB HBM3"
	maxSpot      = 4
)

// poolsFile describes the two pools on the cluster's places: one on-demand
// node that is always there, and spot nodes that come and go.
func poolsFile(c *cluster.Cluster) (string, error) {
	var b strings.Builder
	for _, p := range []struct {
		name, lifecycle string
		price           float64
		min, max        int
	}{{spotPool, "spot", 12.5, 0, maxSpot}, {onDemandPool, "on-demand", 40, 1, 1}} {
		fmt.Fprintf(&b, `
pool %q {
  kind      = "local"
  lifecycle = %q
  price     = %g
  min       = %d
  max       = %d
  idle_time = "5s"
  start_timeout = "1m"
  select {
    node_pool  = %q
    node_class = %[2]q
  }
  shape {
    gpus  = 8
    model = %[7]q
  }
  local {
    dir = %[8]q
`, p.name, p.lifecycle, p.price, p.min, p.max, nodePool, model, filepath.Join(c.Dir(), "pools", p.name))
		for i := range p.max {
			place, err := c.Place(cluster.Client{Name: fmt.Sprintf("%s-%d", p.lifecycle, i+1), NodePool: nodePool, NodeClass: p.lifecycle, Profile: profile})
			if err != nil {
				return "", err
			}
			command, err := json.Marshal(append(place.Launch(), place.Argv...))
			if err != nil {
				return "", err
			}
			fmt.Fprintf(&b, "    slot %q {\n      command  = %s\n      data_dir = %q\n    }\n", place.Name, command, place.DataDir)
		}
		b.WriteString("  }\n}\n")
	}
	path := filepath.Join(c.Dir(), "pools.hcl")
	return path, os.WriteFile(path, []byte(b.String()), 0o600)
}

// autoscalerConfig is the real Nomad Autoscaler's, with our three plugins and
// a policy for each pool.
func autoscalerConfig(c *cluster.Cluster, pluginDir, pools string) (string, error) {
	policies := filepath.Join(c.Dir(), "policies")
	if err := os.MkdirAll(policies, 0o700); err != nil {
		return "", err
	}
	for _, p := range []struct {
		name     string
		min, max int
	}{{spotPool, 0, maxSpot}, {onDemandPool, 1, 1}} {
		text := fmt.Sprintf(`
scaling %q {
  enabled = true
  min     = %d
  max     = %d
  policy {
    cooldown            = "1s"
    evaluation_interval = "1s"
    check "queue" {
      source = "gpu-queue"
      query  = "queued_gpus"
      strategy "gpu-pool" {
        pool = %[1]q
      }
    }
    target "gpu-pool" {
      pool = %[1]q
    }
  }
}
`, p.name, p.min, p.max)
		if err := os.WriteFile(filepath.Join(policies, p.name+".hcl"), []byte(text), 0o600); err != nil {
			return "", err
		}
	}
	var b strings.Builder
	fmt.Fprintf(&b, `
log_level  = "info"
log_json   = true
plugin_dir = %q
http {
  bind_address = %q
  bind_port    = %d
}
nomad {
  address = %q
}
policy {
  dir                         = %q
  default_evaluation_interval = "1s"
}
`, pluginDir, "127.0.0.1", c.HTTPPort()+10, c.NomadAddress(), policies)
	for _, p := range [][3]string{{"apm", "gpu-queue", "apm"}, {"strategy", "gpu-pool", "strategy"}, {"target", "gpu-pool", "target"}} {
		fmt.Fprintf(&b, "%s %q {\n  driver = \"nomad-autoscaler-gpu\"\n  args   = [%q]\n  config = {\n    pools_file    = %q\n    nomad_address = %q\n  }\n}\n",
			p[0], p[1], p[2], pools, c.NomadAddress())
	}
	return b.String(), nil
}

// Scaling is one action of the autoscaler, from its own log.
type Scaling struct {
	Pool     string
	From, To int
	Reason   string
	// QueuedGPUs is the queue depth the strategy saw.
	QueuedGPUs int
}

// ParseScalings reads the actions out of the autoscaler's log in JSON.
func ParseScalings(log []byte) []Scaling {
	var all []Scaling
	lines := bufio.NewScanner(bytes.NewReader(log))
	lines.Buffer(nil, 1<<20)
	for lines.Scan() {
		var l struct {
			Message  string `json:"@message"`
			PolicyID string `json:"policy_id"`
			Target   string `json:"target"`
			From, To int
			Reason   string
			Meta     struct {
				QueuedGPUs float64 `json:"queued_gpus"`
				Policy     string  `json:"nomad_policy_id"`
			}
		}
		if json.Unmarshal(lines.Bytes(), &l) == nil && l.Message == "scaling target" {
			all = append(all, Scaling{From: l.From, To: l.To, Reason: l.Reason, QueuedGPUs: int(l.Meta.QueuedGPUs)})
		}
	}
	return all
}
