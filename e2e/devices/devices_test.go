// SPDX-License-Identifier: MPL-2.0

// Package devices tests what a user of the device plugin meets, on the real
// Nomad: where jobs are placed, what they see, and what becomes of bad GPUs.
package devices

import (
	"fmt"
	"io"
	"maps"
	"math/rand/v2"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/hashicorp/nomad/api"
	"github.com/shoenig/test/must"

	"github.com/nomad-gpu/nomad-gpu/device/gpu"
	"github.com/nomad-gpu/nomad-gpu/device/profile"
	"github.com/nomad-gpu/nomad-gpu/device/topology"
	"github.com/nomad-gpu/nomad-gpu/e2e/cluster"
	"github.com/nomad-gpu/nomad-gpu/e2e/clustertest"
	"github.com/nomad-gpu/nomad-gpu/e2e/peers"
)

func TestMain(m *testing.M) { clustertest.Main(m) }

type world struct {
	*cluster.Cluster
	t *testing.T
}

func newWorld(t *testing.T, clients ...cluster.Client) *world {
	t.Helper()
	return &world{clustertest.Start(t, clients...), t}
}

// run registers a job of one task that says what GPUs it sees and stays; the
// device block is a user's.
func (w *world) run(name, device string) {
	w.t.Helper()
	job, err := w.Nomad().Jobs().ParseHCL(fmt.Sprintf(`
job %q {
  datacenters = ["*"]
  group "g" {
    task "t" {
      driver = "raw_exec"
      config {
        command = "/bin/sh"
        args    = ["-c", "echo sees=$NVIDIA_VISIBLE_DEVICES; exec sleep 1000"]
      }
      resources {
        cpu    = 20
        memory = 20
        %s
      }
    }
  }
}
`, name, device), true)
	must.NoError(w.t, err)
	_, _, err = w.Nomad().Jobs().Register(job, nil)
	must.NoError(w.t, err)
}

func (w *world) stop(name string) {
	_, _, err := w.Nomad().Jobs().Deregister(name, true, nil)
	must.NoError(w.t, err)
}

// running waits for the job's allocation and gives it with the GPUs it was given.
func (w *world) running(name string) (*api.Allocation, []string) {
	w.t.Helper()
	var found *api.Allocation
	must.NoError(w.t, cluster.WaitFor(w.t.Context(), time.Minute, name+" runs", func() (bool, string, error) {
		stubs, _, err := w.Nomad().Jobs().Allocations(name, false, nil)
		if err != nil {
			return false, "", err
		}
		for _, s := range stubs {
			if s.ClientStatus == "running" {
				found, _, err = w.Nomad().Allocations().Info(s.ID, nil)
				return err == nil, "", err
			}
		}
		return false, w.why(name), nil
	}))
	var ids []string
	for _, d := range found.AllocatedResources.Tasks["t"].Devices {
		ids = append(ids, d.DeviceIDs...)
	}
	return found, ids
}

// ended waits until nothing of the job runs any more.
func (w *world) ended(name string) {
	w.t.Helper()
	must.NoError(w.t, cluster.WaitFor(w.t.Context(), time.Minute, name+" has ended", func() (bool, string, error) {
		allocs, _, err := w.Nomad().Allocations().List(nil)
		if err != nil {
			return false, "", err
		}
		return !slices.ContainsFunc(allocs, func(a *api.AllocationListStub) bool {
			return a.JobID == name && a.ClientStatus != api.AllocClientStatusComplete && a.ClientStatus != api.AllocClientStatusFailed
		}), "", nil
	}))
}

// waits waits until Nomad has said that the job cannot be placed.
func (w *world) waits(name string) {
	w.t.Helper()
	must.NoError(w.t, cluster.WaitFor(w.t.Context(), time.Minute, name+" is refused", func() (bool, string, error) {
		evals, _, err := w.Nomad().Jobs().Evaluations(name, nil)
		if err != nil {
			return false, "", err
		}
		return slices.ContainsFunc(evals, func(e *api.Evaluation) bool { return len(e.FailedTGAllocs) > 0 }), fmt.Sprint(len(evals)), nil
	}))
	stubs, _, err := w.Nomad().Jobs().Allocations(name, false, nil)
	must.NoError(w.t, err)
	must.SliceEmpty(w.t, stubs)
}

