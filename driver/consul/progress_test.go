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
	"github.com/nomad-gpu/nomad-gpu/driver/gang"
	"github.com/nomad-gpu/nomad-gpu/driver/progress"
)

func TestMembersSeeEachOthersProgress(t *testing.T) {
	server := consultest.Start(t)
	ctx := t.Context()
	key := gang.Key{Region: "global", Namespace: "default", Job: "a/b", Group: "g", Run: "0"}
	one, two := consul.NewBoard(server.Client, "", key, "alloc-1"), consul.NewBoard(server.Client, "", key, "alloc-2")
	r := progress.Record{V: progress.RecordVersion, Generation: 3, Rank: 1, First: 8, Node: "n1",
		Ranks: []progress.Standing{{Local: 0, Step: 7, Seconds: 0.5, GPU: "GPU-a"}, {Local: 1, Step: 7}}}
	must.NoError(t, one.Publish(ctx, r))
	r.Ranks[0].Step = 8
	must.NoError(t, one.Publish(ctx, r))
	got, err := two.Read(ctx)
	must.NoError(t, err)
	must.Eq(t, []progress.Record{r}, got)

	long := r
	long.Node = strings.Repeat("x", 40<<10)
	must.ErrorContains(t, two.Publish(ctx, long), "allowed are 32768")
	base := "nccl/v1/global/default/a%2Fb/g/0/progress/"
	for name, value := range map[string]string{"x": "{", "y": `{"v":9}`, "z": `{"v":1,"node":"` + strings.Repeat("x", 40<<10) + `"}`} {
		_, err := server.Client.KV().Put(&api.KVPair{Key: base + name, Value: []byte(value)}, nil)
		must.NoError(t, err)
	}
	got, err = two.Read(ctx)
	must.NoError(t, err)
	must.Len(t, 1, got, must.Sprint("what cannot be a record is left out"))

	other := key
	other.Run = "1"
	got, err = consul.NewBoard(server.Client, "", other, "alloc-1").Read(ctx)
	must.NoError(t, err)
	must.SliceEmpty(t, got)

	store := consul.New(server.Client, "", key, "test", 10*time.Second)
	must.NoError(t, store.Remove(ctx))
	keys, _, err := server.Client.KV().Keys("nccl/", "", nil)
	must.NoError(t, err)
	must.SliceEmpty(t, keys, must.Sprint("they go with the gang"))
}
