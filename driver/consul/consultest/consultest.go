// SPDX-License-Identifier: MPL-2.0

// Package consultest runs a real Consul server for a test.
package consultest

import (
	"cmp"
	"context"
	"fmt"
	"math/rand/v2"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"syscall"
	"testing"
	"time"

	"github.com/hashicorp/consul/api"
	"github.com/shoenig/test/must"

	"github.com/nomad-gpu/nomad-gpu/e2e/peers"
)

// Server is one Consul server on loopback, with its data kept over a restart.
type Server struct {
	Client *api.Client
	// Address is host:port of its HTTP interface.
	Address string
	t       testing.TB
	args    []string
	cmd     *exec.Cmd
	log     string
}

// Start runs a server until the test ends.
func Start(t testing.TB, options ...Option) *Server {
	t.Helper()
	binary, err := peers.Find("consul")
	must.NoError(t, err)
	dir := t.TempDir()
	// An address of its own: on 127.0.0.1 any program's outgoing connection can
	// take a port between its choice and its use.
	host := fmt.Sprintf("127.%d.%d.%d", 1+rand.IntN(254), rand.IntN(256), 1+rand.IntN(254))
	o := setup{host: host}
	for _, option := range options {
		option(t, dir, &o)
	}
	ports := freePorts(t, host, 3)
	s := &Server{t: t, Address: fmt.Sprintf("%s:%d", host, ports[0]), log: filepath.Join(dir, "consul.log")}
	config := filepath.Join(dir, "consul.hcl")
	must.NoError(t, os.WriteFile(config, fmt.Appendf(nil, `
server = true
bootstrap_expect = 1
data_dir = %q
bind_addr = %q
client_addr = %[2]q
disable_update_check = true
log_level = "warn"
performance { raft_multiplier = 1 }
limits { http_max_conns_per_client = 8192 } # a whole gang in one test has one address
%[3]s
ports { %[4]s = %[5]d, dns = -1, grpc = -1, grpc_tls = -1, serf_lan = %[6]d, serf_wan = -1, server = %[7]d }
`, filepath.Join(dir, "data"), host, o.lines, cmp.Or(o.port, "http"), ports[0], ports[1], ports[2]), 0o600))
	s.args = []string{binary, "agent", "-config-file", config}
	conf := api.DefaultConfig()
	conf.Address = s.Address
	if o.client != nil {
		o.client(conf)
	}
	s.Client, err = api.NewClient(conf)
	must.NoError(t, err)
	s.Restart()
	t.Cleanup(s.Stop)
	return s
}

// Stop kills the server.
func (s *Server) Stop() {
	if s.cmd != nil {
		s.cmd.Process.Kill()
		s.cmd.Wait()
		s.cmd = nil
	}
}

// Restart runs the server with the data it had, and waits until it leads.
func (s *Server) Restart() {
	s.t.Helper()
	out, err := os.OpenFile(s.log, os.O_CREATE|os.O_WRONLY|os.O_APPEND, 0o600)
	must.NoError(s.t, err)
	defer out.Close()
	s.cmd = exec.Command(s.args[0], s.args[1:]...)
	s.cmd.Stdout, s.cmd.Stderr = out, out
	s.cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	must.NoError(s.t, s.cmd.Start())
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	for {
		if leader, err := s.Client.Status().LeaderWithQueryOptions((&api.QueryOptions{}).WithContext(ctx)); err == nil && leader != "" {
			if _, _, err := s.Client.KV().Get("ready", (&api.QueryOptions{RequireConsistent: true}).WithContext(ctx)); err == nil {
				return
			}
		}
		select {
		case <-ctx.Done():
			words, _ := os.ReadFile(s.log)
			s.t.Fatalf("consul has no leader: %v\n%s", ctx.Err(), words)
		case <-time.After(50 * time.Millisecond):
		}
	}
}

func freePorts(t testing.TB, host string, n int) []int {
	var ports []int
	for range n {
		l, err := net.Listen("tcp", host+":0")
		must.NoError(t, err)
		defer l.Close()
		ports = append(ports, l.Addr().(*net.TCPAddr).Port)
	}
	return ports
}
