// SPDX-License-Identifier: MPL-2.0

package consul_test

import (
	"strings"
	"testing"
	"time"

	"github.com/hashicorp/consul/api"
	"github.com/shoenig/test/must"

	"github.com/nomad-gpu/nomad-gpu/driver/consul"
	"github.com/nomad-gpu/nomad-gpu/driver/consul/consultest"
	"github.com/nomad-gpu/nomad-gpu/driver/preflight"
)

func TestBaselinesOfPairsAreKept(t *testing.T) {
	server := consultest.Start(t)
	ctx := t.Context()
	b := consul.NewBaselines(server.Client, "")
	got, err := b.Baseline(ctx, "a", "b")
	must.NoError(t, err)
	must.Zero(t, got.Usual())

	base := preflight.Baseline{}.With(90).With(100)
	must.NoError(t, b.Keep(ctx, "rack 1/a", "b", base))
	got, err = b.Baseline(ctx, "rack 1/a", "b")
	must.NoError(t, err)
	must.Eq(t, base, got)
	got, err = b.Baseline(ctx, "b", "rack 1/a")
	must.NoError(t, err)
	must.SliceEmpty(t, got.Gbps, must.Sprint("each direction has its own"))

	t.Run("they are no gangs, and a sweep leaves them", func(t *testing.T) {
		gangs, err := consul.List(ctx, server.Client, "")
		must.NoError(t, err)
		must.SliceEmpty(t, gangs)
		sweeper := consul.NewSweeper(server.Client, "")
		for _, after := range []time.Duration{0, time.Hour, 2 * time.Hour} {
			_, err = sweeper.Sweep(ctx, time.Now().Add(after), time.Minute)
			must.NoError(t, err)
		}
		got, err := b.Baseline(ctx, "rack 1/a", "b")
		must.NoError(t, err)
		must.Eq(t, base, got)
	})
	t.Run("what cannot be one is refused with the key, and written anew", func(t *testing.T) {
		for value, want := range map[string]string{
			`{"v":1,"gbps":[1e99]}`:                     "1e+99 Gbit/s; allowed are",
			`{"v":1,"gbps":[1,1,1,1,1,1,1,1,1]}`:        "9 measurements; allowed are 8",
			`{"v":2,"gbps":[1]}`:                        "version 2; this driver reads version 1",
			`{"v":1`:                                    "unexpected end",
			`{"v":1,"x":"` + strings.Repeat("x", 5<<10): "allowed are 4096",
		} {
			_, err := server.Client.KV().Put(&api.KVPair{Key: "nccl/v1/baseline/a/b", Value: []byte(value)}, nil)
			must.NoError(t, err)
			_, err = b.Baseline(ctx, "a", "b")
			must.ErrorContains(t, err, "nccl/v1/baseline/a/b: ")
			must.ErrorContains(t, err, want)
		}
		must.NoError(t, b.Keep(ctx, "a", "b", base))
		got, err := b.Baseline(ctx, "a", "b")
		must.NoError(t, err)
		must.Eq(t, base, got)
	})
}