// why is what Nomad says of a job that is not placed.
func (w *world) why(name string) string {
	evals, _, _ := w.Nomad().Jobs().Evaluations(name, nil)
	var all []string
	for _, e := range evals {
		for _, m := range e.FailedTGAllocs {
			all = append(all, fmt.Sprint(m.ConstraintFiltered, m.DimensionExhausted))
		}
	}
	return strings.Join(all, "; ")
}

// says waits for what the task prints.
func (w *world) says(a *api.Allocation) string {
	w.t.Helper()
	var text []byte
	must.NoError(w.t, cluster.WaitFor(w.t.Context(), time.Minute, "the task says what it sees", func() (ok bool, state string, err error) {
		text, err = os.ReadFile(filepath.Join(w.Dir(), a.NodeName, "alloc", a.ID, "alloc", "logs", "t.stdout.0"))
		return strings.HasSuffix(string(text), "\n"), fmt.Sprint(string(text), err), nil
	}))
	return strings.TrimSpace(string(text))
}

// cli is the nomad command.
func (w *world) cli(argv ...string) string {
	w.t.Helper()
	cmd := exec.Command(w.Program("nomad"), argv...)
	cmd.Env = append(os.Environ(), "NOMAD_ADDR="+w.NomadAddress())
	out, err := cmd.CombinedOutput()
	must.NoError(w.t, err, must.Sprint(string(out)))
	return string(out)
}

func (w *world) node(name string) *api.Node {
	w.t.Helper()
	nodes, _, err := w.Nomad().Nodes().List(nil)
	must.NoError(w.t, err)
	i := slices.IndexFunc(nodes, func(n *api.NodeListStub) bool { return n.Name == name })
	must.GreaterEq(w.t, 0, i, must.Sprint("no node "+name))
	n, _, err := w.Nomad().Nodes().Info(nodes[i].ID, nil)
	must.NoError(w.t, err)
	return n
}

func TestConstraintsOnAttributesPlaceJobsRight(t *testing.T) {
	w := newWorld(t,
		cluster.Client{Name: "hopper", Profile: "dgx-h100"},
		cluster.Client{Name: "volta", Profile: "dgx1-v100"},
		cluster.Client{Name: "pairs", Profile: "pcie-nvlink-pairs"})
	constraint := func(attribute, operator, value string) string {
		return fmt.Sprintf("constraint {\n attribute = \"${device.attr.%s}\"\n operator = %q\n value = %q\n}\n", attribute, operator, value)
	}
	for name, c := range map[string]struct{ constraint, node string }{
		"architecture":        {constraint("architecture", "=", "hopper"), "hopper"},
		"compute capability":  {constraint("compute_capability", "version", "< 8.0"), "volta"},
		"memory in GiB":       {constraint("memory", "<", "40 GiB"), "volta"},
		"NVLink version":      {constraint("nvlink_version", "<", "3"), "volta"},
		"island of two":       {constraint("nvlink_island_size", "=", "2"), "pairs"},
		"island of eight":     {constraint("nvlink_island_size", ">=", "8") + constraint("nvswitch", "=", "false"), "volta"},
		"NVSwitch":            {constraint("nvswitch", "=", "true"), "hopper"},
		"NVLink bandwidth":    {constraint("nvlink_bandwidth", ">=", "400 GB/s"), "hopper"},
		"RDMA and many NICs":  {constraint("rdma", "=", "true") + constraint("nic_count", ">=", "8"), "hopper"},
		"CUDA and simulation": {constraint("simulated", "=", "true") + constraint("architecture", "=", "ampere"), "pairs"},
	} {
		t.Run(name, func(t *testing.T) {
			w.t = t
			job := strings.ReplaceAll(name, " ", "-")
			w.run(job, "device \"nvidia/gpu\" {\n count = 2\n"+c.constraint+"\n}")
			a, ids := w.running(job)
			must.Eq(t, c.node, a.NodeName)
			must.Len(t, 2, ids)
			w.stop(job)
		})
	}
	t.Run("a constraint that none meets places nothing", func(t *testing.T) {
		w.t = t
		w.run("none", "device \"nvidia/gpu\" {\n"+constraint("healthy_count", ">=", "9")+"\n}")
		w.waits("none")
	})
}

