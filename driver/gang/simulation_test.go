// SPDX-License-Identifier: MPL-2.0

package gang

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"net/netip"
	"slices"
	"strings"
	"time"
)

// simulation runs a gang of machines against a store in memory on a virtual
// clock. Everything that can be late is late at random: a member's reading of
// the head, its writes, the coordinator's decisions, process operations. After
// every step the protocol's invariants are checked against the ground truth:
// the processes that really run.
type simulation struct {
	rng   *rand.Rand
	now   time.Time
	spec  Spec
	store simStore
	hosts []*simHost
	// faults that may still happen; when none is left the gang must come to its end.
	faults int
	made   int
	// truth
	everPrepared map[uint64]map[string]bool
	goneSince    map[string]time.Time
	log          []string
	// inflight are a coordinator's writes on their way to the store; they
	// arrive late, in any order, and even where the writer has died meanwhile.
	inflight []*simDecision
	states   map[string]bool
	// views are the members of each generation that came to stand.
	views map[uint64][]Member
	named int
	// mixed lets some drivers be of the first release.
	mixed bool
	// crashed is set once a node has died: its record outlives it for a while.
	crashed bool
}

const (
	simTTL   = 15 * time.Second
	simGrace = 5 * time.Minute
)

type simStore struct {
	head     *Head
	index    int
	views    map[string][]Member // by name
	records  map[string]simRecord
	lock     int // session, 0: free
	sessions map[int]time.Time
	next     int
	down     bool // no leader: nothing can be read or written
}

type simRecord struct {
	record  Record
	session int
}

// simHost is one node with one allocation: the driver's member loop and the
// process, which outlives the driver.
type simHost struct {
	alloc    string
	first    bool // the driver is the first release
	machine  *Machine
	saved    Record
	up       bool // the driver runs
	dead     bool // the node is gone, or the allocation is over
	cut      bool // the node does not reach the store
	cutAt    time.Time
	session  int
	publish  *Record
	headSeen int
	pending  []simPending
	coord    *Coordinator
	decided  *simDecision
	outcome  *Outcome
	// the process
	generation uint64
	prepared   bool
	running    bool
	endsAt     time.Time
	exit       Exit
	exitTold   bool
	slowStop   bool
}

type simPending struct {
	due   time.Time
	event Event
	do    func()
}

type simDecision struct {
	session int
	index   int
	d       Decision
	head    Head
	first   bool // a driver of the first release wrote it
	// half is true once the first half of the view's shards is written.
	half bool
}

// newSimulation makes a gang of one size for most seeds, and an elastic one,
// or one that ends with rank 0, for the others.
func newSimulation(seed uint64, nodes, faults int) *simulation {
	s := &simulation{
		rng: rand.New(rand.NewPCG(seed, 1)), now: time.Unix(1_000_000, 0), faults: faults,
		spec:         Spec{Nodes: nodes, Restarts: 3, FormTimeout: time.Hour, PrepareTimeout: 5 * time.Minute, FenceDelay: time.Minute},
		store:        simStore{views: map[string][]Member{}, records: map[string]simRecord{}, sessions: map[int]time.Time{}},
		everPrepared: map[uint64]map[string]bool{}, goneSince: map[string]time.Time{}, states: map[string]bool{}, views: map[uint64][]Member{},
	}
	if seed%3 == 0 {
		s.spec.MinNodes, s.spec.LastCall, s.spec.GrowInterval = 1+s.rng.IntN(nodes), 20*time.Second, 30*time.Second
	}
	if seed%7 == 0 {
		s.spec.Completion = CompletionRank0
	}
	if seed%4 == 0 {
		s.spec.NoProgress = 2
	}
	s.mixed = seed%5 == 0
	if seed%11 == 0 {
		s.place() // one more than the gang has ranks
	}
	for range nodes {
		s.place()
	}
	return s
}

// place is Nomad: a new allocation on a new node.
func (s *simulation) place() {
	s.made++
	alloc := fmt.Sprintf("alloc-%d", s.made)
	m := Member{Alloc: alloc, Index: s.made % s.spec.Nodes, Node: fmt.Sprintf("node-%d", s.made), Slots: 1,
		Address: netip.AddrFrom4([4]byte{10, 0, 0, byte(s.made)}), Ports: [2]int{1000, 1001}}
	h := &simHost{alloc: alloc, machine: NewMachine(m), up: true, first: s.mixed && s.rng.IntN(2) == 0}
	h.publish = ptr(h.machine.Record())
	s.hosts = append(s.hosts, h)
}

