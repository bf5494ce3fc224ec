// SPDX-License-Identifier: MPL-2.0

package member

import "github.com/nomad-gpu/nomad-gpu/driver/gang"

// Observation is how a gang stands as one member sees it, after each event.
type Observation struct {
	// Head is the newest one seen; the zero Head before the first.
	Head gang.Head
	// Record is this member's, as it should stand in the store.
	Record gang.Record
	// Rank is this member's in the head's generation; -1: it is not in it.
	Rank int
}

// Stage is what a member does in its gang's life.
type Stage string

const (
	// Forming: it waits for others, also as a spare.
	Forming Stage = "form"
	// Preparing: the generation it is named in gets ready.
	Preparing Stage = "prepare"
	// Running: the generation runs, and this member's process does or has finished.
	Running Stage = "run"
	// Stopping: its process has to end, or it leaves.
	Stopping Stage = "stop"
)

// Stages lists them all, in the order of a life.
var Stages = []Stage{Forming, Preparing, Running, Stopping}

// Stage is the observation's.
func (o Observation) Stage() Stage {
	in := o.Record.Generation == o.Head.Generation && o.Rank >= 0
	process := o.Record.Phase == gang.Prepared || o.Record.Phase == gang.Started
	switch {
	case o.Record.Leaving || o.Head.State.Final():
		return Stopping
	case process && (o.Head.State == gang.Stopping || o.Head.State == gang.Forming):
		return Stopping
	case o.Head.State == gang.Stopping && in && o.Record.Phase != gang.Idle:
		return Stopping
	case !in:
		return Forming
	case o.Head.State == gang.Preparing:
		return Preparing
	case o.Head.State == gang.Running && o.Record.Phase == gang.Prepared:
		return Preparing
	case o.Head.State == gang.Running && (o.Record.Phase == gang.Started || o.Record.Phase == gang.Finished):
		return Running
	case o.Head.State == gang.Running:
		return Stopping
	}
	return Forming
}

// observe tells how the gang stands after an event.
func (l *loop) observe(e gang.Event) {
	if l.o.Observe == nil {
		return
	}
	if seen, ok := e.(gang.HeadSeen); ok {
		l.seen.Head, l.seen.Rank = seen.Head, -1
		if seen.Assignment != nil {
			l.seen.Rank = seen.Assignment.Rank
		}
	}
	l.seen.Record = l.machine.Record()
	l.o.Observe(l.seen)
}
