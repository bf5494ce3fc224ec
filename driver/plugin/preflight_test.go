// SPDX-License-Identifier: MPL-2.0

package plugin

import (
	"fmt"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/hashicorp/nomad/plugins/drivers"
	"github.com/shoenig/test/must"

	"github.com/nomad-gpu/nomad-gpu/driver/consul"
	"github.com/nomad-gpu/nomad-gpu/driver/consul/consultest"
	"github.com/nomad-gpu/nomad-gpu/driver/preflight"
)

// withBlock adds a block to the least task.
func withBlock(block string) string {
	return strings.Replace(taskBlock, "gang {", block+"\n gang {", 1)
}

func TestThePreflightIsOnUnlessItIsSwitchedOff(t *testing.T) {
	s, err := parse(t, taskBlock).read()
	must.NoError(t, err)
	must.Eq(t, preflight.Defaults(), s.preflight)
	s, err = parse(t, withBlock("preflight {}")).read()
	must.NoError(t, err)
	must.Eq(t, preflight.Defaults(), s.preflight, must.Sprint("an empty block says nothing"))
	s, err = parse(t, withBlock(`preflight {
  reach = false
  versions = false
  limits = false
  rdma = false
  ratio = 0
}`)).read()
	must.NoError(t, err)
	must.Eq(t, preflight.Steps{Timeout: 2 * time.Minute}, s.preflight)
	s, err = parse(t, withBlock(`preflight {
  bandwidth = true
  min_gbps = 12.5
  ratio = 0.8
  leave_out = true
  shm_mib = 4096
  memlock_mib = 1024
  timeout = "30s"
}`)).read()
	must.NoError(t, err)
	must.Eq(t, preflight.Steps{Reach: true, Versions: true, Limits: true, RDMA: true, Bandwidth: true, MinGbps: 12.5, Ratio: 0.8, LeaveOut: true,
		ShmMiB: 4096, MemlockMiB: 1024, Timeout: 30 * time.Second}, s.preflight)
}

func TestThePreflightOfTheDocumentationIsTaken(t *testing.T) {
	page, err := os.ReadFile("../README.md")
	must.NoError(t, err)
	_, section, _ := strings.Cut(string(page), "## Preflight")
	_, block, _ := strings.Cut(section, "```hcl\n")
	block, _, _ = strings.Cut(block, "```")
	s, err := parse(t, withBlock(block)).read()
	must.NoError(t, err)
	want := preflight.Defaults()
	want.Bandwidth, want.MinGbps, want.LeaveOut = true, 80, true
	must.Eq(t, want, s.preflight)
}

func TestThePreflightLeavesTimeToPrepareTheProcess(t *testing.T) {
	s, err := parse(t, strings.Replace(taskBlock, "nodes = 2", "nodes = 2\n prepare_timeout = \"40s\"", 1)).read()
	must.NoError(t, err)
	must.Eq(t, 30*time.Second, s.preflight.Timeout)
}

func TestEachFaultOfThePreflightBlockIsNamed(t *testing.T) {
	for want, line := range map[string]string{
		`preflight.timeout: "soon"; allowed is a duration of at least 1s`: `timeout = "soon"`,
		`preflight.timeout: "10ms"`:                                       `timeout = "10ms"`,
		`preflight.min_gbps: "fast"; allowed is a number such as`:         `min_gbps = "fast"`,
		`preflight.ratio: 2; allowed are`:                                 `ratio = 2`,
		`preflight.leave_out: true, but preflight.bandwidth is false`:     `leave_out = true`,
		`preflight.min_gbps: 1, but preflight.bandwidth is false`:         `min_gbps = 1`,
	} {
		_, err := parse(t, withBlock("preflight {\n"+line+"\n}")).read()
		must.ErrorContains(t, err, want)
	}
}

func TestAListOfNICsIsTheUsersWhereItIsNotTheDevicePlugins(t *testing.T) {
	for _, c := range []struct {
		task, device map[string]string
		asked        bool
	}{
		{nil, nil, false},
		{map[string]string{"NCCL_IB_HCA": "=mlx5_0"}, map[string]string{"NCCL_IB_HCA": "=mlx5_0"}, false},
		{map[string]string{"NCCL_IB_HCA": "mlx5"}, map[string]string{"NCCL_IB_HCA": "=mlx5_0"}, true},
		{map[string]string{"NCCL_IB_HCA": "mlx5"}, nil, true},
	} {
		check := (&Driver{}).preflightOf(&drivers.TaskConfig{Env: c.task, DeviceEnv: c.device}, preflight.Defaults(), 2, nil, nil)
		must.Eq(t, c.asked, check.Host.AskedHCA)
		must.Eq(t, 2, check.Host.GPUs)
	}
}

func TestTheWorseNodeOfASlowPairFailsItsTaskAndTheGangGoesOnElsewhere(t *testing.T) {
	server := consultest.Start(t)
	n := startNode(t, server, "")
	kept := consul.NewBaselines(server.Client, "")
	for from, to := range map[string]string{"node-0": "node-1", "node-1": "node-2"} {
		must.NoError(t, kept.Keep(t.Context(), from, to, preflight.Baseline{Gbps: []float64{1e6}}))
	}
	task := func(i int) *drivers.TaskConfig {
		cfg := n.task(i, 3, checkpoints)
		var c TaskConfig
		must.NoError(t, cfg.DecodeDriverConfig(&c))
		c.Preflight = PreflightConfig{Reach: true, Bandwidth: true, LeaveOut: true, MinGbps: "0", Ratio: "0.5", Timeout: "1m"}
		c.Gang.Restarts = 0
		must.NoError(t, cfg.EncodeConcreteDriverConfig(&c))
		return cfg
	}
	slow := task(1)
	for _, cfg := range []*drivers.TaskConfig{task(0), slow, task(2)} {
		n.start(cfg)
	}
	r := n.exit(slow)
	must.Eq(t, 1, r.ExitCode, must.Sprint("Nomad places a task that failed on another node"))
	must.ErrorContains(t, r.Err, "rank 1 is left out: preflight: bandwidth from rank ")
	must.ErrorContains(t, r.Err, "Gbit/s, usually 1e+06")
	n.start(task(3))
	for i := range 3 {
		n.out(fmt.Sprintf("up %d of 2", i))
	}
}