func ptr[T any](v T) *T { return &v }

func (s *simulation) logf(format string, args ...any) {
	s.log = append(s.log, fmt.Sprintf("%8.1f ", s.now.Sub(time.Unix(1_000_000, 0)).Seconds())+fmt.Sprintf(format, args...))
}

// step lets one random thing happen.
func (s *simulation) step() error {
	s.now = s.now.Add(time.Duration(s.rng.Int64N(int64(800 * time.Millisecond))))
	s.expireSessions()
	if s.faults > 0 && s.rng.IntN(12) == 0 {
		s.fault()
	}
	h := s.hosts[s.rng.IntN(len(s.hosts))]
	if h.dead {
		return nil
	}
	s.runProcess(h)
	if !h.up {
		if s.rng.IntN(6) == 0 {
			s.resume(h)
		}
		return nil
	}
	reach := !h.cut && !s.store.down
	switch s.rng.IntN(5) {
	case 0:
		if reach {
			s.flush(h)
		} else if h.cut && s.now.Sub(h.cutAt) > simGrace {
			return s.apply(h, CutOff{Reason: "the store is out of reach"})
		}
	case 1:
		if reach {
			return s.readHead(h)
		}
	case 2:
		return s.complete(h)
	case 3:
		if reach {
			s.coordinate(h)
		}
	case 4:
		if !s.store.down && len(s.inflight) > 0 {
			return s.deliverWrite(s.rng.IntN(len(s.inflight)))
		}
	}
	return nil
}

func (s *simulation) expireSessions() {
	if s.store.down {
		return // a new leader gives every session its whole TTL again
	}
	for _, h := range s.hosts {
		if h.up && !h.dead && !h.cut {
			s.renew(h)
		}
	}
	for id, until := range s.store.sessions {
		if s.now.After(until) {
			s.endSession(id)
		}
	}
}

func (s *simulation) endSession(id int) {
	delete(s.store.sessions, id)
	if s.store.lock == id {
		s.store.lock = 0
	}
	for alloc, r := range s.store.records {
		if r.session == id {
			delete(s.store.records, alloc)
			s.goneSince[alloc] = s.now
			s.logf("record of %s is gone with its session", alloc)
		}
	}
}

func (s *simulation) renew(h *simHost) {
	if _, alive := s.store.sessions[h.session]; alive {
		s.store.sessions[h.session] = s.now.Add(simTTL)
	}
}

// flush writes the newest record, with a new session where the old one is gone.
func (s *simulation) flush(h *simHost) {
	_, alive := s.store.sessions[h.session]
	if !alive {
		s.store.next++
		h.session = s.store.next
		s.store.sessions[h.session] = s.now.Add(simTTL)
		h.publish = ptr(h.machine.Record())
	}
	if h.publish == nil {
		return
	}
	s.store.records[h.alloc] = simRecord{h.knows(*h.publish), h.session}
	delete(s.goneSince, h.alloc)
	h.publish = nil
}

func (s *simulation) readHead(h *simHost) error {
	if _, joined := s.store.records[h.alloc]; !joined || h.headSeen == s.store.index && s.store.head != nil {
		return nil
	}
	if s.store.head == nil {
		return s.apply(h, HeadGone{})
	}
	h.headSeen = s.store.index
	return s.apply(h, HeadSeen{Head: h.knowsHead(*s.store.head), Assignment: s.assignment(h)})
}

func (s *simulation) assignment(h *simHost) *Assignment {
	view := s.store.views[s.store.head.View]
	rank := slices.IndexFunc(view, func(m Member) bool { return m.Alloc == h.alloc })
	if rank < 0 {
		return nil
	}
	return &Assignment{Generation: s.store.head.Generation, Rank: rank, Members: view}
}

// complete delivers one process operation or exit that is due.
func (s *simulation) complete(h *simHost) error {
	for i, p := range h.pending {
		if s.now.Before(p.due) {
			continue
		}
		h.pending = slices.Delete(h.pending, i, i+1)
		if p.do != nil {
			p.do()
		}
		if start, ok := p.event.(StartEnded); ok {
			if err := s.checkStart(h, start.Generation); err != nil {
				return err
			}
			h.running, h.endsAt = true, s.now.Add(time.Duration(20+s.rng.IntN(200))*time.Second)
			h.exit, h.exitTold = Exit{Generation: start.Generation}, false
		}
		return s.apply(h, p.event)
	}
	if !h.running && h.exit.Generation != 0 && !h.exitTold {
		h.exitTold = true
		return s.apply(h, ProcessEnded{h.exit})
	}
	return nil
}

