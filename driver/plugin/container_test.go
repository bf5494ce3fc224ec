// SPDX-License-Identifier: MPL-2.0

package plugin

import (
	"os"
	"strings"
	"testing"

	"github.com/hashicorp/nomad/helper/pluginutils/hclutils"
	"github.com/hashicorp/nomad/plugins/drivers"
	"github.com/shoenig/test/must"
	"pgregory.net/rapid"

	"github.com/nomad-gpu/nomad-gpu/driver/runtime"
)

func boxed(t *testing.T, lines string) TaskConfig {
	t.Helper()
	return parse(t, strings.Replace(taskBlock, `command = "/bin/sh"`, "image = \"ghcr.io/team/train:v3\"\n"+lines, 1))
}

// aTask is what Nomad hands over, with its directories below /n.
func aTask(mounts ...*drivers.MountConfig) *drivers.TaskConfig {
	return &drivers.TaskConfig{ID: "a/t", AllocID: "3f2a", Name: "my task", JobName: "j", AllocDir: "/n", Mounts: mounts}
}

func TestAContainersFaultsAreNamedWithWhatIsAllowed(t *testing.T) {
	const memory = 8 << 30
	for want, lines := range map[string]string{
		`image: "two words"`:                                `image = "two words"`,
		`shm_size: "9GiB" is more than the task's memory`:   `shm_size = "9GiB"`,
		`shm_size: "big"; allowed is a size`:                `shm_size = "big"`,
		`privileged: true; the driver's`:                    `privileged = true`,
		`cap_add: "SYS_ADMIN"; the driver's`:                `cap_add = ["CAP_SYS_ADMIN"]`,
		`cap_drop: "x y"; allowed are names`:                `cap_drop = ["x y"]`,
		`extra_hosts: "host"; allowed is name:address`:      `extra_hosts = ["host"]`,
		`volumes: "data:/x"; allowed are source:target`:     `volumes = ["data:/x"]`,
		`volumes: "/data:/x:shared"; allowed are`:           `volumes = ["/data:/x:shared"]`,
		`volumes: "/data:/x"; the driver's container`:       `volumes = ["/data:/x"]`,
		`for one of the driver's: "/.nccl/init"`:            `volumes = ["/n/alloc:/.nccl/init"]`,
		`two for the same place`:                            `volumes = ["/n/alloc/a:/x", "/n/alloc/b:/x/"]`,
		`volumes: "/n/alloc/../../etc:/x"; the driver's`:    `volumes = ["/n/alloc/../../etc:/x"]`,
		`labels: "io.nomad-gpu.directory"; it is the drive`: `labels = { "io.nomad-gpu.directory" = "/" }`,
	} {
		c := boxed(t, lines)
		if strings.HasPrefix(lines, "image") {
			c = parse(t, strings.Replace(taskBlock, `command = "/bin/sh"`, lines, 1))
		}
		_, err := c.container(ContainerConfig{}, aTask(), nil, memory)
		must.ErrorContains(t, err, want, must.Sprint(lines))
	}
	host := parse(t, strings.Replace(taskBlock, `command = "/bin/sh"`, "command = \"/bin/sh\"\n shm_size = \"1GiB\"\n labels = { a = \"b\" }", 1))
	_, err := host.container(ContainerConfig{}, aTask(), nil, memory)
	must.ErrorContains(t, err, "labels, shm_size: set, and image is not")
	_, err = parse(t, taskBlock).container(ContainerConfig{}, aTask(&drivers.MountConfig{HostPath: "/srv/data", TaskPath: "/data", PropagationMode: "private"}), nil, memory)
	must.ErrorContains(t, err, `volume_mount: destination "/data"`)
	box, err := parse(t, taskBlock).container(ContainerConfig{}, aTask(&drivers.MountConfig{HostPath: "/data", TaskPath: "/data"}), nil, memory)
	must.NoError(t, err)
	must.Nil(t, box)
}