// The device blocks are those that users of nomad-device-nvidia write: the
// forms of the name, a model, memory with units, affinities.
func TestDeviceBlocksForNomadDeviceNvidiaRunUnchanged(t *testing.T) {
	w := newWorld(t, cluster.Client{Name: "hopper", Profile: "dgx-h100"})
	for name, device := range map[string]string{
		"type":          `device "gpu" {}`,
		"vendor":        `device "nvidia/gpu" {}`,
		"count":         "device \"nvidia/gpu\" {\n count = 4\n}",
		"model":         `device "nvidia/gpu/NVIDIA H100 80GB HBM3" {}`,
		"memory":        "device \"nvidia/gpu\" {\n constraint {\n attribute = \"${device.attr.memory}\"\n operator = \">=\"\n value = \"4 GiB\"\n}\n}",
		"model-by-attr": "device \"nvidia/gpu\" {\n constraint {\n attribute = \"${device.model}\"\n operator = \"regexp\"\n value = \"H100\"\n}\n}",
		"affinity":      "device \"nvidia/gpu\" {\n count = 2\n affinity {\n attribute = \"${device.model}\"\n value = \"Tesla K80\"\n weight = 50\n}\n}",
		"clock":         "device \"nvidia/gpu\" {\n constraint {\n attribute = \"${device.attr.cores_clock}\"\n operator = \">=\"\n value = \"1 GHz\"\n}\n}",
		"pci":           "device \"nvidia/gpu\" {\n constraint {\n attribute = \"${device.attr.pci_bandwidth}\"\n operator = \">\"\n value = \"10 GB/s\"\n}\n}",
		"driver":        "device \"nvidia/gpu\" {\n constraint {\n attribute = \"${device.attr.driver_version}\"\n operator = \"version\"\n value = \">= 450\"\n}\n}",
	} {
		t.Run(name, func(t *testing.T) {
			w.t = t
			w.run(name, device)
			a, ids := w.running(name)
			sees := strings.Split(strings.TrimPrefix(w.says(a), "sees="), ",")
			slices.Sort(sees)
			slices.Sort(ids)
			must.Eq(t, ids, sees)
			w.stop(name)
		})
	}
	t.Run("statistics", func(t *testing.T) {
		w.t = t
		w.run("stats", `device "nvidia/gpu" {}`)
		a, ids := w.running("stats")
		must.NoError(t, cluster.WaitFor(t.Context(), time.Minute, "the statistics are there", func() (bool, string, error) {
			out := w.cli("alloc", "status", "-stats", a.ID)
			return strings.Contains(out, "nvidia/gpu/NVIDIA H100 80GB HBM3["+ids[0]+"]") && strings.Contains(out, "512 / 81559 MiB"), out, nil
		}))
	})
}

func TestIslandGroupsKeepPairsTogether(t *testing.T) {
	w := newWorld(t, cluster.Client{Name: "pairs", Profile: "pcie-nvlink-pairs", Devices: `group_by = "island"`})
	island := map[string]string{}
	for _, group := range w.node("pairs").NodeResources.Devices {
		for _, d := range group.Instances {
			island[d.ID] = group.Name
		}
	}
	must.MapLen(t, 4, island)
	used := map[string]bool{}
	for n := range 2 {
		name := fmt.Sprintf("pair-%d", n)
		w.run(name, "device \"nvidia/gpu\" {\n count = 2\n}")
		_, ids := w.running(name)
		must.Len(t, 2, ids)
		must.Eq(t, island[ids[0]], island[ids[1]], must.Sprint("the pair is split"))
		must.False(t, used[island[ids[0]]])
		used[island[ids[0]]] = true
	}
	w.run("three", "device \"nvidia/gpu\" {\n count = 3\n}")
	w.waits("three")
}

func TestABadGPUTakesNoWorkUntilItIsCured(t *testing.T) {
	faults := filepath.Join(t.TempDir(), "faults.yaml")
	w := newWorld(t, cluster.Client{Name: "hopper", Profile: "dgx-h100", Devices: fmt.Sprintf("profile_faults = %q\n health { period = \"1s\" }", faults)})
	healthy := func(n int) {
		t.Helper()
		must.NoError(t, cluster.WaitFor(t.Context(), time.Minute, fmt.Sprintf("%d GPUs are healthy", n), func() (bool, string, error) {
			count := 0
			for _, group := range w.node("hopper").NodeResources.Devices {
				for _, d := range group.Instances {
					if d.Healthy {
						count++
					}
				}
			}
			return count == n, fmt.Sprint(count), nil
		}))
	}
	healthy(8)
	must.NoError(t, os.WriteFile(faults, []byte("faults:\n  - { gpu: 3, xids: [79], epoch: one }\n"), 0o600))
	healthy(7)
	out := w.cli("node", "status", "-verbose", w.node("hopper").ID)
	must.StrContains(t, out, "xid: Xid 79, the GPU has fallen off the bus")
	w.run("all", "device \"nvidia/gpu\" {\n count = 8\n}")
	w.waits("all")
	must.NoError(t, os.WriteFile(faults, []byte("faults:\n  - { gpu: 3, epoch: two }\n"), 0o600))
	healthy(8)
	_, ids := w.running("all")
	must.Len(t, 8, ids)
	must.StrNotContains(t, w.cli("node", "status", "-verbose", w.node("hopper").ID), "Xid")
}

