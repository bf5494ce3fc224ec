// SPDX-License-Identifier: MPL-2.0

package environ

import (
	"fmt"
	"net/netip"
	"testing"

	"github.com/shoenig/test/must"

	"github.com/nomad-gpu/nomad-gpu/driver/gang"
)

func assignment(nodes, slots, rank int) gang.Assignment {
	a := gang.Assignment{Key: gang.Key{Namespace: "ns", Job: "train", Group: "g", Run: "r1"}, Generation: 3, Restarts: 2, Rank: rank}
	for i := range nodes {
		a.Members = append(a.Members, gang.Member{Address: netip.MustParseAddr(fmt.Sprintf("10.0.0.%d", i+1)), Ports: [2]int{2000 + i, 3000 + i}, Slots: slots})
	}
	return a
}

func TestEachVariableOfATask(t *testing.T) {
	s := Settings{
		Task:      map[string]string{"PATH": "/bin", "NCCL_DEBUG": "INFO"},
		Device:    map[string]string{"NVIDIA_VISIBLE_DEVICES": "GPU-b", "CUDA_VISIBLE_DEVICES": "GPU-b", "GPU_DEVICES_A": "GPU-a,GPU-c", "GPU_DEVICES_B": "GPU-b,GPU-a"},
		Interface: "eth1", Hostfile: "/x/hosts", CheckpointDir: "/ckpt", RASPort: 28028, Framework: "jax",
	}
	env := Environment(assignment(4, 8, 2), s)
	for name, want := range map[string]string{
		"MASTER_ADDR": "10.0.0.1", "MASTER_PORT": "3000", "PRIMARY_ADDR": "10.0.0.1", "PRIMARY_PORT": "3000",
		"HOST_NODE_ADDR": "10.0.0.1:3000", "NODE_ADDR": "10.0.0.3", "NODE_RANK": "2", "NUM_NODES": "4",
		"NUM_TRAINERS": "8", "WORLD_SIZE": "32",
		"PET_NNODES": "4", "PET_NODE_RANK": "2", "PET_NPROC_PER_NODE": "8", "PET_MASTER_ADDR": "10.0.0.1", "PET_MASTER_PORT": "3000", "PET_MAX_RESTARTS": "0",
		"JAX_COORDINATOR_ADDRESS": "10.0.0.1:3000", "JAX_NUM_PROCESSES": "4", "JAX_PROCESS_ID": "2",
		"GANG_HOSTFILE": "/x/hosts", "GANG_NODE_IPS": "10.0.0.1,10.0.0.2,10.0.0.3,10.0.0.4",
		"GANG_RUN_ID": "ns/train/g/r1", "GANG_GENERATION": "3", "GANG_RESTARTS": "2", "GANG_CHECKPOINT_DIR": "/ckpt",
		"NCCL_SOCKET_IFNAME": "=eth1", "GLOO_SOCKET_IFNAME": "eth1", "NCCL_RAS_ADDR": "localhost:28028",
		"CUDA_VISIBLE_DEVICES": "GPU-a,GPU-c,GPU-b", "NVIDIA_VISIBLE_DEVICES": "GPU-a,GPU-c,GPU-b",
		"NCCL_DEBUG": "INFO", "PATH": "/bin",
	} {
		must.Eq(t, want, env[name], must.Sprint(name))
	}
	for _, name := range []string{"RANK", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "NCCL_COMM_ID"} {
		must.MapNotContainsKey(t, env, name)
	}
}

func TestWhatIsSetOnlySometimes(t *testing.T) {
	one := Environment(assignment(2, 1, 1), Settings{})
	must.Eq(t, "1", one["RANK"])
	must.Eq(t, "0", one["LOCAL_RANK"])
	must.Eq(t, "1", one["LOCAL_WORLD_SIZE"])
	must.Eq(t, "2", one["WORLD_SIZE"])
	must.Eq(t, "void", one["NVIDIA_VISIBLE_DEVICES"], must.Sprint("a task without a GPU sees none"))
	for _, name := range []string{"JAX_PROCESS_ID", "GANG_CHECKPOINT_DIR", "NCCL_SOCKET_IFNAME", "NCCL_RAS_ADDR"} {
		must.MapNotContainsKey(t, one, name)
	}
	must.MapNotContainsKey(t, Environment(assignment(65, 8, 0), Settings{}), "GANG_NODE_IPS")
	six := assignment(2, 1, 0)
	six.Members[0].Address = netip.MustParseAddr("fd00::1")
	must.Eq(t, "[fd00::1]:3000", Environment(six, Settings{})["HOST_NODE_ADDR"])
	user := Environment(assignment(2, 1, 0), Settings{Interface: "eth0", Task: map[string]string{"NCCL_SOCKET_IFNAME": "bond0"}})
	must.Eq(t, "bond0", user["NCCL_SOCKET_IFNAME"], must.Sprint("the user's value wins"))
}

func TestTheUsersVariablesThatBreakAGangAreRefused(t *testing.T) {
	device := map[string]string{"NVIDIA_VISIBLE_DEVICES": "GPU-a", "GPU_DEVICES_X": "GPU-a"}
	cases := map[string]struct {
		task map[string]string
		want string
	}{
		"rank":     {map[string]string{"RANK": "0"}, `RANK is set to "0"`},
		"master":   {map[string]string{"MASTER_ADDR": "node1"}, `MASTER_ADDR is set to "node1"`},
		"torchrun": {map[string]string{"PET_NNODES": "2"}, "PET_NNODES"},
		"ours":     {map[string]string{"GANG_ANYTHING": "x"}, "GANG_ANYTHING"},
		"all GPUs": {map[string]string{"NVIDIA_VISIBLE_DEVICES": "all"}, `NVIDIA_VISIBLE_DEVICES is set to "all"; allowed are the GPUs that are reserved for the task, "GPU-a"`},
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) { must.ErrorContains(t, Validate(c.task, device), c.want) })
	}
	must.NoError(t, Validate(map[string]string{"NCCL_DEBUG": "INFO", "NVIDIA_VISIBLE_DEVICES": "GPU-a"}, device))
}

func TestTheHostFileIsInRankOrder(t *testing.T) {
	must.Eq(t, "10.0.0.1 slots=8\n10.0.0.2 slots=8\n", string(Hostfile(assignment(2, 8, 1))))
}
