// SPDX-License-Identifier: MPL-2.0

package main

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"net/netip"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/shoenig/test/must"
	"github.com/shoenig/test/wait"

	"github.com/nomad-gpu/nomad-gpu/driver/consul"
	"github.com/nomad-gpu/nomad-gpu/driver/consul/consultest"
	"github.com/nomad-gpu/nomad-gpu/driver/gang"
)

// written is a gang that a test writes into Consul as its members would.
type written struct {
	*consul.Store
	t       *testing.T
	session string
}

func write(t *testing.T, server *consultest.Server, job string) *written {
	s := consul.New(server.Client, "", gang.Key{Region: "global", Namespace: "default", Job: job, Group: "gang", Run: "0"}, "test", time.Minute)
	_, err := s.AgreeSpec(t.Context(), gang.Spec{Nodes: 2})
	must.NoError(t, err)
	session, err := s.Open(t.Context())
	must.NoError(t, err)
	ok, err := s.TryLock(t.Context(), session)
	must.NoError(t, err)
	must.True(t, ok)
	must.NoError(t, s.CreateHead(t.Context(), gang.Head{State: gang.Forming}))
	return &written{s, t, session}
}

func seat(i int) gang.Member {
	return gang.Member{Alloc: fmt.Sprintf("alloc-%d", i), Node: fmt.Sprintf("node-%d", i), Address: netip.MustParseAddr(fmt.Sprintf("10.0.0.%d", i)),
		Ports: [2]int{20000, 20001}, Slots: 8, GPUs: []string{"GPU-a", "GPU-b"}, Version: "1"}
}

func (w *written) put(r gang.Record) { must.NoError(w.t, w.PutRecord(w.t.Context(), w.session, r)) }

func (w *written) decide(d gang.Decision) {
	w.t.Helper()
	_, index, err := w.WatchHead(w.t.Context(), 0)
	must.NoError(w.t, err)
	ok, err := w.Decide(w.t.Context(), w.session, index, d)
	must.NoError(w.t, err)
	must.True(w.t, ok)
}

// view is the name of the head's view.
func (w *written) view() string {
	h, _, err := w.WatchHead(w.t.Context(), 0)
	must.NoError(w.t, err)
	return h.View
}

// run is the program with arguments; it ends with the context.
func run(ctx context.Context, out *output, server *consultest.Server, args ...string) error {
	c := command()
	c.SetOut(out)
	c.SetErr(out)
	c.SetArgs(append([]string{"gangs", "--consul-address", server.Address}, args...))
	return c.ExecuteContext(ctx)
}

// output is a buffer that can be read while it is written.
type output struct {
	mu   sync.Mutex
	text bytes.Buffer
}

func (o *output) Write(p []byte) (int, error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.text.Write(p)
}

func (o *output) String() string {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.text.String()
}

func show(t *testing.T, server *consultest.Server, args ...string) string {
	t.Helper()
	var out output
	must.NoError(t, run(t.Context(), &out, server, args...))
	return out.String()
}

// words is a table's row without its lines and spaces.
func words(row string) string {
	return strings.Join(strings.Fields(strings.ReplaceAll(row, "│", " ")), " ")
}

func hasRows(t *testing.T, text string, rows ...string) {
	t.Helper()
	var lines []string
	for line := range strings.Lines(text) {
		lines = append(lines, words(line))
	}
	for _, row := range rows {
		must.SliceContains(t, lines, row, must.Sprint(text))
	}
}

func TestGangsAreListedWithRanksReasonsAndWhatTheyWaitFor(t *testing.T) {
	server := consultest.Start(t)
	must.Eq(t, "no gangs\n", show(t, server))
	must.Eq(t, "[]\n", show(t, server, "--json"))

	llm := write(t, server, "llm")
	for i := range 3 {
		llm.put(gang.Record{Phase: gang.Idle, Member: seat(i)})
	}
	llm.decide(gang.Decision{Head: &gang.Head{State: gang.Preparing, Generation: 1, World: 2, Reason: "2 members prepare generation 1"}, View: []gang.Member{seat(2), seat(0)}})
	llm.put(gang.Record{Phase: gang.Broken, Generation: 1, Member: seat(2), Exit: &gang.Exit{Generation: 1, Code: 3, Tail: []string{"boom \x1b[31m"}}})
	must.NoError(t, llm.DeleteRecord(t.Context(), "alloc-0"))
	waits := write(t, server, "waits\x1b[2J")
	waits.put(gang.Record{Phase: gang.Idle, Member: seat(4), Leaving: true})
	waits.decide(gang.Decision{Head: &gang.Head{State: gang.Forming, Reason: "1 of 2 members; waiting for 1 more"}})
	must.NoError(t, llm.TakeTicket(t.Context(), llm.session, "h100", gang.Ticket{Gang: "default/llm/gang", Priority: 90}))
	must.NoError(t, waits.TakeTicket(t.Context(), waits.session, "h100", gang.Ticket{Gang: "default/waits/gang", Priority: 50}))

	text := show(t, server, "--ranks")
	hasRows(t, text, "default llm gang preparing 1 0 2 members h100 #1 2 members prepare generation 1",
		"default waits?[2J gang forming 0 0 1 member h100 #2 1 of 2 members; waiting for 1 more",
		"0 node-2 10.0.0.2 broken 1 2 exited with code 3: boom [31m", "1 node-0 10.0.0.0 gone 1 0", "- node-1 10.0.0.1 idle 0 2",
		"- node-4 10.0.0.4 idle, leaves 0 2", "default/llm/gang")
	must.StrNotContains(t, text, "\x1b")
	must.StrNotContains(t, show(t, server), "node-2")
	must.StrNotContains(t, show(t, server, "llm"), "waits")
	must.Eq(t, "no gangs\n", show(t, server, "ll"))

	var all []listed
	must.NoError(t, json.Unmarshal([]byte(show(t, server, "--json", "llm")), &all))
	must.Len(t, 1, all)
	zero, one := 0, 1
	must.Eq(t, listed{Namespace: "default", Job: "llm", Group: "gang", Run: "0", State: "preparing", Generation: 1, World: 2,
		Reason: "2 members prepare generation 1", Pool: "h100", Position: 1, Members: []listedMember{
			{Rank: &zero, Alloc: "alloc-2", Node: "node-2", Address: "10.0.0.2", Phase: "broken", Generation: 1, GPUs: 2, Exit: "exited with code 3: boom  [31m"},
			{Rank: &one, Alloc: "alloc-0", Node: "node-0", Address: "10.0.0.0", Phase: "gone", Generation: 1},
			{Alloc: "alloc-1", Node: "node-1", Address: "10.0.0.1", Phase: "idle", GPUs: 2},
		}}, all[0])
}

