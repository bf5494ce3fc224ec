// SPDX-License-Identifier: MPL-2.0

package member_test

import (
	"context"
	"encoding/json"
	"fmt"
	"net/netip"
	"os/exec"
	"path/filepath"
	"strconv"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/shoenig/test/must"

	"github.com/nomad-gpu/nomad-gpu/driver/consul"
	"github.com/nomad-gpu/nomad-gpu/driver/consul/consultest"
	"github.com/nomad-gpu/nomad-gpu/driver/gang"
	"github.com/nomad-gpu/nomad-gpu/driver/member"
)

// counted is a store that counts what it writes: each is one entry of raft.
// Renewals are none.
type counted struct {
	gang.Store
	writes *atomic.Int64
}

func (c counted) PutRecord(ctx context.Context, session string, r gang.Record) error {
	c.writes.Add(1)
	return c.Store.PutRecord(ctx, session, r)
}

func (c counted) Open(ctx context.Context) (string, error) {
	c.writes.Add(1)
	return c.Store.Open(ctx)
}

func (c counted) CreateHead(ctx context.Context, h gang.Head) error {
	c.writes.Add(1)
	return c.Store.CreateHead(ctx, h)
}

func (c counted) TryLock(ctx context.Context, session string) (bool, error) {
	c.writes.Add(1)
	return c.Store.TryLock(ctx, session)
}

func (c counted) Decide(ctx context.Context, session string, index uint64, d gang.Decision) (bool, error) {
	c.writes.Add(int64(1 + len(d.View)/192))
	return c.Store.Decide(ctx, session, index, d)
}

// crowd is a gang whose members run nothing: what is measured is the protocol.
type crowd struct {
	b       *testing.B
	cancel  context.CancelFunc
	writes  atomic.Int64
	started chan uint64 // a generation, once for each member that starts it
	exits   []chan gang.Exit
	done    sync.WaitGroup
}

type crowdRunner struct {
	c     *crowd
	exits chan gang.Exit
}

func (r crowdRunner) Prepare(context.Context, gang.Assignment) error { return nil }
func (r crowdRunner) Start(_ context.Context, g uint64) error        { r.c.started <- g; return nil }
func (r crowdRunner) Stop(context.Context, uint64, bool) error       { return nil }
func (r crowdRunner) Exited() <-chan gang.Exit                       { return r.exits }

func (c *crowd) join(ctx context.Context, server *consultest.Server, key gang.Key, nodes, i int) {
	alloc := fmt.Sprintf("%08x-0000-4000-8000-000000000000", i)
	runner := crowdRunner{c, make(chan gang.Exit, 1)}
	c.exits = append(c.exits, runner.exits)
	gpus := make([]string, 8)
	for g := range gpus {
		gpus[g] = fmt.Sprintf("GPU-%08x-0000-4000-8000-%012x", i, g)
	}
	o := member.Options{
		Spec: gang.Spec{Nodes: nodes, Restarts: 1 << 20, PrepareTimeout: time.Minute, FenceDelay: time.Second}, Key: key, Priority: 50,
		Store:      counted{consul.New(server.Client, "", key, alloc, 15*time.Second), &c.writes},
		SessionTTL: 15 * time.Second, ConsulGrace: time.Minute, Runner: runner,
		Self: gang.Member{Alloc: alloc, Index: i, Node: fmt.Sprintf("node-%d", i), Slots: 8, GPUs: gpus,
			Address: netip.AddrFrom4([4]byte{10, 1, byte(i >> 8), byte(i)}), Ports: [2]int{20000, 20001}},
		Report: func(member.Event) {}, Save: func(member.State) error { return nil },
	}
	c.done.Add(1)
	go func() {
		defer c.done.Done()
		member.Run(ctx, o)
	}()
}

// allStart waits until every member has started a generation.
func (c *crowd) allStart(nodes int, generation uint64) {
	patience := time.After(3 * time.Minute)
	for n := 0; n < nodes; {
		select {
		case g := <-c.started:
			if g == generation {
				n++
			}
		case <-patience:
			c.b.Fatalf("%d of %d members started generation %d", n, nodes, generation)
		}
	}
}

