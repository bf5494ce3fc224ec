// SPDX-License-Identifier: MPL-2.0

package member_test

import (
	"context"
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
	"github.com/nomad-gpu/nomad-gpu/driver/member"
)

// runner is a Runner without processes: the test says how each ends.
type runner struct {
	mu         sync.Mutex
	alloc      string
	assignment gang.Assignment
	prepared   uint64
	running    uint64
	starts     []uint64
	prepareErr error
	planned    []bool // of each stop
	exits      chan gang.Exit
	slow       bool // Prepare takes until it is given up
}

func (r *runner) Prepare(ctx context.Context, a gang.Assignment) error {
	if r.slow {
		<-ctx.Done()
		return ctx.Err()
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.assignment, r.prepared = a, a.Generation
	return r.prepareErr
}

func (r *runner) Start(_ context.Context, generation uint64) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.running = generation
	r.starts = append(r.starts, generation)
	return nil
}

func (r *runner) Stop(_ context.Context, generation uint64, planned bool) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.running = 0
	r.planned = append(r.planned, planned)
	return nil
}

func (r *runner) Exited() <-chan gang.Exit { return r.exits }

func (r *runner) exit(code int, tail ...string) {
	r.mu.Lock()
	g := r.running
	r.running = 0
	r.mu.Unlock()
	r.exits <- gang.Exit{Generation: g, Code: code, Tail: tail}
}

func (r *runner) runs() uint64 {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.running
}

// seat is one member with its life in the test.
type seat struct {
	*runner
	leave  chan gang.LeaveAsked
	done   chan member.Result
	cancel context.CancelFunc
	mu     sync.Mutex
	said   []string
	state  member.State
}

func (s *seat) heard(text string) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return strings.Contains(strings.Join(s.said, "\n"), text)
}

func (s *seat) result(t *testing.T) member.Result {
	t.Helper()
	select {
	case r := <-s.done:
		return r
	case <-time.After(time.Minute):
		t.Fatalf("%s did not end; it said:\n%s", s.alloc, strings.Join(s.said, "\n"))
		return member.Result{}
	}
}

// contender is a store that notes who asks for the coordinator's lock, and
// lets nobody have it for a while.
type contender struct {
	gang.Store
	alloc string
	asked *sync.Map
	until time.Time
}

func (c contender) TryLock(ctx context.Context, session string) (bool, error) {
	c.asked.Store(c.alloc, true)
	if time.Now().Before(c.until) {
		return false, nil
	}
	return c.Store.TryLock(ctx, session)
}

type table struct {
	t        *testing.T
	server   *consultest.Server
	spec     gang.Spec
	key      gang.Key
	grace    time.Duration
	disagree time.Duration
	priority int
	slow     bool
	locks    *sync.Map // not nil: who asks for the lock, which is not to be had for 2 s
}

func newTable(t *testing.T, nodes int) *table {
	return &table{t: t, server: consultest.Start(t), grace: 5 * time.Minute, priority: 50,
		spec: gang.Spec{Nodes: nodes, Restarts: 1, PrepareTimeout: time.Minute, FenceDelay: time.Second},
		key:  gang.Key{Region: "global", Namespace: "default", Job: "a/b", Group: "g", Run: "r"}}
}

