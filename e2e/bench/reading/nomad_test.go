// SPDX-License-Identifier: MPL-2.0

// Package reading measures what the autoscaler's reading costs a real Nomad.
package reading

import (
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"net/http"
	"net/rpc"
	"os"
	"os/exec"
	"path/filepath"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/hashicorp/net-rpc-msgpackrpc"
	"github.com/hashicorp/nomad/api"
	"github.com/hashicorp/nomad/helper/uuid"
	"github.com/hashicorp/nomad/nomad/structs"
	"github.com/shoenig/test/must"
	"golang.org/x/sync/errgroup"

	"github.com/nomad-gpu/nomad-gpu/autoscaler/demand"
	"github.com/nomad-gpu/nomad-gpu/e2e/peers"
)

// realNomad is a real Nomad server without clients.
type realNomad struct {
	http, rpc string // host:port
}

func startNomad(b *testing.B) realNomad {
	binary, err := peers.Find("nomad")
	must.NoError(b, err)
	dir := b.TempDir()
	host := fmt.Sprintf("127.%d.%d.%d", 1+rand.IntN(254), rand.IntN(256), 1+rand.IntN(254))
	config := filepath.Join(dir, "nomad.hcl")
	// Its nodes send no heartbeats.
	must.NoError(b, os.WriteFile(config, fmt.Appendf(nil, `
data_dir = %q
bind_addr = %q
advertise {
  http = %[2]q
  rpc  = %[2]q
  serf = %[2]q
}
disable_update_check = true
log_level = "error"
limits { http_max_conns_per_client = 0 }
server {
  enabled          = true
  bootstrap_expect = 1
  raft_multiplier  = 1
  heartbeat_grace  = "1h"
}
`, filepath.Join(dir, "data"), host), 0o600))
	cmd := exec.Command(binary, "agent", "-config", config)
	cmd.Stdout, cmd.Stderr = os.Stderr, os.Stderr
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	must.NoError(b, cmd.Start())
	b.Cleanup(func() {
		cmd.Process.Kill()
		cmd.Wait()
	})
	return realNomad{net.JoinHostPort(host, "4646"), net.JoinHostPort(host, "4647")}
}

// addNodes registers busy nodes of 8 GPUs as their clients would.
func (n realNomad) addNodes(b *testing.B, count int) {
	conn, err := net.Dial("tcp", n.rpc)
	must.NoError(b, err)
	defer conn.Close()
	_, err = conn.Write([]byte{1}) // the byte that asks for Nomad's RPC
	must.NoError(b, err)
	client := rpc.NewClientWithCodec(msgpackrpc.NewCodecFromHandle(true, true, conn, structs.MsgpackHandle))
	for i := range count {
		gpus := &structs.NodeDeviceResource{Vendor: "nvidia", Type: "gpu", Name: "NVIDIA H100 80GB HBM3"}
		for range 8 {
			gpus.Instances = append(gpus.Instances, &structs.NodeDevice{ID: "GPU-" + uuid.Generate(), Healthy: true})
		}
		request := structs.NodeRegisterRequest{CreateNodePool: true, WriteRequest: structs.WriteRequest{Region: "global"}, Node: &structs.Node{
			ID: uuid.Generate(), SecretID: uuid.Generate(), Name: fmt.Sprint("node-", i), Datacenter: "dc1", NodePool: "gpu", Status: structs.NodeStatusReady,
			Attributes: map[string]string{"kernel.name": "linux", "driver.raw_exec": "1", "nomad.version": "1.6.3"},
			Drivers:    map[string]*structs.DriverInfo{"raw_exec": {Detected: true, Healthy: true}},
			NodeResources: &structs.NodeResources{Cpu: structs.NodeCpuResources{CpuShares: 1e5}, Memory: structs.NodeMemoryResources{MemoryMB: 1e6},
				Disk:     structs.NodeDiskResources{DiskMB: 1e6},
				Networks: []*structs.NetworkResource{{Mode: "host", Device: "eth0", IP: "192.0.2.1", CIDR: "192.0.2.1/32"}}, Devices: []*structs.NodeDeviceResource{gpus}}}}
		must.NoError(b, client.Call("Node.Register", request, &structs.NodeUpdateResponse{}))
	}
}

