// SPDX-License-Identifier: MPL-2.0

// Package scenarios tests what a user of the task driver meets, on the real
// Nomad and Consul: as root with each client in a network namespace of its own.
package scenarios

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/hashicorp/nomad/api"
	"github.com/shirou/gopsutil/v4/process"
	"github.com/shoenig/test/must"

	"github.com/nomad-gpu/nomad-gpu/e2e/cluster"
	"github.com/nomad-gpu/nomad-gpu/e2e/clustertest"
	"github.com/nomad-gpu/nomad-gpu/e2e/peers"
)

func TestMain(m *testing.M) { clustertest.Main(m) }

// world is a cluster of GPU nodes.
type world struct {
	*cluster.Cluster
	t *testing.T
}

// newWorld has two nodes of different kinds.
func newWorld(t *testing.T) *world {
	t.Helper()
	return newWorldOf(t, cluster.Client{Name: "one", NodePool: "gpu", Profile: "dgx-h100"},
		cluster.Client{Name: "two", NodePool: "gpu", Profile: "pcie-nvlink-pairs"})
}

func newWorldOf(t *testing.T, clients ...cluster.Client) *world {
	t.Helper()
	return &world{clustertest.Start(t, clients...), t}
}

// gang is a job of two members that run a script of the test's own; change
// edits the jobspec.
func (w *world) gang(name, script string, change ...string) {
	w.t.Helper()
	spec := strings.NewReplacer(append([]string{"NAME", name, "SCRIPT", script}, change...)...).Replace(`
job "NAME" {
  type        = "batch"
  datacenters = ["*"]
  node_pool   = "gpu"
  group "gang" {
    count = 2
    restart {
      attempts = 0
      mode     = "fail"
    }
    reschedule {
      attempts  = 0
      unlimited = false
    }
    constraint {
      distinct_hosts = true
    }
    network {
      port "gang_a" {}
      port "gang_b" {}
    }
    task "t" {
      driver       = "nccl"
      kill_timeout = "5s"
      env {
        USER_SET = "yes"
      }
      config {
        command = "/bin/sh"
        args    = ["-c", "SCRIPT"]
        gang {
          nodes    = 2
          restarts = 1
        }
        checkpoint {
          grace = "2s"
        }
      }
      resources {
        cpu    = 50
        memory = 64
        device "nvidia/gpu" {
          count = 2
        }
      }
    }
  }
}
`)
	w.register(spec)
}

func (w *world) register(spec string) {
	w.t.Helper()
	job, err := w.Nomad().Jobs().ParseHCL(spec, true)
	must.NoError(w.t, err)
	_, _, err = w.Nomad().Jobs().Register(job, nil)
	must.NoError(w.t, err)
}

const deviceBlock = `device "nvidia/gpu" {
          count = 2
        }`

func (w *world) allocs(job string) []*api.AllocationListStub {
	allocs, _, err := w.Nomad().Jobs().Allocations(job, true, nil)
	must.NoError(w.t, err)
	return allocs
}

// events are all task events of a job.
func (w *world) events(job string) string {
	var all []string
	for _, a := range w.allocs(job) {
		for _, s := range a.TaskStates {
			for _, e := range s.Events {
				all = append(all, a.NodeName+" "+e.DisplayMessage)
			}
		}
	}
	return strings.Join(all, "\n")
}

// patience is enough for anything that does not wait for a time by design, on
// a machine that has other things to do.
const patience = 4 * time.Minute

// until waits for a condition on the job.
func (w *world) until(job, what string, holds func([]*api.AllocationListStub) bool) {
	w.t.Helper()
	err := cluster.WaitFor(w.t.Context(), patience, what, func() (bool, string, error) {
		return holds(w.allocs(job)), w.events(job), nil
	})
	must.NoError(w.t, err)
}

func (w *world) untilEvent(job, text string) {
	w.t.Helper()
	w.until(job, "an event says "+text, func([]*api.AllocationListStub) bool { return strings.Contains(w.events(job), text) })
}

func (w *world) untilAll(job, status string) {
	w.t.Helper()
	w.until(job, "all allocations are "+status, func(all []*api.AllocationListStub) bool {
		return len(all) == 2 && !slices.ContainsFunc(all, func(a *api.AllocationListStub) bool { return a.ClientStatus != status })
	})
}

// output is what a job's members printed, in no order: read from the clients'
// own files, which is quick enough to be asked again and again.
func (w *world) output(job string) string {
	var all strings.Builder
	for _, a := range w.allocs(job) {
		files, err := filepath.Glob(filepath.Join(w.Dir(), "*", "alloc", a.ID, "alloc", "logs", "t.stdout.*"))
		must.NoError(w.t, err)
		for _, file := range files {
			text, err := os.ReadFile(file)
			must.NoError(w.t, err)
			all.Write(text)
		}
	}
	return all.String()
}

