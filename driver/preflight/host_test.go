// SPDX-License-Identifier: MPL-2.0

package preflight

import (
	"errors"
	"math"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/shoenig/test/must"
)

// machine writes files below a directory that stands for / .
func machine(t *testing.T, files map[string]string) Host {
	t.Helper()
	root := t.TempDir()
	for name, text := range files {
		path := filepath.Join(root, name)
		must.NoError(t, os.MkdirAll(filepath.Dir(path), 0o755))
		must.NoError(t, os.WriteFile(path, []byte(text), 0o644))
	}
	return Host{Sys: filepath.Join(root, "sys"), Dev: filepath.Join(root, "dev"), Shm: root,
		Memlock: func() (uint64, error) { return math.MaxUint64, nil }}
}

// twoNICs: mlx5_0 is up, mlx5_1 is down, mlx5_10 is up and has no device node.
func twoNICs(t *testing.T) Host {
	return machine(t, map[string]string{
		"sys/class/infiniband/mlx5_0/ports/1/state":                         "4: ACTIVE\n",
		"sys/class/infiniband/mlx5_0/device/infiniband_verbs/uverbs0/dev":   "231:192\n",
		"dev/infiniband/uverbs0":                                            "",
		"sys/class/infiniband/mlx5_1/ports/1/state":                         "1: DOWN\n",
		"sys/class/infiniband/mlx5_1/device/infiniband_verbs/uverbs1/dev":   "231:193\n",
		"dev/infiniband/uverbs1":                                            "",
		"sys/class/infiniband/mlx5_10/ports/1/state":                        "4: ACTIVE\n",
		"sys/class/infiniband/mlx5_10/device/infiniband_verbs/uverbs10/dev": "231:202\n",
	})
}

func TestRDMADevicesAreThereWhereTheListSaysSo(t *testing.T) {
	down := "RDMA: mlx5_1 port 1 is DOWN: NCCL goes on without it"
	for _, c := range []struct {
		name, hca string
		disabled  bool
		warning   string
		err       string
	}{
		{name: "no list", warning: down},
		{name: "no list, RDMA off", disabled: true},
		{name: "one that is up", hca: "=mlx5_0"},
		{name: "its port", hca: "=mlx5_0:1"},
		{name: "another port", hca: "=mlx5_0:2", err: "RDMA: NCCL_IB_HCA names mlx5_0:2, this node has mlx5_0, mlx5_1, mlx5_10"},
		{name: "one that is down", hca: "=mlx5_0,mlx5_1", err: "RDMA: NCCL_IB_HCA names mlx5_1: mlx5_1 port 1 is DOWN"},
		{name: "one without a node", hca: "=mlx5_10", err: "RDMA: NCCL_IB_HCA names mlx5_10: mlx5_10 has no node below "},
		{name: "one that is not there", hca: "=mlx5_7", err: "RDMA: NCCL_IB_HCA names mlx5_7, this node has mlx5_0"},
		{name: "not there, RDMA off", hca: "=mlx5_7", disabled: true},
		{name: "a prefix that one up matches", hca: "mlx5"},
		{name: "a prefix that none up matches", hca: "mlx5_1", err: "RDMA: NCCL_IB_HCA names mlx5_1: mlx5_1 port 1 is DOWN, mlx5_10 has no node"},
		{name: "all but the one that is down", hca: "^=mlx5_1"},
		{name: "all but another", hca: "^=mlx5_0", warning: down},
		{name: "rubbish", hca: "=mlx5_0;rm", err: `NCCL_IB_HCA: entry "mlx5_0;rm"; allowed are`},
	} {
		t.Run(c.name, func(t *testing.T) {
			env := map[string]string{"NCCL_IB_HCA": c.hca}
			if c.disabled {
				env["NCCL_IB_DISABLE"] = "1"
			}
			h := twoNICs(t)
			h.AskedHCA = true
			warnings, err := h.rdma(env)
			must.Eq(t, c.warning, strings.Join(warnings, "; "))
			if c.err == "" {
				must.NoError(t, err)
			} else {
				must.ErrorContains(t, err, c.err)
			}
		})
	}
	none := map[string]string{"sys/module/nvidia/version": "550.54.15\n"}
	_, err := machine(t, none).rdma(map[string]string{"NCCL_IB_HCA": "=mlx5_0,mlx5_1"})
	must.EqError(t, err, "RDMA: NCCL_IB_HCA names mlx5_0, this node has no RDMA device; RDMA: NCCL_IB_HCA names mlx5_1, this node has no RDMA device")
}