func (s *simulation) runProcess(h *simHost) {
	if h.running && s.now.After(h.endsAt) {
		h.running, h.prepared = false, false
		s.logf("process %d of %s ended: %v", h.generation, h.alloc, h.exit)
	}
}

// apply gives the machine an event and carries out what it answers.
func (s *simulation) apply(h *simHost, e Event) error {
	for _, a := range h.machine.Step(e) {
		s.act(h, a)
	}
	h.saved = h.machine.Record()
	s.states[s.fingerprint()] = true
	return nil
}

// fingerprint is the gang's state without what only grows: generations count
// by their distance from the head's.
func (s *simulation) fingerprint() string {
	var b strings.Builder
	var head Head
	if s.store.head != nil {
		head = *s.store.head
	}
	fmt.Fprint(&b, head.State, head.Cause, head.Restarts, s.store.down, s.store.lock != 0)
	for _, h := range s.hosts {
		m := h.machine
		fmt.Fprint(&b, "|", h.up, h.dead, h.cut, m.record.Phase, m.busy, m.seen, m.stopped, m.record.Leaving, h.running, h.prepared,
			int64(head.Generation-m.record.Generation), s.store.lock == h.session, h.decided != nil)
	}
	return b.String()
}

func (s *simulation) act(h *simHost, a Action) {
	soon := func(most int) time.Time { return s.now.Add(time.Duration(s.rng.IntN(most*1000)) * time.Millisecond) }
	switch a := a.(type) {
	case Publish:
		h.publish = ptr(a.Record)
	case CreateHead:
		if s.store.head == nil {
			s.store.head = &a.Head
			s.store.index++
			s.logf("%s creates the head %+v", h.alloc, a.Head)
		}
	case Prepare:
		g := a.Assignment.Generation
		var err error
		if s.faults > 0 && s.rng.IntN(20) == 0 {
			s.faults--
			err = errors.New("no such command")
			if n := len(a.Assignment.Members); s.rng.IntN(2) == 0 {
				// Preflight finds a slow pair, and this member or a neighbour to blame.
				err = &LeaveOut{Alloc: a.Assignment.Members[(a.Assignment.Rank+s.rng.IntN(3)+n-1)%n].Alloc, Err: errors.New("preflight: slow")}
			}
		}
		h.pending = append(h.pending, simPending{due: soon(6), event: PrepareEnded{g, err}, do: func() {
			if err == nil {
				h.generation, h.prepared = g, true
				if s.everPrepared[g] == nil {
					s.everPrepared[g] = map[string]bool{}
				}
				s.everPrepared[g][h.alloc] = true
			}
		}})
	case Start:
		h.pending = append(h.pending, simPending{due: soon(2), event: StartEnded{a.Generation, nil}})
	case Stop:
		most := 3
		if h.slowStop {
			most = 120
		}
		h.pending = append(h.pending, simPending{due: soon(most), event: StopEnded{a.Generation}, do: func() {
			h.running, h.prepared, h.exitTold = false, false, true
		}})
	case End:
		s.logf("%s ends: %+v", h.alloc, a.Outcome)
		h.outcome = &a.Outcome
		h.dead = true
		if a.Outcome.Cause == CauseSlow {
			s.place() // its task failed, so Nomad places another elsewhere
		}
		delete(s.store.records, h.alloc)
		s.goneSince[h.alloc] = s.now
		delete(s.store.sessions, h.session)
		if s.store.lock == h.session {
			s.store.lock = 0
		}
		if len(s.store.records) == 0 {
			s.store.head, s.store.views, s.store.lock = nil, map[string][]Member{}, 0
			s.store.index++
		}
	}
}

// coordinate: take the lock where it is free, read, decide; the decision is written later.
func (s *simulation) coordinate(h *simHost) {
	if _, alive := s.store.sessions[h.session]; !alive || s.store.head == nil {
		return
	}
	if s.store.lock == 0 {
		s.store.lock = h.session
	}
	if s.store.lock != h.session {
		h.coord = nil
		return
	}
	if h.coord == nil {
		h.coord = NewCoordinator(s.spec) // also where a former life of this member took the lock
	}
	if h.decided != nil {
		return
	}
	var records []Record
	for _, r := range s.store.records {
		records = append(records, h.knows(r.record))
	}
	slices.SortFunc(records, func(a, b Record) int { return strings.Compare(a.Member.Alloc, b.Member.Alloc) })
	head := h.knowsHead(*s.store.head)
	d := h.coord.Decide(s.now, head, s.store.views[s.store.head.View], records, s.line())
	if d.Head != nil {
		if d.View != nil {
			s.named++
			d.Head.View = fmt.Sprint(s.named)
		}
		*d.Head = h.knowsHead(*d.Head)
		h.decided = &simDecision{session: h.session, index: s.store.index, d: d, head: head, first: h.first}
		s.inflight = append(s.inflight, h.decided)
	}
}

