// SPDX-License-Identifier: MPL-2.0

// Package environ makes the environment that a task of a gang gets. It is pure.
package environ

import (
	"errors"
	"fmt"
	"maps"
	"net"
	"slices"
	"strconv"
	"strings"

	"github.com/nomad-gpu/nomad-gpu/driver/gang"
)

// Settings is what the environment depends on beside the assignment.
type Settings struct {
	// Task is the environment that Nomad hands over: its own variables and the user's.
	Task map[string]string
	// Device is what the device plugins' reservations set.
	Device map[string]string
	// Interface is the name of the interface that owns the member's address; may be empty.
	Interface string
	// Hostfile is the path of the host file.
	Hostfile string
	// CheckpointDir, CheckpointKeep and Framework are the user's; may be empty.
	CheckpointDir  string
	CheckpointKeep int
	Framework      string
	// TraceParent is the span that the process's own traces hang below, as
	// TRACEPARENT; may be empty.
	TraceParent string
	// NCCL are the variables that this node's configuration sets for NCCL.
	NCCL map[string]string
	// RASPort is the port for NCCL's RAS, 0: none is reserved.
	RASPort int
	// PerGPU: the driver starts one process for each GPU; Ranks tells them apart.
	PerGPU bool
}

// maxNodeIPs is up to how many nodes GANG_NODE_IPS is set: beyond, the host file serves.
const maxNodeIPs = 64

// reserved are the variables that a user's value would break the gang with.
var reserved = []string{
	"RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE", "GROUP_RANK",
	"MASTER_ADDR", "MASTER_PORT", "PRIMARY_ADDR", "PRIMARY_PORT", "HOST_NODE_ADDR",
	"NODE_ADDR", "NODE_RANK", "NUM_NODES", "NUM_TRAINERS",
	"PET_NNODES", "PET_NODE_RANK", "PET_NPROC_PER_NODE", "PET_MASTER_ADDR", "PET_MASTER_PORT", "PET_MAX_RESTARTS",
	"JAX_COORDINATOR_ADDRESS", "JAX_NUM_PROCESSES", "JAX_PROCESS_ID",
	"NCCL_COMM_ID",
}

// devicePrefix is that of the variable each device group sets for itself:
// several device blocks in one task overwrite each other's common ones.
const devicePrefix = "GPU_DEVICES_"

// Validate finds variables of the user's that only the driver may set.
func Validate(task, device map[string]string) error {
	var errs []error
	for _, name := range slices.Sorted(maps.Keys(task)) {
		if slices.Contains(reserved, name) || strings.HasPrefix(name, "GANG_") {
			errs = append(errs, fmt.Errorf("env: %s is set to %q; it is the driver's to set", name, task[name]))
		}
	}
	gpus := strings.Join(Devices(device), ",")
	for _, name := range []string{"NVIDIA_VISIBLE_DEVICES", "CUDA_VISIBLE_DEVICES"} {
		value, set := task[name]
		if set && value != gpus && value != device[name] {
			errs = append(errs, fmt.Errorf("env: %s is set to %q; allowed are the GPUs that are reserved for the task, %q", name, value, gpus))
		}
	}
	return errors.Join(errs...)
}

// Devices are the reserved GPUs of all device blocks, in visible order, each once.
func Devices(device map[string]string) []string {
	var all []string
	add := func(list string) {
		for _, id := range strings.Split(list, ",") {
			if id != "" && id != "none" && id != "void" && !slices.Contains(all, id) {
				all = append(all, id)
			}
		}
	}
	for _, name := range slices.Sorted(maps.Keys(device)) {
		if strings.HasPrefix(name, devicePrefix) {
			add(device[name])
		}
	}
	if len(all) == 0 {
		add(device["NVIDIA_VISIBLE_DEVICES"]) // another device plugin's
	}
	return all
}