func TestAContainerGetsWhatTheJobSays(t *testing.T) {
	cfg := aTask(&drivers.MountConfig{HostPath: "/srv/data", TaskPath: "/data", Readonly: true, PropagationMode: "host-to-task"})
	cfg.DNS = &drivers.DNSConfig{Servers: []string{"10.0.0.2"}}
	cfg.Devices = []*drivers.DeviceConfig{{HostPath: "/dev/a", TaskPath: "/dev/b", Permissions: "r"}}
	c := boxed(t, `
  volumes = ["/shared:/shared"]
  cap_add = ["sys_nice"]
  cap_drop = ["net_raw"]
  labels = { team = "vision" }
  auth {
    username = "u"
    password = "p"
  }
`)
	box, err := c.container(ContainerConfig{Volumes: true}, cfg, []string{"GPU-1"}, 8<<30)
	must.NoError(t, err)
	must.Eq(t, "nccl-3f2a-my_task", box.Name)
	must.Eq(t, int64(4<<30), box.ShmBytes)
	must.Eq(t, []string{"SYS_NICE", "IPC_LOCK"}, box.CapAdd)
	must.Eq(t, []string{"NET_RAW"}, box.CapDrop)
	must.Eq(t, "vision", box.Labels["team"])
	must.Eq(t, "3f2a", box.Labels["com.hashicorp.nomad.alloc_id"])
	must.Eq(t, &runtime.Auth{Username: "u", Password: "p"}, box.Auth)
	must.Eq(t, []runtime.Device{{Source: "/dev/a", Target: "/dev/b", Permissions: "r"}}, box.Devices)
	must.Eq(t, &runtime.DNS{Servers: []string{"10.0.0.2"}}, box.DNS)
	must.SliceContains(t, box.Mounts, runtime.Mount{Source: "/srv/data", Target: "/data", ReadOnly: true, Propagation: "host-to-task"})
	must.SliceContains(t, box.Mounts, runtime.Mount{Source: "/shared", Target: "/shared"})
	must.SliceContains(t, box.Mounts, runtime.Mount{Source: "/n/alloc", Target: "/alloc"})
}

func TestSharedMemoryNeverExceedsTheTasksMemory(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		memory := rapid.Int64Range(0, 1<<42).Draw(t, "memory")
		got, err := ImageConfig{}.shm(memory)
		must.NoError(t, err)
		if memory > 0 && got > memory || memory == 0 && got != usualShm || memory >= usualShm && got < usualShm {
			t.Fatalf("%d of %d", got, memory)
		}
	})
}

func TestAnEnginesFaultsAreNamedWithWhatIsAllowed(t *testing.T) {
	for want, c := range map[string]ContainerConfig{
		`container.endpoint: "docker.sock"; allowed is a URL`:  {Endpoint: "docker.sock"},
		`container.gpus: "all"; allowed are auto, cdi, nvidia`: {GPUs: "all"},
		`container.driver_root: "run"; allowed is`:             {DriverRoot: "run"},
		`container.pull_timeout: "soon"; allowed is`:           {PullTimeout: "soon"},
		`container.allow_caps: "1"; allowed are names`:         {AllowCaps: []string{"1"}},
		`container.cert_file: "/c" with container.key_file`:    {CertFile: "/c"},
	} {
		_, err := c.read()
		must.ErrorContains(t, err, want)
	}
	_, err := ContainerConfig{}.read()
	must.NoError(t, err)
}

func TestTheReferencesContainerIsATaskOfOurs(t *testing.T) {
	page, err := os.ReadFile("../README.md")
	must.NoError(t, err)
	_, text, _ := strings.Cut(string(page), "## Containers")
	_, text, _ = strings.Cut(text, "```hcl\n")
	text, _, _ = strings.Cut(text, "```")
	text = strings.ReplaceAll(text, "gang { nodes = 4 }", "gang {\n nodes = 4\n}") // one block a line is HCL 2's
	text = strings.ReplaceAll(text, `checkpoint { dir = "/shared/run-1" }`, "checkpoint {\n dir = \"/shared/run-1\"\n}")
	var c TaskConfig
	hclutils.NewConfigParser(taskConfigSpec).ParseHCL(t, strings.ReplaceAll(text, "${NOMAD_TASK_DIR}", "/local"), &c)
	_, err = c.read()
	must.NoError(t, err)
	box, err := c.container(ContainerConfig{Volumes: true}, aTask(), nil, 64<<30)
	must.NoError(t, err)
	must.Eq(t, "ghcr.io/team/train:v3", box.Image)
	must.Eq(t, int64(16<<30), box.ShmBytes)
}
