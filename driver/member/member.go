// SPDX-License-Identifier: MPL-2.0

package member

import (
	"context"
	"fmt"
	"sync"
	"time"

	"github.com/nomad-gpu/nomad-gpu/driver/gang"
)

// Event is a milestone for people.
type Event struct {
	Kind    string
	Message string
}

// State is what a member needs to go on in the driver's next life.
type State struct {
	Session string      `json:"session"`
	Record  gang.Record `json:"record"`
}

// Options is all that a member needs.
type Options struct {
	Spec  gang.Spec
	Self  gang.Member
	Key   gang.Key
	Store gang.Store
	// Pool and Priority are the gang's place in the line for nodes.
	Pool     string
	Priority int
	// Runner runs the processes.
	Runner Runner
	// Report is told milestones; it must not block for long.
	Report func(Event)
	// Observe is told how the gang stands after each event; optional, and as quick.
	Observe func(Observation)
	// Reached is told when the store is out of reach and when it is back; optional.
	Reached func(bool)
	// Save keeps the state before anybody relies on it.
	Save func(State) error
	// Resume is the state a former life saved, or nil. Running says whether
	// the process of its record is there, or its exit is still to be told.
	Resume  *State
	Running bool
	// Leave is told when Nomad stops this allocation, or it cannot go on here.
	// Closing it stands for the former.
	Leave <-chan gang.LeaveAsked
	// SessionTTL is the session's time to live.
	SessionTTL time.Duration
	// ConsulGrace is how long a process runs on while the store is out of reach.
	ConsulGrace time.Duration
	// DisagreeGrace is how long a member with another spec than the gang's
	// waits for that gang to end: when a job is changed, Nomad starts the new
	// allocations while the old ones still leave.
	DisagreeGrace time.Duration
}

// Result is how it ended.
type Result struct {
	gang.Outcome
	// Detached: the context ended first; the process and the member's place
	// in the gang are as they were.
	Detached bool
	// Exit is this member's last process, if any ended.
	Exit *gang.Exit
}

// Run is one member's life in its gang. It returns when the gang is done or
// failed, when this member was told to leave and has left, or when ctx ends.
// It costs one blocking query, on the head, and one renewal each third of the
// TTL; the coordinator has two more queries.
func Run(ctx context.Context, o Options) Result {
	l := &loop{o: o, events: make(chan gang.Event, 16), views: map[string][]gang.Member{}, waitGap: 2 * time.Second}
	if o.Resume != nil {
		l.o.Self = o.Resume.Record.Member
		l.machine = gang.ResumeMachine(o.Resume.Record, o.Running)
		l.session.id = o.Resume.Session
	} else {
		l.machine = gang.NewMachine(o.Self)
	}
	l.seen.Rank = -1
	l.session.changed = make(chan struct{}, 1)
	l.session.lastGood = time.Now()
	l.record.changed = make(chan struct{}, 1)
	l.place.moved = make(chan struct{}, 1)
	l.place.move(nil, l.o.Self)
	l.joined = make(chan struct{})
	tasksCtx, cancel := context.WithCancel(ctx)
	result := l.run(tasksCtx)
	cancel()
	l.tasks.Wait()
	if !result.Detached {
		l.leave(ctx)
	}
	return result
}

type loop struct {
	o        Options
	machine  *gang.Machine
	events   chan gang.Event
	tasks    sync.WaitGroup
	joined   chan struct{}
	once     sync.Once
	lastExit *gang.Exit
	seen     Observation

	session session
	record  outbox

	place place

	viewsMu sync.Mutex
	views   map[string][]gang.Member

	cancelPrepare context.CancelFunc
	lastBroken    string
	waitGap       time.Duration
	waitNext      time.Time
	untold        *gang.Tell // a count that came too soon after the last one
}