// nothingLeft: no key and no session of a gang in Consul, no process of the job.
func (w *world) nothingLeft(job string) {
	w.t.Helper()
	err := cluster.WaitFor(w.t.Context(), 30*time.Second, "nothing is left of "+job, func() (bool, string, error) {
		keys, _, err := w.Consul().KV().Keys("nccl/", "", nil)
		if err != nil {
			return false, "", err
		}
		sessions, _, err := w.Consul().Session().List(nil)
		if err != nil {
			return false, "", err
		}
		left := w.processes("NOMAD_JOB_NAME=" + job)
		return len(keys)+len(sessions)+len(left) == 0, fmt.Sprint(keys, len(sessions), left), nil
	})
	must.NoError(w.t, err)
}

func (w *world) processes(entry string) []int32 {
	var found []int32
	all, err := process.Processes()
	must.NoError(w.t, err)
	for _, p := range all {
		if env, err := p.Environ(); err == nil && slices.Contains(env, entry) {
			found = append(found, p.Pid)
		}
	}
	return found
}

// drivers are the driver's plugin processes, one on each client of this cluster.
func (w *world) drivers() []*process.Process {
	var found []*process.Process
	all, err := process.Processes()
	must.NoError(w.t, err)
	for _, p := range all {
		line, err := p.CmdlineSlice()
		if err != nil || len(line) != 1 || filepath.Base(line[0]) != "nomad-driver-nccl" {
			continue
		}
		if agent, err := p.Parent(); err == nil {
			if line, err := agent.Cmdline(); err == nil && strings.Contains(line, w.Dir()) {
				found = append(found, p)
			}
		}
	}
	return found
}

const whoami = `echo rank=$RANK node=$NODE_RANK world=$WORLD_SIZE master=$MASTER_ADDR:$MASTER_PORT gpus=$CUDA_VISIBLE_DEVICES user=$USER_SET generation=$GANG_GENERATION`

func TestAGangOfTwoHosts(t *testing.T) {
	w := newWorld(t)
	t.Run("gets its ranks, its GPUs and one master", func(t *testing.T) {
		w.t = t
		w.gang("ranks", whoami)
		w.untilAll("ranks", "complete")
		out := w.output("ranks")
		must.StrContains(t, out, "node=0 world=4 ")
		must.StrContains(t, out, "node=1 world=4 ")
		must.Eq(t, 2, strings.Count(out, "user=yes generation=1"))
		must.Eq(t, 4, strings.Count(out, "GPU-"))
		master := strings.Fields(out)[3]
		must.Eq(t, 2, strings.Count(out, master))
		if w.Root() {
			must.StrNotContains(t, master, "=127.")
		}
		w.nothingLeft("ranks")
	})
	t.Run("goes on when the driver is killed", func(t *testing.T) {
		w.t = t
		flag := filepath.Join(w.Dir(), "go")
		w.gang("survives", "trap : TERM; while [ ! -e "+flag+" ]; do sleep 0.1; done; "+whoami)
		w.untilEvent("survives", "all 2 members are prepared and start")
		before := w.drivers()
		must.SliceNotEmpty(t, before)
		for _, p := range before {
			must.NoError(t, p.Kill())
		}
		must.NoError(t, cluster.WaitFor(t.Context(), time.Minute, "the drivers are started again", func() (bool, string, error) {
			now := w.drivers()
			return len(now) == len(before) && now[0].Pid != before[0].Pid, fmt.Sprint(now), nil
		}))
		must.NoError(t, os.WriteFile(flag, nil, 0o600))
		w.untilAll("survives", "complete")
		must.Eq(t, 2, strings.Count(w.output("survives"), "generation=1"), must.Sprint("the gang was restarted"))
		w.nothingLeft("survives")
	})
	t.Run("goes on when the agents are killed", func(t *testing.T) {
		w.t = t
		flag := filepath.Join(w.Dir(), "go-on")
		w.gang("agents", "while [ ! -e "+flag+" ]; do sleep 0.1; done; "+whoami)
		w.untilEvent("agents", "all 2 members are prepared and start")
		for _, name := range []string{"one", "two"} {
			w.KillClient(name)
			must.NoError(t, w.StartClient(name))
		}
		must.NoError(t, os.WriteFile(flag, nil, 0o600))
		w.untilAll("agents", "complete")
		must.Eq(t, 2, strings.Count(w.output("agents"), "generation=1"), must.Sprint("the gang was restarted"))
		w.nothingLeft("agents")
	})
	t.Run("stops as a whole and leaves nothing", func(t *testing.T) {
		w.t = t
		w.gang("stopped", "setsid sleep 1000 & trap '' TERM; while true; do sleep 0.1; done")
		w.untilEvent("stopped", "all 2 members are prepared and start")
		_, _, err := w.Nomad().Jobs().Deregister("stopped", false, nil)
		must.NoError(t, err)
		w.untilAll("stopped", "complete")
		w.nothingLeft("stopped")
	})
	t.Run("fails everywhere with the first rank's last words", func(t *testing.T) {
		w.t = t
		w.gang("fails", `if [ $NODE_RANK = 1 ]; then echo no such file: data.bin >&2; exit 7; fi; sleep 1000`)
		w.untilAll("fails", "failed")
		events := w.events("fails")
		must.StrContains(t, events, "one rank 1 on two exited with code 7: no such file: data.bin; no restart left of 1")
		must.StrContains(t, events, "two rank 1 on two exited with code 7: no such file: data.bin; no restart left of 1")
		w.nothingLeft("fails")
	})
}

