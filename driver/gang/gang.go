// SPDX-License-Identifier: MPL-2.0

// Package gang decides how the N allocations of one Nomad task group become
// one gang: who is in, which rank each has, when all may start and when all
// must stop. It is pure: no clock, no network, no Consul. Time and facts come
// in as events, what to do goes out as actions.
package gang

import (
	"fmt"
	"net/netip"
	"syscall"
	"time"
)

// Key names one gang in the store.
type Key struct {
	Region    string
	Namespace string
	Job       string
	Group     string
	// Run tells one dispatch or job version from another.
	Run string
}

// Spec is what every member of a gang must agree on.
type Spec struct {
	// Nodes is the gang's size in members (one member a node).
	Nodes int
	// MinNodes is the least size the gang goes on with, 1 to Nodes. 0 stands
	// for Nodes: a gang of fixed size, as releases without this field know it.
	MinNodes int `json:",omitempty"`
	// LastCall is how long a gang with at least MinNodes members waits for more.
	LastCall time.Duration `json:",omitempty"`
	// GrowInterval is how long a generation with fewer than Nodes members runs
	// at least before it makes room for others that have waited as long, or 45 s;
	// 0: it never does.
	GrowInterval time.Duration `json:",omitempty"`
	// Completion says when the gang is done.
	Completion Completion `json:",omitempty"`
	// NoProgress is how many failures in a row without progress end the gang,
	// whatever its budget; 0: none do.
	NoProgress int `json:",omitempty"`
	// FormTimeout bounds the wait for all members; 0 waits for ever.
	FormTimeout time.Duration
	// PrepareTimeout bounds the wait for every named member to be prepared.
	PrepareTimeout time.Duration
	// FenceDelay is how long after a member's session is gone its process is
	// taken for stopped.
	FenceDelay time.Duration
	// Restarts is how many further generations a failure may cost the gang.
	Restarts int
}

// Completion says which members must finish for the gang to be done.
type Completion string

const (
	// CompletionAll: every member. The zero value stands for it.
	CompletionAll Completion = "all"
	// CompletionRank0: the member of rank 0; the others are stopped then.
	CompletionRank0 Completion = "rank0"
)

// Least is the least number of members a generation can have.
func (s Spec) Least() int {
	if s.MinNodes == 0 {
		return s.Nodes
	}
	return s.MinNodes
}

// Elastic reports whether the gang can run with fewer than all its members.
func (s Spec) Elastic() bool { return s.Least() < s.Nodes }

// Line is where a gang stands among those that wait for the same nodes.
type Line struct {
	// Ahead names the gang that is the first; empty: it is this one.
	Ahead string
	// Position is 1 for the first.
	Position int
}

// Member is what a member publishes of itself.
type Member struct {
	// Alloc is the Nomad allocation ID, the member's identity.
	Alloc string `json:"alloc"`
	// Index is NOMAD_ALLOC_INDEX: a hint for order, never a rank (it can repeat).
	Index int `json:"index"`
	// Node is the Nomad node's name, for people and for natural order.
	Node string `json:"node"`
	// Topology sorts new members so that neighbours in rank share a switch; may be empty.
	Topology string `json:"topology,omitempty"`
	// Address is the member's IP literal on the training network.
	Address netip.Addr `json:"address"`
	// Ports are the two Nomad-reserved rendezvous ports; a generation uses
	// Ports[generation%2], so that a lingering socket of the one before cannot clash.
	Ports [2]int `json:"ports"`
	// GPUs are the reserved device IDs in visible order; may be empty.
	GPUs []string `json:"gpus,omitempty"`
	// Slots is the number of processes on this node (NUM_TRAINERS).
	Slots int `json:"slots"`
	// Version is the driver's version.
	Version string `json:"version"`
}

// Assignment is one generation as one member sees it.
type Assignment struct {
	Key        Key
	Generation uint64
	// Restarts counts the generations that a failure has ended so far.
	Restarts int
	// Rank is this member's index in Members.
	Rank int
	// Members are all members of the generation in rank order.
	Members []Member
}

// Self is the member this assignment was made for.
func (a Assignment) Self() Member { return a.Members[a.Rank] }

// Master is the member of rank 0.
func (a Assignment) Master() Member { return a.Members[0] }

// MasterPort is rank 0's port of this generation.
func (a Assignment) MasterPort() int { return a.Master().Ports[a.Generation%2] }

// Exit is the end of one generation's process on one member.
type Exit struct {
	Generation uint64 `json:"generation"`
	// Code is the exit code; meaningless where Signal is not 0.
	Code int `json:"code"`
	// Signal is the number of the signal that ended the process, or 0.
	Signal int `json:"signal,omitempty"`
	// OOM is true where the kernel's out-of-memory killer ended it.
	OOM bool `json:"oom,omitempty"`
	// Ran is for how long it ran, 0 where that is not known.
	Ran time.Duration `json:"ran,omitempty"`
	// Step is the last step of training it reported, 0 where it reports none.
	Step uint64 `json:"step,omitempty"`
	// Err is why the process could not be run or watched; empty otherwise.
	Err string `json:"err,omitempty"`
	// Rank is that of the process that failed first, where a member has several.
	Rank *int `json:"rank,omitempty"`
	// LeaveOut is the allocation that is to blame, where preflight found one.
	LeaveOut string `json:"leave_out,omitempty"`
	// Tail holds the last lines the process wrote to stderr, oldest first.
	Tail []string `json:"tail,omitempty"`
}

// String says how the process ended, with its last line where that tells more.
func (e Exit) String() string {
	var how string
	switch {
	case e.Err != "":
		how = e.Err
	case e.OOM:
		how = "was killed for memory"
	case e.Signal != 0:
		how = fmt.Sprintf("was ended by signal %d (%s)", e.Signal, syscall.Signal(e.Signal))
	default:
		how = fmt.Sprintf("exited with code %d", e.Code)
	}
	if len(e.Tail) > 0 && !e.OK() {
		how += ": " + e.Tail[len(e.Tail)-1]
	}
	return how
}

// OK reports whether the process did its work.
func (e Exit) OK() bool { return e.Err == "" && e.Signal == 0 && e.Code == 0 && !e.OOM }
