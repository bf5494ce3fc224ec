// SPDX-License-Identifier: MPL-2.0

package scenarios

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/hashicorp/nomad/api"
	"github.com/shoenig/test/must"

	"github.com/nomad-gpu/nomad-gpu/autoscaler/demand"
	"github.com/nomad-gpu/nomad-gpu/e2e/cluster"
	"github.com/nomad-gpu/nomad-gpu/e2e/peers"
)

// five are one node more than a training of four needs; driver is more of the
// driver's configuration, in which NAME stands for the node's name.
func five(t *testing.T, driver ...string) *world {
	var clients []cluster.Client
	for _, name := range []string{"one", "two", "three", "four", "five"} {
		clients = append(clients, cluster.Client{Name: name, NodePool: "gpu", Profile: "dgx-h100", Driver: strings.ReplaceAll(strings.Join(driver, "\n"), "NAME", name)})
	}
	return newWorldOf(t, clients...)
}

// training is a run of PyTorch on four nodes.
type training struct {
	w          *world
	job        string
	steps      int
	checkpoint string
}

// minute is the number of steps that take about one with all that is around them.
const minute = 150

// train starts it; gang is more of the gang block, and group of the group's.
func (w *world) train(job, gang string, group ...string) training {
	w.t.Helper()
	return w.trainIn(minute, job, "", gang, group...)
}

// trainIn is train for so many steps, with more of the task's configuration, in which CHECKPOINT
// is the directory of the checkpoints.
func (w *world) trainIn(steps int, job, config, gang string, group ...string) training {
	w.t.Helper()
	tr := training{w, job, steps, filepath.Join(w.Dir(), "checkpoints-"+job)}
	must.NoError(w.t, os.Mkdir(tr.checkpoint, 0o777))
	w.register(fmt.Sprintf(`
job %[1]q {
  type        = "batch"
  datacenters = ["*"]
  node_pool   = "gpu"
  group "gang" {
    count = 4
    %[5]s
    restart {
      attempts = 0
      mode     = "fail"
    }
    reschedule {
      attempts  = 3
      interval  = "1h"
      delay     = "5s"
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
      kill_timeout = "20s"
      config {
        command        = "/usr/bin/python3"
        args           = [%[2]q, "--steps", "%[7]d", "--step-seconds", "0.2", "--checkpoint", "20"]
        nproc_per_node = 1
        %[6]s
        gang {
          nodes = 4
          %[3]s
        }
        checkpoint {
          dir   = %[4]q
          grace = "20s"
        }
      }
      resources {
        cpu    = 50
        memory = 300
        device "nvidia/gpu" {
          count = 8
        }
      }
    }
  }
}
`, job, filepath.Join(peers.Root(), "examples", "pytorch-ddp", "train.py"), gang, tr.checkpoint, strings.Join(group, "\n"), strings.ReplaceAll(config, "CHECKPOINT", tr.checkpoint), steps))
	return tr
}

// event is a line that a rank prints.
type event struct {
	Event      string `json:"event"`
	Rank       int    `json:"rank"`
	Generation int    `json:"generation"`
	World      int    `json:"world"`
	Step       int    `json:"step"`
	Digest     string `json:"digest"`
	OK         bool   `json:"ok"`
}

func (tr training) events() []event {
	var all []event
	for _, line := range strings.Split(tr.w.output(tr.job), "\n") {
		var e event
		if json.Unmarshal([]byte(line), &e) == nil && e.Event != "" {
			all = append(all, e)
		}
	}
	return all
}

// until waits until a rank has printed what is wanted.
func (tr training) until(what string, holds func(event) bool) event {
	tr.w.t.Helper()
	var found event
	must.NoError(tr.w.t, cluster.WaitFor(tr.w.t.Context(), patience, what, func() (bool, string, error) {
		all := tr.events()
		i := slices.IndexFunc(all, holds)
		if i >= 0 {
			found = all[i]
		}
		return i >= 0, tr.w.tail(tr.job), nil
	}))
	return found
}

