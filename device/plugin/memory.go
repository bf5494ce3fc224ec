// SPDX-License-Identifier: MPL-2.0

package plugin

import (
	"fmt"
	"maps"
	"path/filepath"
	"reflect"

	"github.com/hashicorp/go-hclog"

	"github.com/nomad-gpu/nomad-gpu/device/health"
)

// memory keeps what the GPUs' health is judged by over a restart of the plugin.
type memory struct {
	path   string
	logger hclog.Logger
	saved  memoryFile
}

// memoryFile is of one start of the machine: another cures what the last one had.
type memoryFile struct {
	Boot string                   `json:"boot"`
	GPUs map[string]health.Memory `json:"gpus"` // by UUID
}

// maxGPUs bounds what is believed of a file.
const maxGPUs = 4096

func openMemory(dir string, logger hclog.Logger) *memory {
	return &memory{path: filepath.Join(dir, "health.json"), logger: logger}
}

// recall reads the file; what cannot be read is forgotten.
func (m *memory) recall() map[string]health.Memory {
	var file memoryFile
	found, err := loadState(m.path, &file)
	if err == nil && len(file.GPUs) > maxGPUs {
		err = fmt.Errorf("%s: %d GPUs; allowed are %d", m.path, len(file.GPUs), maxGPUs)
	}
	for uuid, known := range file.GPUs {
		if invalid := known.Validate(); invalid != nil && err == nil {
			err = fmt.Errorf("%s: %s: %w", m.path, uuid, invalid)
		}
	}
	if err != nil {
		m.logger.Error("cannot read what was wrong with GPUs before", "error", err)
		return nil
	}
	if !found || file.Boot != bootID() {
		return nil
	}
	m.saved = file
	return maps.Clone(file.GPUs)
}

// keep writes what is known now, if it is something new.
func (m *memory) keep(gpus map[string]health.Memory) {
	file := memoryFile{Boot: bootID(), GPUs: gpus}
	if reflect.DeepEqual(file, m.saved) || len(gpus) == 0 && len(m.saved.GPUs) == 0 {
		return
	}
	if err := saveState(m.path, file); err != nil {
		m.logger.Error("cannot keep what is wrong with GPUs: a restart of the plugin forgets it", "error", err)
		return
	}
	m.saved = file
}
