// SPDX-License-Identifier: MPL-2.0

package story_test

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/hashicorp/hcl/v2/hclsimple"
	"github.com/hashicorp/nomad-autoscaler/sdk"
	"github.com/shoenig/test/must"

	"github.com/nomad-gpu/nomad-gpu/autoscaler/pool"
	"github.com/nomad-gpu/nomad-gpu/e2e/cluster"
	"github.com/nomad-gpu/nomad-gpu/e2e/peers"
	"github.com/nomad-gpu/nomad-gpu/e2e/story"
)

// block is the first fenced block of a language after a heading.
func block(t *testing.T, file, heading, language string) string {
	t.Helper()
	text, err := os.ReadFile(filepath.Join(peers.Root(), file))
	must.NoError(t, err)
	_, after, ok := strings.Cut(string(text), "\n"+heading+"\n")
	must.True(t, ok, must.Sprint(file, " has no heading ", heading))
	_, after, ok = strings.Cut(after, "\n```"+language+"\n")
	must.True(t, ok, must.Sprint(file, ": no block of ", language, " after ", heading))
	code, _, ok := strings.Cut(after, "\n```")
	must.True(t, ok)
	return code
}

func TestTheReadmesCommandsWorkOnTheDemosCluster(t *testing.T) {
	commands := strings.Split(block(t, "README.md", "## Try it by hand", "sh"), "\n")
	must.SliceContains(t, commands, "nomad job run jobspecs/train.nomad.hcl")
	programs := filepath.Join(peers.Root(), ".cache", "bin")
	var said bytes.Buffer
	seen, err := story.Tell(t.Context(), story.Options{Out: &said, Programs: programs, Torch: true}, func(c *cluster.Cluster) {
		ctx, cancel := context.WithTimeout(t.Context(), 3*time.Minute)
		defer cancel()
		for _, line := range commands {
			// As in a terminal, which is where a user types them.
			cmd := exec.CommandContext(ctx, "/bin/sh", "-c", line)
			cmd.Dir = peers.Root()
			cmd.Env = append(os.Environ(), "NOMAD_ADDR="+c.NomadAddress(), "CONSUL_HTTP_ADDR="+c.ConsulAddress(),
				"POOLS="+filepath.Join(c.Dir(), "pools.hcl"), fmt.Sprintf("PATH=%s:%s/nomad:%[2]s/autoscaler:%s", filepath.Dir(c.Program("nomad")), programs, os.Getenv("PATH")))
			if strings.HasPrefix(line, "nomad job stop") {
				must.NoError(t, cluster.WaitFor(ctx, time.Minute, "the job is complete", func() (bool, string, error) {
					summary, _, err := c.Nomad().Jobs().Summary("train", nil)
					if err != nil {
						return false, "", err
					}
					return summary.Summary["gang"].Complete == 8, fmt.Sprintf("%+v", summary.Summary), nil // 4 of the story, 4 of this run
				}))
			}
			out, err := cmd.CombinedOutput()
			if strings.HasPrefix(line, "nomad job run") && cmd.ProcessState.ExitCode() == 2 {
				// Nomad's word for a job that is accepted and waits for nodes.
				must.StrContains(t, string(out), "waiting for additional capacity")
				err = nil
			}
			must.NoError(t, err, must.Sprintf("%s\n%s", line, out))
			must.SliceNotEmpty(t, out, must.Sprint(line, " prints nothing"))
		}
	})
	must.NoError(t, err, must.Sprint(said.String()))
	must.SliceEmpty(t, story.Failed(story.Check(seen)))
}

func TestTheExamplesAreGood(t *testing.T) {
	examples := filepath.Join(peers.Root(), "examples")
	_, err := pool.ReadFile(filepath.Join(examples, "autoscaler", "pools.hcl"))
	must.NoError(t, err)
	policies, err := filepath.Glob(filepath.Join(examples, "autoscaler", "policies", "*.hcl"))
	must.NoError(t, err)
	must.SliceNotEmpty(t, policies)
	for _, path := range policies {
		var decoded sdk.FileDecodeScalingPolicies
		must.NoError(t, hclsimple.DecodeFile(path, nil, &decoded))
	}
	nomad, err := peers.Find("nomad")
	must.NoError(t, err)
	// A client needs a data_dir besides, which is the agent's own.
	own := filepath.Join(t.TempDir(), "own.hcl")
	must.NoError(t, os.WriteFile(own, []byte("data_dir = \"/opt/nomad/data\"\n"), 0o600))
	out, err := exec.CommandContext(t.Context(), nomad, "config", "validate", own, filepath.Join(examples, "agent", "gpu-client.hcl")).CombinedOutput()
	must.NoError(t, err, must.Sprint(string(out)))
}

func TestTheJobspecOfTheDriversPageIsGood(t *testing.T) {
	nomad, err := peers.Find("nomad")
	must.NoError(t, err)
	spec := "job \"page\" {\n  type = \"batch\"\n" + block(t, "driver/README.md", "## A task", "hcl") + "\n}\n"
	path := filepath.Join(t.TempDir(), "page.nomad.hcl")
	must.NoError(t, os.WriteFile(path, []byte(spec), 0o600))
	out, err := exec.CommandContext(t.Context(), nomad, "job", "run", "-output", path).CombinedOutput()
	must.NoError(t, err, must.Sprint(string(out)))
}