func (tb *table) join(i int, resume *member.State) *seat {
	s := &seat{runner: &runner{alloc: fmt.Sprintf("alloc-%d", i), exits: make(chan gang.Exit, 4), slow: tb.slow},
		leave: make(chan gang.LeaveAsked), done: make(chan member.Result, 1)}
	ctx, cancel := context.WithCancel(context.Background())
	s.cancel = cancel
	tb.t.Cleanup(cancel)
	o := member.Options{Spec: tb.spec, Key: tb.key, Pool: "default", Priority: tb.priority, Runner: s.runner, Leave: s.leave, Resume: resume, Running: resume != nil,
		Store:      consul.New(tb.server.Client, "", tb.key, s.alloc, 10*time.Second),
		SessionTTL: 10 * time.Second, ConsulGrace: tb.grace, DisagreeGrace: tb.disagree,
		Self: gang.Member{Alloc: s.alloc, Index: i, Node: fmt.Sprintf("node-%d", i), Slots: 8,
			Address: netip.MustParseAddr("127.0.0.1"), Ports: [2]int{20000 + i, 21000 + i}},
		Report: func(e member.Event) { s.mu.Lock(); s.said = append(s.said, e.Kind+": "+e.Message); s.mu.Unlock() },
		Save:   func(st member.State) error { s.mu.Lock(); s.state = st; s.mu.Unlock(); return nil }}
	if tb.locks != nil {
		o.Store = contender{o.Store, s.alloc, tb.locks, time.Now().Add(2 * time.Second)}
	}
	go func() { s.done <- member.Run(ctx, o) }()
	return s
}

func (tb *table) eventually(what string, cond func() bool) {
	tb.t.Helper()
	must.Wait(tb.t, wait.InitialSuccess(wait.BoolFunc(cond), wait.Timeout(time.Minute), wait.Gap(20*time.Millisecond)), must.Sprint(what))
}

func (tb *table) all(seats []*seat, generation uint64) {
	tb.t.Helper()
	tb.eventually(fmt.Sprintf("all run generation %d", generation), func() bool {
		for _, s := range seats {
			if s.runs() != generation {
				return false
			}
		}
		return true
	})
}

// nothingLeft: no key and no session of the gang.
func (tb *table) nothingLeft() {
	tb.t.Helper()
	tb.eventually("nothing is left in Consul", func() bool {
		keys, _, err := tb.server.Client.KV().Keys("nccl/", "", nil)
		must.NoError(tb.t, err)
		sessions, _, err := tb.server.Client.Session().List(nil)
		must.NoError(tb.t, err)
		return len(keys) == 0 && len(sessions) == 0
	})
}

func TestAGangStartsRestartsAndEndsTogether(t *testing.T) {
	tb := newTable(t, 4)
	var seats []*seat
	for i := range 3 {
		seats = append(seats, tb.join(i, nil))
	}
	tb.eventually("the three say what they wait for", func() bool { return seats[0].heard("members; waiting for") })
	must.Eq(t, 0, seats[0].runs())
	seats = append(seats, tb.join(3, nil))
	tb.all(seats, 1)
	for i, s := range seats {
		must.Eq(t, i, s.assignment.Rank)
		must.Eq(t, 20000+1000, s.assignment.MasterPort())
	}
	seats[2].exit(1, "CUDA error", "Traceback: boom")
	tb.all(seats, 2)
	must.Eq(t, []bool{false}, seats[0].planned, must.Sprint("after a failure nobody can agree on a checkpoint"))
	for i, s := range seats {
		must.Eq(t, i, s.assignment.Rank, must.Sprint("ranks are sticky"))
		must.Eq(t, 1, s.assignment.Restarts)
		must.Eq(t, 20000, s.assignment.MasterPort(), must.Sprint("the port alternates"))
		must.True(t, s.heard("rank 2 on node-2 exited with code 1: Traceback: boom"), must.Sprint(s.said))
	}
	for _, s := range seats {
		s.exit(0)
	}
	for _, s := range seats {
		must.Eq(t, gang.Done, s.result(t).State)
		must.Eq(t, []uint64{1, 2}, s.starts)
	}
	tb.nothingLeft()
}

func TestAFailurePastTheBudgetEndsTheGangEverywhereWithTheReason(t *testing.T) {
	tb := newTable(t, 2)
	tb.spec.Restarts = 0
	seats := []*seat{tb.join(0, nil), tb.join(1, nil)}
	tb.all(seats, 1)
	seats[1].exit(7, "no such file: data.bin")
	for _, s := range seats {
		r := s.result(t)
		must.Eq(t, gang.Failed, r.State)
		must.StrContains(t, r.Reason, "rank 1 on node-1 exited with code 7: no such file: data.bin; no restart left of 0")
		must.Eq(t, 0, s.runs())
	}
	tb.nothingLeft()
}

