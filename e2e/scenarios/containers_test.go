// SPDX-License-Identifier: MPL-2.0

package scenarios

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/hashicorp/nomad/api"
	"github.com/shirou/gopsutil/v4/process"
	"github.com/shoenig/test/must"

	"github.com/nomad-gpu/nomad-gpu/driver/runtime/docker/dockertest"
	"github.com/nomad-gpu/nomad-gpu/e2e/cluster"
	"github.com/nomad-gpu/nomad-gpu/e2e/peers"
)

// engines are those of a world's nodes, by name, and the directories that
// stand for the root of the NVIDIA driver there.
type engines struct {
	*world
	engines map[string]*dockertest.Engine
	roots   map[string]string
}

// newEngines makes nodes with a Docker Engine each, whose host network is the
// node's own.
func newEngines(t *testing.T, names ...string) engines {
	t.Helper()
	onItsOwn(t)
	must.Eq(t, "", dockertest.Missing())
	e := engines{engines: map[string]*dockertest.Engine{}, roots: map[string]string{}}
	var clients []cluster.Client
	dirs := map[string]string{}
	for _, name := range names {
		dir, err := os.MkdirTemp("", "dk") // short: a socket is below it
		must.NoError(t, err)
		t.Cleanup(func() { os.RemoveAll(dir) })
		dirs[name], e.roots[name] = dir, filepath.Join(dir, "root")
		clients = append(clients, cluster.Client{Name: name, NodePool: "gpu", Profile: "dgx-h100",
			Driver: fmt.Sprintf("container {\n endpoint = \"unix://%s/docker.sock\"\n volumes = true\n gpus = \"devices\"\n driver_root = %q\n}", dir, e.roots[name])})
	}
	e.world = newWorldOf(t, clients...)
	for _, name := range names {
		engine, err := dockertest.Start(t.Context(), dirs[name], e.Enter(name)...)
		must.NoError(t, err)
		t.Cleanup(engine.Stop)
		e.engines[name] = engine
		e.standIns(name)
	}
	return e
}

// standIns makes a device node for each simulated GPU, and says which is whose
// as the NVIDIA driver does.
func (e engines) standIns(name string) {
	n, _, err := e.Nomad().Nodes().Info(e.node(name), nil)
	must.NoError(e.t, err)
	dev := filepath.Join(e.roots[name], "dev")
	must.NoError(e.t, os.MkdirAll(dev, 0o755))
	minor := 0
	for _, d := range n.NodeResources.Devices {
		for _, i := range d.Instances {
			dir := filepath.Join(e.roots[name], "proc/driver/nvidia/gpus", i.ID)
			must.NoError(e.t, os.MkdirAll(dir, 0o755))
			must.NoError(e.t, os.WriteFile(filepath.Join(dir, "information"), fmt.Appendf(nil, "GPU UUID: %s\nDevice Minor: %d\n", i.ID, minor), 0o644))
			must.NoError(e.t, syscall.Mknod(filepath.Join(dev, fmt.Sprintf("nvidia%d", minor)), syscall.S_IFCHR|0o666, 1<<8|3))
			minor++
		}
	}
	must.Eq(e.t, 8, minor)
}

// noContainers checks that nothing of a job is left in any engine.
func (e engines) noContainers() {
	e.t.Helper()
	for name, engine := range e.engines {
		must.NoError(e.t, cluster.WaitFor(e.t.Context(), patience, "no container is left on "+name, func() (bool, string, error) {
			names, err := engine.Names(context.Background())
			return len(names) == 0, strings.Join(names, ", "), err
		}))
	}
}

// inImage edits a jobspec's task to run in a container.
func inImage(more string) []string {
	return []string{"gang {\n          nodes", fmt.Sprintf("image = %q\n volumes = [\"%s\"]\n%s\n gang {\n          nodes", dockertest.Image, strings.Join(dockertest.Volumes, `", "`), more)}
}

