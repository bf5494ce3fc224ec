// SPDX-License-Identifier: MPL-2.0

package plugin

import (
	"fmt"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/hashicorp/nomad/plugins/drivers"
	"github.com/shoenig/test/must"

	"github.com/nomad-gpu/nomad-gpu/driver/consul/consultest"
)

// checkpoints writes a word when it starts and one when it is asked to stop.
const checkpoints = `trap 'echo saved $NODE_RANK of $GANG_GENERATION >>$OUT; exit 0' TERM; echo up $NODE_RANK of $GANG_GENERATION >>$OUT; while :; do sleep 0.05; done`

func TestANoticeSavesTheGangFailsTheNodesTasksAndKeepsNewOnesAway(t *testing.T) {
	path := filepath.Join(t.TempDir(), "notice")
	server := consultest.Start(t)
	spot := startNode(t, server, fmt.Sprintf("notice {\n source = \"file\"\n path = %q\n period = \"1s\"\n}", path))
	safe := startNode(t, server, "")
	spot.until("gangs can be joined")
	first, second, third := spot.task(0, 3, checkpoints), spot.task(1, 3, checkpoints), safe.task(2, 3, checkpoints)
	spot.start(first)
	spot.start(second)
	safe.start(third)
	spot.out("up 0 of 1", "up 1 of 1")
	safe.out("up 2 of 1")

	must.NoError(t, os.WriteFile(path, []byte("the rack is moved"), 0o600))
	f := spot.until("spot notice: the rack is moved; this node takes no new gangs")
	must.Eq(t, drivers.HealthStateUnhealthy, f.Health)
	for _, cfg := range []*drivers.TaskConfig{first, second} {
		r := spot.exit(cfg)
		must.False(t, r.Successful())
		must.EqError(t, r.Err, "spot notice: the rack is moved")
	}
	spot.out("saved 0 of 1", "saved 1 of 1")
	safe.out("saved 2 of 1") // the other node's member is asked to save too
	must.Eq(t, drivers.TaskStateRunning, inspect(t, safe, third).State)

	late := spot.task(3, 3, checkpoints)
	_, _, err := spot.StartTask(late)
	must.ErrorContains(t, err, "spot notice: the rack is moved; this node takes no new gangs")

	must.NoError(t, os.Remove(path))
	must.Eq(t, drivers.HealthStateHealthy, spot.until("gangs can be joined").Health)
	spot.start(late)
	other := spot.task(4, 3, checkpoints)
	spot.start(other)
	safe.out("up 2 of 2") // the gang goes on with members placed anew
}

func TestATaskThatNomadStopsDuringANoticeKeepsTheNoticeAsItsReason(t *testing.T) {
	path := filepath.Join(t.TempDir(), "notice")
	n := startNode(t, consultest.Start(t), fmt.Sprintf("notice {\n source = \"file\"\n path = %q\n period = \"1s\"\n}", path))
	cfg := n.task(0, 2, checkpoints)
	n.start(cfg)
	must.NoError(t, os.WriteFile(path, nil, 0o600))
	must.EqError(t, n.exit(cfg).Err, "spot notice: "+path+" is there")
	must.NoError(t, n.StopTask(cfg.ID, time.Second, "SIGTERM"))
	must.EqError(t, n.exit(cfg).Err, "spot notice: "+path+" is there")
}

func inspect(t *testing.T, n *node, cfg *drivers.TaskConfig) *drivers.TaskStatus {
	s, err := n.InspectTask(cfg.ID)
	must.NoError(t, err)
	return s
}

func TestAGraceThatOutlastsTheNodeIsShortened(t *testing.T) {
	for name, c := range map[string]struct{ grace, left, want time.Duration }{
		"there is time":                       {30 * time.Second, 2 * time.Minute, 30 * time.Second},
		"the node goes first":                 {5 * time.Minute, 2 * time.Minute, 115 * time.Second},
		"no time is left":                     {30 * time.Second, 2 * time.Second, time.Second},
		"it should be gone":                   {30 * time.Second, -time.Hour, time.Second},
		"a grace shorter than a second stays": {0, -time.Hour, 0},
	} {
		must.Eq(t, c.want, timely(c.grace, c.left), must.Sprint(name))
	}
}
