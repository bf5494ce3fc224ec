// SPDX-License-Identifier: MPL-2.0

package sharing

import (
	"fmt"
	"slices"
	"strings"

	"github.com/nomad-gpu/nomad-gpu/device/gpu"
	"github.com/nomad-gpu/nomad-gpu/device/topology"
)

// Use is what is known of a slot.
type Use string

// A reservation tells neither the allocation nor its end. So a slot that was
// reserved is held until something was seen in it and is there no more; only
// free slots give their GPU away. A slot that is reserved again is free by
// that alone: Nomad gives none out twice.
const (
	Free Use = "free"
	Held Use = "held" // reserved, and nothing was seen in it yet
	Busy Use = "busy" // an allocation was seen in it
)

// Slot is a device as Nomad knows it, bound to a GPU.
type Slot struct {
	ID    string `json:"id"`
	UUID  string `json:"uuid"`
	Model string `json:"model"`
	Use   Use    `json:"use"`
}

// Slots are those of a node. Each GPU is in one slot and each slot has one
// GPU, always: GPUs change places, so that none can be given out twice.
type Slots struct {
	Slots []Slot `json:"slots"`
}

// Validate checks what was read from a file.
func (s Slots) Validate() error {
	ids, uuids := map[string]bool{}, map[string]bool{}
	for n, slot := range s.Slots {
		switch {
		case slot.ID == "" || ids[slot.ID]:
			return fmt.Errorf("slots[%d].id %q: it must be there, and once only", n, slot.ID)
		case slot.UUID == "" || uuids[slot.UUID]:
			return fmt.Errorf("slots[%d].uuid %q: it must be there, and once only", n, slot.UUID)
		case slot.Use != Free && slot.Use != Held && slot.Use != Busy:
			return fmt.Errorf("slots[%d].use %q: allowed are %q, %q and %q", n, slot.Use, Free, Held, Busy)
		}
		ids[slot.ID], uuids[slot.UUID] = true, true
	}
	return nil
}

// Adopt makes slots for GPUs that have none, and drops those of GPUs that are
// gone and free. It reports whether anything changed. MIG instances and GPUs
// that are shared have no slots.
func (s *Slots) Adopt(m *gpu.Machine, uuids []string) bool {
	changed := false
	s.Slots = slices.DeleteFunc(s.Slots, func(slot Slot) bool {
		gone := slot.Use == Free && !slices.Contains(uuids, slot.UUID)
		changed = changed || gone
		return gone
	})
	for _, uuid := range uuids {
		if slices.ContainsFunc(s.Slots, func(slot Slot) bool { return slot.UUID == uuid }) {
			continue
		}
		i := slices.IndexFunc(m.GPUs, func(g gpu.GPU) bool { return g.UUID == uuid })
		if i < 0 {
			continue
		}
		s.Slots = append(s.Slots, Slot{ID: s.freeID(), UUID: uuid, Model: m.GPUs[i].Model, Use: Free})
		changed = true
	}
	return changed
}

func (s *Slots) freeID() string {
	for n := 1; ; n++ {
		id := fmt.Sprintf("slot-%d", n)
		if !slices.ContainsFunc(s.Slots, func(slot Slot) bool { return slot.ID == id }) {
			return id
		}
	}
}

// IDs gives each GPU's slot, by UUID.
func (s *Slots) IDs() map[string]string {
	ids := make(map[string]string, len(s.Slots))
	for _, slot := range s.Slots {
		ids[slot.UUID] = slot.ID
	}
	return ids
}

// Observe takes the slots that allocations have which have not ended, and
// reports whether anything changed.
func (s *Slots) Observe(taken map[string]bool) bool {
	changed := false
	for n := range s.Slots {
		slot := &s.Slots[n]
		switch {
		case taken[slot.ID] && slot.Use == Held:
			slot.Use, changed = Busy, true
		case !taken[slot.ID] && slot.Use == Busy:
			slot.Use, changed = Free, true
		}
	}
	return changed
}

// Reserve binds the best GPUs there are to these slots, which Nomad has chosen
// and which are free therefore, and holds them. GPUs that are out of order are
// not chosen. It costs what [topology.Choose] does.
func (s *Slots) Reserve(m *gpu.Machine, ids []string) error {
	var wanted []int
	for _, id := range ids {
		n := slices.IndexFunc(s.Slots, func(slot Slot) bool { return slot.ID == id })
		if n < 0 {
			return fmt.Errorf("cannot reserve %q: this node has no such slot", id)
		}
		if slices.Contains(wanted, n) {
			return fmt.Errorf("cannot reserve %s: %q is named twice", strings.Join(ids, ", "), id)
		}
		if len(wanted) > 0 && s.Slots[n].Model != s.Slots[wanted[0]].Model {
			return fmt.Errorf("cannot reserve %s: they are of several models, %q and %q", strings.Join(ids, ", "), s.Slots[wanted[0]].Model, s.Slots[n].Model)
		}
		wanted = append(wanted, n)
	}
	request := topology.Request{Count: len(wanted)}
	slotOf := make(map[int]int) // by the GPU's position
	for i := range m.GPUs {
		n := slices.IndexFunc(s.Slots, func(slot Slot) bool { return slot.UUID == m.GPUs[i].UUID })
		if n < 0 {
			continue
		}
		slotOf[i] = n
		open := slices.Contains(wanted, n) || s.Slots[n].Use == Free && s.Slots[n].Model == s.Slots[wanted[0]].Model
		switch {
		case open && m.GPUs[i].Fault == "":
			request.Free = append(request.Free, i)
		case !open && s.Slots[n].Model == s.Slots[wanted[0]].Model:
			request.InUse = append(request.InUse, i)
		}
	}
	chosen, err := topology.Choose(m, request)
	if err != nil {
		return fmt.Errorf("cannot reserve %s: %w", strings.Join(ids, ", "), err)
	}
	s.bind(wanted, chosen, slotOf)
	for _, n := range wanted {
		s.Slots[n].Use = Held
	}
	return nil
}

// bind gives the chosen GPUs to the wanted slots, by exchange.
func (s *Slots) bind(wanted, chosen []int, slotOf map[int]int) {
	var toFill []int // wanted slots without a chosen GPU
	for _, n := range wanted {
		if !slices.ContainsFunc(chosen, func(i int) bool { return slotOf[i] == n }) {
			toFill = append(toFill, n)
		}
	}
	for _, i := range chosen {
		if from := slotOf[i]; !slices.Contains(wanted, from) {
			to := toFill[0]
			toFill = toFill[1:]
			s.Slots[from].UUID, s.Slots[to].UUID = s.Slots[to].UUID, s.Slots[from].UUID
		}
	}
}
