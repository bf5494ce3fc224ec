// SPDX-License-Identifier: MPL-2.0

// Package pools puts the real Nomad Autoscaler with our plugins beside a
// cluster, with pools whose nodes are Nomad clients on this machine.
package pools

import (
	"bufio"
	"bytes"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"github.com/hashicorp/nomad/api"

	"github.com/nomad-gpu/nomad-gpu/e2e/cluster"
)

// NodePool is the one that all pools' nodes are in; pools are told apart by
// their nodes' class.
const NodePool = "gpu"

// Model is the GPU of every node, of which it has eight.
const (
	Model   = "NVIDIA H100 80GB HBM3"
	profile = "dgx-h100"
)

// Pool is a pool of local nodes.
type Pool struct {
	Name      string
	Lifecycle string // spot or on-demand; the nodes' class too
	Price     float64
	Min, Max  int
	// Driver is more of the task driver's configuration; NAME stands for the node's name.
	Driver string
}

// Start describes the pools to the plugins and starts the autoscaler with a
// policy for each. It returns the path of the pools' file.
func Start(c *cluster.Cluster, pluginDir string, pools ...Pool) (string, error) {
	// A node makes its pool known, and a pool that starts empty has none yet.
	if _, err := c.Nomad().NodePools().Register(&api.NodePool{Name: NodePool}, nil); err != nil {
		return "", err
	}
	file, err := write(c, pools)
	if err != nil {
		return "", err
	}
	config, err := autoscaler(c, pluginDir, file, pools)
	if err != nil {
		return "", err
	}
	return file, c.StartAutoscaler(config)
}

// write makes a place for every node a pool can have.
func write(c *cluster.Cluster, pools []Pool) (string, error) {
	var b strings.Builder
	for _, p := range pools {
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
`, p.Name, p.Lifecycle, p.Price, p.Min, p.Max, NodePool, Model, filepath.Join(c.Dir(), "pools", p.Name))
		for i := range p.Max {
			place, err := c.Place(cluster.Client{Name: fmt.Sprintf("%s-%d", p.Lifecycle, i+1), NodePool: NodePool, NodeClass: p.Lifecycle, Profile: profile,
				Meta: map[string]string{"gpu.lifecycle": p.Lifecycle}, Driver: strings.ReplaceAll(p.Driver, "NAME", fmt.Sprintf("%s-%d", p.Lifecycle, i+1))})
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

// autoscaler is the configuration of the real Nomad Autoscaler.
func autoscaler(c *cluster.Cluster, pluginDir, file string, pools []Pool) (string, error) {
	policies := filepath.Join(c.Dir(), "policies")
	if err := os.MkdirAll(policies, 0o700); err != nil {
		return "", err
	}
	for _, p := range pools {
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
`, p.Name, p.Min, p.Max)
		if err := os.WriteFile(filepath.Join(policies, p.Name+".hcl"), []byte(text), 0o600); err != nil {
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
			p[0], p[1], p[2], file, c.NomadAddress())
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
