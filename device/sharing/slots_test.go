// SPDX-License-Identifier: MPL-2.0

package sharing

import (
	"encoding/json"
	"fmt"
	"slices"
	"testing"

	"github.com/shoenig/test/must"
	"pgregory.net/rapid"

	"github.com/nomad-gpu/nomad-gpu/device/gpu"
	"github.com/nomad-gpu/nomad-gpu/device/profile"
	"github.com/nomad-gpu/nomad-gpu/device/topology"
)

func machine(t interface {
	Helper()
	Fatalf(string, ...any)
}, name string) *gpu.Machine {
	t.Helper()
	m, err := profile.Load(name)
	if err == nil {
		err = profile.Simulate(m, "test")
	}
	if err != nil {
		t.Fatalf("%v", err)
	}
	return m
}

func uuids(m *gpu.Machine) []string {
	var all []string
	for _, g := range m.GPUs {
		all = append(all, g.UUID)
	}
	return all
}

// held is one allocation: its slots, and the GPUs its process was given.
type held struct{ ids, gpus []string }

// Nomad picks free slots at random; allocations end at random; what is seen of
// them comes late; the plugin is restarted now and then. Whatever happens, no
// GPU is given to two at once, and every choice is the best of what could be
// known to be free.
func TestNoGPUIsGivenOutTwiceAndEveryChoiceIsTheBest(t *testing.T) {
	for _, name := range []string{"dgx1-v100", "pcie-nvlink-pairs", "dgx-h100"} {
		t.Run(name, rapid.MakeCheck(func(t *rapid.T) {
			m := machine(t, name)
			var s Slots
			s.Adopt(m, uuids(m))
			var live []held
			reservations := 0
			for reservations < 200 {
				switch rapid.IntRange(0, 9).Draw(t, "step") {
				case 0, 1, 2, 3:
					if len(live) > 0 {
						live = slices.Delete(live, 0, 1)
					}
				case 4:
					taken := map[string]bool{}
					for _, h := range live {
						for _, id := range h.ids {
							taken[id] = true
						}
					}
					s.Observe(taken)
				case 5:
					text, err := json.Marshal(s)
					if err != nil {
						t.Fatal(err)
					}
					s = Slots{}
					if err := json.Unmarshal(text, &s); err != nil {
						t.Fatal(err)
					}
					if s.Validate() != nil || s.Adopt(m, uuids(m)) {
						t.Fatalf("a restart changed the slots: %s", text)
					}
				default:
					if h, ok := reserve(t, m, &s, live); ok {
						live = append(live, h)
						reservations++
					} else if len(live) > 0 {
						live = slices.Delete(live, 0, 1)
					}
				}
			}
		}))
	}
}

func reserve(t *rapid.T, m *gpu.Machine, s *Slots, live []held) (held, bool) {
	var free []string
	for _, slot := range s.Slots {
		if !slices.ContainsFunc(live, func(h held) bool { return slices.Contains(h.ids, slot.ID) }) {
			free = append(free, slot.ID)
		}
	}
	count := rapid.SampledFrom([]int{1, 2, 4}).Draw(t, "count")
	if count > len(free) {
		return held{}, false
	}
	ids := rapid.Permutation(free).Draw(t, "ids")[:count]
	best := bestScore(t, m, *s, ids)
	if err := s.Reserve(m, ids); err != nil {
		t.Fatal(err)
	}
	h := held{ids: ids}
	var positions []int
	for _, slot := range s.Slots {
		if slices.Contains(ids, slot.ID) {
			h.gpus = append(h.gpus, slot.UUID)
			positions = append(positions, slices.Index(uuids(m), slot.UUID))
		}
	}
	for _, other := range live {
		for _, g := range h.gpus {
			if slices.Contains(other.gpus, g) {
				t.Fatalf("%s is given to %v and %v", g, other.ids, ids)
			}
		}
	}
	if got := internal(m, positions); got != best {
		t.Fatalf("%v have %d MB/s among them, %d were to be had", h.gpus, got, best)
	}
	return h, true
}

// bestScore goes through all subsets of what can be known to be free.
func bestScore(t *rapid.T, m *gpu.Machine, s Slots, ids []string) uint64 {
	var open []int
	for _, slot := range s.Slots {
		if slot.Use == Free || slices.Contains(ids, slot.ID) {
			open = append(open, slices.Index(uuids(m), slot.UUID))
		}
	}
	var best uint64
	var walk func(from int, set []int)
	walk = func(from int, set []int) {
		if len(set) == len(ids) {
			best = max(best, internal(m, set))
			return
		}
		for i := from; i < len(open); i++ {
			walk(i+1, append(slices.Clone(set), open[i]))
		}
	}
	walk(0, nil)
	return best
}