// knows is a record without what the first release does not know of, where
// this driver is of that.
func (h *simHost) knows(r Record) Record {
	if h.first {
		r.Cause, r.Why = "", ""
		if r.Exit != nil {
			x := *r.Exit
			x.Rank, x.LeaveOut = nil, ""
			r.Exit = &x
		}
	}
	return r
}

func (h *simHost) knowsHead(head Head) Head {
	if h.first {
		head.Cause, head.Out = "", ""
	}
	return head
}

// line is mostly not known; now and then another gang is before this one.
func (s *simulation) line() *Line {
	switch s.rng.IntN(4) {
	case 0:
		return &Line{Position: 1}
	case 1:
		return &Line{Position: 2, Ahead: "default/other/gang"}
	}
	return nil
}

// deliverWrite lets one write reach the store: a large view in two
// transactions, the second with the head. Each checks that the session holds
// the lock and that the head is the one that was read.
func (s *simulation) deliverWrite(i int) error {
	w := s.inflight[i]
	refused := s.store.lock != w.session || s.store.index != w.index
	next := *w.d.Head
	if !refused && w.d.View != nil && !w.half {
		w.half = true
		s.writeShard(next.View, w.d.View, 0, len(w.d.View)/2)
		return nil
	}
	s.inflight = slices.Delete(s.inflight, i, i+1)
	for _, h := range s.hosts {
		if h.decided == w {
			h.decided = nil
		}
	}
	if refused {
		return nil
	}
	if next.Generation < w.head.Generation {
		return fmt.Errorf("the generation went back from %d to %d", w.head.Generation, next.Generation)
	}
	if w.d.View != nil {
		s.writeShard(next.View, w.d.View, len(w.d.View)/2, len(w.d.View))
		if err := checkView(s.store.views[next.View], s.spec); err != nil {
			return err
		}
	}
	if w.d.View != nil {
		s.views[next.Generation] = s.store.views[next.View]
	}
	if err := checkCause(w.head, next); err != nil && !w.first {
		return err
	}
	s.store.head = &next
	s.store.index++
	s.logf("head: %s generation %d restarts %d: %s", next.State, next.Generation, next.Restarts, next.Reason)
	return nil
}

func (s *simulation) writeShard(name string, view []Member, from, to int) {
	stored := slices.Clone(s.store.views[name])
	if len(stored) != len(view) {
		stored = make([]Member, len(view))
	}
	copy(stored[from:to], view[from:to])
	s.store.views[name] = stored
}

func checkView(view []Member, spec Spec) error {
	seen := map[string]bool{}
	for _, m := range view {
		if m.Alloc == "" || seen[m.Alloc] {
			return fmt.Errorf("the view names %q twice or not at all", m.Alloc)
		}
		seen[m.Alloc] = true
	}
	if len(view) < spec.Least() || len(view) > spec.Nodes {
		return fmt.Errorf("the view has %d ranks, expected %d to %d", len(view), spec.Least(), spec.Nodes)
	}
	return nil
}

// checkCause: each end has a cause, and only a failure costs a restart.
func checkCause(before, after Head) error {
	if (after.State == Stopping || after.State == Failed) && after.Cause == "" {
		return fmt.Errorf("%s without a cause: %s", after.State, after.Reason)
	}
	if cost := after.Restarts - before.Restarts; cost != 0 && (cost != 1 || EndOf(before, after) != CauseFailure) {
		return fmt.Errorf("from %s to %s for %q costs %d restarts", before.State, after.State, after.Cause, cost)
	}
	return nil
}

