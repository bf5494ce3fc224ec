// SPDX-License-Identifier: MPL-2.0

// Package policies loads each example policy into the real Nomad Autoscaler,
// with our plugins, beside a stand-in of Nomad.
package policies

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/shoenig/test/must"

	"github.com/nomad-gpu/nomad-gpu/e2e/peers"
)

// line is one of the autoscaler's log.
type line struct {
	Level   string `json:"@level"`
	Message string `json:"@message"`
	Error   string `json:"error"`
	Plugin  string `json:"plugin_name"`
	text    string
}

// standIn is a Nomad without nodes, work or ACLs.
func standIn(t *testing.T) string {
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("X-Nomad-Index", "1")
		switch r.URL.Path {
		case "/v1/evaluations", "/v1/allocations", "/v1/nodes", "/v1/jobs", "/v1/scaling/policies":
			if r.URL.Query().Has("index") {
				<-r.Context().Done() // a blocking query: nothing changes
				return
			}
			fmt.Fprint(w, "[]")
		case "/v1/agent/self":
			fmt.Fprint(w, `{"config":{"Version":{"Version":"1.6.3"}},"stats":{}}`)
		default:
			http.NotFound(w, r)
		}
	}))
	t.Cleanup(server.Close)
	return server.URL
}

// program builds nomad-autoscaler-gpu into a folder of its own.
func program(t *testing.T) string {
	dir := t.TempDir()
	build := exec.CommandContext(t.Context(), "go", "build", "-o", filepath.Join(dir, "nomad-autoscaler-gpu"), "./autoscaler")
	build.Dir = peers.Root()
	out, err := build.CombinedOutput()
	must.NoError(t, err, must.Sprint(string(out)))
	return dir
}

// site is where the examples' absolute paths lead in a test.
type site struct{ plugins, nomad string }

// run starts the real autoscaler with the example configuration and one
// policy, and gives each line of its log to until, which says when to end.
func (s site) run(t *testing.T, policy string, until func(line) bool) {
	t.Helper()
	examples := filepath.Join(peers.Root(), "examples", "autoscaler")
	dir := t.TempDir()
	here := strings.NewReplacer(
		"/opt/nomad-autoscaler/plugins", s.plugins,
		"/etc/nomad-autoscaler", dir,
		"/var/lib/nomad-autoscaler-gpu", filepath.Join(dir, "state"),
		"/usr/local/bin/rack", filepath.Join(dir, "rack"),
		"http://127.0.0.1:4646", s.nomad,
	)
	write := func(name, text string, mode os.FileMode) {
		path := filepath.Join(dir, name)
		must.NoError(t, os.MkdirAll(filepath.Dir(path), 0o700))
		must.NoError(t, os.WriteFile(path, []byte(text), mode))
	}
	for _, name := range []string{"agent.hcl", "pools.hcl"} {
		data, err := os.ReadFile(filepath.Join(examples, name))
		must.NoError(t, err)
		write(name, here.Replace(string(data)), 0o600)
	}
	write("policies/one.hcl", strings.Replace(policy, `evaluation_interval = "15s"`, `evaluation_interval = "1s"`, 1), 0o600)
	write("rack", "#!/bin/sh\ncat > /dev/null\necho '{\"machines\":[]}'\n", 0o700)
	// Credentials that nothing is asked with before the policy is read.
	write("google.json", `{"type":"authorized_user","client_id":"id","client_secret":"none","refresh_token":"none"}`, 0o600)
	free, err := net.Listen("tcp", "127.0.0.1:0")
	must.NoError(t, err)
	port := free.Addr().(*net.TCPAddr).Port
	must.NoError(t, free.Close())
	write("own.hcl", fmt.Sprintf("log_level = \"trace\"\nlog_json = true\nhttp {\n  bind_address = \"127.0.0.1\"\n  bind_port = %d\n}\n", port), 0o600)

	autoscaler, err := peers.Find("nomad-autoscaler")
	must.NoError(t, err)
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	cmd := exec.CommandContext(ctx, autoscaler, "agent", "-config", filepath.Join(dir, "agent.hcl"), "-config", filepath.Join(dir, "own.hcl"))
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true} // its plugins end with it
	cmd.Cancel = func() error { return syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL) }
	cmd.Env = append(os.Environ(), "AWS_ACCESS_KEY_ID=none", "AWS_SECRET_ACCESS_KEY=none", "AWS_EC2_METADATA_DISABLED=true",
		"AZURE_TENANT_ID=none", "AZURE_CLIENT_ID=none", "AZURE_CLIENT_SECRET=none")
	log, err := cmd.StderrPipe()
	must.NoError(t, err)
	cmd.Stdout = cmd.Stderr
	must.NoError(t, cmd.Start())
	var seen strings.Builder
	found := false
	lines := bufio.NewScanner(log)
	for !found && lines.Scan() {
		l := line{text: lines.Text()}
		seen.WriteString(l.text + "\n")
		if json.Unmarshal(lines.Bytes(), &l) == nil {
			found = until(l)
		}
	}
	cmd.Cancel()
	cmd.Wait()
	must.True(t, found, must.Sprint(seen.String()))
}

