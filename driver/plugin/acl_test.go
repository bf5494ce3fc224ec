// SPDX-License-Identifier: MPL-2.0

package plugin

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/hashicorp/nomad/plugins/drivers"
	"github.com/shoenig/test/must"
	"github.com/shoenig/test/wait"

	"github.com/nomad-gpu/nomad-gpu/driver/consul/consultest"
)

// documented is the policy that the documentation tells people to use.
func documented(t *testing.T) string {
	t.Helper()
	page, err := os.ReadFile("../README.md")
	must.NoError(t, err)
	_, after, ok := strings.Cut(string(page), "needs this policy and no more")
	must.True(t, ok)
	_, after, ok = strings.Cut(after, "```hcl\n")
	must.True(t, ok)
	policy, _, ok := strings.Cut(after, "```")
	must.True(t, ok)
	return policy
}

func TestAGangLivesWithThePolicyOfTheDocumentationAndATokenThatIsRotated(t *testing.T) {
	server := consultest.Start(t, consultest.ACL)
	path := filepath.Join(t.TempDir(), "token")
	first, second := server.Token(documented(t)), server.Token(documented(t))
	must.NoError(t, os.WriteFile(path, []byte(first.SecretID), 0o600))
	n := startNode(t, server, "", fmt.Sprintf("token_file = %q", path))
	must.Eq(t, drivers.HealthStateHealthy, n.until("gangs can be joined").Health)
	const once = `echo up $NODE_RANK of $GANG_GENERATION >>$OUT; test $GANG_GENERATION = 2 || { sleep 0.1; exit $NODE_RANK; }`
	tasks := []*drivers.TaskConfig{n.task(0, 2, once), n.task(1, 2, once)}
	n.start(tasks[0])
	must.NoError(t, os.WriteFile(path+".new", []byte(second.SecretID), 0o600))
	must.NoError(t, os.Rename(path+".new", path))
	_, err := server.Client.ACL().TokenDelete(first.AccessorID, nil)
	must.NoError(t, err)
	n.start(tasks[1])
	n.out("up 0 of 1", "up 1 of 1", "up 0 of 2", "up 1 of 2")
	for _, cfg := range tasks {
		r := n.exit(cfg)
		must.True(t, r.Successful(), must.Sprint(r))
	}
	must.Wait(t, wait.InitialSuccess(wait.ErrorFunc(func() error {
		keys, _, err := server.Client.KV().Keys("nccl/", "", nil)
		if err == nil && len(keys) > 0 {
			err = fmt.Errorf("left: %q", keys)
		}
		return err
	}), wait.Timeout(time.Minute), wait.Gap(50*time.Millisecond)))
}

func TestANodeWithoutTheRightsTakesNoGangsAndSaysWhy(t *testing.T) {
	server := consultest.Start(t, consultest.ACL)
	f := startNode(t, server, "").until("no token is set (consul.token_file)")
	must.Eq(t, drivers.HealthStateUnhealthy, f.Health)
	token := server.Token(`key_prefix "nccl/v1/" { policy = "write" }`)
	f = startNode(t, server, "", fmt.Sprintf("token = %q", token.SecretID)).until("must have the policy in the driver's documentation")
	must.Eq(t, drivers.HealthStateUnhealthy, f.Health)
	must.StrContains(t, f.HealthDescription, "lacks permission 'session:write'")
	must.StrNotContains(t, f.HealthDescription, token.SecretID)
}