// The GPUs come through the real binding, from a library of our own.
func TestMIGInstancesArePlacedAndAccounted(t *testing.T) {
	dir := t.TempDir()
	library := filepath.Join(dir, "libnvidia-ml.so.1")
	out, err := exec.Command("gcc", "-shared", "-fPIC", "-o", library, filepath.Join(peers.Root(), "device", "nvml", "testdata", "fake_nvml.c")).CombinedOutput()
	must.NoError(t, err, must.Sprint(string(out)))
	state := filepath.Join(dir, "state")
	must.NoError(t, os.WriteFile(state, []byte("gpus 2\nmig 1 3\n"), 0o644))
	t.Setenv("FAKE_NVML_STATE", state)
	w := newWorld(t, cluster.Client{Name: "mig", Devices: fmt.Sprintf("nvml_library = %q", library)})
	w.run("small", "device \"nvidia/gpu\" {\n count = 3\n constraint {\n attribute = \"${device.attr.mig_profile}\"\n value = \"1g.10gb\"\n}\n}")
	a, ids := w.running("small")
	must.Len(t, 3, ids)
	for _, id := range ids {
		must.StrHasPrefix(t, "MIG-", id)
	}
	must.Eq(t, 3, strings.Count(w.says(a), "MIG-"))
	w.run("more", "device \"nvidia/gpu\" {\n constraint {\n attribute = \"${device.attr.mig_profile}\"\n value = \"1g.10gb\"\n}\n}")
	w.waits("more")
	w.run("whole", `device "nvidia/gpu/NVIDIA H100 80GB HBM3" {}`)
	_, ids = w.running("whole")
	must.Len(t, 1, ids)
	must.StrHasPrefix(t, "GPU-", ids[0])
}

func TestTimeSlicesArePlacedAndNeverTakenForGPUs(t *testing.T) {
	w := newWorld(t, cluster.Client{Name: "pairs", Profile: "pcie-nvlink-pairs", Devices: "time_slices {\n replicas = 2\n}"})
	w.run("gpu", `device "gpu" {}`)
	w.run("nvidia-gpu", `device "nvidia/gpu" {}`)
	w.waits("gpu")
	w.waits("nvidia-gpu")
	w.run("five", "device \"nvidia/gpu-slice\" {\n count = 5\n}")
	w.waits("five")
	slices4 := "device \"nvidia/gpu-slice\" {\n count = 4\n}"
	for _, name := range []string{"first", "second"} {
		w.run(name, slices4)
		a, ids := w.running(name)
		must.Len(t, 4, ids)
		gpus := map[string]bool{}
		for _, id := range ids {
			uuid, _, _ := strings.Cut(id, "::")
			gpus[uuid] = true
		}
		must.MapLen(t, 4, gpus, must.Sprint("two slices of one GPU"))
		must.Eq(t, 4, strings.Count(w.says(a), "GPU-"))
		must.StrNotContains(t, w.says(a), "::")
	}
	w.run("full", `device "nvidia/gpu-slice" {}`)
	w.waits("full")
}

// Nomad picks two of four slots at random, and each time the plugin gives the
// task a pair; what has ended is given out again.
func TestThePluginsPlacementGivesPairsWhateverNomadPicks(t *testing.T) {
	w := newWorld(t, cluster.Client{Name: "pairs", Profile: "pcie-nvlink-pairs", Devices: fmt.Sprintf(`
    placement = "remap"
    state_dir = %q
    nomad { address = %q }
    health { period = "1s" }`, t.TempDir(), cluster.AgentURL)})
	pairs := map[string]int{}
	for n := range 8 {
		job := fmt.Sprintf("pair-%d", n)
		w.run(job, "device \"nvidia/gpu\" {\n count = 2\n}")
		a, ids := w.running(job)
		for _, id := range ids {
			must.StrHasPrefix(t, "slot-", id)
		}
		sees := strings.Split(strings.TrimPrefix(w.says(a), "sees="), ",")
		slices.Sort(sees)
		must.Len(t, 2, sees)
		pairs[strings.Join(sees, " and ")]++
		if n%2 == 1 { // the node is full: both pairs are in use
			must.MapLen(t, 2, pairs, must.Sprint(pairs))
			for k := range 2 {
				w.stop(fmt.Sprintf("pair-%d", n-k))
			}
		}
	}
	must.Eq(t, []int{4, 4}, slices.Collect(maps.Values(pairs)))
}

