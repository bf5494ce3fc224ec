// SPDX-License-Identifier: MPL-2.0

// Package cluster starts a real Consul, a real Nomad server, any number of
// Nomad clients and the real Nomad Autoscaler on one machine, and leaves
// nothing behind. As root each client is a host of its own, in a network
// namespace on a bridge; otherwise all share the loopback interface.
package cluster

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	consulapi "github.com/hashicorp/consul/api"
	nomadapi "github.com/hashicorp/nomad/api"

	"github.com/nomad-gpu/nomad-gpu/e2e/peers"
)

// Options of a cluster.
type Options struct {
	// PluginDir holds the project's programs; empty: clients have no plugins of ours.
	PluginDir string
	// ACL switches Nomad's ACLs on; Cluster.Nomad has the management token.
	ACL bool
	// Loopback keeps to the loopback interface, also as root.
	Loopback bool
	// Say is told what is done and waited for; nil: nobody is.
	Say func(format string, args ...any)
}

// Client is how one Nomad client is.
type Client struct {
	Name      string
	NodePool  string
	NodeClass string
	// Profile is the machine that the device plugin simulates; empty: it looks for real GPUs.
	Profile string
	Meta    map[string]string
	// Devices are more lines of the device plugin's configuration, and Driver of
	// the task driver's.
	Devices, Driver string
	// NoDriver leaves the task driver nccl out.
	NoDriver bool
}

// Cluster is a running cluster.
type Cluster struct {
	options  Options
	dir      string
	network  network
	port     int // of Nomad's HTTP; the others follow
	programs map[string]string
	consul   *part
	server   *part
	scaler   *part
	clients  map[string]*client
	hosts    int
	nomad    *nomadapi.Client
	kv       *consulapi.Client
}

type client struct {
	Client
	host host
	part *part
	argv []string
}

// Start starts Consul and the Nomad server and waits until both lead.
func Start(ctx context.Context, o Options) (c *Cluster, err error) {
	guard := os.Getenv(guardVariable)
	if guard == "" {
		return nil, errors.New("cluster: the program is not guarded; call it through cluster.Guard")
	}
	if o.Say == nil {
		o.Say = func(string, ...any) {}
	}
	c = &Cluster{options: o, port: 20000 + 20*rand.IntN(500), programs: map[string]string{}, clients: map[string]*client{}}
	for _, name := range peers.Names {
		if c.programs[name], err = peers.Find(name); err != nil {
			return nil, err
		}
	}
	id := fmt.Sprintf("%05x", rand.IntN(1<<20))
	c.dir = filepath.Join(guard, id)
	if err := os.Mkdir(c.dir, 0o711); err != nil {
		return nil, err
	}
	defer func() {
		if err != nil {
			err = fmt.Errorf("%w\n%s", err, c.Words(15))
			c.Stop()
			c = nil
		}
	}()
	if os.Geteuid() == 0 && !o.Loopback {
		c.network, err = newBridged(c.dir, id)
	} else {
		c.network, err = newLoopback(c.port)
	}
	if err != nil {
		return c, err
	}
	if err := c.startConsul(ctx); err != nil {
		return c, err
	}
	return c, c.startServer(ctx)
}

// Root reports whether hosts are namespaces of their own.
func (c *Cluster) Root() bool { _, ok := c.network.(*bridged); return ok }

// Dir is the cluster's directory; all users can pass through it.
func (c *Cluster) Dir() string { return c.dir }

// Nomad is a client of the server.
func (c *Cluster) Nomad() *nomadapi.Client { return c.nomad }

// Consul is a client of Consul.
func (c *Cluster) Consul() *consulapi.Client { return c.kv }

// NomadAddress and ConsulAddress are URLs.
func (c *Cluster) NomadAddress() string {
	return "http://" + net.JoinHostPort(c.network.server(), fmt.Sprint(c.port))
}

// ConsulAddress is host:port.
func (c *Cluster) ConsulAddress() string {
	return net.JoinHostPort(c.network.server(), fmt.Sprint(c.port+5))
}

// Program is the path of nomad, consul or nomad-autoscaler.
func (c *Cluster) Program(name string) string { return c.programs[name] }

func (c *Cluster) startConsul(ctx context.Context) (err error) {
	c.options.Say("starting Consul")
	if _, err = c.writeConfig("consul", consulConfig(c)); err != nil {
		return err
	}
	if c.kv, err = consulapi.NewClient(&consulapi.Config{Address: c.ConsulAddress()}); err != nil {
		return err
	}
	return c.RestartConsul(ctx)
}

// RestartConsul starts Consul, with the data it had, and waits until it leads.
func (c *Cluster) RestartConsul(ctx context.Context) (err error) {
	config := filepath.Join(c.dir, "consul.hcl")
	if c.consul, err = startPart("consul", c.dir, "", c.programs["consul"], "agent", "-config-file", config); err != nil {
		return err
	}
	return WaitFor(ctx, time.Minute, "Consul has a leader", func() (bool, string, error) {
		if !c.consul.running() {
			return false, "", errors.New("consul has ended")
		}
		leader, err := c.kv.Status().Leader()
		return err == nil && leader != "", fmt.Sprintf("leader %q, %v", leader, err), nil
	})
}

