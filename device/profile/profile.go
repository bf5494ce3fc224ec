// SPDX-License-Identifier: MPL-2.0

// Package profile reads a machine from a text: a YAML profile, the matrix of
// `nvidia-smi topo -m`, or a topology file of NCCL.
package profile

import (
	"embed"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"strings"

	"github.com/google/uuid"

	"github.com/nomad-gpu/nomad-gpu/device/gpu"
)

//go:embed machines/*.yaml
var machines embed.FS

// Names are the profiles that are built in, sorted.
func Names() []string {
	// The pattern is constant and the file system is part of the program:
	// neither can fail.
	files, _ := fs.Glob(machines, "machines/*.yaml")
	names := make([]string, len(files))
	for i, file := range files {
		names[i] = strings.TrimSuffix(path.Base(file), ".yaml")
	}
	return names
}

// Load reads a profile: one that is built in by its name, any other by the path
// of its file, which has a slash in it or ends in .yaml or .yml.
func Load(nameOrPath string) (*gpu.Machine, error) {
	if ext := filepath.Ext(nameOrPath); strings.Contains(nameOrPath, "/") || ext == ".yaml" || ext == ".yml" {
		text, err := ReadFile(nameOrPath)
		if err != nil {
			return nil, err
		}
		return ParseYAML(nameOrPath, text)
	}
	file := "machines/" + nameOrPath + ".yaml"
	text, err := machines.ReadFile(file)
	if err != nil {
		return nil, fmt.Errorf("profile %q is not known; allowed are %s, or the path of a .yaml file",
			nameOrPath, strings.Join(Names(), ", "))
	}
	return ParseYAML(file, text)
}

// ReadFile reads a text of at most 4 MiB.
func ReadFile(name string) ([]byte, error) {
	file, err := os.Open(name)
	if err != nil {
		return nil, err
	}
	defer file.Close()
	return ReadText(name, file)
}

// ReadText reads all of r, at most 4 MiB; name is for the error.
func ReadText(name string, r io.Reader) ([]byte, error) {
	text, err := io.ReadAll(io.LimitReader(r, maxTextBytes+1))
	if err != nil {
		return nil, fmt.Errorf("reading %s: %w", name, err)
	}
	if len(text) > maxTextBytes {
		return nil, fmt.Errorf("%s: more than %d bytes", name, maxTextBytes)
	}
	return text, nil
}

// ErrNoSeed is returned by [Simulate] for an empty seed.
var ErrNoSeed = errors.New("profile seed is empty; it must be unique among the nodes that simulate")

// seedSpace is the namespace of simulated UUIDs (RFC 9562, version 5).
var seedSpace = uuid.NewSHA1(uuid.NameSpaceURL, []byte("https://github.com/nomad-gpu/nomad-gpu/simulated"))

// Simulate marks the machine as simulated and gives its GPUs UUIDs that follow
// from the seed: the same after a restart, others on a node with another seed.
func Simulate(m *gpu.Machine, seed string) error {
	if seed == "" {
		return ErrNoSeed
	}
	m.Simulated = true
	for i := range m.GPUs {
		name := fmt.Sprintf("%s/%s/%d", seed, m.Name, m.GPUs[i].Index)
		m.GPUs[i].UUID = "GPU-" + uuid.NewSHA1(seedSpace, []byte(name)).String()
	}
	return nil
}
