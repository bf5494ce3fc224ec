// SPDX-License-Identifier: MPL-2.0

package story

import (
	"fmt"
	"io"
	"slices"
	"strings"
	"sync"
	"time"
)

// Timeline prints what happens as it happens, one line each, with the time
// since the beginning and who says it.
type Timeline struct {
	mu    sync.Mutex
	out   io.Writer
	begin time.Time
	now   func() time.Time
	said  map[string]bool
}

// NewTimeline starts the clock.
func NewTimeline(out io.Writer, now func() time.Time) *Timeline {
	return &Timeline{out: out, begin: now(), now: now, said: map[string]bool{}}
}

// Say prints one line.
func (t *Timeline) Say(who, format string, args ...any) {
	t.mu.Lock()
	defer t.mu.Unlock()
	fmt.Fprintf(t.out, "%6.1fs  %-10s  %s\n", t.now().Sub(t.begin).Seconds(), who, fmt.Sprintf(format, args...))
}

// Once prints a line the first time it is given this key.
func (t *Timeline) Once(key, who, format string, args ...any) {
	t.mu.Lock()
	fresh := !t.said[key]
	t.said[key] = true
	t.mu.Unlock()
	if fresh {
		t.Say(who, format, args...)
	}
}

// Node is a Nomad node as the story sees it.
type Node struct {
	Name, Class, Status string
	Eligible, Draining  bool
	GPUs                int
}

// TaskEvent is one of a task's events that the driver or Nomad wrote.
type TaskEvent struct {
	At      time.Time
	Message string
}

// Snapshot is what the cluster says at one moment.
type Snapshot struct {
	Nodes   []Node
	Members []Member
	// TaskEvents are the driver's words, by allocation.
	TaskEvents map[string][]TaskEvent
	// Waiting is why Nomad cannot place the rest of the job; empty: all are placed.
	Waiting   string
	JobStatus string
}

// Tell says what is new in a snapshot. The same message of the driver on
// several nodes is one line that names them all.
func (t *Timeline) Tell(before, now Snapshot) {
	t.tellNodes(before.Nodes, now.Nodes)
	if now.Waiting != before.Waiting && now.Waiting != "" {
		t.Say("nomad", "waits: %s", now.Waiting)
	}
	t.tellDriver(now)
	t.tellTraining(now.Members)
}

func (t *Timeline) tellNodes(before, now []Node) {
	find := func(all []Node, name string) (Node, bool) {
		i := slices.IndexFunc(all, func(n Node) bool { return n.Name == name })
		if i < 0 {
			return Node{}, false
		}
		return all[i], true
	}
	for _, n := range now {
		old, had := find(before, n.Name)
		switch {
		case n.Status == "ready" && (!had || old.Status != "ready"):
			t.Say("node", "%s (%s) is ready with %d GPUs", n.Name, n.Class, n.GPUs)
		case had && n.Status != old.Status:
			t.Say("node", "%s is %s", n.Name, n.Status)
		case had && n.Draining && !old.Draining:
			t.Say("node", "%s is drained", n.Name)
		case had && !n.Eligible && old.Eligible:
			t.Say("node", "%s takes no more work", n.Name)
		}
	}
	for _, n := range before {
		if _, has := find(now, n.Name); !has {
			t.Say("node", "%s is gone", n.Name)
		}
	}
}

func (t *Timeline) tellDriver(now Snapshot) {
	type line struct {
		message string
		nodes   []string
	}
	var lines []line
	for _, m := range now.Members {
		for _, e := range now.TaskEvents[m.Alloc] {
			key := "event " + m.Alloc + e.At.String() + e.Message
			t.mu.Lock()
			fresh := !t.said[key]
			t.said[key] = true
			t.mu.Unlock()
			if !fresh {
				continue
			}
			i := slices.IndexFunc(lines, func(l line) bool { return l.message == e.Message })
			if i < 0 {
				lines = append(lines, line{message: e.Message})
				i = len(lines) - 1
			}
			lines[i].nodes = append(lines[i].nodes, m.Node)
		}
	}
	for _, l := range lines {
		slices.Sort(l.nodes)
		t.Say("gang", "%s  (%s)", l.message, strings.Join(slices.Compact(l.nodes), ", "))
	}
}

// tellTraining says each milestone of the training once: what all ranks say
// alike is said by the first one seen.
func (t *Timeline) tellTraining(members []Member) {
	for _, m := range members {
		for _, e := range m.Events {
			key := func(parts ...any) string { return fmt.Sprint(append([]any{e.Event, e.Generation}, parts...)...) }
			switch e.Event {
			case "start":
				t.Once(key(e.Rank), "training", "generation %d: rank %d of %d runs on %s, master %s", e.Generation, e.Rank, e.World, m.Node, e.Master)
			case "allreduce":
				t.Once(key(e.OK), "training", "generation %d: all-reduce over %s", e.Generation, map[bool]string{true: "all ranks gives the right sum", false: "the ranks gives a WRONG sum"}[e.OK])
			case "resume":
				t.Once(key(e.Step), "training", "generation %d: goes on from the checkpoint at step %d", e.Generation, e.Step)
			case "step":
				t.Once(key(e.Step), "training", "step %d, loss %.4f", e.Step, e.Loss)
			case "result":
				t.Once(key(e.Digest), "training", "done at step %d: loss %.4f to %.4f, parameters %s", e.Step, e.FirstLoss, e.LastLoss, e.Digest)
			}
		}
	}
}
