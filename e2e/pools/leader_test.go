// SPDX-License-Identifier: MPL-2.0

package pools

import (
	"bytes"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"syscall"
	"testing"
	"time"

	"github.com/shoenig/test/must"

	"github.com/nomad-gpu/nomad-gpu/e2e/cluster"
	"github.com/nomad-gpu/nomad-gpu/e2e/clustertest"
)

// agent is one of several autoscalers.
type agent struct {
	t       *testing.T
	config  string
	log     string
	program string
	env     []string
	cmd     *exec.Cmd
}

func (m *market) agent(name string, a Agent) *agent {
	m.t.Helper()
	one := &agent{t: m.t, config: filepath.Join(m.Dir(), name+".hcl"), log: filepath.Join(m.Dir(), name+".log"), program: m.Program("nomad-autoscaler")}
	must.NoError(m.t, os.WriteFile(one.config, []byte(a.Config(m.Cluster, filepath.Join(clustertest.Programs, "autoscaler"), m.file)), 0o600))
	one.start()
	m.t.Cleanup(one.kill)
	return one
}

func (a *agent) start() {
	a.t.Helper()
	log, err := os.OpenFile(a.log, os.O_CREATE|os.O_WRONLY|os.O_APPEND, 0o600)
	must.NoError(a.t, err)
	defer log.Close()
	a.cmd = exec.Command(a.program, "agent", "-config", a.config)
	a.cmd.Stdout, a.cmd.Stderr = log, log
	a.cmd.Env = append(os.Environ(), a.env...)
	a.cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	must.NoError(a.t, a.cmd.Start())
}

// kill ends the autoscaler alone, and not its plugins, as a crash does.
func (a *agent) kill() {
	a.cmd.Process.Kill()
	a.cmd.Wait()
}

// targets are the processes of the target that live, of all autoscalers of a cluster.
func (m *market) targets() (pids []string) {
	all, err := filepath.Glob("/proc/[0-9]*/cmdline")
	must.NoError(m.t, err)
	want := []byte(filepath.Join(clustertest.Programs, "autoscaler", "nomad-autoscaler-gpu") + "\x00target\x00")
	for _, path := range all {
		if data, err := os.ReadFile(path); err == nil && bytes.Equal(data, want) {
			pids = append(pids, filepath.Base(filepath.Dir(path)))
		}
	}
	return pids
}

// Whoever leads is killed again and again while it buys: the other goes on with
// what it had begun.
func TestTwoAutoscalersHaveOneLeaderAndBuyNothingTwice(t *testing.T) {
	c := clustertest.Start(t)
	file, err := Describe(c, Pool{Name: "spot", Lifecycle: "spot", Price: 12.5, Max: 6})
	must.NoError(t, err)
	m := &market{Cluster: c, t: t, file: file}
	lock := &locks{}
	agents := map[string]*agent{}
	for i, name := range []string{"a", "b"} {
		agents[name] = m.agent("autoscaler-"+name, Agent{Nomad: lock.door(t, name, m.NomadAddress()), Port: i,
			More: "high_availability {\n  enabled = true\n  lock_path = \"autoscaler/lock\"\n  lock_ttl = \"3s\"\n  lock_delay = \"1s\"\n}"})
	}
	// A killed leader has the lock for a while yet: the next one is waited for.
	leads := func(nth int) (name string) {
		t.Helper()
		must.NoError(t, cluster.WaitFor(t.Context(), time.Minute, fmt.Sprint("autoscaler leads, the ", nth), func() (bool, string, error) {
			n := 0
			name, n = lock.leader()
			return name != "" && n >= nth, fmt.Sprint(name, n), nil
		}))
		return name
	}
	leads(1)
	m.gang("gang", 3, "prefer")
	for n := range 4 {
		name := leads(n + 1)
		time.Sleep(time.Duration(200+rand.IntN(1800)) * time.Millisecond) // the moment is what the test tries
		agents[name].kill()
		agents[name].start()
	}
	leads(5)
	m.running("gang", 3)
	must.Len(t, 3, m.nodes("spot"))
	must.Eq(t, 3, m.clients("spot"))
	must.NoError(t, cluster.WaitFor(t.Context(), 10*time.Second, "only the leader has plugins", func() (bool, string, error) {
		pids := m.targets()
		return len(pids) == 1, fmt.Sprint(pids), nil
	}))
	m.finish()
}