func read(t *testing.T, path string) string {
	data, err := os.ReadFile(path)
	must.NoError(t, err)
	return string(data)
}

func TestEachExamplePolicyIsReadByTheRealAutoscaler(t *testing.T) {
	s := site{program(t), standIn(t)}
	paths, err := filepath.Glob(filepath.Join(peers.Root(), "examples", "autoscaler", "policies", "*.hcl"))
	must.NoError(t, err)
	must.Len(t, 6, paths)
	for _, path := range paths {
		t.Run(filepath.Base(path), func(t *testing.T) {
			text := read(t, path)
			target := regexp.MustCompile(`target "([^"]+)"`).FindStringSubmatch(text)[1]
			// Clouds do not answer here: their policies are read, by an autoscaler
			// that has their target. Our own target answers, and the policy is decided on.
			ends := "received policy"
			if target == "gpu-pool" {
				ends = "no checks need to be executed"
			}
			dispensed := map[string]bool{}
			s.run(t, text, func(l line) bool {
				must.True(t, l.Level != "error" && l.Message != "failed to run check", must.Sprint(l.text))
				if l.Message == "successfully launched and dispensed plugin" {
					dispensed[l.Plugin] = true
				}
				if l.Message != ends {
					return false
				}
				must.True(t, dispensed["gpu-queue"] && dispensed["gpu-pool"] && dispensed[target], must.Sprint(dispensed))
				return true
			})
		})
	}
}

func TestAWrongPolicyGetsAClearError(t *testing.T) {
	s := site{program(t), standIn(t)}
	good := read(t, filepath.Join(peers.Root(), "examples", "autoscaler", "policies", "local.hcl"))
	for name, c := range map[string]struct{ old, new, want string }{
		"a metric that there is not": {"needed_nodes", "needed_gpus", `query: metric "needed_gpus"; allowed are ["needed_nodes" `},
		"a pool that there is not":   {`{pool=\"workstation\"}`, `{pool=\"desk\"}`, `pool: "desk"; allowed are [`},
		"a strategy for no pool":     {"strategy \"gpu-pool\" {\n        pool = \"workstation\"", "strategy \"gpu-pool\" {\n        pool = \"desk\"", `strategy gpu-pool: pool: "desk"; allowed are [`},
		"a target for no pool":       {"target \"gpu-pool\" {\n      pool = \"workstation\"", "target \"gpu-pool\" {\n      pool = \"h100-spot\"", `target gpu-pool: pool "h100-spot" is of kind "target"`},
	} {
		t.Run(name, func(t *testing.T) {
			must.StrContains(t, good, c.old)
			s.run(t, strings.Replace(good, c.old, c.new, 1), func(l line) bool {
				return strings.Contains(l.Error, c.want)
			})
		})
	}
}