func TestAMemberWithAnotherSpecSaysBothValues(t *testing.T) {
	tb := newTable(t, 2)
	first := tb.join(0, nil)
	tb.eventually("the first is there", func() bool { return first.heard("1 of 2 members") })
	tb.spec.Nodes = 3
	r := tb.join(1, nil).result(t)
	must.Eq(t, gang.Failed, r.State)
	must.StrContains(t, r.Reason, "gang.nodes: 3 here, 2 in the gang")
	tb.disagree = time.Minute
	later := tb.join(2, nil)
	tb.eventually("it waits for the other gang", func() bool { return later.heard("members disagree") })
	close(first.leave)
	tb.eventually("it goes on once that has ended", func() bool { return later.heard("1 of 3 members") })
	close(later.leave)
	must.Eq(t, "stopped by Nomad", later.result(t).Reason)
	must.Eq(t, "stopped by Nomad", first.result(t).Reason)
	tb.nothingLeft()
}

func TestAnElasticGangShrinksAndGrowsAgain(t *testing.T) {
	tb := newTable(t, 3)
	tb.spec.Restarts, tb.spec.MinNodes, tb.spec.LastCall, tb.spec.GrowInterval = 0, 2, 4*time.Second, 2*time.Second // a last call within 2s of another word is not told
	seats := []*seat{tb.join(0, nil), tb.join(1, nil)}
	tb.all(seats, 1)
	must.True(t, seats[0].heard("2 of 3 members; waiting for 1 more; 2 are enough, last call for 4s"))
	must.Len(t, 2, seats[0].assignment.Members)
	seats = append(seats, tb.join(2, nil))
	tb.all(seats, 2)
	must.True(t, seats[0].heard("it grows from 2 to 3 members: node-2"))
	must.Eq(t, []bool{true}, seats[0].planned)
	must.Eq(t, 2, seats[2].assignment.Rank)
	close(seats[0].leave)
	seats[0].result(t)
	tb.all(seats[1:], 3)
	must.Len(t, 2, seats[2].assignment.Members)
	must.Eq(t, 1, seats[1].assignment.Rank, must.Sprint("it keeps its rank"))
	must.Eq(t, 0, seats[2].assignment.Rank, must.Sprint("it takes one that is left"))
	for _, s := range seats[1:] {
		s.exit(0)
	}
	for _, s := range seats[1:] {
		must.Eq(t, gang.Done, s.result(t).State)
	}
	tb.nothingLeft()
}

func TestMembersThatPrepareAreStoppedAndLeaveNothing(t *testing.T) {
	tb := newTable(t, 2)
	tb.slow = true
	seats := []*seat{tb.join(0, nil), tb.join(1, nil)}
	for _, s := range seats {
		tb.eventually("both prepare", func() bool { return s.heard("Generation 1: rank") })
	}
	for _, s := range seats {
		close(s.leave)
	}
	for _, s := range seats {
		must.Eq(t, "stopped by Nomad", s.result(t).Reason)
		must.Nil(t, s.starts)
	}
	tb.nothingLeft()
}

func TestTheLastCountOfMembersIsToldHoweverQuicklyTheyCame(t *testing.T) {
	tb := newTable(t, 4)
	seats := []*seat{tb.join(0, nil)}
	tb.eventually("the first count is told", func() bool { return seats[0].heard("1 of 4 members") })
	seats = append(seats, tb.join(1, nil), tb.join(2, nil))
	tb.eventually("the last count is told", func() bool { return seats[0].heard("3 of 4 members; waiting for 1 more") })
	for _, s := range seats {
		close(s.leave)
	}
	for _, s := range seats {
		s.result(t)
	}
	tb.nothingLeft()
}