// run is the one goroutine that touches the machine.
func (l *loop) run(ctx context.Context) Result {
	l.begin(ctx, l.keepSession)
	l.observe(nil)
	if out, ok := l.agree(ctx); !ok {
		return out
	}
	if l.o.Resume != nil {
		if end := l.perform(ctx, l.machine.Resume()); end != nil {
			return Result{Outcome: *end, Exit: l.lastExit}
		}
	} else {
		l.publish(l.machine.Record())
	}
	l.begin(ctx, l.writeRecords)
	l.begin(ctx, l.watchHead)
	l.begin(ctx, l.coordinate)
	leave := l.o.Leave
	exited := l.o.Runner.Exited()
	for {
		var e gang.Event
		select {
		case <-ctx.Done():
			return Result{Detached: true, Exit: l.lastExit}
		case asked := <-leave:
			leave, e = nil, asked
		case x, ok := <-exited:
			if !ok {
				exited = nil
				continue
			}
			l.lastExit = &x
			e = gang.ProcessEnded{Exit: x}
		case e = <-l.events:
		case <-l.tellLater():
			l.report(*l.untold)
			continue
		}
		actions := l.machine.Step(e)
		l.observe(e)
		if l.cancelPrepare != nil && l.machine.Abandoned() {
			l.cancelPrepare()
		}
		if end := l.perform(ctx, actions); end != nil {
			l.settle(ctx)
			return Result{Outcome: *end, Exit: l.lastExit}
		}
	}
}

// farewell bounds the wait for the gang to know that a member leaves.
const farewell = 3 * time.Second

// settle waits until the head says that the generation ends, where this member
// leaves one: a record that went before the coordinator had read it would be a
// loss, for which the others get no time to save their work.
func (l *loop) settle(ctx context.Context) {
	over := time.After(farewell)
	for missed := l.machine.Missed(); missed; {
		select {
		case <-ctx.Done():
			return
		case <-over:
			return
		case e := <-l.events:
			if h, ok := e.(gang.HeadSeen); ok {
				missed = h.Assignment != nil && (h.Head.State == gang.Preparing || h.Head.State == gang.Running)
			}
			if _, ok := e.(gang.HeadGone); ok {
				return
			}
		}
	}
}

func (l *loop) begin(ctx context.Context, task func(context.Context)) {
	l.tasks.Add(1)
	go func() {
		defer l.tasks.Done()
		task(ctx)
	}()
}

// tell hands an event to run.
func (l *loop) tell(ctx context.Context, e gang.Event) {
	select {
	case l.events <- e:
	case <-ctx.Done():
	}
}

// agree waits for the store and compares the spec.
func (l *loop) agree(ctx context.Context) (Result, bool) {
	begin, told := time.Now(), false
	for {
		spec, err := l.o.Store.AgreeSpec(ctx, l.o.Spec)
		if err == nil {
			differs := l.o.Spec.Agree(spec)
			if differs == nil {
				return Result{}, true
			}
			reason := fmt.Sprintf("members disagree: %s", differs)
			if time.Since(begin) >= l.o.DisagreeGrace {
				return Result{Outcome: gang.Outcome{State: gang.Failed, Reason: reason}}, false
			}
			if !told {
				told = true
				l.o.Report(Event{"Waiting", fmt.Sprintf("%s; waiting up to %s for that gang to end", reason, l.o.DisagreeGrace)})
			}
		} else {
			l.session.trouble(l.o, err)
		}
		select {
		case <-ctx.Done():
			return Result{Detached: true}, false
		case asked := <-l.o.Leave:
			return Result{Outcome: gang.LeftFor(asked.Cause, asked.Why)}, false
		case <-time.After(time.Second):
		}
	}
}

// perform carries actions out, in order; the outcome where there is one.
func (l *loop) perform(ctx context.Context, actions []gang.Action) *gang.Outcome {
	for _, a := range actions {
		switch a := a.(type) {
		case gang.Publish:
			l.publish(a.Record)
		case gang.Keep:
			l.keep(a.Record)
		case gang.CreateHead:
			l.begin(ctx, func(ctx context.Context) { l.createHead(ctx, a.Head) })
		case gang.Prepare:
			prepareCtx, cancel := context.WithCancel(ctx)
			l.cancelPrepare = cancel
			a.Assignment.Key = l.o.Key
			l.begin(ctx, func(ctx context.Context) {
				err := l.o.Runner.Prepare(prepareCtx, a.Assignment)
				cancel()
				l.tell(ctx, gang.PrepareEnded{Generation: a.Assignment.Generation, Err: err})
			})
		case gang.Start:
			l.begin(ctx, func(ctx context.Context) {
				l.tell(ctx, gang.StartEnded{Generation: a.Generation, Err: l.o.Runner.Start(ctx, a.Generation)})
			})
		case gang.Stop:
			l.begin(ctx, func(ctx context.Context) { l.stopProcess(ctx, a) })
		case gang.Tell:
			l.report(a)
		case gang.End:
			return &a.Outcome
		}
	}
	return nil
}