func internal(m *gpu.Machine, set []int) (sum uint64) {
	for x, i := range set {
		for _, j := range set[x+1:] {
			sum += uint64(m.PairMBps(i, j))
		}
	}
	return sum
}

func TestAPairIsFoundWhereverNomadPointsTo(t *testing.T) {
	m := machine(t, "pcie-nvlink-pairs")
	var s Slots
	must.True(t, s.Adopt(m, uuids(m)))
	must.NoError(t, s.Reserve(m, []string{"slot-1", "slot-3"}))
	a, b := slices.Index(uuids(m), s.Slots[0].UUID), slices.Index(uuids(m), s.Slots[2].UUID)
	must.Positive(t, m.Paths[a][b].NVLinks)
	must.Eq(t, 1, len(topology.Islands(m)[0])-1)
}

func TestHeldSlotsKeepTheirGPUsUntilSomethingWasSeenAndIsGone(t *testing.T) {
	m := machine(t, "pcie-nvlink-pairs")
	var s Slots
	s.Adopt(m, uuids(m))
	must.NoError(t, s.Reserve(m, []string{"slot-1"}))
	must.Eq(t, Held, s.Slots[0].Use)
	must.False(t, s.Observe(map[string]bool{}), must.Sprint("nothing was seen yet: it may come"))
	must.True(t, s.Observe(map[string]bool{"slot-1": true}))
	must.Eq(t, Busy, s.Slots[0].Use)
	must.True(t, s.Observe(map[string]bool{}))
	must.Eq(t, Free, s.Slots[0].Use)
}

func TestGPUsThatAreOutOfOrderAreNotChosen(t *testing.T) {
	m := machine(t, "dgx-h100")
	var s Slots
	s.Adopt(m, uuids(m))
	for i := range 7 {
		m.GPUs[i].Fault = "xid"
	}
	must.NoError(t, s.Reserve(m, []string{"slot-8"}))
	must.Eq(t, m.GPUs[7].UUID, s.Slots[7].UUID)
	must.ErrorContains(t, s.Reserve(m, []string{"slot-1", "slot-2"}), "cannot reserve slot-1, slot-2: count 2: only 0 GPUs are free")
}

func TestGPUsComeAndGo(t *testing.T) {
	m := machine(t, "pcie-nvlink-pairs")
	all := uuids(m)
	var s Slots
	s.Adopt(m, all)
	must.NoError(t, s.Reserve(m, []string{"slot-4"}))
	kept := s.Slots[3].UUID
	must.True(t, s.Adopt(m, nil), must.Sprint("free slots of GPUs that are gone go"))
	must.Eq(t, []Slot{{"slot-4", kept, m.GPUs[0].Model, Held}}, s.Slots)
	must.True(t, s.Adopt(m, all))
	must.Len(t, 4, s.Slots)
	must.NoError(t, s.Validate())
}

func TestWhatCannotBeReservedIsNamed(t *testing.T) {
	m := machine(t, "pcie-nvlink-pairs")
	m.GPUs[3].Model = "other"
	var s Slots
	s.Adopt(m, uuids(m))
	must.ErrorContains(t, s.Reserve(m, []string{"slot-9"}), `cannot reserve "slot-9": this node has no such slot`)
	must.ErrorContains(t, s.Reserve(m, []string{"slot-1", "slot-1"}), `"slot-1" is named twice`)
	must.ErrorContains(t, s.Reserve(m, []string{"slot-1", "slot-4"}), "they are of several models")
}

func TestSlotsFromAFileAreChecked(t *testing.T) {
	good := Slot{ID: "slot-1", UUID: "GPU-a", Use: Free}
	for want, slots := range map[string][]Slot{
		`slots[0].id ""`:            {{UUID: "GPU-a", Use: Free}},
		`slots[1].id "slot-1"`:      {good, {ID: "slot-1", UUID: "GPU-b", Use: Free}},
		`slots[1].uuid "GPU-a"`:     {good, {ID: "slot-2", UUID: "GPU-a", Use: Free}},
		`slots[0].use "lost": allo`: {{ID: "slot-1", UUID: "GPU-a", Use: "lost"}},
	} {
		must.ErrorContains(t, Slots{slots}.Validate(), want)
	}
	must.NoError(t, Slots{[]Slot{good}}.Validate())
}

