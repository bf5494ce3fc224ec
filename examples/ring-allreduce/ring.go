// SPDX-License-Identifier: MPL-2.0

package main

import (
	"context"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math"
	"net"
	"time"
)

// ring is a gang's all-reduce over TCP: every rank sends to the next and
// receives from the one before, so that each link carries 2(n-1)/n of the
// data whatever the number of ranks n (the bandwidth-optimal ring of Patarasuk
// and Yuan, "Bandwidth optimal all-reduce algorithms", 2009).
type ring struct {
	rank, world int
	next, prev  net.Conn
}

// hello is what each rank tells rank 0, and gets back for all ranks.
type hello struct {
	Rank int    `json:"rank"`
	Addr string `json:"addr"`
}

// dialRing meets the other ranks at rank 0's master address and connects the
// ring. It costs one connection a rank to rank 0 and one to the next rank.
func dialRing(ctx context.Context, rank, world int, self, master string) (*ring, error) {
	listener, err := new(net.ListenConfig).Listen(ctx, "tcp", net.JoinHostPort(self, "0"))
	if err != nil {
		return nil, fmt.Errorf("listen on this node's address %s: %w", self, err)
	}
	defer listener.Close()
	stop := context.AfterFunc(ctx, func() { listener.Close() })
	defer stop()
	own := hello{Rank: rank, Addr: listener.Addr().String()}
	var all []string
	if rank == 0 {
		all, err = gather(ctx, world, master, own)
	} else {
		all, err = announce(ctx, world, master, own)
	}
	if err != nil {
		return nil, fmt.Errorf("meet at the master %s: %w", master, err)
	}
	r := &ring{rank: rank, world: world}
	if world == 1 {
		return r, nil
	}
	if r.next, err = dial(ctx, all[(rank+1)%world]); err != nil {
		return nil, fmt.Errorf("connect to rank %d: %w", (rank+1)%world, err)
	}
	if r.prev, err = listener.Accept(); err != nil {
		r.close()
		return nil, fmt.Errorf("wait for rank %d: %w", (rank+world-1)%world, err)
	}
	return r, nil
}

// gather runs on rank 0: it hears every rank once and tells each all addresses.
func gather(ctx context.Context, world int, master string, own hello) ([]string, error) {
	all := make([]string, world)
	all[0] = own.Addr
	listener, err := new(net.ListenConfig).Listen(ctx, "tcp", master)
	if err != nil {
		return nil, err
	}
	defer listener.Close()
	stop := context.AfterFunc(ctx, func() { listener.Close() })
	defer stop()
	var conns []net.Conn
	defer func() {
		for _, c := range conns {
			c.Close()
		}
	}()
	for len(conns) < world-1 {
		c, err := listener.Accept()
		if err != nil {
			return nil, fmt.Errorf("%d of %d ranks came: %w", len(conns)+1, world, err)
		}
		conns = append(conns, c)
		setDeadline(ctx, c)
		var h hello
		if err := json.NewDecoder(io.LimitReader(c, 1024)).Decode(&h); err != nil {
			return nil, fmt.Errorf("read a rank's address: %w", err)
		}
		if h.Rank < 1 || h.Rank >= world || all[h.Rank] != "" {
			return nil, fmt.Errorf("rank %d came twice or is out of range; allowed is 1 to %d, each once", h.Rank, world-1)
		}
		all[h.Rank] = h.Addr
	}
	for _, c := range conns {
		if err := json.NewEncoder(c).Encode(all); err != nil {
			return nil, fmt.Errorf("tell the addresses: %w", err)
		}
	}
	return all, nil
}

func announce(ctx context.Context, world int, master string, own hello) ([]string, error) {
	c, err := dial(ctx, master)
	if err != nil {
		return nil, err
	}
	defer c.Close()
	if err := json.NewEncoder(c).Encode(own); err != nil {
		return nil, err
	}
	var all []string
	if err := json.NewDecoder(io.LimitReader(c, 1<<20)).Decode(&all); err != nil {
		return nil, err
	}
	if len(all) != world {
		return nil, fmt.Errorf("the master named %d ranks, expected %d", len(all), world)
	}
	return all, nil
}

// dial tries again until the other side listens or the context ends.
func dial(ctx context.Context, addr string) (net.Conn, error) {
	var d net.Dialer
	for {
		c, err := d.DialContext(ctx, "tcp", addr)
		if err == nil {
			setDeadline(ctx, c)
			return c, nil
		}
		select {
		case <-ctx.Done():
			return nil, err
		case <-time.After(50 * time.Millisecond):
		}
	}
}

func setDeadline(ctx context.Context, c net.Conn) {
	if t, ok := ctx.Deadline(); ok {
		c.SetDeadline(t)
	}
}

// sum replaces v on every rank by the element-wise sum over all ranks, by a
// reduce-scatter and an all-gather of world-1 steps each. All ranks end with
// the same bits: each part is summed in one place and then copied.
func (r *ring) sum(v []float64) error {
	if r.world == 1 {
		return nil
	}
	// The step is given up where a neighbour is silent this long; a dead one is seen at once.
	deadline := time.Now().Add(time.Minute)
	r.next.SetDeadline(deadline)
	r.prev.SetDeadline(deadline)
	part := func(i int) []float64 {
		i = ((i % r.world) + r.world) % r.world
		return v[i*len(v)/r.world : (i+1)*len(v)/r.world]
	}
	for step := 0; step < r.world-1; step++ {
		got, err := r.exchange(part(r.rank-step), len(part(r.rank-step-1)))
		if err != nil {
			return err
		}
		for i, x := range got {
			part(r.rank - step - 1)[i] += x
		}
	}
	for step := 0; step < r.world-1; step++ {
		got, err := r.exchange(part(r.rank+1-step), len(part(r.rank-step)))
		if err != nil {
			return err
		}
		copy(part(r.rank-step), got)
	}
	return nil
}

// exchange sends to the next rank while it receives n numbers from the one before.
func (r *ring) exchange(send []float64, n int) ([]float64, error) {
	out := make([]byte, 8*len(send))
	for i, x := range send {
		binary.LittleEndian.PutUint64(out[8*i:], math.Float64bits(x))
	}
	sent := make(chan error, 1)
	go func() {
		_, err := r.next.Write(out)
		sent <- err
	}()
	in := make([]byte, 8*n)
	_, err := io.ReadFull(r.prev, in)
	if err = errors.Join(err, <-sent); err != nil {
		return nil, fmt.Errorf("exchange with ranks %d and %d: %w", (r.rank+1)%r.world, (r.rank+r.world-1)%r.world, err)
	}
	got := make([]float64, n)
	for i := range got {
		got[i] = math.Float64frombits(binary.LittleEndian.Uint64(in[8*i:]))
	}
	return got, nil
}

func (r *ring) close() {
	for _, c := range []net.Conn{r.next, r.prev} {
		if c != nil {
			c.Close()
		}
	}
}
