// SPDX-License-Identifier: MPL-2.0

// Package clustertest gives a test a cluster for as long as it runs.
package clustertest

import (
	"context"
	"os"
	"path/filepath"
	"testing"

	"github.com/shoenig/test/must"

	"github.com/nomad-gpu/nomad-gpu/e2e/cluster"
	"github.com/nomad-gpu/nomad-gpu/e2e/peers"
)

// Programs is the folder of the built programs.
var Programs = filepath.Join(peers.Root(), ".cache", "bin")

// Main runs a package's tests under the guard that leaves nothing behind.
func Main(m *testing.M) {
	os.Exit(cluster.Guard(func(context.Context) int { return m.Run() }))
}

// Start starts a cluster with the project's programs and these clients. A test
// that fails shows what each part last said.
func Start(t *testing.T, clients ...cluster.Client) *cluster.Cluster {
	t.Helper()
	return StartWith(t, cluster.Options{}, clients...)
}

// StartWith is Start with more options than the programs' folder.
func StartWith(t *testing.T, o cluster.Options, clients ...cluster.Client) *cluster.Cluster {
	t.Helper()
	o.PluginDir = filepath.Join(Programs, "nomad")
	c, err := cluster.Start(t.Context(), o)
	must.NoError(t, err)
	t.Cleanup(func() {
		if t.Failed() {
			t.Log(c.Words(25))
		}
		c.Stop()
	})
	if len(clients) > 0 {
		must.NoError(t, c.AddClients(t.Context(), clients...), must.Sprint(c.Words(20)))
	}
	return c
}
