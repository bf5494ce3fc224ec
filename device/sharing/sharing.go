// SPDX-License-Identifier: MPL-2.0

// Package sharing makes schedulable devices of a machine's GPUs: a GPU as a
// whole, a MIG instance, or several slices of one GPU by time or by MPS. It is
// pure.
//
// Slices must never be taken for whole GPUs, and a request for several of them
// should not get twice the same GPU. Nomad serves a request from one device
// group and picks the group's instances at random, so both are a matter of
// groups: slices have a device type of their own, and the first slices of all
// GPUs are one group, the second ones another.
package sharing

import (
	"errors"
	"fmt"
	"strings"

	"github.com/nomad-gpu/nomad-gpu/device/gpu"
)

// Kind is how a device shares its GPU with others.
type Kind string

// The kinds, as they stand in the attribute "sharing".
const (
	None      Kind = "none"
	MIG       Kind = "mig"
	TimeSlice Kind = "time_slice"
	MPS       Kind = "mps"
)

// Slice reports whether devices of this kind are slices of a GPU.
func (k Kind) Slice() bool { return k == TimeSlice || k == MPS }

// label is the kind in a group's name.
func (k Kind) label() string { return strings.ReplaceAll(string(k), "_", " ") }

// Bounds of slices of one GPU. MPS serves at most 48 clients a GPU before
// Blackwell (NVIDIA, Multi-Process Service, "Limitations").
const (
	MaxReplicas    = 64
	MaxMPSReplicas = 48
)

// Rule shares the GPUs of a model.
type Rule struct {
	Kind Kind // TimeSlice or MPS
	// Model is the GPUs' product name; empty: any.
	Model string
	// Replicas is the number of slices of each GPU.
	Replicas int
	// SameGPU lets one request have several slices of one GPU.
	SameGPU bool
	// MemoryMiB and Threads, in percent, limit a slice of MPS; 0: an equal part.
	MemoryMiB uint64
	Threads   int
}

// Validate checks each rule, and that no GPU falls under two.
func Validate(rules []Rule) error {
	var errs []error
	seen := map[string]Kind{}
	blocks := map[Kind]int{}
	for n, r := range rules {
		field := fmt.Sprintf("%s[%d]", map[Kind]string{TimeSlice: "time_slices", MPS: "mps"}[r.Kind], blocks[r.Kind])
		blocks[r.Kind]++
		most := MaxReplicas
		if r.Kind == MPS {
			most = MaxMPSReplicas
		}
		if r.Replicas < 2 || r.Replicas > most {
			errs = append(errs, fmt.Errorf("%s.replicas %d: allowed are 2 to %d", field, r.Replicas, most))
		}
		if r.Threads < 0 || r.Threads > 100 {
			errs = append(errs, fmt.Errorf("%s.threads %d: allowed are 0 (an equal part) to 100, in percent", field, r.Threads))
		}
		other, twice := seen[r.Model]
		if any, all := seen[""]; all && !twice {
			other, twice = any, true
		}
		if r.Model == "" && n > 0 && !twice {
			twice, other = true, rules[0].Kind
		}
		if twice {
			errs = append(errs, fmt.Errorf("%s.model %q: a rule before (%s) shares these GPUs already", field, r.Model, other))
		}
		seen[r.Model] = r.Kind
	}
	return errors.Join(errs...)
}

// Unit is one schedulable device.
type Unit struct {
	// GPU is the position of its GPU, or MIG instance, in the machine.
	GPU int
	// ID is unique on the node: the UUID, with "::" and the slice's number.
	ID string
	// Group is the name of its device group.
	Group string
	Kind  Kind
	// Slice counts from 1, Of is the number of slices; 0 for whole GPUs.
	Slice, Of int
	// MemoryMiB is what the device can use; 0 where it is not known.
	MemoryMiB uint64
	// Threads is the part of the GPU's multiprocessors in percent, for MPS.
	Threads int
}

// Units are the devices of a machine, by GPU and slice. The names are those of
// the groups that whole GPUs would be in, by position; GPUs with an empty one
// are left out. Warnings name what a rule asks for and a GPU does not have.
func Units(m *gpu.Machine, names []string, rules []Rule) (units []Unit, warnings []string) {
	for i, name := range names {
		if name == "" {
			continue
		}
		g := &m.GPUs[i]
		whole := Unit{GPU: i, ID: g.UUID, Group: name, Kind: None, MemoryMiB: g.MemoryMiB}
		if g.Parent != "" {
			whole.Kind = MIG
		}
		r, shared := ruleFor(rules, g.Model)
		if !shared {
			units = append(units, whole)
			continue
		}
		if r.Kind == MPS && r.MemoryMiB*uint64(r.Replicas) > g.MemoryMiB && g.MemoryMiB > 0 {
			warnings = append(warnings, fmt.Sprintf("GPU %d: %d slices of %d MiB are more than its %d MiB", g.Index, r.Replicas, r.MemoryMiB, g.MemoryMiB))
		}
		for slice := 1; slice <= r.Replicas; slice++ {
			units = append(units, r.slice(whole, slice))
		}
	}
	return units, warnings
}

func ruleFor(rules []Rule, model string) (Rule, bool) {
	for _, r := range rules {
		if r.Model == "" || r.Model == model {
			return r, true
		}
	}
	return Rule{}, false
}

func (r Rule) slice(whole Unit, n int) Unit {
	u := whole
	u.Kind, u.Slice, u.Of = r.Kind, n, r.Replicas
	u.ID = fmt.Sprintf("%s::%d", whole.ID, n)
	u.Group = fmt.Sprintf("%s %s %d of %d", whole.Group, r.Kind.label(), n, r.Replicas)
	if r.SameGPU {
		u.Group = fmt.Sprintf("%s %s of %d", whole.Group, r.Kind.label(), r.Replicas)
	}
	if r.Kind == MPS {
		u.MemoryMiB, u.Threads = r.MemoryMiB, r.Threads
		if u.MemoryMiB == 0 {
			u.MemoryMiB = whole.MemoryMiB / uint64(r.Replicas)
		}
		if u.Threads == 0 {
			u.Threads = 100 / r.Replicas
		}
	}
	return u
}