func TestATrainingInContainersGoesOnAfterEachFaultWithEachLineOnce(t *testing.T) {
	e := newEngines(t, "one", "two", "three", "four")
	tr := e.trainIn(minute, "boxed", fmt.Sprintf("image = %q\n volumes = [\"%s\", \"%s:%[3]s:ro\", \"CHECKPOINT:CHECKPOINT\"]", dockertest.Image,
		strings.Join(dockertest.Volumes, `", "`), filepath.Join(peers.Root(), "examples", "pytorch-ddp")), "restarts = 3")
	tr.until("generation 1 trains", func(v event) bool { return v.Event == "step" && v.Step >= 5 })

	// A rank is killed.
	killed := 0
	for _, pid := range e.processes("NODE_RANK=2") {
		p, err := process.NewProcess(pid)
		must.NoError(t, err)
		if line, err := p.Cmdline(); err == nil && strings.Contains(line, "python3") && !strings.Contains(line, "init") {
			must.NoError(t, p.Kill())
			killed++
		}
	}
	must.Eq(t, 1, killed)
	tr.until("generation 2 trains", func(v event) bool { return v.Event == "step" && v.Generation == 2 })

	// The drivers are killed: the containers go on, and what they say meanwhile is kept.
	drivers := e.drivers()
	must.Len(t, 4, drivers)
	for _, d := range drivers {
		must.NoError(t, d.Kill())
	}
	tr.ends(2, 4)
	steps := map[string]int{}
	for _, v := range tr.events() {
		if v.Event == "step" && v.Generation == 2 {
			steps[fmt.Sprint(v.Rank, " ", v.Step)]++
		}
	}
	for step, n := range steps {
		must.Eq(t, 1, n, must.Sprintf("rank and step %s are told %d times", step, n))
	}
	// Rank 0 tells each fifth step from where it resumed to the last.
	first := 151
	for s := 1; s <= 150; s++ {
		if steps[fmt.Sprint(0, " ", s)] > 0 {
			first = min(first, s)
		}
	}
	for s := first; s <= 150; s += 5 {
		must.Eq(t, 1, steps[fmt.Sprint(0, " ", s)], must.Sprintf("step %d of rank 0 is not in the log", s))
	}
	e.nothingLeft("boxed")
	e.noContainers()
}

func TestAContainerSeesTheGPUsThatAreReservedForItAndEachRankIsTold(t *testing.T) {
	e := newEngines(t, "one", "two")
	e.gang("ranks", `echo $RANK of $WORLD_SIZE sees $(ls /dev | grep -c nvidia) on $GANG_GENERATION; test -e $GANG_HOSTFILE && test -d /alloc && test -w $NOMAD_TASK_DIR; [ $RANK = 3 ] && [ $GANG_GENERATION = 1 ] && echo rank three breaks >&2 && exit 9; sleep 1; exit 0`,
		inImage("launch = \"per_gpu\"\n shm_size = \"32MiB\"")...)
	e.untilAll("ranks", api.AllocClientStatusComplete)
	must.StrContains(t, e.events("ranks"), "rank 3 exited with code 9")
	must.StrContains(t, e.events("ranks"), "rank three breaks")
	for rank := range 4 {
		must.StrContains(t, e.output("ranks"), fmt.Sprintf("[rank %d] %d of 4 sees 2 on 2\n", rank, rank))
	}
	e.nothingLeft("ranks")

	// Stopped while it runs and before it has formed; and one that asks for too much.
	e.gang("stopped", `trap 'echo saved; exit 0' TERM; echo ready; while :; do sleep 0.1; done`, inImage("")...)
	must.NoError(t, cluster.WaitFor(t.Context(), patience, "both run", func() (bool, string, error) {
		return strings.Count(e.output("stopped"), "ready") == 2, e.events("stopped"), nil
	}))
	exec := e.typed(`nomad alloc exec -t=false -task t $ALLOC /bin/sh -c 'echo inside, node $NODE_RANK; exit 7'`, e.allocs("stopped")[0].ID)
	said, _ := exec.CombinedOutput()
	must.Eq(t, 7, exec.ProcessState.ExitCode(), must.Sprint(string(said)))
	must.StrContains(t, string(said), "inside, node ")
	_, _, err := e.Nomad().Jobs().Deregister("stopped", false, nil)
	must.NoError(t, err)
	e.untilAll("stopped", api.AllocClientStatusComplete)
	must.Eq(t, 2, strings.Count(e.output("stopped"), "saved"))

	e.gang("memory", `python3 -c 'x = bytearray(300 << 20); [x.__setitem__(i, 1) for i in range(0, len(x), 4096)]'`, append(inImage(""), "restarts = 1", "restarts = 0")...)
	e.untilAll("memory", api.AllocClientStatusFailed)
	must.StrContains(t, e.events("memory"), "memory")

	e.gang("missing", `exit 0`, "gang {\n          nodes", "image = \"localhost:9/none:1\"\n gang {\n          nodes", "restarts = 1", "restarts = 0")
	e.untilAll("missing", api.AllocClientStatusFailed)
	must.StrContains(t, e.events("missing"), "image localhost:9/none:1: pull:")
	for _, job := range []string{"stopped", "memory", "missing"} {
		e.nothingLeft(job)
	}
	e.noContainers()
}