// StopConsul kills Consul, as a crash does.
func (c *Cluster) StopConsul() { c.consul.kill() }

func (c *Cluster) startServer(ctx context.Context) error {
	c.options.Say("starting the Nomad server")
	config, err := c.writeConfig("server", serverConfig(c))
	if err != nil {
		return err
	}
	if c.server, err = startPart("server", c.dir, "", c.programs["nomad"], "agent", "-config", config); err != nil {
		return err
	}
	conf := nomadapi.DefaultConfig()
	conf.Address, conf.SecretID, conf.Region, conf.Namespace = c.NomadAddress(), "", "", ""
	if c.nomad, err = nomadapi.NewClient(conf); err != nil {
		return err
	}
	err = WaitFor(ctx, time.Minute, "the Nomad server leads", func() (bool, string, error) {
		if !c.server.running() {
			return false, "", errors.New("the Nomad server has ended")
		}
		leader, err := c.nomad.Status().Leader()
		return err == nil && leader != "", fmt.Sprintf("leader %q, %v", leader, err), nil
	})
	if err != nil || !c.options.ACL {
		return err
	}
	token, _, err := c.nomad.ACLTokens().Bootstrap(nil)
	if err != nil {
		return fmt.Errorf("make the first ACL token: %w", err)
	}
	c.nomad.SetSecretID(token.SecretID)
	return nil
}

// AddClients starts clients and waits until all are ready.
func (c *Cluster) AddClients(ctx context.Context, clients ...Client) error {
	for _, wanted := range clients {
		p, err := c.Place(wanted)
		if err != nil {
			return err
		}
		cl := &client{Client: wanted, host: p.host, argv: p.Argv}
		c.clients[wanted.Name] = cl
		if err := c.StartClient(wanted.Name); err != nil {
			return err
		}
	}
	return c.waitReady(ctx, clients)
}

// StartClient starts a client that was stopped or killed.
func (c *Cluster) StartClient(name string) (err error) {
	cl := c.clients[name]
	cl.part, err = startPart(name, c.dir, cl.host.namespace, cl.argv...)
	return err
}

func (c *Cluster) waitReady(ctx context.Context, clients []Client) error {
	return WaitFor(ctx, time.Minute, "the clients are ready", func() (bool, string, error) {
		for _, wanted := range clients {
			if !c.clients[wanted.Name].part.running() {
				return false, "", fmt.Errorf("client %s has ended", wanted.Name)
			}
		}
		nodes, _, err := c.nomad.Nodes().List(nil)
		if err != nil {
			return false, err.Error(), nil
		}
		var missing []string
		for _, wanted := range clients {
			if !slices.ContainsFunc(nodes, func(n *nomadapi.NodeListStub) bool {
				return n.Name == wanted.Name && n.Status == "ready" && c.driverSeen(n, wanted)
			}) {
				missing = append(missing, wanted.Name)
			}
		}
		return len(missing) == 0, "not yet: " + strings.Join(missing, ", "), nil
	})
}

func (c *Cluster) driverSeen(n *nomadapi.NodeListStub, wanted Client) bool {
	if c.options.PluginDir == "" || wanted.NoDriver {
		return true
	}
	d := n.Drivers["nccl"]
	return d != nil && d.Healthy
}

// KillClient kills a client's agent and leaves what it runs, as a crash does.
func (c *Cluster) KillClient(name string) { c.clients[name].part.kill() }

// ClientPID is the agent's process.
func (c *Cluster) ClientPID(name string) int { return c.clients[name].part.cmd.Process.Pid }

// Isolate cuts a client's host off the network, or connects it again. It
// needs hosts of their own.
func (c *Cluster) Isolate(name string, off bool) error {
	n, ok := c.network.(*bridged)
	if !ok {
		return errors.New("cluster: hosts on the loopback interface cannot be cut off; run as root")
	}
	return n.setLink(c.clients[name].host, !off)
}

// Place is where a client can be started by others: an autoscaler's pool.
type Place struct {
	Client
	Address string
	// Argv starts the client, in its namespace where it has one.
	Argv    []string
	DataDir string
	host    host
}

// Place makes a host and the configuration of a client on it.
func (c *Cluster) Place(wanted Client) (Place, error) {
	h, err := c.network.host(c.hosts)
	if err != nil {
		return Place{}, err
	}
	n := c.hosts
	c.hosts++
	config, err := c.writeConfig(wanted.Name, clientConfig(c, wanted, h, n))
	if err != nil {
		return Place{}, err
	}
	return Place{Client: wanted, Address: h.address, host: h, DataDir: filepath.Join(c.dir, wanted.Name),
		Argv: []string{c.programs["nomad"], "agent", "-config", config}}, nil
}