// tail is what went on in the job last.
func (w *world) tail(job string) string {
	lines := strings.Split(w.events(job)+"\n"+w.output(job), "\n")
	return strings.Join(lines[max(0, len(lines)-40):], "\n")
}

// ends waits for the end and checks the result: every rank of the generation
// has passed all its checks, with the same parameters.
func (tr training) ends(generation, ranks int) {
	tr.w.t.Helper()
	var all []event
	must.NoError(tr.w.t, cluster.WaitFor(tr.w.t.Context(), 2*patience, "all ranks have a result", func() (bool, string, error) {
		all = slices.DeleteFunc(tr.events(), func(e event) bool { return e.Event != "result" })
		return len(all) >= ranks, tr.w.tail(tr.job), nil
	}))
	must.Len(tr.w.t, ranks, all)
	for _, e := range all {
		must.Eq(tr.w.t, generation, e.Generation)
		must.True(tr.w.t, e.OK)
		must.Eq(tr.w.t, tr.steps, e.Step)
		must.Eq(tr.w.t, all[0].Digest, e.Digest)
	}
}

// member is the node that a rank of a generation is on.
func (w *world) member(job string, generation, rank int) string {
	w.t.Helper()
	mark := fmt.Sprintf("Generation %d: rank %d of ", generation, rank)
	for _, line := range strings.Split(w.events(job), "\n") {
		if node, said, _ := strings.Cut(line, " "); strings.HasPrefix(said, mark) {
			return node
		}
	}
	w.t.Fatalf("no event says %q:\n%s", mark, w.events(job))
	return ""
}

func (w *world) node(name string) string {
	nodes, _, err := w.Nomad().Nodes().List(nil)
	must.NoError(w.t, err)
	i := slices.IndexFunc(nodes, func(n *api.NodeListStub) bool { return n.Name == name })
	must.True(w.t, i >= 0, must.Sprint("no node "+name))
	return nodes[i].ID
}

// onItsOwn: hosts can be cut off only where each has a network of its own.
func onItsOwn(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("needs root: each node in a network namespace of its own")
	}
}

func TestADrainedNodeLosesNothing(t *testing.T) {
	w := five(t)
	tr := w.train("drained", "restarts = 0")
	tr.until("generation 1 trains", func(e event) bool { return e.Event == "step" && e.Step >= 10 })
	out := w.member("drained", 1, 2)
	// Nomad lets a batch job run on until the drain's deadline.
	_, err := w.Nomad().Nodes().UpdateDrain(w.node(out), &api.DrainSpec{Deadline: 3 * time.Second}, false, nil)
	must.NoError(t, err)
	resumed := tr.until("generation 2 goes on", func(e event) bool { return e.Event == "resume" && e.Generation == 2 })
	saved := 0
	for _, e := range tr.events() {
		if e.Event == "step" && e.Generation == 1 {
			saved = max(saved, e.Step)
		}
	}
	must.GreaterEq(t, saved, resumed.Step, must.Sprint("steps were lost"))
	must.StrContains(t, w.events("drained"), "Generation 1 stops: rank 2 on "+out+" was told to stop by Nomad")
	must.NotEq(t, out, w.member("drained", 2, 2), must.Sprint("the replacement takes the rank"))
	tr.ends(2, 4)
	w.nothingLeft("drained")
}

func TestANoticeOfInterruptionLosesNothing(t *testing.T) {
	notices := t.TempDir()
	w := five(t, "notice {\n source = \"file\"\n path = \""+notices+"/NAME\"\n period = \"1s\"\n}")
	tr := w.train("noticed", "restarts = 0")
	tr.until("generation 1 trains", func(e event) bool { return e.Event == "step" && e.Step >= 10 })
	node := w.member("noticed", 1, 1)
	must.NoError(t, os.WriteFile(filepath.Join(notices, node), []byte("spot capacity is taken back\n"), 0o644))
	resumed := tr.until("generation 2 goes on", func(e event) bool { return e.Event == "resume" && e.Generation == 2 })
	saved := 0
	for _, e := range tr.events() {
		if e.Event == "step" && e.Generation == 1 {
			saved = max(saved, e.Step)
		}
	}
	must.GreaterEq(t, saved, resumed.Step, must.Sprint("steps were lost"))
	must.StrContains(t, w.events("noticed"), "spot capacity is taken back")
	n, _, err := w.Nomad().Nodes().Info(w.node(node), nil)
	must.NoError(t, err)
	must.False(t, n.Drivers["nccl"].Healthy, must.Sprint("the node takes new gangs"))
	must.StrContains(t, n.Drivers["nccl"].HealthDescription, "spot capacity is taken back")
	must.NotEq(t, node, w.member("noticed", 2, 1))
	tr.ends(2, 4)
	w.nothingLeft("noticed")
}

