// SPDX-License-Identifier: MPL-2.0

package plugin

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/hashicorp/go-hclog"
	"github.com/shoenig/test/must"

	"github.com/nomad-gpu/nomad-gpu/device/sharing"
)

// answers is an agent whose answer a test sets.
type answers struct {
	ids map[string]bool
	err error
}

func (a *answers) taken(context.Context) (map[string]bool, error) { return a.ids, a.err }

func TestBindingsOutliveThePlugin(t *testing.T) {
	m := simulated(t, "pcie-nvlink-pairs")
	path := filepath.Join(t.TempDir(), "state", "slots.json")
	agent := &answers{ids: map[string]bool{}}
	s := &slots{path: path, agent: agent, logger: hclog.NewNullLogger()}
	s.look(t.Context(), m, Grouping{})
	must.NoError(t, s.reserve(m, Grouping{}, []string{"slot-1", "slot-3"}))
	bound := s.ids()
	must.MapLen(t, 4, bound)
	agent.ids = map[string]bool{"slot-1": true, "slot-3": true}
	s.look(t.Context(), m, Grouping{})

	again := &slots{path: path, agent: agent, logger: hclog.NewNullLogger()}
	again.look(t.Context(), m, Grouping{})
	must.Eq(t, bound, again.ids())
	must.Eq(t, sharing.Busy, again.state.Slots.Slots[0].Use)
	must.NoError(t, again.reserve(m, Grouping{}, []string{"slot-2"}))
	after := again.ids()
	for uuid, slot := range bound {
		if slot == "slot-1" || slot == "slot-3" {
			must.Eq(t, slot, after[uuid], must.Sprint("a slot in use lost its GPU"))
		}
	}
}

func TestAFileThatCannotBeReadMakesAllSlotsTaken(t *testing.T) {
	m := simulated(t, "pcie-nvlink-pairs")
	for name, text := range map[string]string{"cut": `{"boot":"x","slots":[{"id"`, "twice": `{"slots":[{"id":"a","uuid":"u","use":"free"},{"id":"a","uuid":"v","use":"free"}]}`} {
		path := filepath.Join(t.TempDir(), name)
		must.NoError(t, os.WriteFile(path, []byte(text), 0o600))
		s := &slots{path: path, logger: hclog.NewNullLogger()}
		s.look(t.Context(), m, Grouping{})
		must.Len(t, 4, s.state.Slots.Slots)
		for _, slot := range s.state.Slots.Slots {
			must.Eq(t, sharing.Held, slot.Use)
		}
	}
}

func TestAfterARestartOfTheMachineAllSlotsAreFree(t *testing.T) {
	m := simulated(t, "pcie-nvlink-pairs")
	path := filepath.Join(t.TempDir(), "slots.json")
	s := &slots{path: path, logger: hclog.NewNullLogger()}
	must.NoError(t, s.reserve(m, Grouping{}, []string{"slot-1"}))
	text, err := os.ReadFile(path)
	must.NoError(t, err)
	boot := s.state.Boot
	must.NotEq(t, "", boot)
	must.NoError(t, os.WriteFile(path, []byte(strings.Replace(string(text), boot, "another", 1)), 0o600))
	again := &slots{path: path, logger: hclog.NewNullLogger()}
	again.look(t.Context(), m, Grouping{})
	must.Eq(t, sharing.Free, again.state.Slots.Slots[0].Use)
}

func TestWhatCannotBeKeptIsNotReserved(t *testing.T) {
	m := simulated(t, "pcie-nvlink-pairs")
	// Nobody can make a directory in /proc, not even root.
	s := &slots{path: "/proc/nomad-device-gpu/slots.json", logger: hclog.NewNullLogger()}
	must.ErrorContains(t, s.reserve(m, Grouping{}, []string{"slot-1"}), "cannot keep which GPU is in which slot")
	must.Eq(t, sharing.Free, s.state.Slots.Slots[0].Use)
}

func TestAnAgentThatDoesNotAnswerFreesNothing(t *testing.T) {
	m := simulated(t, "pcie-nvlink-pairs")
	agent := &answers{ids: map[string]bool{"slot-1": true}}
	s := &slots{path: filepath.Join(t.TempDir(), "slots.json"), agent: agent, logger: hclog.NewNullLogger()}
	must.NoError(t, s.reserve(m, Grouping{}, []string{"slot-1"}))
	s.look(t.Context(), m, Grouping{})
	must.Eq(t, sharing.Busy, s.state.Slots.Slots[0].Use)
	agent.ids, agent.err = nil, errors.New("connection refused")
	s.look(t.Context(), m, Grouping{})
	must.Eq(t, sharing.Busy, s.state.Slots.Slots[0].Use)
}

func TestTheAgentTellsWhatIsTaken(t *testing.T) {
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Header.Get("X-Nomad-Token") != "secret" {
			http.Error(w, "Permission denied", http.StatusForbidden)
			return
		}
		switch r.URL.Path {
		case "/v1/agent/self":
			fmt.Fprint(w, `{"stats":{"client":{"node_id":"n1"}}}`)
		case "/v1/node/n1/allocations":
			devices := func(id string) string {
				return `"AllocatedResources":{"Tasks":{"t":{"Devices":[{"Vendor":"nvidia","DeviceIDs":["` + id + `"]}]}}}`
			}
			fmt.Fprintf(w, `[{"ClientStatus":"running",%s},{"ClientStatus":"complete",%s},{"ClientStatus":"failed",%s},{"ClientStatus":"lost",%s},{"ClientStatus":"pending"}]`,
				devices("slot-1"), devices("slot-2"), devices("slot-3"), devices("slot-4"))
		default:
			http.NotFound(w, r)
		}
	}))
	defer server.Close()
	token := filepath.Join(t.TempDir(), "token")
	a := newAgent(server.URL, token, "")
	_, err := a.taken(t.Context())
	must.ErrorContains(t, err, "nomad.token_file")
	must.NoError(t, os.WriteFile(token, []byte("wrong"), 0o600))
	_, err = a.taken(t.Context())
	must.ErrorContains(t, err, "Permission denied")
	must.StrNotContains(t, err.Error(), "wrong")
	must.NoError(t, os.WriteFile(token, []byte("secret\n"), 0o600))
	taken, err := a.taken(t.Context())
	must.NoError(t, err)
	must.Eq(t, map[string]bool{"slot-1": true, "slot-4": true}, taken)
}
