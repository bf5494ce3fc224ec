// SPDX-License-Identifier: MPL-2.0

package preflight

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"sync"
	"time"
)

const (
	// flows is how many connections share a measurement: one alone seldom
	// fills a fast network.
	flows = 4
	// flowTime is how long data is sent, and maxFlow the most bytes one
	// connection sends: 400 Gbit/s fill it in 2 s.
	defaultFlowTime = 2 * time.Second
	maxFlow         = 25 << 30
	chunk           = 1 << 20
)

// receive counts what comes until the sender ends its half.
func receive(r io.Reader) (counted, error) {
	buffer := make([]byte, chunk)
	var n counted
	var first time.Time
	for {
		k, err := r.Read(buffer)
		if k > 0 && first.IsZero() {
			first = time.Now()
		}
		n.Bytes += int64(k)
		if errors.Is(err, io.EOF) {
			if !first.IsZero() {
				n.Nanos = max(1, time.Since(first).Nanoseconds())
			}
			return n, nil
		}
		if err != nil {
			return n, err
		}
		if n.Bytes > maxFlow+chunk {
			return n, fmt.Errorf("more than %d bytes came", int64(maxFlow))
		}
	}
}

// measure streams to the next neighbour; in 10^9 bits a second.
func (x *exchange) measure(ctx context.Context) (float64, error) {
	var mu sync.Mutex
	var bytes, nanos int64
	var errs []error
	var all sync.WaitGroup
	for range flows {
		all.Go(func() {
			n, err := x.flow(ctx)
			mu.Lock()
			defer mu.Unlock()
			bytes, nanos, errs = bytes+n.Bytes, max(nanos, n.Nanos), append(errs, err)
		})
	}
	all.Wait()
	if err := errors.Join(errs...); err != nil {
		return 0, errs[0]
	}
	return float64(bytes) * 8 / float64(max(1, nanos)), nil
}

func (x *exchange) flow(ctx context.Context) (counted, error) {
	var n counted
	err := x.call(ctx, x.plan.next, x.frame(flow, x.plan.next, nil), func(c net.Conn, answer func(kind) (frame, error)) error {
		within(ctx, c, x.flowTime+headTime)
		buffer := make([]byte, chunk)
		var sent int64
		for end := time.Now().Add(x.flowTime); sent+chunk <= maxFlow && time.Now().Before(end); sent += chunk {
			if _, err := c.Write(buffer); err != nil {
				return err
			}
		}
		if err := c.(*net.TCPConn).CloseWrite(); err != nil {
			return err
		}
		f, err := answer(count)
		if err != nil {
			return err
		}
		if err := f.decode(&n); err != nil {
			return err
		}
		if n.Bytes != sent || n.Nanos <= 0 {
			return fmt.Errorf("%d bytes were sent, %d arrived in %d ns", sent, n.Bytes, n.Nanos)
		}
		return nil
	})
	return n, err
}

// tellNeighbours says how the pair to the next neighbour did.
func (x *exchange) tellNeighbours(ctx context.Context, p Pair) map[int]error {
	var mu sync.Mutex
	failed := map[int]error{}
	var all sync.WaitGroup
	for _, rank := range neighbours(x.plan) {
		all.Go(func() {
			err := x.call(ctx, rank, x.frame(tell, rank, p), func(_ net.Conn, answer func(kind) (frame, error)) error {
				_, err := answer(heard)
				return err
			})
			if err != nil {
				mu.Lock()
				failed[rank] = err
				mu.Unlock()
			}
		})
	}
	all.Wait()
	return failed
}

func neighbours(p plan) []int {
	if p.next == p.before {
		return []int{p.next}
	}
	return []int{p.next, p.before}
}
