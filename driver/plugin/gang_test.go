// SPDX-License-Identifier: MPL-2.0

package plugin

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/hashicorp/go-hclog"
	"github.com/hashicorp/nomad/helper/pluginutils/hclutils"
	"github.com/hashicorp/nomad/nomad/structs"
	"github.com/hashicorp/nomad/plugins/base"
	"github.com/hashicorp/nomad/plugins/drivers"
	"github.com/shoenig/test/must"
	"github.com/shoenig/test/wait"

	"github.com/nomad-gpu/nomad-gpu/driver/consul/consultest"
)

// node is a driver as Nomad's agent has it, on a real Consul.
type node struct {
	*Driver
	t      *testing.T
	health <-chan *drivers.Fingerprint
	events <-chan *drivers.TaskEvent
	dir    string
}

// startNode configures a driver with the lines of its config block.
func startNode(t *testing.T, server *consultest.Server, lines string) *node {
	t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	n := &node{Driver: New(ctx, hclog.NewNullLogger()), t: t, dir: t.TempDir()}
	var config Config
	hclutils.NewConfigParser(configSpec).ParseHCL(t, fmt.Sprintf("config {\n consul {\n address = %q\n }\n session_ttl = \"10s\"\n%s\n}", server.Address, lines), &config)
	var packed []byte
	must.NoError(t, base.MsgPackEncode(&packed, config))
	must.NoError(t, n.SetConfig(&base.Config{PluginConfig: packed}))
	var err error
	n.health, err = n.Fingerprint(ctx)
	must.NoError(t, err)
	n.events, err = n.TaskEvents(ctx)
	must.NoError(t, err)
	t.Cleanup(func() {
		for _, task := range n.tasks.all() {
			must.NoError(t, n.DestroyTask(task.cfg.ID, true))
		}
		cancel()
	})
	return n
}

// task is a task of one of the job's allocations.
func (n *node) task(index, nodes int, script string) *drivers.TaskConfig {
	n.t.Helper()
	alloc := fmt.Sprintf("00000000-0000-0000-0000-%012d", index)
	dir := filepath.Join(n.dir, alloc)
	must.NoError(n.t, os.MkdirAll(filepath.Join(dir, "train", "local"), 0o755))
	cfg := &drivers.TaskConfig{ID: alloc + "/train", Name: "train", AllocID: alloc, AllocDir: dir, JobID: "job", Namespace: "default",
		TaskGroupName: "gang", NodeName: fmt.Sprintf("node-%d", index), StdoutPath: filepath.Join(dir, "stdout"), StderrPath: filepath.Join(dir, "stderr"),
		Env: map[string]string{"NOMAD_ALLOC_ID": alloc, "NOMAD_ALLOC_INDEX": fmt.Sprint(index), "NOMAD_REGION": "global", "OUT": filepath.Join(n.dir, "out"), "PATH": os.Getenv("PATH")},
		Resources: &drivers.Resources{Ports: &structs.AllocatedPorts{
			{Label: "gang_a", Value: 20000 + index, HostIP: "127.0.0.1"}, {Label: "gang_b", Value: 21000 + index, HostIP: "127.0.0.1"}}}}
	c := parse(n.t, strings.Replace(taskBlock, "nodes = 2", fmt.Sprintf("nodes = %d", nodes), 1))
	c.Args = []string{"-c", script}
	c.Gang.FenceDelay = "100ms"
	must.NoError(n.t, cfg.EncodeConcreteDriverConfig(&c))
	return cfg
}

func (n *node) start(cfg *drivers.TaskConfig) {
	n.t.Helper()
	_, _, err := n.StartTask(cfg)
	must.NoError(n.t, err)
}

// exit waits for a task's end.
func (n *node) exit(cfg *drivers.TaskConfig) *drivers.ExitResult {
	n.t.Helper()
	ch, err := n.WaitTask(n.ctx, cfg.ID)
	must.NoError(n.t, err)
	select {
	case r := <-ch:
		return r
	case <-time.After(time.Minute):
		n.t.Fatalf("task %s does not end", cfg.ID)
		return nil
	}
}

// until reads fingerprints until one says so.
func (n *node) until(words string) *drivers.Fingerprint {
	n.t.Helper()
	for {
		select {
		case f := <-n.health:
			if strings.Contains(f.HealthDescription, words) {
				return f
			}
		case <-time.After(time.Minute):
			n.t.Fatalf("no fingerprint says %q", words)
		}
	}
}

// out waits until the tasks have written all the words.
func (n *node) out(words ...string) {
	n.t.Helper()
	must.Wait(n.t, wait.InitialSuccess(wait.ErrorFunc(func() error {
		data, err := os.ReadFile(filepath.Join(n.dir, "out"))
		for _, w := range words {
			if !strings.Contains(string(data), w) {
				return fmt.Errorf("no %q in %q: %v", w, data, err)
			}
		}
		return nil
	}), wait.Timeout(time.Minute), wait.Gap(20*time.Millisecond)))
}
