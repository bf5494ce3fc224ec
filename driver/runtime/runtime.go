// SPDX-License-Identifier: MPL-2.0

// Package runtime is how one generation's process on one node is made, started
// and ended, whatever it runs in.
package runtime

import (
	"context"
	"syscall"
	"time"

	"github.com/nomad-gpu/nomad-gpu/driver/gang"
)

// Spec is what to run. Nothing in it goes through a shell.
type Spec struct {
	// Command is a path, or a name looked up in the PATH of Env.
	Command string   `json:"command"`
	Args    []string `json:"args"`
	// Env is the whole environment, NAME=value.
	Env []string `json:"env"`
	// Dir is the working directory.
	Dir string `json:"dir"`
	// User runs it, where the driver may choose; empty: the driver's own.
	User string `json:"user,omitempty"`
	// Stdout and Stderr are the named pipes that Nomad reads the output from.
	Stdout string `json:"stdout"`
	Stderr string `json:"stderr"`
	// Ranks are the processes to start, where the driver starts one for each
	// GPU; empty: one process, with Env alone.
	Ranks []Rank `json:"ranks,omitempty"`
}

// Rank is one process of several on a node.
type Rank struct {
	// Number is the rank in the whole gang.
	Number int `json:"number"`
	// Env is added to the Spec's, NAME=value.
	Env []string `json:"env"`
}

// Runtime makes processes. A process outlives the driver: its state stands in
// a directory of its own.
type Runtime interface {
	// Create makes a process ready without letting it run. What cannot work
	// (a command that does not exist) is an error here.
	Create(ctx context.Context, dir string, s Spec) (Process, error)
	// Attach finds the process that a former life of the driver created in dir.
	Attach(ctx context.Context, dir string) (Process, error)
}

// Process is one created process with all its children.
type Process interface {
	// Start lets it run.
	Start(ctx context.Context) error
	// Signal reaches the process alone.
	Signal(sig syscall.Signal) error
	// Stop sends the signal, gives the grace, then kills; it returns when
	// neither the process nor any child is left, also where it never started.
	Stop(ctx context.Context, sig syscall.Signal, grace time.Duration) error
	// Wait returns how it ended; it may be called again.
	Wait(ctx context.Context) (gang.Exit, error)
	// PID is the process's number, 0 before Start.
	PID() int
	// Usage is what the process and its children use now.
	Usage() (Usage, error)
}

// Usage is a sum over a process and its children.
type Usage struct {
	// CPU is the time used since the start, in user and system mode.
	User, System time.Duration
	// RSS is the resident memory in bytes.
	RSS uint64
	// PIDs are the processes' numbers.
	PIDs []int
}
