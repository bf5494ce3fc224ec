// SPDX-License-Identifier: MPL-2.0

package main

import (
	"context"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/shoenig/test/must"
	"golang.org/x/sync/errgroup"
)

// freeAddress is a loopback address that nothing listens on just now.
func freeAddress(t *testing.T) string {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	must.NoError(t, err)
	defer l.Close()
	return l.Addr().String()
}

func TestTheRingSumsWhateverTheLengthAndTheNumberOfRanks(t *testing.T) {
	for _, world := range []int{1, 2, 3, 5} {
		for _, length := range []int{0, 1, 4, 1000} {
			t.Run(fmt.Sprintf("%d ranks, %d numbers", world, length), func(t *testing.T) {
				ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
				defer cancel()
				master := freeAddress(t)
				sums := make([][]float64, world)
				var ranks errgroup.Group
				for rank := range world {
					ranks.Go(func() error {
						r, err := dialRing(ctx, rank, world, "127.0.0.1", master)
						if err != nil {
							return err
						}
						defer r.close()
						v := make([]float64, length)
						for i := range v {
							v[i] = float64((rank + 1) * i)
						}
						sums[rank] = v
						return r.sum(v)
					})
				}
				must.NoError(t, ranks.Wait())
				for rank := range world {
					for i, got := range sums[rank] {
						must.Eq(t, float64(world*(world+1)/2*i), got, must.Sprintf("rank %d, number %d", rank, i))
					}
				}
			})
		}
	}
}

func TestALostRankIsAnErrorOfTheOthers(t *testing.T) {
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	master := freeAddress(t)
	errs := make([]error, 3)
	var ranks errgroup.Group
	for rank := range 3 {
		ranks.Go(func() error {
			r, err := dialRing(ctx, rank, 3, "127.0.0.1", master)
			if err != nil {
				return err
			}
			defer r.close()
			if rank != 2 {
				errs[rank] = r.sum(make([]float64, 8))
			}
			return nil
		})
	}
	must.NoError(t, ranks.Wait())
	must.ErrorContains(t, errs[0], "exchange with ranks 1 and 2")
	must.ErrorContains(t, errs[1], "exchange with ranks 2 and 0")
}

func TestTrainingResumesAtTheCheckpointBitForBit(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "checkpoints")
	train := func(s *state, until int) *state {
		for s.Step < until {
			s.apply(s.gradient(0, 16), 1)
		}
		return s
	}
	whole := train(newState(), 20)
	must.NoError(t, train(newState(), 7).save(dir))
	resumed, err := load(dir)
	must.NoError(t, err)
	must.Eq(t, 7, resumed.Step)
	must.Eq(t, whole.digestText(), train(resumed, 20).digestText())
	must.Less(t, whole.FirstLoss, whole.Loss)
}

func TestADamagedCheckpointIsNamed(t *testing.T) {
	dir := t.TempDir()
	must.NoError(t, os.WriteFile(filepath.Join(dir, "latest.json"), []byte(`{"step": 3, "weights": [1]}`), 0o600))
	_, err := load(dir)
	must.ErrorContains(t, err, "1 weights")
}