func TestTheNICsOfASimulatedMachineAreNotLookedFor(t *testing.T) {
	env := map[string]string{"NCCL_IB_HCA": "=mlx5_0"}
	h := machine(t, nil) // no driver of GPUs is loaded
	_, err := h.rdma(env)
	must.NoError(t, err)
	h.AskedHCA = true
	_, err = h.rdma(env)
	must.ErrorContains(t, err, "this node has no RDMA device", must.Sprint("the user asked for it"))
}

func TestALimitTheUserAskedForIsAnErrorAndOthersAreWarnings(t *testing.T) {
	h := twoNICs(t)
	h.GPUs = 2
	h.Memlock = func() (uint64, error) { return 8 << 20, nil }
	warnings, err := h.limits(Steps{}, nil)
	must.NoError(t, err)
	must.StrContains(t, strings.Join(warnings, "\n"), "locked memory is limited to 8 MiB, RDMA needs it unlimited: raise LimitMEMLOCK")
	warnings, err = h.limits(Steps{}, map[string]string{"NCCL_IB_DISABLE": "1"})
	must.NoError(t, err)
	must.StrNotContains(t, strings.Join(warnings, "\n"), "locked")
	_, err = h.limits(Steps{ShmMiB: 1 << 24, MemlockMiB: 9}, nil)
	must.ErrorContains(t, err, "MiB, preflight.shm_mib asks for 16777216: mount it larger")
	must.ErrorContains(t, err, "locked memory is limited to 8 MiB, preflight.memlock_mib asks for 9")
	_, err = h.limits(Steps{ShmMiB: 1, MemlockMiB: 8}, nil)
	must.NoError(t, err)
	h.Memlock = func() (uint64, error) { return 0, errors.New("refused") }
	_, err = h.limits(Steps{}, nil)
	must.ErrorContains(t, err, "locked memory: refused")
	h.Shm = filepath.Join(h.Shm, "missing")
	_, err = h.limits(Steps{}, nil)
	must.ErrorContains(t, err, "shared memory: read the size of")
}

func TestALocalFaultIsToldBeforeAnyCallAndNamesTheNode(t *testing.T) {
	b := newBench(t, 2)
	b.checks[0].Host, b.checks[0].RDMA = twoNICs(t), true
	b.checks[0].Host.AskedHCA = true
	err := b.checks[0].Run(t.Context(), b.assignment(0), map[string]string{"NCCL_IB_HCA": "=mlx5_7"})
	must.ErrorContains(t, err, "preflight: n0: RDMA: NCCL_IB_HCA names mlx5_7")
	b.checks[0].RDMA = false
	b.checks[0].Reach, b.checks[0].Steps.Versions = false, false
	must.NoError(t, b.checks[0].Run(t.Context(), b.assignment(0), map[string]string{"NCCL_IB_HCA": "=mlx5_7"}))
}

func TestVersionsComeFromTheModules(t *testing.T) {
	h := machine(t, map[string]string{"sys/module/nvidia/version": "550.54.15\n", "sys/module/mlx5_core/version": "24.04-0.6.6\n", "sys/module/efa/version": "\x00bad"})
	must.Eq(t, Versions{"NVIDIA-driver": "550.54.15", "mlx5_core": "24.04-0.6.6"}, LocalVersions(h.Sys))
	must.MapEmpty(t, LocalVersions(filepath.Join(h.Sys, "none")))
}
