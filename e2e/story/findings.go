// SPDX-License-Identifier: MPL-2.0

package story

import (
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
)

// Finding is one figure that was checked.
type Finding struct {
	What string
	Want string
	Got  string
	OK   bool
}

// Observed is all that was seen from the job's start to the pool's end.
type Observed struct {
	// Nodes and GPUs are what the job asked for: members, and GPUs of each.
	Nodes, GPUs int
	// QueuedGPUs is the greatest queue depth that the autoscaler acted on.
	QueuedGPUs int
	// SpotNodes are the names of all spot nodes that ever joined.
	SpotNodes []string
	// KilledAtStep is the step at which a rank was killed.
	KilledAtStep int
	// Members are the job's allocations at its end.
	Members []Member
	// JobStatus is Nomad's: complete needs every allocation to be.
	JobStatus string
	// SpotNodesLeft counts the spot nodes once the pool has shrunk.
	SpotNodesLeft int
	// KeysLeft and SessionsLeft count what the gang left in Consul.
	KeysLeft, SessionsLeft int
}

// Check compares everything observed with what the story promises.
func Check(o Observed) []Finding {
	var found []Finding
	equal := func(what string, want, got any) {
		w, g := fmt.Sprint(want), fmt.Sprint(got)
		found = append(found, Finding{What: what, Want: w, Got: g, OK: w == g})
	}
	holds := func(what, want, got string, ok bool) {
		found = append(found, Finding{What: what, Want: want, Got: got, OK: ok})
	}
	members := ByRank(o.Members)
	equal("GPUs queued before the pool grew", o.Nodes*o.GPUs, o.QueuedGPUs)
	equal("spot nodes bought", o.Nodes-1, len(o.SpotNodes))
	equal("allocations in all, none rescheduled", o.Nodes, len(members))
	for generation := 1; generation <= 2; generation++ {
		name := fmt.Sprintf("generation %d: ", generation)
		equal(name+"ranks started", ranks(o.Nodes), collect(members, "start", generation, func(e Event) string { return strconv.Itoa(e.Rank) }))
		equal(name+"world size on each rank", repeat(strconv.Itoa(o.Nodes), o.Nodes), collect(members, "start", generation, func(e Event) string { return strconv.Itoa(e.World) }))
		equal(name+"one master for all", 1, distinct(members, "start", generation, func(e Event) string { return e.Master }))
		equal(name+"all-reduce right on each rank", repeat("true", o.Nodes), collect(members, "allreduce", generation, func(e Event) string { return strconv.FormatBool(e.OK) }))
	}
	equal("ranks that changed node between generations", 0, moved(members))
	used, shared := devices(members)
	equal("GPUs in use, none on two ranks", fmt.Sprintf("%d, 0 shared", o.Nodes*o.GPUs), fmt.Sprintf("%d, %d shared", used, shared))
	equal("newest generation", 2, Generation(members))

	resumed := newest(members, "resume", 2)
	holds("step that generation 2 resumed at", fmt.Sprintf("1 to %d", o.KilledAtStep), strconv.Itoa(resumed.Step),
		resumed.Step >= 1 && resumed.Step <= o.KilledAtStep)
	result := newest(members, "result", 2)
	holds("loss at the end", fmt.Sprintf("under %.4f", result.FirstLoss), fmt.Sprintf("%.4f", result.LastLoss),
		result.Event != "" && result.LastLoss < result.FirstLoss)
	equal("ranks with a result", o.Nodes, count(members, "result", 2))
	equal("different parameters at the end", 1, distinct(members, "result", 2, func(e Event) string { return e.Digest }))
	equal("allocations by status", fmt.Sprintf("complete: %d", o.Nodes), statuses(members))
	equal("job status", "dead", o.JobStatus)
	equal("spot nodes left", 0, o.SpotNodesLeft)
	equal("keys and sessions left in Consul", "0 and 0", fmt.Sprintf("%d and %d", o.KeysLeft, o.SessionsLeft))
	return found
}

// Failed are the findings that do not hold.
func Failed(found []Finding) []Finding {
	return slices.DeleteFunc(slices.Clone(found), func(f Finding) bool { return f.OK })
}

func ranks(n int) string {
	all := make([]string, n)
	for i := range all {
		all[i] = strconv.Itoa(i)
	}
	return strings.Join(all, " ")
}

func repeat(s string, n int) string { return strings.TrimSpace(strings.Repeat(s+" ", n)) }

// collect joins a value of each member's newest event of a kind, in rank order.
func collect(members []Member, kind string, generation int, value func(Event) string) string {
	var all []string
	for _, m := range members {
		if e, ok := m.last(kind, generation); ok {
			all = append(all, value(e))
		}
	}
	return strings.Join(all, " ")
}

func distinct(members []Member, kind string, generation int, value func(Event) string) int {
	seen := map[string]bool{}
	for _, m := range members {
		if e, ok := m.last(kind, generation); ok {
			seen[value(e)] = true
		}
	}
	return len(seen)
}

func count(members []Member, kind string, generation int) int {
	n := 0
	for _, m := range members {
		if _, ok := m.last(kind, generation); ok {
			n++
		}
	}
	return n
}

func newest(members []Member, kind string, generation int) Event {
	for _, m := range members {
		if e, ok := m.last(kind, generation); ok {
			return e
		}
	}
	return Event{}
}

func moved(members []Member) int {
	n := 0
	for _, m := range members {
		first, had := m.last("start", 1)
		second, has := m.last("start", 2)
		if had && has && first.Rank != second.Rank {
			n++
		}
	}
	return n
}

func devices(members []Member) (used, shared int) {
	seen := map[string]int{}
	for _, m := range members {
		e, _ := m.last("start", 0)
		for _, g := range e.GPUs {
			seen[g]++
		}
	}
	for _, n := range seen {
		if n > 1 {
			shared++
		}
	}
	return len(seen), shared
}

func statuses(members []Member) string {
	n := map[string]int{}
	for _, m := range members {
		n[m.Status]++
	}
	var all []string
	for _, s := range slices.Sorted(maps.Keys(n)) {
		all = append(all, fmt.Sprintf("%s: %d", s, n[s]))
	}
	return strings.Join(all, ", ")
}
