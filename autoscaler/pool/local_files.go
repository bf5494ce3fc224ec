// SPDX-License-Identifier: MPL-2.0

package pool

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"time"
)

// noteFailure keeps when a slot's node ended without being asked to, for the
// other plugins too: each is a process of its own.
func (p *LocalPool) noteFailure(name string, now time.Time) error {
	text, err := now.MarshalText()
	if err != nil {
		return err
	}
	return os.WriteFile(p.failurePath(name), text, 0o600)
}

// failedAt is when a slot's node failed last; the zero time where it did not,
// or where that cannot be read: then the slot is tried.
func (p *LocalPool) failedAt(name string) (at time.Time) {
	text, err := os.ReadFile(p.failurePath(name))
	if err != nil || at.UnmarshalText(text) != nil {
		return time.Time{}
	}
	return at
}

func (p *LocalPool) failurePath(name string) string {
	return filepath.Join(p.definition.Local.Dir, name+".failed")
}

// lastWords is the last line of a node's log.
func (p *LocalPool) lastWords(name string) string {
	data, err := os.ReadFile(filepath.Join(p.definition.Local.Dir, name+".log"))
	if err != nil {
		return err.Error()
	}
	lines := strings.Split(strings.TrimSpace(string(data)), "\n")
	return lines[len(lines)-1]
}

func (p *LocalPool) path(name string) string {
	return filepath.Join(p.definition.Local.Dir, name+".json")
}

func (p *LocalPool) load(name string) (*record, error) {
	data, err := os.ReadFile(p.path(name))
	if errors.Is(err, os.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	var r record
	if err := json.Unmarshal(data, &r); err != nil {
		return nil, fmt.Errorf("%s: %w", p.path(name), err)
	}
	return &r, nil
}

func (p *LocalPool) save(name string, r *record) error {
	data, err := json.Marshal(r)
	if err != nil {
		return err
	}
	return replace(p.path(name), data)
}
