// SPDX-License-Identifier: MPL-2.0

package plugin

import (
	"context"
	"fmt"
	"os"
	"strings"

	"github.com/hashicorp/nomad/api"
)

// agent is the Nomad agent of this node, asked over its HTTP API. The token
// needs the policies `agent` read, `node` read, and `namespace "*"` read-job:
// with less, Nomad leaves allocations out without a word.
type agent struct {
	config    api.Config
	tokenFile string
	node      string // its ID, once known
}

func newAgent(address, tokenFile, caFile string) *agent {
	c := api.Config{Address: address}
	if caFile != "" {
		c.TLSConfig = &api.TLSConfig{CACert: caFile}
	}
	return &agent{config: c, tokenFile: tokenFile}
}

// taken costs one call, and one more at first.
func (a *agent) taken(ctx context.Context) (map[string]bool, error) {
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
	taken := make(map[string]bool)
	for _, alloc := range allocs {
		if alloc.ClientStatus == api.AllocClientStatusComplete || alloc.ClientStatus == api.AllocClientStatusFailed || alloc.AllocatedResources == nil {
			continue
		}
		for _, task := range alloc.AllocatedResources.Tasks {
			for _, d := range task.Devices {
				for _, id := range d.DeviceIDs {
					taken[id] = true
				}
			}
		}
	}
	return taken, nil
}
