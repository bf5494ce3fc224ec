// SPDX-License-Identifier: MPL-2.0

// Package runtime is how one generation's process on one node is made, started
// and ended, whatever it runs in.
package runtime

import (
	"context"
	"io"
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
	// Cgroup is the processes' own; nil: none is made.
	Cgroup *Cgroup `json:"cgroup,omitempty"`
	// Limits are set for each process.
	Limits []Limit `json:"limits,omitempty"`
	// CPUs are those that the processes keep to, as a list such as "0-3,8", and
	// MemoryNodes those that memory is taken from first; empty: no matter which.
	CPUs        string `json:"cpus,omitempty"`
	MemoryNodes string `json:"memory_nodes,omitempty"`
	// Container is what the processes run in; nil: they are the host's.
	Container *Container `json:"container,omitempty"`
	// Warn is told what could not be had and was not asked for; may be nil.
	Warn func(string) `json:"-"`
}

// Cgroup is what the processes of one generation may use together.
type Cgroup struct {
	// Path is its place from the root of the hierarchies, such as "/nomad-nccl/x".
	Path string `json:"path"`
	// Required: where it cannot be made nothing runs.
	Required bool `json:"required,omitempty"`
	// CPUShares is Nomad's measure, in MHz: under contention the CPU time is
	// shared in proportion; 0: the kernel's default.
	CPUShares uint64 `json:"cpu_shares,omitempty"`
	// CPUs are the reserved cores as a list such as "0-3,8"; empty: all.
	CPUs string `json:"cpus,omitempty"`
	// MemoryBytes is the most memory; 0: no limit.
	MemoryBytes int64 `json:"memory_bytes,omitempty"`
	// PIDs is the most processes and threads; 0: no limit.
	PIDs int64 `json:"pids,omitempty"`
	// Devices are the device nodes that may be opened; nil: all.
	Devices *Devices `json:"devices,omitempty"`
}

// Devices are the device nodes that processes may open beside the usual ones
// (null, random, terminals, RDMA and such).
type Devices struct {
	// GPUs are the reserved ones by UUID.
	GPUs []string `json:"gpus,omitempty"`
	// Nodes are paths of more device nodes; each must exist.
	Nodes []string `json:"nodes,omitempty"`
}

// Rank is one process of several on a node.
type Rank struct {
	// Number is the rank in the whole gang.
	Number int `json:"number"`
	// Env is added to the Spec's, NAME=value.
	Env []string `json:"env"`
	// CPUs are the rank's own, in place of the Spec's; may be empty.
	CPUs string `json:"cpus,omitempty"`
}

// Limit is one limit of a process's resources (setrlimit(2)).
type Limit struct {
	// Name is core, memlock, nofile or stack.
	Name string `json:"name"`
	// Value is in bytes, for nofile a number of files; the greatest value: unlimited.
	Value uint64 `json:"value"`
	// Asked: the user wants just this. Otherwise it is raised as far as the
	// host allows.
	Asked bool `json:"asked,omitempty"`
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

// Executor is a Process that can run commands beside itself.
type Executor interface {
	// Exec runs a command beside the process and returns its exit code. Ending
	// ctx ends the command with all its children. An error says that the
	// command could not be run, or that the process does not run.
	Exec(ctx context.Context, c Command) (int, error)
}

// Command is one more command beside a running process, in the same place: its
// container or its cgroup, directory, environment and user.
type Command struct {
	// Args are the program and its arguments; no shell reads them.
	Args []string
	// TTY gives it a terminal; Stderr then gets nothing.
	TTY    bool
	Stdin  io.Reader
	Stdout io.Writer
	Stderr io.Writer
	// Sizes are the terminal's, as they change; may be nil.
	Sizes <-chan Size
}

// Size is a terminal's, in characters.
type Size struct{ Rows, Columns int }

// Usage is a sum over a process and its children.
type Usage struct {
	// CPU is the time used since the start, in user and system mode.
	User, System time.Duration
	// RSS is the resident memory in bytes.
	RSS uint64
	// PIDs are the processes' numbers.
	PIDs []int
}