func TestRank0EndsTheOthers(t *testing.T) {
	tb := newTable(t, 2)
	tb.spec.Completion = gang.CompletionRank0
	seats := []*seat{tb.join(0, nil), tb.join(1, nil)}
	tb.all(seats, 1)
	seats[0].exit(0)
	for _, s := range seats {
		r := s.result(t)
		must.Eq(t, gang.Done, r.State)
		must.Eq(t, "rank 0 finished", r.Reason)
		must.Eq(t, 0, s.runs())
	}
	tb.nothingLeft()
}

func TestOfTwoGangsThatEachHoldAPartTheSecondInLineGivesItsNodesBack(t *testing.T) {
	first := newTable(t, 2)
	first.spec.FormTimeout = 6 * time.Second
	second := &table{t: t, server: first.server, grace: first.grace, spec: first.spec, key: first.key, priority: 50}
	second.key.Job = "younger"
	a := first.join(0, nil)
	first.eventually("the first waits", func() bool { return a.heard("1 of 2 members") })
	b := second.join(1, nil)
	r := b.result(t)
	must.Eq(t, gang.Failed, r.State)
	must.StrContains(t, r.Reason, "gave its nodes back: not whole within form_timeout 6s, and default/a/b/g is before it in line")
	first.eventually("the first knows it is the first", func() bool { return a.heard("1 of 2 members; waiting for 1 more; first in line") })
	seats := []*seat{a, first.join(2, nil)}
	first.all(seats, 1)
	for _, s := range seats {
		s.exit(0)
	}
	for _, s := range seats {
		must.Eq(t, gang.Done, s.result(t).State)
	}
	keys, _, err := first.server.Client.KV().Keys("nccl/", "", nil)
	must.NoError(t, err)
	must.Len(t, 1, keys, must.Sprint("the second one's age is kept, and nothing else"))
	must.StrContains(t, keys[0], "/.age/")
	seats = []*seat{second.join(0, nil), second.join(1, nil)}
	second.all(seats, 1)
	for _, s := range seats {
		s.exit(0)
	}
	for _, s := range seats {
		must.Eq(t, gang.Done, s.result(t).State)
	}
	second.nothingLeft()
}

func TestALeaverIsReplacedWithoutCostingARestart(t *testing.T) {
	tb := newTable(t, 2)
	tb.spec.Restarts = 0
	seats := []*seat{tb.join(0, nil), tb.join(1, nil)}
	tb.all(seats, 1)
	seats[0].leave <- gang.LeaveAsked{Cause: gang.CauseNotice, Why: "spot notice: the rack is moved"}
	must.Eq(t, gang.Outcome{Cause: gang.CauseNotice, Reason: "spot notice: the rack is moved"}, seats[0].result(t).Outcome)
	tb.eventually("the others know why", func() bool {
		return seats[1].heard("Generation 1 stops: rank 0 on node-0 leaves: spot notice: the rack is moved")
	})
	next := tb.join(2, nil)
	tb.all([]*seat{seats[1], next}, 2)
	must.Eq(t, []bool{true}, seats[1].planned, must.Sprint("they can save their work"))
	must.Eq(t, 1, seats[1].assignment.Rank)
	must.Eq(t, 0, next.assignment.Rank, must.Sprint("the replacement takes the vacated rank"))
	must.Eq(t, 0, next.assignment.Restarts)
	for _, s := range []*seat{seats[1], next} {
		close(s.leave)
		s.result(t)
	}
	tb.nothingLeft()
}

func TestARestartedDriverGoesOnWithoutARestartOfTheGang(t *testing.T) {
	tb := newTable(t, 2)
	seats := []*seat{tb.join(0, nil), tb.join(1, nil)}
	tb.all(seats, 1)
	seats[0].cancel()
	must.True(t, seats[0].result(t).Detached)
	again := tb.join(0, &seats[0].state)
	again.runner.mu.Lock()
	again.running = 1
	again.runner.mu.Unlock()
	again.exit(0)
	seats[1].exit(0)
	for _, s := range []*seat{again, seats[1]} {
		must.Eq(t, gang.Done, s.result(t).State, must.Sprint(s.said))
	}
	must.Eq(t, []uint64{1}, seats[1].starts)
	tb.nothingLeft()
}

