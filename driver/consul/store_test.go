// SPDX-License-Identifier: MPL-2.0

package consul_test

import (
	"fmt"
	"net/netip"
	"testing"
	"time"

	"github.com/hashicorp/consul/api"
	"github.com/shoenig/test/must"

	"github.com/nomad-gpu/nomad-gpu/driver/consul"
	"github.com/nomad-gpu/nomad-gpu/driver/consul/consultest"
	"github.com/nomad-gpu/nomad-gpu/driver/gang"
)

func record(i int) gang.Record {
	return gang.Record{Phase: gang.Idle, Member: gang.Member{Alloc: fmt.Sprintf("alloc-%d", i), Node: fmt.Sprintf("n%d", i), Slots: 1,
		Address: netip.MustParseAddr("10.0.0.1"), Ports: [2]int{1, 2}}}
}

func TestTheStore(t *testing.T) {
	server := consultest.Start(t)
	ctx := t.Context()
	key := gang.Key{Region: "global", Namespace: "team a", Job: "a/b%2F../c ü", Group: "g", Run: "0"}
	s := consul.New(server.Client, "", key, "test", 10*time.Second)
	session, err := s.Open(ctx)
	must.NoError(t, err)

	t.Run("a job's name may hold anything", func(t *testing.T) {
		must.NoError(t, s.PutRecord(ctx, session, record(1)))
		all, err := consul.List(ctx, server.Client, "")
		must.NoError(t, err)
		must.Len(t, 1, all)
		must.Eq(t, key, all[0].Key)
		must.Eq(t, "alloc-1", all[0].Records[0].Member.Alloc)
	})
	t.Run("records that cannot be read are named and left out", func(t *testing.T) {
		keys, _, err := server.Client.KV().Keys("nccl/", "", nil)
		must.NoError(t, err)
		base := keys[0][:len(keys[0])-len("alloc-1")]
		for name, value := range map[string]string{
			"alloc-x": `{"v":1`, "alloc-y": `{"v":9,"member":{"alloc":"alloc-y"}}`, "alloc-z": `{"v":1,"phase":"idle","member":{"alloc":"other"}}`,
		} {
			ok, _, err := server.Client.KV().Acquire(&api.KVPair{Key: base + name, Value: []byte(value), Session: session}, nil)
			must.NoError(t, err)
			must.True(t, ok)
		}
		_, err = server.Client.KV().Put(&api.KVPair{Key: base + "alloc-w", Value: []byte("{}")}, nil)
		must.NoError(t, err)
		records, broken, _, err := s.WatchRecords(ctx, 0)
		must.NoError(t, err)
		must.Len(t, 1, records)
		text := fmt.Sprint(broken)
		for _, want := range []string{"alloc-w: no session holds it", "alloc-x:", "alloc-y: version 9; this driver reads version 1", `alloc-z: the record names allocation "other"`} {
			must.StrContains(t, text, want)
		}
		for _, name := range []string{"alloc-w", "alloc-x", "alloc-y", "alloc-z"} {
			_, err := server.Client.KV().Delete(base+name, nil)
			must.NoError(t, err)
		}
	})
	t.Run("a former life of the same allocation gives way", func(t *testing.T) {
		again, err := s.Open(ctx)
		must.NoError(t, err)
		must.NoError(t, s.PutRecord(ctx, again, record(1)))
		must.ErrorIs(t, s.Renew(ctx, session), gang.ErrSessionLost)
		must.ErrorIs(t, s.PutRecord(ctx, session, record(1)), gang.ErrSessionLost)
		session = again
	})
	t.Run("only the lock's holder decides, on the head it has read", func(t *testing.T) {
		must.NoError(t, s.CreateHead(ctx, gang.Head{State: gang.Forming}))
		must.NoError(t, s.CreateHead(ctx, gang.Head{State: gang.Failed}), must.Sprint("the first one stands"))
		head, index, err := s.WatchHead(ctx, 0)
		must.NoError(t, err)
		must.Eq(t, gang.Forming, head.State)
		var view []gang.Member
		for i := range 300 {
			view = append(view, record(i).Member)
		}
		d := gang.Decision{Head: &gang.Head{State: gang.Preparing, Generation: 1, World: 300}, View: view}
		ok, err := s.Decide(ctx, session, index, d)
		must.NoError(t, err)
		must.False(t, ok, must.Sprint("without the lock"))
		ok, err = s.TryLock(ctx, session)
		must.NoError(t, err)
		must.True(t, ok)
		ok, err = s.Decide(ctx, session, index, d)
		must.NoError(t, err)
		must.True(t, ok)
		got, err := s.ReadView(ctx, 1)
		must.NoError(t, err)
		must.Eq(t, view, got)
		ok, err = s.Decide(ctx, session, index, d)
		must.NoError(t, err)
		must.False(t, ok, must.Sprint("the head has changed"))
	})
	t.Run("keys stay while a member does, and go with the last", func(t *testing.T) {
		must.NoError(t, s.Remove(ctx))
		head, _, err := s.WatchHead(ctx, 0)
		must.NoError(t, err)
		must.NotNil(t, head)
		now := time.Now()
		sweeper := consul.NewSweeper(server.Client, consul.DefaultPrefix)
		sweep := func(after time.Duration) int {
			removed, err := sweeper.Sweep(ctx, now.Add(after), 10*time.Minute)
			must.NoError(t, err)
			return len(removed)
		}
		must.Zero(t, sweep(0))
		must.Zero(t, sweep(time.Hour), must.Sprint("a gang with a member is swept"))
		must.NoError(t, s.Close(ctx, session))
		must.Zero(t, sweep(time.Hour), must.Sprint("it is swept at first sight"))
		must.Zero(t, sweep(time.Hour+time.Minute))
		must.Eq(t, 1, sweep(2*time.Hour))
		keys, _, err := server.Client.KV().Keys("nccl/", "", nil)
		must.NoError(t, err)
		must.SliceEmpty(t, keys)
	})
}