func TestAnElasticGangGoesOnWithoutALostNodeAndTakesItBack(t *testing.T) {
	onItsOwn(t)
	w := five(t)
	_, err := w.Nomad().Nodes().ToggleEligibility(w.node("five"), false, nil)
	must.NoError(t, err)
	// Three go on for up to 75 s: Nomad's client asks again up to 30 s after the
	// partition and puts a new allocation in the lost one's place.
	tr := w.trainIn(3*minute, "elastic", "", "restarts = 0\n min_nodes = 2\n last_call = \"3s\"\n grow_interval = \"45s\"")
	tr.until("generation 1 trains", func(e event) bool { return e.Event == "step" && e.Step >= 5 })
	lost := w.member("elastic", 1, 3)
	must.NoError(t, w.Isolate(lost, true))
	tr.until("three go on", func(e event) bool { return e.Event == "start" && e.Generation == 2 && e.World == 3 })
	must.NoError(t, w.Isolate(lost, false))
	four := tr.until("four go on", func(e event) bool { return e.Event == "start" && e.World == 4 && e.Generation > 2 })
	must.StrContains(t, w.events("elastic"), "it grows from 3 to 4 members: "+lost)
	tr.ends(four.Generation, 4)
	w.nothingLeft("elastic")
}

func TestOfTwoGangsThatEachHoldWhatTheOtherNeedsOneGoesFirstAndBothEnd(t *testing.T) {
	w := newWorldOf(t, cluster.Client{Name: "one", NodePool: "gpu", Profile: "dgx-h100"}, cluster.Client{Name: "two", NodePool: "gpu", Profile: "dgx-h100"})
	whole := []string{"count = 2\n        }", "count = 8\n        }", "restarts = 1", "restarts = 1\n form_timeout = \"8s\"",
		"attempts  = 0\n      unlimited = false", "attempts  = 5\n      interval  = \"1h\"\n      delay     = \"5s\"\n      unlimited = false"}
	on := func(names string) []string {
		return append([]string{"constraint {\n", "constraint {\n attribute = \"${node.unique.name}\"\n operator = \"regexp\"\n value = \"" + names + "\"\n }\n constraint {\n"}, whole...)
	}
	// Each is given one node, and only then may it have the other's.
	w.gang("first", whoami, on("one")...)
	w.untilEvent("first", "1 of 2 members")
	w.gang("second", whoami, on("two")...)
	w.untilEvent("second", "1 of 2 members")
	w.gang("first", whoami, on("one|two")...)
	w.gang("second", whoami, on("one|two")...)
	for _, job := range []string{"first", "second"} {
		w.until(job, job+" is done", func(all []*api.AllocationListStub) bool {
			done := slices.DeleteFunc(slices.Clone(all), func(a *api.AllocationListStub) bool { return a.ClientStatus != "complete" })
			return len(done) == 2
		})
	}
	must.StrContains(t, w.events("second"), "gave its nodes back: not whole within form_timeout 8s, and default/first/gang is before it in line")
	must.StrNotContains(t, w.events("first"), "gave its nodes back")
	w.nothingLeft("second")
}

