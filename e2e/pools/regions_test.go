// SPDX-License-Identifier: MPL-2.0

package pools

import (
	"fmt"
	"net"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"syscall"
	"testing"
	"time"

	"github.com/hashicorp/nomad/api"
	"github.com/shoenig/test/must"

	"github.com/nomad-gpu/nomad-gpu/e2e/cluster"
	"github.com/nomad-gpu/nomad-gpu/e2e/clustertest"
)

// federate starts the server of another region and joins it to the cluster's.
func (m *market) federate(region string) {
	m.t.Helper()
	p, err := m.Place(cluster.Client{Name: region + "-server", NoDriver: true})
	must.NoError(m.t, err)
	own, err := url.Parse(m.NomadAddress())
	must.NoError(m.t, err)
	config := filepath.Join(m.Dir(), region+"-server-region.hcl")
	must.NoError(m.t, os.WriteFile(config, fmt.Appendf(nil, `
region = %q
server {
  enabled           = true
  bootstrap_expect  = 1
  heartbeat_grace   = "5s"
  min_heartbeat_ttl = "3s"
  raft_multiplier   = 1
  num_schedulers    = 1
  server_join {
    retry_join     = [%q]
    retry_interval = "1s"
  }
}
`, region, net.JoinHostPort(own.Hostname(), fmt.Sprint(m.HTTPPort()+2))), 0o600))
	argv := append(p.Launch(), append(p.Argv, "-config", config)...)
	cmd := exec.Command(argv[0], argv[1:]...)
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	log, err := os.Create(p.DataDir + ".log")
	must.NoError(m.t, err)
	defer log.Close()
	cmd.Stdout, cmd.Stderr = log, log
	must.NoError(m.t, cmd.Start())
	m.t.Cleanup(func() { syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL); cmd.Wait() })
	must.NoError(m.t, cluster.WaitFor(m.t.Context(), time.Minute, "both regions lead", func() (bool, string, error) {
		leader, err := m.Nomad().Status().RegionLeader(region)
		return err == nil && leader != "", fmt.Sprintf("%q, %v", leader, err), nil
	}))
	// A write of node pools goes to the region that has the say over them: here each has its own.
	there, err := api.NewClient(&api.Config{Address: "http://" + net.JoinHostPort(p.Address, fmt.Sprint(m.HTTPPort())), Region: region})
	must.NoError(m.t, err)
	_, err = there.NodePools().Register(&api.NodePool{Name: NodePool}, nil)
	must.NoError(m.t, err)
}

// One autoscaler serves two regions, each by plugins of its own that ask the
// same server.
func TestEachRegionHasItsOwnQueueAndPools(t *testing.T) {
	here := &market{Cluster: clustertest.Start(t), t: t}
	here.federate("west")
	var err error
	here.file, err = Start(here.Cluster, filepath.Join(clustertest.Programs, "autoscaler"),
		Pool{Name: "spot", Lifecycle: "spot", Price: 12.5, Max: 2},
		Pool{Name: "west", Class: "west", Region: "west", Lifecycle: "spot", Price: 12.5, Max: 2})
	must.NoError(t, err)
	west := &market{Cluster: here.Cluster, t: t, file: filePath(here.Cluster, "west"), region: "west"}
	const nowhere = "constraint {\n  attribute = \"${node.class}\"\n  value = \"none\"\n}"
	here.gang("waits-here", 1, "prefer", nowhere)
	west.gang("waits-there", 1, "prefer", nowhere)
	here.gang("here", 1, "prefer")
	west.gang("there", 2, "prefer")
	must.Eq(t, []string{"spot-1"}, here.running("here", 1))
	must.Eq(t, []string{"west-1", "west-2"}, west.running("there", 2))
	must.Len(t, 0, here.nodes("west"))
	must.Len(t, 0, west.nodes("spot"))
	must.StrContains(t, here.queue(), "waits-here")
	must.StrNotContains(t, here.queue(), "waits-there")
	must.StrContains(t, west.queue(), "waits-there")
	must.StrNotContains(t, west.queue(), "waits-here")
}