// Launch is what must stand before a place's Argv where a program outside the
// cluster starts it: the way into its namespace.
func (p Place) Launch() []string {
	if p.host.namespace == "" {
		return nil
	}
	return []string{"nsenter", "--net=/run/netns/" + p.host.namespace}
}

// Enter is what must stand before the command of a program that is to run on a
// client's host; nothing where hosts are not namespaces.
func (c *Cluster) Enter(name string) []string { return Place{host: c.clients[name].host}.Launch() }

// StartAutoscaler starts the real Nomad Autoscaler with a configuration.
func (c *Cluster) StartAutoscaler(config string) (err error) {
	if _, err = c.writeConfig("autoscaler", config); err != nil {
		return err
	}
	return c.RestartAutoscaler()
}

// RestartAutoscaler starts the autoscaler again with the configuration it had.
func (c *Cluster) RestartAutoscaler() (err error) {
	c.scaler, err = startPart("autoscaler", c.dir, "", c.programs["nomad-autoscaler"], "agent", "-config", filepath.Join(c.dir, "autoscaler.hcl"))
	return err
}

// KillAutoscaler kills it at once, as a crash does.
func (c *Cluster) KillAutoscaler() { c.scaler.kill() }

// AutoscalerLog is what the autoscaler has said.
func (c *Cluster) AutoscalerLog() ([]byte, error) {
	return os.ReadFile(filepath.Join(c.dir, "autoscaler.log"))
}

// Ended names a part that has ended by itself: nothing that is waited for
// will come then.
func (c *Cluster) Ended() error {
	for _, p := range []*part{c.consul, c.server, c.scaler} {
		if p != nil && !p.running() {
			return fmt.Errorf("%s has ended by itself", p.name)
		}
	}
	return nil
}

// HTTPPort is the port of Nomad's interface on every host.
func (c *Cluster) HTTPPort() int { return c.port }

// Words are what each part last said.
func (c *Cluster) Words(lines int) string {
	var b strings.Builder
	logs, _ := filepath.Glob(filepath.Join(c.dir, "*.log"))
	pools, _ := filepath.Glob(filepath.Join(c.dir, "pools", "*", "*.log"))
	logs = append(logs, pools...)
	for _, log := range logs {
		p := part{log: log}
		fmt.Fprintf(&b, "--- %s\n%s\n", strings.TrimSuffix(filepath.Base(log), ".log"), p.words(lines))
	}
	return b.String()
}

func (c *Cluster) writeConfig(name, text string) (string, error) {
	path := filepath.Join(c.dir, name+".hcl")
	return path, os.WriteFile(path, []byte(text), 0o600)
}

// Stop stops all jobs, then all parts, and removes everything.
func (c *Cluster) Stop() {
	if c.nomad != nil && c.server != nil && c.server.running() {
		c.stopJobs()
	}
	var parts []*part
	for _, cl := range c.clients {
		parts = append(parts, cl.part)
	}
	for _, p := range append([]*part{c.scaler}, append(parts, c.server, c.consul)...) {
		if p != nil && p.running() {
			p.stop(5 * time.Second)
		}
	}
	clean(c.dir)
}

// Kill ends all parts at once and removes everything: for one who interrupts.
func (c *Cluster) Kill() {
	for _, p := range []*part{c.scaler, c.server, c.consul} {
		if p != nil && p.running() {
			p.kill()
		}
	}
	clean(c.dir)
}

// stopJobs stops every job and waits a while for its allocations.
func (c *Cluster) stopJobs() {
	ctx, cancel := context.WithTimeout(context.Background(), 20*time.Second)
	defer cancel()
	jobs, _, err := c.nomad.Jobs().List(nil)
	if err != nil {
		return
	}
	for _, j := range jobs {
		c.nomad.Jobs().Deregister(j.ID, false, nil)
	}
	WaitFor(ctx, 20*time.Second, "all allocations have ended", func() (bool, string, error) {
		allocs, _, err := c.nomad.Allocations().List(nil)
		if err != nil {
			return false, "", err
		}
		for _, a := range allocs {
			if a.ClientStatus == "running" || a.ClientStatus == "pending" && a.DesiredStatus != "stop" {
				return false, a.ID, nil
			}
		}
		return true, "", nil
	})
}

// WaitFor waits until a condition holds; the error says what was waited for
// and how it last stood. The condition's own error ends the wait.
func WaitFor(ctx context.Context, patience time.Duration, what string, holds func() (ok bool, state string, err error)) error {
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	for {
		ok, state, err := holds()
		if err != nil {
			return fmt.Errorf("waiting until %s: %w", what, err)
		}
		if ok {
			return nil
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("waiting until %s: %w after up to %s; last seen: %s", what, ctx.Err(), patience, state)
		case <-time.After(100 * time.Millisecond):
		}
	}
}