func TestAWatchPrintsAtEachChangeUntilItIsInterrupted(t *testing.T) {
	server := consultest.Start(t)
	ctx, cancel := context.WithCancel(t.Context())
	var out output
	done := make(chan error, 1)
	go func() { done <- run(ctx, &out, server, "--watch", "--json") }()
	shows := func(lines ...string) {
		t.Helper()
		must.Wait(t, wait.InitialSuccess(wait.ErrorFunc(func() error {
			printed := strings.Split(strings.TrimSpace(out.String()), "\n")
			if len(printed) < len(lines) {
				return fmt.Errorf("%d lines of %d", len(printed), len(lines))
			}
			for i, line := range lines {
				if !strings.Contains(printed[len(printed)-len(lines)+i], line) {
					return fmt.Errorf("no %s in %s", line, out.String())
				}
			}
			return nil
		}), wait.Timeout(time.Minute), wait.Gap(20*time.Millisecond)))
	}
	shows("[]")
	w := write(t, server, "llm")
	shows(`"state":"forming"`)
	for i := range 2 {
		w.put(gang.Record{Phase: gang.Idle, Member: seat(i)})
	}
	shows(`"node":"node-1"`)
	w.decide(gang.Decision{Head: &gang.Head{State: gang.Preparing, Generation: 1, World: 2}, View: []gang.Member{seat(0), seat(1)}})
	shows(`"rank":0`)
	for i := range 2 {
		w.put(gang.Record{Phase: gang.Prepared, Generation: 1, Member: seat(i)})
	}
	shows(`"phase":"prepared"`)
	w.decide(gang.Decision{Head: &gang.Head{State: gang.Running, Generation: 1, World: 2, View: w.view()}})
	shows(`"phase":"started"`) // a member does not write its start
	before := out.String()
	_, err := server.Client.KV().DeleteTree("unrelated/", nil)
	must.NoError(t, err)
	server.Stop()
	shows("list the gangs below nccl/v1")
	server.Restart()
	w2 := consul.New(server.Client, "", gang.Key{Region: "global", Namespace: "default", Job: "more", Group: "gang", Run: "0"}, "test", time.Minute)
	must.NoError(t, w2.CreateHead(t.Context(), gang.Head{State: gang.Forming}))
	shows(`"job":"more"`)
	must.StrHasPrefix(t, before, out.String())
	cancel()
	must.NoError(t, <-done)
}

func TestAnUnreadableGangIsNamedAndTheOthersAreListed(t *testing.T) {
	server := consultest.Start(t)
	write(t, server, "llm")
	keys, _, err := server.Client.KV().Keys("nccl/", "", nil)
	must.NoError(t, err)
	for _, k := range keys {
		if strings.HasSuffix(k, "/head") {
			pair, _, err := server.Client.KV().Get(k, nil)
			must.NoError(t, err)
			pair.Key, pair.Value = strings.Replace(k, "llm", "other", 1), []byte(`{"v":99}`)
			_, err = server.Client.KV().Put(pair, nil)
			must.NoError(t, err)
		}
	}
	var out output
	must.ErrorContains(t, run(t.Context(), &out, server), "head: version 99")
	hasRows(t, out.String(), "default llm gang forming 0 0 0 members")
	must.StrContains(t, show(t, server, "--json"), `"head: version 99`)
}

func TestConsulOutOfReachIsAnErrorThatNamesIt(t *testing.T) {
	server := consultest.Start(t)
	server.Stop()
	for _, args := range [][]string{nil, {"--watch"}} {
		must.ErrorContains(t, run(t.Context(), &output{}, server, args...), "list the gangs below nccl/v1")
	}
}