// checkStart holds the invariants at the one moment they protect.
func (s *simulation) checkStart(h *simHost, g uint64) error {
	if h.running {
		return fmt.Errorf("%s starts generation %d while its process of generation %d runs", h.alloc, g, h.generation)
	}
	for _, m := range s.views[g] {
		if !s.everPrepared[g][m.Alloc] {
			return fmt.Errorf("%s starts generation %d before %s was prepared", h.alloc, g, m.Alloc)
		}
	}
	for _, other := range s.hosts {
		if other == h || !other.running || other.generation >= g {
			continue
		}
		since, gone := s.goneSince[other.alloc]
		if !gone || s.now.Sub(since) < s.spec.FenceDelay {
			return fmt.Errorf("%s starts generation %d while generation %d still runs on %s", h.alloc, g, other.generation, other.alloc)
		}
	}
	return nil
}

func (s *simulation) fault() {
	h := s.hosts[s.rng.IntN(len(s.hosts))]
	if h.dead {
		return
	}
	s.faults--
	switch s.rng.IntN(9) {
	case 0: // the process fails
		if h.running {
			h.exit.Code, h.endsAt = 1, s.now
		}
	case 1: // the driver dies; the process goes on
		s.logf("driver of %s dies", h.alloc)
		h.up, h.pending, h.publish, h.coord, h.decided, h.headSeen = false, nil, nil, nil, nil, 0
	case 2: // the node dies, and Nomad places another
		s.logf("node of %s dies", h.alloc)
		h.dead, h.running, h.prepared, s.crashed = true, false, false, true
		if !s.spec.Elastic() || s.rng.IntN(2) == 0 {
			s.place()
		}
	case 3: // Nomad may take a node that is cut off for lost, and place another
		s.logf("%s is cut off", h.alloc)
		if !h.cut {
			h.cut, h.cutAt = true, s.now
			if s.rng.IntN(2) == 0 {
				s.place()
			}
		}
	case 4:
		for _, other := range s.hosts {
			other.cut = false
		}
	case 5: // the store loses its leader, or has one again
		s.store.down = !s.store.down
		for id := range s.store.sessions {
			s.store.sessions[id] = s.now.Add(simTTL)
		}
	case 6: // a process that outlasts the last call when it has to stop
		h.slowStop = true
		if other := s.hosts[s.rng.IntN(len(s.hosts))]; other != h && other.running && h.running {
			other.exit.Code, other.endsAt = 1, s.now
		}
	case 7: // paused past its TTL: the session ends while everything else goes on
		if !s.store.down {
			s.endSession(h.session)
		}
	case 8: // Nomad drains the node: the member leaves, another is placed
		if h.up {
			s.logf("%s is asked to leave", h.alloc)
			s.apply(h, LeaveAsked{})
			s.place()
		}
	}
}

// resume is the driver's new life.
func (s *simulation) resume(h *simHost) {
	s.logf("driver of %s is back, process of generation %d running: %t", h.alloc, h.generation, h.running)
	h.up = true
	r := h.saved
	if r.Member.Alloc == "" {
		r = h.machine.Record()
	}
	alive := h.running || h.prepared && h.generation == r.Generation
	ended := !h.running && h.exit.Generation == r.Generation && r.Phase == Started && !h.exitTold
	h.machine = ResumeMachine(r, alive || ended)
	for _, a := range h.machine.Resume() {
		s.act(h, a)
	}
	if !alive && !ended {
		h.prepared = false
	}
}

// finish ends all faults and lets the gang come to its end.
func (s *simulation) finish(steps int) error {
	s.faults = 0
	s.store.down = false
	for _, h := range s.hosts {
		h.cut = false
	}
	for range steps {
		if err := s.step(); err != nil {
			return err
		}
		if !slices.ContainsFunc(s.hosts, func(h *simHost) bool { return !h.dead }) {
			return s.checkEnd()
		}
	}
	return fmt.Errorf("no end after %d steps: head %+v", steps, s.store.head)
}

// checkEnd: what a node leaves that died goes with its session, and the head,
// where no member outlived it, with the driver's sweep.
func (s *simulation) checkEnd() error {
	s.now = s.now.Add(2 * simTTL)
	s.expireSessions()
	if len(s.store.records) > 0 {
		return fmt.Errorf("records are left: %v", s.store.records)
	}
	if s.store.head != nil && !s.crashed {
		return fmt.Errorf("the head is left: %v", *s.store.head)
	}
	for _, h := range s.hosts {
		if h.running || h.prepared {
			return fmt.Errorf("%s still has a process", h.alloc)
		}
		if h.outcome != nil && h.outcome.State == Failed && h.outcome.Reason == "" {
			return fmt.Errorf("%s failed without a reason", h.alloc)
		}
	}
	return nil
}