// Two hundred reservations in random order, each judged against all GPUs that
// are free: none is given out twice, and every set is the best there is.
func TestThePluginsPlacementIsTheBestAndNeverTheSameTwice(t *testing.T) {
	const name = "volta"
	w := newWorld(t, cluster.Client{Name: name, Profile: "dgx1-v100", Devices: fmt.Sprintf(`
    placement = "remap"
    state_dir = %q
    nomad { address = %q }
    health { period = "1s" }`, t.TempDir(), cluster.AgentURL)})
	m, err := profile.Load("dgx1-v100")
	must.NoError(t, err)
	must.NoError(t, profile.Simulate(m, name))
	bandwidth := func(set []int) (sum uint) {
		for x, i := range set {
			for _, j := range set[x+1:] {
				sum += m.PairMBps(i, j)
			}
		}
		return sum
	}
	type held struct {
		job  string
		gpus []int
	}
	var live []held
	used := func(i int) bool {
		return slices.ContainsFunc(live, func(h held) bool { return slices.Contains(h.gpus, i) })
	}
	rng := rand.New(rand.NewPCG(1, 2))
	for n := 0; n < 200; {
		var free, busy []int
		for i := range m.GPUs {
			if used(i) {
				busy = append(busy, i)
			} else {
				free = append(free, i)
			}
		}
		count := []int{1, 2, 2, 4}[rng.IntN(4)]
		if count > len(free) || len(live) > 1 && rng.IntN(3) == 0 {
			// Not the newest: whether that has ended is known only once it was seen.
			at := rng.IntN(max(len(live)-1, 1))
			w.stop(live[at].job)
			w.ended(live[at].job)
			live = slices.Delete(live, at, at+1)
			continue
		}
		job := fmt.Sprintf("job-%d", n)
		n++
		w.run(job, fmt.Sprintf("device \"nvidia/gpu\" {\n count = %d\n}", count))
		a, _ := w.running(job)
		h := held{job: job}
		for _, uuid := range strings.Split(strings.TrimPrefix(w.says(a), "sees="), ",") {
			i := slices.IndexFunc(m.GPUs, func(g gpu.GPU) bool { return g.UUID == uuid })
			must.GreaterEq(t, 0, i)
			must.False(t, used(i), must.Sprintf("%s is given to %s too: %v", uuid, job, live))
			h.gpus = append(h.gpus, i)
		}
		must.Len(t, count, h.gpus)
		best, err := topology.Choose(m, topology.Request{Free: free, InUse: busy, Count: count})
		must.NoError(t, err)
		must.EqOp(t, bandwidth(best), bandwidth(h.gpus), must.Sprintf("%s got %v of %v", job, h.gpus, free))
		live = append(live, h)
	}
}

func TestMetricsNameTheJobThatHasAGPU(t *testing.T) {
	w := newWorld(t, cluster.Client{Name: "hopper", Profile: "dgx-h100", Devices: fmt.Sprintf(`
    metrics { listen = "%s:9543" }
    nomad { address = %q }
    state_dir = %q
    power { limit = "350W" }`, cluster.HostAddress, cluster.AgentURL, t.TempDir())})
	w.run("train", `device "nvidia/gpu" {}`)
	a, ids := w.running("train")
	host := strings.Split(w.node("hopper").HTTPAddr, ":")[0]
	label := fmt.Sprintf(`allocation="%s",gpu="`, a.ID)
	must.NoError(t, cluster.WaitFor(t.Context(), time.Minute, "the metrics name the job", func() (bool, string, error) {
		r, err := http.Get("http://" + host + ":9543/metrics")
		if err != nil {
			return false, err.Error(), nil
		}
		defer r.Body.Close()
		text, err := io.ReadAll(r.Body)
		if err != nil {
			return false, "", err
		}
		for line := range strings.Lines(string(text)) {
			if strings.HasPrefix(line, "gpu_power_limit_watts{"+label) && strings.Contains(line, `job="train"`) && strings.Contains(line, ids[0]) && strings.HasSuffix(line, "} 350\n") {
				return true, "", nil
			}
		}
		return false, string(text[:min(len(text), 2000)]), nil
	}))
}
