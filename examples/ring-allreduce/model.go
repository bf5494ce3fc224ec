// SPDX-License-Identifier: MPL-2.0

package main

import (
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"math"
	"math/rand/v2"
	"os"
	"path/filepath"
)

const inputs = 16

// state is all that a training resumes from: a linear model under tanh,
// trained by gradient descent with momentum on a known teacher.
type state struct {
	Step      int       `json:"step"`
	FirstLoss float64   `json:"first_loss"`
	Loss      float64   `json:"loss"`
	Weights   []float64 `json:"weights"`
	Momentum  []float64 `json:"momentum"`
}

func newState() *state {
	return &state{Weights: make([]float64, inputs), Momentum: make([]float64, inputs)}
}

// gradient returns this rank's loss and gradient over its own examples of a
// step: [gradient…, loss], so that one all-reduce carries both. The examples
// depend on rank and step alone, whatever was restarted meanwhile.
func (s *state) gradient(rank, batch int) []float64 {
	source := rand.New(rand.NewPCG(uint64(s.Step), uint64(rank)))
	out := make([]float64, inputs+1)
	x := make([]float64, inputs)
	for range batch {
		var teacher, student float64
		for i := range x {
			x[i] = source.NormFloat64()
			teacher += x[i] * (2*float64(i)/(inputs-1) - 1)
			student += x[i] * s.Weights[i]
		}
		y, want := math.Tanh(student), math.Tanh(teacher)
		out[inputs] += (y - want) * (y - want) / float64(batch)
		for i := range x {
			out[i] += 2 * (y - want) * (1 - y*y) * x[i] / float64(batch)
		}
	}
	return out
}

// apply takes the sum of all ranks' gradients and moves the weights.
func (s *state) apply(sum []float64, world int) {
	const rate, momentum = 0.1, 0.9
	for i := range s.Weights {
		s.Momentum[i] = momentum*s.Momentum[i] + sum[i]/float64(world)
		s.Weights[i] -= rate * s.Momentum[i]
	}
	s.Loss = sum[inputs] / float64(world)
	if s.Step == 0 {
		s.FirstLoss = s.Loss
	}
	s.Step++
}

// digest is a SHA-256 over the weights, bit for bit.
func (s *state) digest() [8]byte {
	h := sha256.New()
	for _, w := range s.Weights {
		binary.Write(h, binary.LittleEndian, w)
	}
	return [8]byte(h.Sum(nil))
}

func (s *state) digestText() string { d := s.digest(); return hex.EncodeToString(d[:]) }

// save writes the checkpoint whole or not at all: a new file, synced, then
// renamed over the old one.
func (s *state) save(dir string) error {
	data, err := json.Marshal(s)
	if err != nil {
		return err
	}
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return err
	}
	f, err := os.CreateTemp(dir, "latest-*.partial")
	if err != nil {
		return err
	}
	_, err = f.Write(data)
	err = errors.Join(err, f.Sync(), f.Close())
	if err == nil {
		err = os.Rename(f.Name(), filepath.Join(dir, "latest.json"))
	}
	if err != nil {
		os.Remove(f.Name())
		return fmt.Errorf("write the checkpoint: %w", err)
	}
	return nil
}

// load reads the checkpoint in dir; where there is none, or no dir, it returns a new state.
func load(dir string) (*state, error) {
	if dir == "" {
		return newState(), nil
	}
	path := filepath.Join(dir, "latest.json")
	data, err := os.ReadFile(path)
	if errors.Is(err, fs.ErrNotExist) {
		return newState(), nil
	}
	if err != nil {
		return nil, fmt.Errorf("read the checkpoint: %w", err)
	}
	s := newState()
	if err := json.Unmarshal(data, s); err != nil {
		return nil, fmt.Errorf("read the checkpoint %s: %w", path, err)
	}
	if len(s.Weights) != inputs || len(s.Momentum) != inputs || s.Step < 0 {
		return nil, fmt.Errorf("read the checkpoint %s: %d weights, %d momenta, step %d; allowed are %d, %d and 0 or more",
			path, len(s.Weights), len(s.Momentum), s.Step, inputs, inputs)
	}
	return s, nil
}
