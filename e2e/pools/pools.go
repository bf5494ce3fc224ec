// SPDX-License-Identifier: MPL-2.0

// Package pools puts the real Nomad Autoscaler with our plugins beside a
// cluster, with pools whose nodes are Nomad clients on this machine.
package pools

import (
	"cmp"
	"encoding/json"
	"fmt"
	"net/url"
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
	Lifecycle string // spot or on-demand
	Class     string // of its nodes, and the first part of their names; its lifecycle where none is set
	Region    string // of Nomad; empty: the cluster's own
	Price     float64
	Min, Max  int
	// PolicyMax is the policy's max; 0: it is Max.
	PolicyMax int
	// Driver is more of a node's configuration of the task driver; nil: none. At
	// server its host reaches what listens on the server's.
	Driver func(node, server string) string
	// Profile is the machine that its nodes simulate; DGX H100 where none is set. Devices
	// is more of the device plugin's configuration, and Shape what the pools file
	// tells of them: eight of Model where none is set.
	Profile, Devices, Shape string
	// Cooldown of its policy; one second where none is set. Group is that of its
	// check, Checks are more of them, and Target is more of its target.
	Cooldown, Group, Checks, Target string
}

func (p Pool) class() string { return cmp.Or(p.Class, p.Lifecycle) }

// Start describes the pools to the plugins and starts the autoscaler with a
// policy for each. It returns the path of the pools' file.
func Start(c *cluster.Cluster, pluginDir string, pools ...Pool) (string, error) {
	file, err := Describe(c, pools...)
	if err != nil {
		return "", err
	}
	return file, c.StartAutoscaler(Agent{}.Config(c, pluginDir, file))
}

// Describe writes the pools' file, whose path it returns, and a policy for each
// pool, as Agent.Config expects them. Pools of another region have a file of
// their own beside it, pools-REGION.hcl.
func Describe(c *cluster.Cluster, pools ...Pool) (string, error) {
	byRegion := map[string][]Pool{"": nil}
	for _, p := range pools {
		byRegion[p.Region] = append(byRegion[p.Region], p)
	}
	// A node makes its pool known, and a pool that starts empty has none yet.
	if _, err := c.Nomad().NodePools().Register(&api.NodePool{Name: NodePool}, nil); err != nil {
		return "", err
	}
	for region, pools := range byRegion {
		if err := write(c, filePath(c, region), pools); err != nil {
			return "", err
		}
	}
	return filePath(c, ""), policies(c, pools)
}

func filePath(c *cluster.Cluster, region string) string {
	return filepath.Join(c.Dir(), "pools"+suffix(region)+".hcl")
}

// suffix is what the names of a region's plugins have behind them.
func suffix(region string) string {
	if region == "" {
		return ""
	}
	return "-" + region
}

// write makes a place for every node a pool can have.
func write(c *cluster.Cluster, path string, pools []Pool) error {
	nomad, err := url.Parse(c.NomadAddress())
	if err != nil {
		return err
	}
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
    node_class = %[9]q
  }
  shape {
    %[7]s
  }
  local {
    dir = %[8]q
`, p.Name, p.Lifecycle, p.Price, p.Min, p.Max, NodePool, cmp.Or(p.Shape, fmt.Sprintf("gpus  = 8\n    model = %q", Model)), filepath.Join(c.Dir(), "pools", p.Name), p.class())
		for i := range p.Max {
			name := fmt.Sprintf("%s-%d", p.class(), i+1)
			driver := ""
			if p.Driver != nil {
				driver = p.Driver(name, nomad.Hostname())
			}
			place, err := c.Place(cluster.Client{Name: name, NodePool: NodePool, NodeClass: p.class(), Profile: cmp.Or(p.Profile, profile), Devices: p.Devices,
				Meta: map[string]string{"gpu.lifecycle": p.Lifecycle}, Driver: driver})
			if err != nil {
				return err
			}
			argv := append(place.Launch(), place.Argv...)
			if p.Region != "" {
				config := place.DataDir + "-region.hcl"
				if err := os.WriteFile(config, fmt.Appendf(nil, "region = %q\n", p.Region), 0o600); err != nil {
					return err
				}
				argv = append(argv, "-config", config)
			}
			command, err := json.Marshal(argv)
			if err != nil {
				return err
			}
			fmt.Fprintf(&b, "    slot %q {\n      command  = %s\n      data_dir = %q\n    }\n", place.Name, command, place.DataDir)
		}
		b.WriteString("  }\n}\n")
	}
	return os.WriteFile(path, []byte(b.String()), 0o600)
}
