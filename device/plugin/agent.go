// SPDX-License-Identifier: MPL-2.0

package plugin

import (
	"context"
	"fmt"
	"os"
	"strings"
	"sync"

	"github.com/hashicorp/nomad/api"
)

// agent is the Nomad agent of this node, asked over its HTTP API. The token
// needs the policies `agent` read, `node` read, and `namespace "*"` read-job:
// with less, Nomad leaves allocations out without a word.
type agent struct {
	config    api.Config
	tokenFile string

	mu   sync.Mutex
	node string // its ID, once known
}

func newAgent(address, tokenFile, caFile string) *agent {
	c := api.Config{Address: address}
	if caFile != "" {
		c.TLSConfig = &api.TLSConfig{CACert: caFile}
	}
	return &agent{config: c, tokenFile: tokenFile}
}

// Owner is an allocation that has a device.
type Owner struct {
	Namespace, Job, Group, Task, Alloc string
}

// taken are the devices of the node's allocations that have not ended.
func (a *agent) taken(ctx context.Context) (map[string]bool, error) {
	owners, err := a.owners(ctx)
	if err != nil {
		return nil, err
	}
	taken := make(map[string]bool, len(owners))
	for id := range owners {
		taken[id] = true
	}
	return taken, nil
}

// owners are who has each device. It costs one call, and one more at first.
func (a *agent) owners(ctx context.Context) (map[string][]Owner, error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	c := a.config
	if a.tokenFile != "" {
		token, err := os.ReadFile(a.tokenFile)
		if err != nil {
			return nil, fmt.Errorf("nomad.token_file: %w", err)
		}
		c.SecretID = strings.TrimSpace(string(token))
	}
	client, err := api.NewClient(&c)
	if err != nil {
		return nil, err
	}
	defer client.Close()
	query := (&api.QueryOptions{}).WithContext(ctx)
	if a.node == "" {
		var self api.AgentSelf
		if _, err := client.Raw().Query("/v1/agent/self", &self, query); err != nil {
			return nil, err
		}
		if a.node = self.Stats["client"]["node_id"]; a.node == "" {
			return nil, fmt.Errorf("nomad.address: the agent at %s is no client", a.config.Address)
		}
	}
	allocs, _, err := client.Nodes().Allocations(a.node, query)
	if err != nil {
		return nil, err
	}
	owners := make(map[string][]Owner)
	for _, alloc := range allocs {
		if alloc.ClientStatus == api.AllocClientStatusComplete || alloc.ClientStatus == api.AllocClientStatusFailed || alloc.AllocatedResources == nil {
			continue
		}
		for name, task := range alloc.AllocatedResources.Tasks {
			for _, d := range task.Devices {
				for _, id := range d.DeviceIDs {
					owners[id] = append(owners[id], Owner{alloc.Namespace, alloc.JobID, alloc.TaskGroup, name, alloc.ID})
				}
			}
		}
	}
	return owners, nil
}