// BenchmarkAGang forms a gang against one real Consul and restarts it once:
// from the last member's joining to all started, from a rank's end to all
// started again, and the writes of both. A first start takes 3 writes a member
// and each later one 2, and a bounded number more for the gang.
func BenchmarkAGang(b *testing.B) {
	for _, nodes := range []int{4, 64, 256, 1024} {
		b.Run(fmt.Sprintf("members=%d", nodes), func(b *testing.B) {
			server := consultest.Start(b)
			var form, again time.Duration
			var formWrites, againWrites int64
			for n := range b.N {
				key := gang.Key{Region: "global", Namespace: "default", Job: "bench", Group: "g", Run: strconv.Itoa(n)}
				ctx, cancel := context.WithCancel(b.Context())
				c := &crowd{b: b, cancel: cancel, started: make(chan uint64, 4*nodes)}
				for i := range nodes - 1 {
					c.join(ctx, server, key, nodes, i)
				}
				waitMembers(b, server, nodes-1)
				begin := time.Now()
				c.join(ctx, server, key, nodes, nodes-1)
				c.allStart(nodes, 1)
				form += time.Since(begin)
				waitPhase(b, server, gang.Prepared, nodes)
				before := c.writes.Load()
				formWrites += before
				begin = time.Now()
				c.exits[nodes/2] <- gang.Exit{Generation: 1, Code: 1}
				c.allStart(nodes, 2)
				again += time.Since(begin)
				waitPhase(b, server, gang.Prepared, nodes)
				againWrites += c.writes.Load() - before
				cancel()
				c.done.Wait()
				_, err := server.Client.KV().DeleteTree("nccl/", nil)
				must.NoError(b, err)
			}
			per := func(d time.Duration) float64 { return float64(d.Milliseconds()) / float64(b.N) }
			b.ReportMetric(per(form), "ms/form")
			b.ReportMetric(per(again), "ms/restart")
			b.ReportMetric(float64(formWrites)/float64(b.N*nodes), "writes/member-form")
			b.ReportMetric(float64(againWrites)/float64(b.N*nodes), "writes/member-restart")
			b.ReportMetric(0, "ns/op")
		})
	}
}

func members(b *testing.B, server *consultest.Server) []gang.Record {
	gangs, err := consul.List(b.Context(), server.Client, "")
	must.NoError(b, err)
	if len(gangs) == 0 {
		return nil
	}
	return gangs[0].Records
}

func waitMembers(b *testing.B, server *consultest.Server, n int) {
	for len(members(b, server)) < n {
		time.Sleep(20 * time.Millisecond)
	}
}

func waitPhase(b *testing.B, server *consultest.Server, p gang.Phase, n int) {
	for {
		there := 0
		for _, r := range members(b, server) {
			if r.Phase == p {
				there++
			}
		}
		if there == n {
			return
		}
		time.Sleep(20 * time.Millisecond)
	}
}

// BenchmarkDynamicRendezvousOfPyTorch is what torchrun's users have today, as
// far as it goes on one machine: no restart budget, no GPUs, no fencing.
func BenchmarkDynamicRendezvousOfPyTorch(b *testing.B) {
	const python = "/usr/bin/python3"
	if err := exec.Command(python, "-c", "import torch.distributed.elastic").Run(); err != nil {
		b.Skip("needs PyTorch: apt-get install python3-torch")
	}
	for _, nodes := range []int{4, 64} {
		b.Run(fmt.Sprintf("members=%d", nodes), func(b *testing.B) {
			var seconds float64
			for range b.N {
				out, err := exec.CommandContext(b.Context(), python, filepath.Join("testdata", "c10d_rendezvous.py"), strconv.Itoa(nodes)).Output()
				must.NoError(b, err)
				var answer struct {
					Seconds float64 `json:"seconds"`
				}
				must.NoError(b, json.Unmarshal(out, &answer))
				seconds += answer.Seconds
			}
			b.ReportMetric(1000*seconds/float64(b.N), "ms/form")
			b.ReportMetric(0, "ns/op")
		})
	}
}