// Environment is the task's whole environment for one generation. A value the
// user sets wins, except where Validate refuses it.
func Environment(a gang.Assignment, s Settings) map[string]string {
	env := maps.Clone(s.Device)
	if env == nil {
		env = map[string]string{}
	}
	own := a.Self()
	set := func(name, value string) { env[name] = value }
	number := func(name string, value int) { env[name] = strconv.Itoa(value) }

	master := a.Master()
	for _, prefix := range []string{"MASTER_", "PRIMARY_", "PET_MASTER_"} {
		set(prefix+"ADDR", master.Address.String())
		number(prefix+"PORT", a.MasterPort())
	}
	set("HOST_NODE_ADDR", net.JoinHostPort(master.Address.String(), strconv.Itoa(a.MasterPort())))
	set("NODE_ADDR", own.Address.String())
	number("NODE_RANK", a.Rank)
	number("NUM_NODES", len(a.Members))
	number("NUM_TRAINERS", own.Slots)
	first, world := count(a)
	number("WORLD_SIZE", world)
	if own.Slots == 1 {
		number("RANK", first)
		number("LOCAL_RANK", 0)
	}
	if own.Slots == 1 || s.PerGPU {
		number("LOCAL_WORLD_SIZE", own.Slots)
	}
	// torchrun's own variables: a static rendezvous, and one restart authority.
	number("PET_NNODES", len(a.Members))
	number("PET_NODE_RANK", a.Rank)
	number("PET_NPROC_PER_NODE", own.Slots)
	number("PET_MAX_RESTARTS", 0)
	if s.Framework == "jax" {
		set("JAX_COORDINATOR_ADDRESS", net.JoinHostPort(master.Address.String(), strconv.Itoa(a.MasterPort())))
		if s.PerGPU {
			number("JAX_NUM_PROCESSES", world)
		} else {
			number("JAX_NUM_PROCESSES", len(a.Members))
			number("JAX_PROCESS_ID", a.Rank)
		}
	}
	set("GANG_HOSTFILE", s.Hostfile)
	if len(a.Members) <= maxNodeIPs {
		ips := make([]string, len(a.Members))
		for rank, m := range a.Members {
			ips[rank] = m.Address.String()
		}
		set("GANG_NODE_IPS", strings.Join(ips, ","))
	}
	set("GANG_RUN_ID", runID(a))
	set("GANG_GENERATION", strconv.FormatUint(a.Generation, 10))
	number("GANG_RESTARTS", a.Restarts)
	if s.CheckpointDir != "" {
		set("GANG_CHECKPOINT_DIR", s.CheckpointDir)
	}
	if s.Interface != "" {
		set("NCCL_SOCKET_IFNAME", "="+s.Interface) // the equals sign asks for exactly this name
		set("GLOO_SOCKET_IFNAME", s.Interface)
	}
	if s.TraceParent != "" {
		set("TRACEPARENT", s.TraceParent)
	}
	if s.RASPort != 0 {
		set("NCCL_RAS_ADDR", "localhost:"+strconv.Itoa(s.RASPort))
	}
	if s.CheckpointKeep > 0 {
		number("GANG_CHECKPOINT_KEEP", s.CheckpointKeep)
	}
	maps.Copy(env, s.NCCL)
	maps.Copy(env, s.Task)
	// Last: several device blocks set one variable each over the other's.
	if gpus := Devices(s.Device); len(gpus) > 0 {
		set("CUDA_VISIBLE_DEVICES", strings.Join(gpus, ","))
		set("NVIDIA_VISIBLE_DEVICES", strings.Join(gpus, ","))
	} else {
		// A task without a GPU must not see those of others.
		set("CUDA_VISIBLE_DEVICES", "")
		set("NVIDIA_VISIBLE_DEVICES", "void")
	}
	return env
}

// count returns the rank of this node's first process, and the processes of
// the whole gang.
func count(a gang.Assignment) (first, world int) {
	for rank, m := range a.Members {
		if rank < a.Rank {
			first += m.Slots
		}
		world += m.Slots
	}
	return first, world
}

// Rank is one of the processes that the driver starts on this node.
type Rank struct {
	Number int
	// Env is set beside what Environment returns.
	Env map[string]string
}

// Ranks are this node's processes where the driver starts one for each GPU, in
// rank order. Each sees all GPUs of the task, and LOCAL_RANK says which is its
// own: with CUDA_VISIBLE_DEVICES cut down to one, CUDA could not map the
// memory of the neighbours' GPUs, and NCCL would go through the host instead
// of NVLink.
func Ranks(a gang.Assignment, s Settings) []Rank {
	first, _ := count(a)
	ranks := make([]Rank, a.Self().Slots)
	for local := range ranks {
		rank := first + local
		env := map[string]string{"RANK": strconv.Itoa(rank), "LOCAL_RANK": strconv.Itoa(local)}
		if s.Framework == "jax" {
			env["JAX_PROCESS_ID"] = env["RANK"]
			if _, set := s.Task["JAX_LOCAL_DEVICE_IDS"]; !set {
				env["JAX_LOCAL_DEVICE_IDS"] = env["LOCAL_RANK"]
			}
		}
		ranks[local] = Rank{Number: rank, Env: env}
	}
	return ranks
}

// runID is the same on all nodes and for all generations of one run.
func runID(a gang.Assignment) string {
	return strings.Join([]string{a.Key.Namespace, a.Key.Job, a.Key.Group, a.Key.Run}, "/")
}

// List is an environment as exec(3) takes it, sorted.
func List(env map[string]string) []string {
	list := make([]string, 0, len(env))
	for _, name := range slices.Sorted(maps.Keys(env)) {
		list = append(list, name+"="+env[name])
	}
	return list
}

// Hostfile is the host file that MPI and DeepSpeed read: a line a node, in rank order.
func Hostfile(a gang.Assignment) []byte {
	var b strings.Builder
	for _, m := range a.Members {
		fmt.Fprintf(&b, "%s slots=%d\n", m.Address, m.Slots)
	}
	return []byte(b.String())
}