func TestSlicesAreGroupedSoThatARequestNeverGetsAGPUTwice(t *testing.T) {
	m := machine(t, "dgx-h100")
	names := make([]string, len(m.GPUs))
	for i := range names {
		names[i] = m.GPUs[i].Model
	}
	names[7] = "" // ignored
	for _, kind := range []Kind{TimeSlice, MPS} {
		units, warnings := Units(m, names, []Rule{{Kind: kind, Replicas: 4}})
		must.SliceEmpty(t, warnings)
		must.Len(t, 28, units)
		ids := map[string]bool{}
		groups := map[string]map[int]bool{}
		for _, u := range units {
			must.False(t, ids[u.ID])
			ids[u.ID] = true
			must.StrNotContains(t, fmt.Sprint(names), u.Group+" ", must.Sprint("a slice's group is not a GPU's"))
			if groups[u.Group] == nil {
				groups[u.Group] = map[int]bool{}
			}
			must.False(t, groups[u.Group][u.GPU], must.Sprint("a group has a GPU twice"))
			groups[u.Group][u.GPU] = true
		}
		must.MapLen(t, 4, groups)
	}
}

func TestSlicesOfMPSAreLimited(t *testing.T) {
	m := machine(t, "dgx-h100")
	names := []string{m.GPUs[0].Model}
	units, _ := Units(m, names, []Rule{{Kind: MPS, Replicas: 4}})
	must.Eq(t, Unit{GPU: 0, ID: m.GPUs[0].UUID + "::2", Group: "NVIDIA H100 80GB HBM3 mps 2 of 4", Kind: MPS, Slice: 2, Of: 4, MemoryMiB: 81559 / 4, Threads: 25}, units[1])
	units, warnings := Units(m, names, []Rule{{Kind: MPS, Replicas: 4, MemoryMiB: 30000, Threads: 50}})
	must.Eq(t, 30000, units[0].MemoryMiB)
	must.Eq(t, 50, units[0].Threads)
	must.Eq(t, []string{"GPU 0: 4 slices of 30000 MiB are more than its 81559 MiB"}, warnings)
	units, _ = Units(m, names, []Rule{{Kind: TimeSlice, Replicas: 2, SameGPU: true}})
	must.Eq(t, units[0].Group, units[1].Group)
	must.Eq(t, 81559, units[0].MemoryMiB)
}

func TestOnlyTheModelOfARuleIsShared(t *testing.T) {
	m := machine(t, "dgx-h100")
	m.GPUs[1].Parent = "GPU-parent"
	units, _ := Units(m, []string{"a", "b"}, []Rule{{Kind: TimeSlice, Model: "other", Replicas: 2}})
	must.Len(t, 2, units)
	must.Eq(t, None, units[0].Kind)
	must.Eq(t, MIG, units[1].Kind)
	must.Eq(t, m.GPUs[0].UUID, units[0].ID)
}

func TestRulesAreChecked(t *testing.T) {
	for want, rules := range map[string][]Rule{
		"time_slices[0].replicas 1: allowed are 2 to 64":               {{Kind: TimeSlice, Replicas: 1}},
		"mps[0].replicas 49: allowed are 2 to 48":                      {{Kind: MPS, Replicas: 49}},
		"mps[0].threads 101":                                           {{Kind: MPS, Replicas: 2, Threads: 101}},
		`mps[0].model "A": a rule before (time_slice) shares`:          {{Kind: TimeSlice, Model: "A", Replicas: 2}, {Kind: MPS, Model: "A", Replicas: 2}},
		`mps[0].model "A": a rule before (time_slice) shares these GP`: {{Kind: TimeSlice, Replicas: 2}, {Kind: MPS, Model: "A", Replicas: 2}},
		`mps[0].model "": a rule before (time_slice) shares these GPU`: {{Kind: TimeSlice, Model: "A", Replicas: 2}, {Kind: MPS, Replicas: 2}},
	} {
		must.ErrorContains(t, Validate(rules), want)
	}
	must.NoError(t, Validate([]Rule{{Kind: TimeSlice, Model: "A", Replicas: 2}, {Kind: MPS, Model: "B", Replicas: 48, Threads: 100}}))
}