// createHead leaves the write to the first members, where there are any: of a
// large gang that begins at once, each would write the same key otherwise.
func (l *loop) createHead(ctx context.Context, h gang.Head) {
	if l.place.at.Load() >= candidates && !pause(ctx, headPatience) {
		return
	}
	l.untilDone(ctx, func() error {
		if there, _, err := l.o.Store.WatchHead(ctx, 0); err != nil || there != nil {
			return err
		}
		return l.o.Store.CreateHead(ctx, h)
	})
}

// headPatience is shorter than a member's wait until it looks for a head again.
const headPatience = 150 * time.Millisecond

// stopProcess does not give up: while a process is left the generation is not over.
func (l *loop) stopProcess(ctx context.Context, stop gang.Stop) {
	for {
		err := l.o.Runner.Stop(ctx, stop.Generation, stop.Planned)
		if err == nil {
			l.tell(ctx, gang.StopEnded{Generation: stop.Generation})
			return
		}
		l.o.Report(Event{"Stopping", fmt.Sprintf("Generation %d cannot be stopped yet: %v", stop.Generation, err)})
		if !pause(ctx, 5*time.Second) {
			return
		}
	}
}

// report passes milestones on. Nomad keeps ten events a task, so the count of
// a large gang that grows slowly is told less and less often.
func (l *loop) report(t gang.Tell) {
	if t.Kind == "Waiting" {
		now := time.Now()
		if now.Before(l.waitNext) {
			l.untold = &t
			return
		}
		l.untold = nil
		l.waitNext = now.Add(l.waitGap)
		l.waitGap = min(2*l.waitGap, 5*time.Minute)
	} else {
		l.waitGap, l.waitNext, l.untold = 2*time.Second, time.Time{}, nil
	}
	l.o.Report(Event{t.Kind, t.Message})
}

// tellLater is due when a count that was held back may be told: the last one
// is what people wait by.
func (l *loop) tellLater() <-chan time.Time {
	if l.untold == nil {
		return nil
	}
	return time.After(time.Until(l.waitNext))
}

// publish keeps the record for the driver's next life, then for the gang.
func (l *loop) publish(r gang.Record) {
	l.keep(r)
	l.record.put(r)
}

func (l *loop) keep(r gang.Record) {
	if err := l.o.Save(State{Session: l.session.current(), Record: r}); err != nil {
		l.o.Report(Event{"Warning", fmt.Sprintf("cannot keep the state for a restart of the driver: %v", err)})
	}
}

// leave takes this member out of the store; the last one takes the gang out.
// The session ends in between: a write of the record that is still under way
// would bring it back otherwise, and nobody would be the last. It does not hold
// the end up for long: a driver sweeps what is left.
func (l *loop) leave(ctx context.Context) {
	ctx, cancel := context.WithTimeout(ctx, 10*time.Second)
	defer cancel()
	l.untilDone(ctx, func() error {
		if err := l.o.Store.DeleteRecord(ctx, l.o.Self.Alloc); err != nil {
			return err
		}
		if id := l.session.current(); id != "" {
			if err := l.o.Store.Close(ctx, id); err != nil {
				return err
			}
		}
		return l.o.Store.Remove(ctx)
	})
}

// untilDone tries again until it works or ctx ends.
func (l *loop) untilDone(ctx context.Context, try func() error) {
	for {
		err := try()
		if err == nil {
			return
		}
		l.session.trouble(l.o, err)
		if !pause(ctx, time.Second) {
			return
		}
	}
}

func pause(ctx context.Context, d time.Duration) bool {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-ctx.Done():
		return false
	case <-t.C:
		return true
	}
}