func TestConsulAwayAtTheStartAndInTheMiddleIsWaitedFor(t *testing.T) {
	tb := newTable(t, 2)
	tb.server.Stop()
	seats := []*seat{tb.join(0, nil), tb.join(1, nil)}
	tb.eventually("the wait is told", func() bool { return seats[0].heard("Waiting for Consul") })
	tb.server.Restart()
	tb.all(seats, 1)
	must.True(t, seats[0].heard("Consul is reached again"))
	tb.server.Stop()
	tb.eventually("the wait is told again", func() bool {
		seats[1].mu.Lock()
		defer seats[1].mu.Unlock()
		return strings.Count(strings.Join(seats[1].said, "\n"), "Waiting for Consul") == 2
	})
	must.Eq(t, 1, seats[0].runs(), must.Sprint("a running gang goes on"))
	seats[0].exit(0)
	tb.server.Restart()
	seats[1].exit(0)
	for _, s := range seats {
		must.Eq(t, gang.Done, s.result(t).State, must.Sprint(s.said))
		must.Eq(t, []uint64{1}, s.starts)
	}
	tb.nothingLeft()
}

func TestConsulAwayForLongerThanTheGraceStopsTheProcess(t *testing.T) {
	tb := newTable(t, 1)
	tb.grace = 2 * time.Second
	s := tb.join(0, nil)
	tb.all([]*seat{s}, 1)
	tb.server.Stop()
	tb.eventually("the process is stopped", func() bool { return s.runs() == 0 && s.heard("longer than consul_grace") })
	tb.server.Restart()
	tb.all([]*seat{s}, 2)
	s.exit(0)
	must.Eq(t, gang.Done, s.result(t).State)
	tb.nothingLeft()
}

func TestFewContendForTheLockHoweverManyMembersThereAre(t *testing.T) {
	tb := newTable(t, 12)
	tb.locks = &sync.Map{}
	var seats []*seat
	for i := range 12 {
		seats = append(seats, tb.join(i, nil))
	}
	tb.all(seats, 1)
	for i := range 12 {
		_, asked := tb.locks.Load(fmt.Sprintf("alloc-%d", i))
		// The lock can be had after the patience of the fourth to sixth.
		must.True(t, i < 6 || !asked, must.Sprint(i))
	}
	for _, s := range seats {
		s.exit(0)
	}
	for _, s := range seats {
		must.Eq(t, gang.Done, s.result(t).State)
	}
	tb.nothingLeft()
}

func TestAGangWithoutItsFirstAllocationsHasACoordinatorAndAnotherOneWhenThatIsLost(t *testing.T) {
	tb := newTable(t, 3)
	seats := []*seat{tb.join(4, nil), tb.join(5, nil), tb.join(7, nil)}
	tb.all(seats, 1)
	lock := func() string {
		pair, _, err := tb.server.Client.KV().List("nccl/", nil)
		must.NoError(t, err)
		for _, p := range pair {
			if strings.HasSuffix(p.Key, "/lock") {
				return p.Session
			}
		}
		return ""
	}
	for i, s := range seats {
		s.mu.Lock()
		holds := s.state.Session == lock()
		s.mu.Unlock()
		if !holds {
			continue
		}
		s.cancel() // its node is gone: the process and the driver
		must.True(t, s.result(t).Detached)
		seats[i] = tb.join(8, nil)
	}
	tb.all(seats, 2)
	must.Eq(t, 0, seats[0].assignment.Restarts, must.Sprint("a loss costs no restart"))
	for _, s := range seats {
		s.exit(0)
	}
	for _, s := range seats {
		must.Eq(t, gang.Done, s.result(t).State)
	}
	tb.nothingLeft()
}
