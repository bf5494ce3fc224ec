// SPDX-License-Identifier: MPL-2.0

// Demo shows nomad-gpu's main job on one machine with simulated GPUs: the real
// Nomad, Consul and Nomad Autoscaler, and a real training. It exits 0 only if
// every figure was as it must be.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"path/filepath"

	"github.com/nomad-gpu/nomad-gpu/e2e/cluster"
	"github.com/nomad-gpu/nomad-gpu/e2e/peers"
	"github.com/nomad-gpu/nomad-gpu/e2e/story"
)

func main() {
	keep := flag.Bool("keep", false, "keep the cluster up until interrupted")
	loopback := flag.Bool("loopback", false, "stay on the loopback interface, also as root")
	programs := flag.String("programs", filepath.Join(peers.Root(), ".cache", "bin"), "the folder of the built programs")
	flag.Parse()
	os.Exit(cluster.Guard(func(ctx context.Context) int { return run(ctx, *programs, *keep, *loopback) }))
}

func run(ctx context.Context, programs string, keep, loopback bool) int {
	o := story.Options{Out: os.Stdout, Programs: programs, Torch: story.HasTorch(ctx), Loopback: loopback}
	var hold func(*cluster.Cluster)
	if keep {
		hold = func(c *cluster.Cluster) {
			fmt.Printf(`
The cluster stays up until you interrupt this (Ctrl-C). In another terminal, here:

  export NOMAD_ADDR=%s CONSUL_HTTP_ADDR=%s
  export PATH=%s:%s/nomad:%[4]s/autoscaler:$PATH POOLS=%[5]s
  nomad job run jobspecs/train.nomad.hcl

README.md says what else to try, under "Try it by hand".
`, c.NomadAddress(), c.ConsulAddress(), filepath.Dir(c.Program("nomad")), programs, filepath.Join(c.Dir(), "pools.hcl"))
			<-ctx.Done()
		}
	}
	seen, err := story.Tell(ctx, o, hold)
	if errors.Is(ctx.Err(), context.Canceled) && !keep {
		fmt.Println("interrupted; everything is stopped")
		return 130
	}
	fmt.Println()
	story.PrintRanks(os.Stdout, seen)
	if err != nil {
		fmt.Fprintln(os.Stderr, "demo:", err)
		return 1
	}
	found := story.Check(seen)
	story.PrintFindings(os.Stdout, found)
	if wrong := story.Failed(found); len(wrong) > 0 {
		fmt.Fprintf(os.Stderr, "demo: %d of %d figures are wrong\n", len(wrong), len(found))
		return 1
	}
	fmt.Printf("all %d figures are as they must be\n", len(found))
	return 0
}
