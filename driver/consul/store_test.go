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
		head, _, err = s.WatchHead(ctx, 0)
		must.NoError(t, err)
		got, err := s.ReadView(ctx, *head)
		must.NoError(t, err)
		must.Eq(t, view, got)
		ok, err = s.Decide(ctx, session, index, d)
		must.NoError(t, err)
		must.False(t, ok, must.Sprint("the head has changed"))
	})
	t.Run("two coordinators' views of one generation do not mix", func(t *testing.T) {
		decide := func(members int) []gang.Member {
			var view []gang.Member
			for i := range members {
				m := record(i).Member
				m.Version = fmt.Sprint("of ", members)
				view = append(view, m)
			}
			_, index, err := s.WatchHead(ctx, 0)
			must.NoError(t, err)
			ok, err := s.Decide(ctx, session, index, gang.Decision{Head: &gang.Head{State: gang.Preparing, Generation: 5, World: members}, View: view})
			must.NoError(t, err)
			must.True(t, ok)
			return view
		}
		decide(300)
		want := decide(40) // as where the first one's head had been refused
		head, _, err := s.WatchHead(ctx, 0)
		must.NoError(t, err)
		got, err := s.ReadView(ctx, *head)
		must.NoError(t, err)
		must.Eq(t, want, got)
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

func TestTheLine(t *testing.T) {
	server := consultest.Start(t)
	ctx := t.Context()
	const ttl = 10 * time.Second
	stores, sessions := map[string]*consul.Store{}, map[string]string{}
	for _, job := range []string{"oldest", "second", "urgent"} {
		s := consul.New(server.Client, "", gang.Key{Region: "global", Namespace: "a/b", Job: job, Group: "g", Run: "0"}, "test", ttl)
		_, err := s.AgreeSpec(ctx, gang.Spec{Nodes: 2})
		must.NoError(t, err)
		session, err := s.Open(ctx)
		must.NoError(t, err)
		stores[job], sessions[job] = s, session
	}
	ticket := func(job string, priority int) {
		must.NoError(t, stores[job].TakeTicket(ctx, sessions[job], "h100/spot", gang.Ticket{Gang: job, Priority: priority}))
	}
	line := func(job string) gang.Line {
		l, err := stores[job].ReadLine(ctx, "h100/spot")
		must.NoError(t, err)
		return l
	}
	_, err := stores["second"].ReadLine(ctx, "h100/spot")
	must.ErrorContains(t, err, "the gang has no ticket")
	ticket("second", 50)
	ticket("oldest", 50)
	must.Eq(t, gang.Line{Position: 1}, line("oldest"), must.Sprint("the gang's age counts, not the ticket's"))
	must.Eq(t, gang.Line{Position: 2, Ahead: "oldest"}, line("second"))
	ticket("urgent", 80)
	must.Eq(t, gang.Line{Position: 3, Ahead: "urgent"}, line("second"))
	must.NoError(t, stores["urgent"].Close(ctx, sessions["urgent"]))
	must.Eq(t, gang.Line{Position: 2, Ahead: "oldest"}, line("second"), must.Sprint("a ticket goes with its session"))

	must.NoError(t, stores["oldest"].LeaveLine(ctx, "h100/spot", true))
	must.Eq(t, gang.Line{Position: 1}, line("second"))
	must.NoError(t, stores["oldest"].Remove(ctx))
	_, err = stores["oldest"].AgreeSpec(ctx, gang.Spec{Nodes: 2})
	must.NoError(t, err)
	ticket("oldest", 50)
	must.Eq(t, gang.Line{Position: 1}, line("oldest"), must.Sprint("it comes back to its old place"))
	must.NoError(t, stores["oldest"].LeaveLine(ctx, "h100/spot", true))

	sweeper := consul.NewSweeper(server.Client, "")
	ages := func() int {
		keys, _, err := server.Client.KV().Keys("nccl/v1/.age/", "", nil)
		must.NoError(t, err)
		return len(keys)
	}
	_, err = sweeper.Sweep(ctx, time.Now().Add(time.Hour), time.Minute)
	must.NoError(t, err)
	must.Eq(t, 1, ages())
	_, err = sweeper.Sweep(ctx, time.Now().Add(25*time.Hour), time.Minute)
	must.NoError(t, err)
	must.Zero(t, ages(), must.Sprint("nobody came back for it in a day"))
	all, err := consul.List(ctx, server.Client, "")
	must.NoError(t, err)
	for _, g := range all {
		must.Eq(t, "a/b", g.Key.Namespace, must.Sprint("the line is no gang"))
	}
}