func TestConsulAwayInTheMiddleDoesNotStopAGang(t *testing.T) {
	w := newWorld(t)
	flag := filepath.Join(w.Dir(), "go")
	w.gang("steady", "while [ ! -e "+flag+" ]; do sleep 0.1; done; "+whoami)
	w.untilEvent("steady", "all 2 members are prepared and start")
	w.StopConsul()
	w.untilEvent("steady", "Waiting for Consul")
	must.NoError(t, w.RestartConsul(t.Context()))
	w.untilEvent("steady", "Consul is reached again")
	must.NoError(t, os.WriteFile(flag, nil, 0o600))
	w.untilAll("steady", "complete")
	must.Eq(t, 2, strings.Count(w.output("steady"), "generation=1"), must.Sprint("the gang was restarted"))
	w.nothingLeft("steady")
}

func TestConsulAwayAtTheStartIsSaidByTheNode(t *testing.T) {
	w := newWorld(t)
	w.StopConsul()
	must.NoError(t, cluster.WaitFor(t.Context(), 90*time.Second, "the driver is unhealthy and says why", func() (bool, string, error) {
		nodes, _, err := w.Nomad().Nodes().List(nil)
		if err != nil {
			return false, "", err
		}
		d := nodes[0].Drivers["nccl"]
		return !d.Healthy && strings.Contains(d.HealthDescription, "Consul cannot be reached"), fmt.Sprintf("%+v", d), nil
	}))
}

func TestWhatCannotWorkIsSaidInTheTasksEvents(t *testing.T) {
	w := newWorld(t)
	for name, c := range map[string]struct {
		change []string
		want   string
	}{
		"size-zero":  {[]string{"nodes    = 2", "nodes    = 0"}, "gang.nodes: 0; allowed are 1 to 4096"},
		"no-command": {[]string{`"/bin/sh"`, `"/no/such/program"`}, `command: "/no/such/program" does not exist`},
		"reserved":   {[]string{`USER_SET = "yes"`, `RANK = "0"`}, `env: RANK is set to "0"; it is the driver's to set`},
		// With a device block Nomad itself sets the reserved GPUs over it.
		"all-gpus":      {[]string{`USER_SET = "yes"`, `NVIDIA_VISIBLE_DEVICES = "all"`, deviceBlock, ""}, `NVIDIA_VISIBLE_DEVICES is set to "all"; allowed are the GPUs that are reserved`},
		"no-port":       {[]string{`port "gang_b" {}`, ""}, `the group reserves no port "gang_b"; add`},
		"bad-signal":    {[]string{`grace = "2s"`, `signal = "SIGNOTHING"`}, `checkpoint.signal: "SIGNOTHING"`},
		"unknown-field": {[]string{"restarts = 1", "restart = 1"}, "restart"},
	} {
		t.Run(name, func(t *testing.T) {
			w.t = t
			w.gang(name, whoami, c.change...)
			w.untilEvent(name, c.want)
			w.untilAll(name, "failed")
			w.nothingLeft(name)
		})
	}
}

func TestAnUnknownProfileStopsTheAgentAtItsStart(t *testing.T) {
	c, err := cluster.Start(t.Context(), cluster.Options{PluginDir: filepath.Join(peers.Root(), ".cache", "bin", "nomad")})
	must.NoError(t, err)
	defer c.Stop()
	must.ErrorContains(t, c.AddClients(t.Context(), cluster.Client{Name: "odd", Profile: "dgx-z9000"}), "client odd has ended")
	must.StrContains(t, c.Words(40), `profile "dgx-z9000" is not known; allowed are dgx-a100, dgx-h100, dgx1-v100, pcie-nvlink-pairs`)
}

func TestAKilledSupervisorRestartsTheGang(t *testing.T) {
	w := newWorld(t)
	flag := filepath.Join(w.Dir(), "go")
	w.gang("orphan", "while [ ! -e "+flag+" ]; do sleep 0.1; done; "+whoami)
	w.untilEvent("orphan", "all 2 members are prepared and start")
	all, err := process.Processes()
	must.NoError(t, err)
	for _, p := range all {
		if line, err := p.CmdlineSlice(); err == nil && len(line) == 3 && line[1] == "supervise" && strings.Contains(line[2], w.Dir()) {
			must.NoError(t, syscall.Kill(int(p.Pid), syscall.SIGKILL))
			break
		}
	}
	w.untilEvent("orphan", "Generation 2: all 2 members are prepared and start")
	must.NoError(t, os.WriteFile(flag, nil, 0o600))
	w.untilAll("orphan", "complete")
	must.Eq(t, 2, strings.Count(w.output("orphan"), "generation=2"))
	w.nothingLeft("orphan")
}
