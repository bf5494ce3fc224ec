// SPDX-License-Identifier: MPL-2.0

package story_test

import (
	"bytes"
	"context"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/shoenig/test/must"

	"github.com/nomad-gpu/nomad-gpu/e2e/cluster"
	"github.com/nomad-gpu/nomad-gpu/e2e/peers"
	"github.com/nomad-gpu/nomad-gpu/e2e/story"
)

func TestMain(m *testing.M) {
	os.Exit(cluster.Guard(func(context.Context) int { return m.Run() }))
}

func tell(t *testing.T, o story.Options) string {
	t.Helper()
	var out bytes.Buffer
	o.Out, o.Programs = &out, filepath.Join(peers.Root(), ".cache", "bin")
	seen, err := story.Tell(t.Context(), o, nil)
	must.NoError(t, err, must.Sprint(out.String()))
	if wrong := story.Failed(story.Check(seen)); len(wrong) > 0 {
		story.PrintFindings(&out, wrong)
		t.Fatal(out.String())
	}
	return out.String()
}

func TestTheWholeStoryWithPyTorch(t *testing.T) {
	must.True(t, story.HasTorch(t.Context()), must.Sprint("/usr/bin/python3 cannot import torch: on Debian and Ubuntu, apt-get install python3-torch"))
	out := tell(t, story.Options{Torch: true})
	for _, line := range []string{
		"1 of 4 members; waiting for 3 more",
		"gang train/gang queues 32 GPUs (1 of 4 placed) and 3 more nodes are bought for it",
		"Generation 1 stops: rank 2 on",
		"goes on from the checkpoint at step",
		"all 4 members finished",
		"had no work for 5s",
	} {
		must.StrContains(t, out, line)
	}
	must.Eq(t, 1, strings.Count(out, "to 3 nodes"), must.Sprint("nodes are bought once"))
}

func TestTheWholeStoryWithoutPyTorchOnLoopback(t *testing.T) {
	tell(t, story.Options{Loopback: true})
}