// While it prepares a gang is stopped in the tests of package member: here
// that takes milliseconds.
func TestAJobIsStoppedInEachState(t *testing.T) {
	w := newWorld(t)
	stop := func(job string) {
		_, _, err := w.Nomad().Jobs().Deregister(job, false, nil)
		must.NoError(w.t, err)
	}
	ended := func(job string) {
		w.until(job, "no allocation is left", func(all []*api.AllocationListStub) bool {
			return !slices.ContainsFunc(all, func(a *api.AllocationListStub) bool {
				return a.ClientStatus == "running" || a.ClientStatus == "pending"
			})
		})
		w.nothingLeft(job)
	}
	t.Run("forming", func(t *testing.T) {
		w.t = t
		w.gang("forming", whoami, "nodes    = 2", "nodes    = 3")
		w.untilEvent("forming", "2 of 3 members")
		must.NoError(t, cluster.WaitFor(t.Context(), time.Minute, "the autoscaler's queue names it", func() (bool, string, error) {
			r, err := demand.NewReader(w.Nomad()).Read(t.Context(), time.Now())
			if err != nil || len(r.Forming) != 1 {
				return false, fmt.Sprint(r.Forming), err
			}
			return len(r.Work) == 0 && r.Forming[0].Work.Job == "forming" && strings.Contains(r.Forming[0].Reason, "2 of 3 members"), r.Forming[0].Reason, nil
		}))
		stop("forming")
		ended("forming")
		must.StrNotContains(t, w.output("forming"), "rank=", must.Sprint("a process was started"))
	})
	t.Run("running", func(t *testing.T) {
		w.t = t
		w.gang("running", "while true; do sleep 0.1; done")
		w.untilEvent("running", "all 2 members are prepared and start")
		stop("running")
		ended("running")
	})
	t.Run("stopping", func(t *testing.T) {
		w.t = t
		w.gang("stopping", `if [ $NODE_RANK = 1 ]; then exit 3; fi; trap \"\" TERM; while true; do sleep 0.1; done`, `grace = "2s"`, `grace = "20s"`)
		w.untilEvent("stopping", "Generation 1 stops: rank 1")
		stop("stopping")
		ended("stopping")
	})
}

// The waits of the tests below are long by design, and idle: they run side by side.

func TestANodeCutOffForTenSecondsIsNotMissed(t *testing.T) {
	onItsOwn(t)
	t.Parallel()
	w := five(t)
	// Nomad misses the node after eight seconds here, and places a replacement:
	// told that clients may disconnect, it takes the first one back.
	tr := w.train("blink", "restarts = 0", `max_client_disconnect = "2m"`)
	tr.until("generation 1 trains", func(e event) bool { return e.Event == "step" && e.Step >= 10 })
	node := w.member("blink", 1, 3)
	must.NoError(t, w.Isolate(node, true))
	sleep(t, 10*time.Second)
	must.NoError(t, w.Isolate(node, false))
	tr.ends(1, 4)
	w.nothingLeft("blink")
}

func TestANodeCutOffForFiveMinutesIsReplacedAndStopsWhatItRan(t *testing.T) {
	onItsOwn(t)
	t.Parallel()
	w := five(t)
	tr := w.train("cut", "restarts = 0")
	tr.until("generation 1 trains", func(e event) bool { return e.Event == "step" && e.Step >= 10 })
	node := w.member("cut", 1, 3)
	must.NoError(t, w.Isolate(node, true))
	tr.until("the others go on with a replacement", func(e event) bool { return e.Event == "start" && e.Generation == 2 })
	must.NotEq(t, node, w.member("cut", 2, 3))
	tr.ends(2, 4)
	sleep(t, 5*time.Minute)
	must.NoError(t, w.Isolate(node, false))
	w.nothingLeft("cut")
}

func TestConsulAwayForAMinuteStopsNothing(t *testing.T) {
	t.Parallel()
	w := five(t)
	tr := w.train("leaderless", "restarts = 0")
	tr.until("generation 1 trains", func(e event) bool { return e.Event == "step" && e.Step >= 10 })
	w.StopConsul()
	sleep(t, time.Minute)
	must.NoError(t, w.RestartConsul(t.Context()))
	tr.ends(1, 4)
	w.nothingLeft("leaderless")
}

// sleep is for faults that last a given time; nothing is waited for with it.
func sleep(t *testing.T, d time.Duration) {
	t.Helper()
	select {
	case <-t.Context().Done():
		t.Fatal(t.Context().Err())
	case <-time.After(d):
	}
}
