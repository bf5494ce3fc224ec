// SPDX-License-Identifier: MPL-2.0

package plugin

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/hashicorp/go-hclog"

	"github.com/nomad-gpu/nomad-gpu/device/gpu"
	"github.com/nomad-gpu/nomad-gpu/device/sharing"
)

// taker tells which devices the node's allocations have that have not ended.
type taker interface {
	taken(ctx context.Context) (map[string]bool, error)
}

// slots keeps which GPU is in which slot, over restarts of the plugin.
type slots struct {
	path   string
	agent  taker // nil: the node's agent is not asked
	logger hclog.Logger

	mu     sync.Mutex
	loaded bool
	state  slotsFile
	asked  error // why the agent was not answering
}

type slotsFile struct {
	Boot string `json:"boot"`
	sharing.Slots
}

// load reads the file once. Where it cannot be read, all slots count as held:
// who has which GPU is not known then.
func (s *slots) load(m *gpu.Machine, uuids []string) {
	if s.loaded {
		return
	}
	s.loaded = true
	now := bootID()
	found, err := loadState(s.path, &s.state)
	if found && err == nil {
		err = s.state.Validate()
	}
	if err != nil {
		s.logger.Error("cannot read which GPU is in which slot; all slots count as taken until they are reserved again", "path", s.path, "error", err)
		s.state = slotsFile{}
		s.state.Adopt(m, uuids)
		for n := range s.state.Slots.Slots {
			s.state.Slots.Slots[n].Use = sharing.Held
		}
	}
	if found && s.state.Boot != now && err == nil {
		for n := range s.state.Slots.Slots {
			s.state.Slots.Slots[n].Use = sharing.Free // nothing outlives the machine
		}
	}
	s.state.Boot = now
}

func (s *slots) save() error { return saveState(s.path, s.state) }

// ids are the slots as they are bound now, by the GPU's UUID.
func (s *slots) ids() map[string]string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.state.IDs()
}

// whole are the UUIDs of the GPUs that are offered as a whole.
func whole(m *gpu.Machine, grouping Grouping) []string {
	grouping.SlotOf = nil
	var uuids []string
	for _, u := range grouping.units(m) {
		if u.Kind == sharing.None {
			uuids = append(uuids, u.ID)
		}
	}
	return uuids
}

// askGap bounds how long the agent may take to answer.
const askGap = 3 * time.Second

// look brings the slots up to what the machine and the agent say.
func (s *slots) look(ctx context.Context, m *gpu.Machine, grouping Grouping) {
	s.mu.Lock()
	defer s.mu.Unlock()
	uuids := whole(m, grouping)
	s.load(m, uuids)
	changed := s.state.Adopt(m, uuids)
	changed = s.observe(ctx) || changed
	if !changed {
		return
	}
	if err := s.save(); err != nil {
		s.logger.Error("cannot keep which GPU is in which slot", "path", s.path, "error", err)
	}
}

func (s *slots) observe(ctx context.Context) bool {
	if s.agent == nil {
		return false
	}
	ctx, cancel := context.WithTimeout(ctx, askGap)
	defer cancel()
	taken, err := s.agent.taken(ctx)
	if err != nil {
		if s.asked == nil {
			s.logger.Warn("the node's agent does not tell which slots are taken: those that were reserved keep their GPUs", "error", err)
		}
		s.asked = err
		return false
	}
	s.asked = nil
	return s.state.Observe(taken)
}

// reserve binds GPUs to the slots and keeps that before anybody relies on it.
func (s *slots) reserve(m *gpu.Machine, grouping Grouping, ids []string) error {
	s.look(context.Background(), m, grouping)
	s.mu.Lock()
	defer s.mu.Unlock()
	known := func(id string) bool {
		return slices.ContainsFunc(s.state.Slots.Slots, func(slot sharing.Slot) bool { return slot.ID == id })
	}
	if !slices.ContainsFunc(ids, known) {
		return nil // slices and MIG instances
	}
	before := slices.Clone(s.state.Slots.Slots)
	err := s.state.Reserve(m, ids)
	if err == nil {
		if err = s.save(); err != nil {
			err = fmt.Errorf("cannot keep which GPU is in which slot: %w", err)
		}
	}
	if err != nil {
		s.state.Slots.Slots = before
	}
	return err
}
