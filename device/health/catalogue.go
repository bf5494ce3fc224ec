// SPDX-License-Identifier: MPL-2.0

package health

import (
	_ "embed"
	"fmt"
	"sync"

	"github.com/goccy/go-yaml"
)

// Action is what recovers a GPU after an Xid.
type Action string

// The actions of the catalogue.
const (
	Ignore     Action = "ignore"
	RestartApp Action = "restart_app"
	Inspect    Action = "inspect"
	Reset      Action = "reset"
	Reboot     Action = "reboot"
)

// Entry is one line of the catalogue.
type Entry struct {
	Xid     uint64 `yaml:"xid" json:"xid"`
	Action  Action `yaml:"action" json:"action"`
	Meaning string `yaml:"meaning" json:"meaning"`
}

//go:embed xids.yaml
var catalogueText []byte

// Catalogue is the Xid catalogue by number. It is part of the program and
// checked by a test; a fault in it is a bug and panics.
var Catalogue = sync.OnceValue(func() map[uint64]Entry {
	catalogue, err := parseCatalogue(catalogueText)
	if err != nil {
		panic(err)
	}
	return catalogue
})

func parseCatalogue(text []byte) (map[uint64]Entry, error) {
	var file struct {
		Xids []Entry `yaml:"xids"`
	}
	if err := yaml.UnmarshalWithOptions(text, &file, yaml.Strict()); err != nil {
		return nil, fmt.Errorf("catalogue of Xids: %w", err)
	}
	catalogue := make(map[uint64]Entry, len(file.Xids))
	for _, entry := range file.Xids {
		if _, twice := catalogue[entry.Xid]; twice {
			return nil, fmt.Errorf("catalogue of Xids: %d is listed twice", entry.Xid)
		}
		switch entry.Action {
		case Ignore, RestartApp, Inspect, Reset, Reboot:
		default:
			return nil, fmt.Errorf("catalogue of Xids: %d has the action %q; allowed are ignore, restart_app, inspect, reset, reboot", entry.Xid, entry.Action)
		}
		if entry.Meaning == "" {
			return nil, fmt.Errorf("catalogue of Xids: %d has no meaning", entry.Xid)
		}
		catalogue[entry.Xid] = entry
	}
	return catalogue, nil
}

// Explain is the entry for an Xid; one that is not listed affects the program
// alone.
func Explain(xid uint64) Entry {
	if entry, ok := Catalogue()[xid]; ok {
		return entry
	}
	return Entry{Xid: xid, Action: RestartApp, Meaning: "not in the catalogue"}
}
