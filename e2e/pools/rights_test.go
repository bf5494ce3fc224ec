// SPDX-License-Identifier: MPL-2.0

package pools

import (
	"bytes"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/hashicorp/nomad/api"
	"github.com/shoenig/test/must"

	"github.com/nomad-gpu/nomad-gpu/e2e/cluster"
	"github.com/nomad-gpu/nomad-gpu/e2e/clustertest"
	"github.com/nomad-gpu/nomad-gpu/e2e/peers"
)

// documented are the two policies of the reference page, as they stand there.
func documented(t *testing.T) (reader, target string) {
	data, err := os.ReadFile(filepath.Join(peers.Root(), "autoscaler", "README.md"))
	must.NoError(t, err)
	_, section, ok := strings.Cut(string(data), "\n### Rights\n")
	must.True(t, ok)
	blocks := strings.Split(section, "```")
	return strings.TrimPrefix(blocks[1], "hcl"), strings.TrimPrefix(blocks[3], "hcl")
}

// token makes one with a policy of its own.
func (m *market) token(name, rules string) string {
	m.t.Helper()
	_, err := m.Nomad().ACLPolicies().Upsert(&api.ACLPolicy{Name: name, Rules: rules}, nil)
	must.NoError(m.t, err)
	token, _, err := m.Nomad().ACLTokens().Create(&api.ACLToken{Name: name, Type: "client", Policies: []string{name}}, nil)
	must.NoError(m.t, err)
	return token.SecretID
}

// says runs a command of the program with a token.
func (m *market) says(token string, args ...string) (string, error) {
	cmd := exec.Command(filepath.Join(clustertest.Programs, "autoscaler", "nomad-autoscaler-gpu"), append(args, "--pools", m.file)...)
	cmd.Env = append(os.Environ(), "NOMAD_ADDR="+m.NomadAddress(), "NOMAD_TOKEN="+token)
	out, err := cmd.CombinedOutput()
	return string(out), err
}

func TestWithACLsTheDocumentedRightsAreEnoughAndEachIsNeeded(t *testing.T) {
	m := &market{Cluster: clustertest.StartWith(t, cluster.Options{ACL: true}), t: t}
	var err error
	m.file, err = Describe(m.Cluster, Pool{Name: "spot", Lifecycle: "spot", Price: 12.5, Max: 3})
	must.NoError(t, err)
	reader, target := documented(t)
	reads, acts := m.token("reader", reader), m.token("target", target)
	jobs := m.token("jobs", `namespace "*" { capabilities = ["read-job"] }`)
	nodes := m.token("nodes", `node { policy = "write" }`)
	part := m.token("part", `namespace "default" { capabilities = ["read-job"] } node { policy = "write" }`)

	for _, command := range []string{"queue", "plan", "capacity"} {
		out, err := m.says(reads, command)
		must.NoError(t, err, must.Sprint(out))
		for token, lacks := range map[string]string{jobs: `the token lacks node { policy = "read" }`, nodes: `the token lacks namespace "*" { capabilities = ["read-job"] }`} {
			out, err := m.says(token, command)
			must.Error(t, err)
			must.StrContains(t, out, lacks)
		}
	}

	// A target that may only read makes nodes, which takes no right, and lets none go.
	scaler := m.agent("autoscaler", Agent{Reads: reads, Acts: reads})
	m.gang("gang", 2, "prefer")
	must.Eq(t, []string{"spot-1", "spot-2"}, m.running("gang", 2))
	out, err := m.says(reads, "cost", "--record", filepath.Join(m.Dir(), "pools.record"))
	must.NoError(t, err, must.Sprint(out))
	must.NoError(t, os.WriteFile(filepath.Join(m.Dir(), "go"), nil, 0o644))
	m.logs(`the token lacks node { policy = \"write\" }`)
	scaler.kill()
	scaler = m.agent("autoscaler", Agent{Reads: reads, Acts: part})
	m.logs(`the token does not see the jobs of all namespaces; it lacks namespace \"*\"`)
	must.Len(t, 2, m.nodes("spot"))
	scaler.kill()
	m.agent("autoscaler", Agent{Reads: reads, Acts: acts})
	m.finish()
}

// logs waits until the autoscaler says something.
func (m *market) logs(text string) {
	m.t.Helper()
	must.NoError(m.t, cluster.WaitFor(m.t.Context(), time.Minute, "the log says "+text, func() (bool, string, error) {
		log, err := m.AutoscalerLog()
		return bytes.Contains(log, []byte(text)), "", err
	}))
}
