// SPDX-License-Identifier: MPL-2.0

package story

import (
	"context"
	"errors"
	"fmt"
	"os/exec"
	"path/filepath"
	"strconv"

	"github.com/nomad-gpu/nomad-gpu/e2e/cluster"
	"github.com/nomad-gpu/nomad-gpu/e2e/peers"
)

// Training is what the gang runs, as variables of jobspecs/train.nomad.hcl.
type Training struct {
	Nodes, GPUs   int
	Steps         int
	StepSeconds   float64
	CheckpointDir string
	// Program is the Go training program; empty: PyTorch.
	Program string
}

// HasTorch reports whether the system's Python can import PyTorch.
func HasTorch(ctx context.Context) bool {
	return exec.CommandContext(ctx, "/usr/bin/python3", "-c", "import torch, torch.distributed").Run() == nil
}

// Submit runs the training job with the nomad command, as a user does.
func Submit(ctx context.Context, c *cluster.Cluster, t Training) error {
	variables := []string{"nodes=" + strconv.Itoa(t.Nodes), "gpus=" + strconv.Itoa(t.GPUs), "checkpoint_dir=" + t.CheckpointDir,
		fmt.Sprintf(`args=["--steps", "%d", "--step-seconds", "%g"]`, t.Steps, t.StepSeconds)}
	if t.Program != "" {
		variables = append(variables, "command="+t.Program, "script=")
	}
	argv := []string{"job", "run", "-detach", "-address", c.NomadAddress()}
	for _, v := range variables {
		argv = append(argv, "-var", v)
	}
	argv = append(argv, filepath.Join("jobspecs", "train.nomad.hcl"))
	cmd := exec.CommandContext(ctx, c.Program("nomad"), argv...)
	cmd.Dir = peers.Root()
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("nomad job run: %w\n%s", err, out)
	}
	return nil
}

// processOf is the number of the process that a rank runs in a generation, as
// the training itself said it.
func processOf(members []Member, rank, generation int) (int, error) {
	for _, m := range members {
		if e, ok := m.last("start", generation); ok && e.Rank == rank {
			return e.PID, nil
		}
	}
	return 0, errors.New("rank " + strconv.Itoa(rank) + " has not started")
}