// work is a job with a group that asks for all GPUs of its nodes.
func work(id, nodePool string, count int) *api.Job {
	task := &api.Task{Name: "t", Driver: "raw_exec", Config: map[string]any{"command": "/bin/true"},
		Resources: &api.Resources{CPU: new(500), MemoryMB: new(1000), Devices: []*api.RequestedDevice{{Name: "nvidia/gpu", Count: new(uint64(8))}}}}
	return &api.Job{ID: &id, Type: new("batch"), NodePool: &nodePool, Datacenters: []string{"*"},
		TaskGroups: []*api.TaskGroup{{Name: new("g"), Count: &count, Tasks: []*api.Task{task}}}}
}

// counted counts what a client asks and is answered.
type counted struct{ calls, bytes atomic.Int64 }

func (c *counted) RoundTrip(r *http.Request) (*http.Response, error) {
	c.calls.Add(1)
	answer, err := http.DefaultTransport.RoundTrip(r)
	if err == nil {
		answer.Body = body{answer.Body, c}
	}
	return answer, err
}

type body struct {
	io.ReadCloser
	*counted
}

func (b body) Read(p []byte) (int, error) {
	n, err := b.ReadCloser.Read(p)
	b.bytes.Add(int64(n))
	return n, err
}

// BenchmarkReadingOfARealNomad reads a real server: nodes of which each second
// one is busy, and jobs that wait for a pool that is empty.
func BenchmarkReadingOfARealNomad(b *testing.B) {
	const jobs, nodes, atOnce = 10_000, 2_000, 1_000
	nomad := startNomad(b)
	count := &counted{}
	client, err := api.NewClient(&api.Config{Address: "http://" + nomad.http, HttpClient: &http.Client{Transport: count}})
	must.NoError(b, err)
	until := func(what string, done func() bool) {
		for deadline := time.Now().Add(2 * time.Minute); !done(); time.Sleep(100 * time.Millisecond) {
			if time.Now().After(deadline) {
				b.Fatal("not in two minutes: ", what)
			}
		}
	}
	until("the server leads", func() bool { leader, err := client.Status().Leader(); return err == nil && leader != "" })
	_, err = client.NodePools().Register(&api.NodePool{Name: "empty"}, nil)
	must.NoError(b, err)
	nomad.addNodes(b, nodes)
	_, _, err = client.Jobs().Register(work("runs", "gpu", nodes/2), nil)
	must.NoError(b, err)
	var group errgroup.Group
	group.SetLimit(16)
	for i := range jobs {
		group.Go(func() error {
			_, _, err := client.Jobs().Register(work(fmt.Sprint("waits-", i), "empty", 2), nil)
			return err
		})
	}
	must.NoError(b, group.Wait())
	read := func(r *demand.Reader) demand.Reading {
		got, err := r.Read(b.Context(), time.Unix(100, 0))
		must.NoError(b, err)
		return got
	}
	whole := demand.NewReader(client)
	var got demand.Reading
	until("all jobs wait, and one runs on half of the nodes", func() bool {
		got = read(whole)
		return len(got.Work) == jobs && got.Unread == 0 && len(got.Running) == nodes/2 && got.TotalGPUs == 8*nodes
	})
	measure := func(b *testing.B, most int64, once func() demand.Reading) {
		b.ReportAllocs()
		var rounds int64
		count.calls.Store(0)
		count.bytes.Store(0)
		for b.Loop() {
			once()
			rounds++
		}
		b.ReportMetric(float64(count.calls.Load()/rounds), "calls")
		b.ReportMetric(float64(count.bytes.Load())/1e6/float64(rounds), "MB-answered")
		must.LessEq(b, most*rounds, count.calls.Load())
	}
	b.Run("first", func(b *testing.B) {
		measure(b, 4+atOnce, func() demand.Reading { return read(demand.NewReader(client)) })
	})
	b.Run("following", func(b *testing.B) {
		measure(b, 4, func() demand.Reading { return read(whole) })
	})
}
