// SPDX-License-Identifier: MPL-2.0

package docker

import (
	"math"
	"os"
	"path/filepath"
	"testing"

	"github.com/moby/moby/api/types/container"
	"github.com/shoenig/test/must"

	"github.com/nomad-gpu/nomad-gpu/driver/runtime"
)

func write(t *testing.T, path, text string) {
	t.Helper()
	must.NoError(t, os.MkdirAll(filepath.Dir(path), 0o755))
	must.NoError(t, os.WriteFile(path, []byte(text), 0o644))
}

func TestGPUsAreGivenTheFirstWayThatKnowsAllOfThem(t *testing.T) {
	specs, root := t.TempDir(), t.TempDir()
	write(t, filepath.Join(specs, "nvidia.yaml"), `
cdiVersion: "0.5.0"
kind: nvidia.com/gpu
devices:
- name: GPU-a
  containerEdits: { env: ["GIVEN=a"] }
`)
	for minor, uuid := range []string{"GPU-a", "GPU-b", "GPU-c"} {
		write(t, filepath.Join(root, "proc/driver/nvidia/gpus", uuid, "information"), "GPU UUID: "+uuid+"\nDevice Minor: "+string(rune('0'+minor))+"\n")
		write(t, filepath.Join(root, "dev", "nvidia"+string(rune('0'+minor))), "")
	}
	write(t, filepath.Join(root, "dev/nvidiactl"), "")
	in := func(name string) string { return filepath.Join(root, "dev", name) }
	plain, cdi, toolkit := Facts{}, Facts{CDIDirs: []string{specs}}, Facts{Runtimes: []string{"nvidia", "runc"}}
	both := Facts{CDIDirs: []string{specs}, Runtimes: toolkit.Runtimes}
	for _, c := range []struct {
		name  string
		asked string
		facts Facts
		uuids []string
		want  gpuAccess
		err   string
	}{
		{name: "none wanted", asked: wayAuto, facts: both},
		{name: "CDI", asked: wayAuto, facts: both, uuids: []string{"GPU-a"}, want: gpuAccess{way: wayCDI, env: []string{"NVIDIA_VISIBLE_DEVICES=void"},
			requests: []container.DeviceRequest{{Driver: "cdi", DeviceIDs: []string{"nvidia.com/gpu=GPU-a"}}}}},
		{name: "one that CDI does not name", asked: wayAuto, facts: both, uuids: []string{"GPU-a", "GPU-b"}, want: gpuAccess{way: wayNVIDIA, runtime: "nvidia"}},
		{name: "toolkit", asked: wayAuto, facts: toolkit, uuids: []string{"GPU-a"}, want: gpuAccess{way: wayNVIDIA, runtime: "nvidia"}},
		{name: "nodes", asked: wayAuto, facts: plain, uuids: []string{"GPU-c", "GPU-a"}, want: gpuAccess{way: wayDevices, nodes: []string{in("nvidia2"), in("nvidia0"), in("nvidiactl")}}},
		{name: "nodes though there is more", asked: wayDevices, facts: both, uuids: []string{"GPU-b"}, want: gpuAccess{way: wayDevices, nodes: []string{in("nvidia1"), in("nvidiactl")}}},
		{name: "CDI alone", asked: wayCDI, facts: cdi, uuids: []string{"GPU-b"}, err: "names nvidia.com/gpu=GPU-b"},
		{name: "no toolkit", asked: wayNVIDIA, facts: plain, uuids: []string{"GPU-b"}, err: "no runtime nvidia"},
	} {
		got, err := Config{GPUs: c.asked, DriverRoot: root}.gpus(c.facts, c.uuids)
		if c.err != "" {
			must.ErrorContains(t, err, c.err, must.Sprint(c.name))
			continue
		}
		must.NoError(t, err, must.Sprint(c.name))
		must.Eq(t, c.want.way, got.way, must.Sprint(c.name))
		must.Eq(t, c.want.runtime, got.runtime, must.Sprint(c.name))
		must.Eq(t, c.want.nodes, got.nodes, must.Sprint(c.name))
		must.Eq(t, c.want.env, got.env, must.Sprint(c.name))
		must.Eq(t, c.want.requests, got.requests, must.Sprint(c.name))
	}
}

func TestLimitsThatWereNotAskedForGiveWayToTheHosts(t *testing.T) {
	can := func(string) (uint64, error) { return 8 << 20, nil }
	list, warnings, err := ulimits([]runtime.Limit{{Name: "memlock", Value: math.MaxUint64}, {Name: "stack", Value: 1 << 20}, {Name: "nofile", Value: 1 << 30, Asked: true}}, can)
	must.NoError(t, err)
	must.Eq(t, []*container.Ulimit{{Name: "memlock", Soft: 8 << 20, Hard: 8 << 20}, {Name: "stack", Soft: 1 << 20, Hard: 1 << 20}, {Name: "nofile", Soft: 1 << 30, Hard: 1 << 30}}, list)
	must.Eq(t, []string{"the limit memlock is 8MiB: this host does not allow more"}, warnings)
	list, warnings, err = ulimits([]runtime.Limit{{Name: "memlock", Value: math.MaxUint64}}, func(string) (uint64, error) { return math.MaxUint64, nil })
	must.NoError(t, err)
	must.Eq(t, int64(-1), list[0].Hard)
	must.SliceEmpty(t, warnings)
	_, _, err = ulimits([]runtime.Limit{{Name: "cpu"}}, runtime.MostLimit)
	must.ErrorContains(t, err, `rlimits: "cpu"; allowed are core, memlock, nofile, stack`)
}

func TestTheCommandFollowsTheEntrypoint(t *testing.T) {
	image := container.Config{Entrypoint: []string{"/entry"}, Cmd: []string{"serve", "now"}}
	for _, c := range []struct {
		name       string
		entrypoint []string
		command    string
		args       []string
		want       []string
	}{
		{"the image's", nil, "", nil, []string{"/entry", "serve", "now"}},
		{"another command", nil, "train", []string{"x"}, []string{"/entry", "train", "x"}},
		{"arguments alone", nil, "", []string{"x"}, []string{"/entry", "x"}},
		{"another entrypoint", []string{"/bin/run"}, "", nil, []string{"/bin/run"}},
	} {
		s := runtime.Spec{Command: c.command, Args: c.args, Container: &runtime.Container{Entrypoint: c.entrypoint}}
		_, _, inside, _, err := configure(s, image, gpuAccess{}, place{root: t.TempDir()}, runtime.MostLimit)
		must.NoError(t, err)
		must.Eq(t, c.want, append([]string{inside.Command}, inside.Args...), must.Sprint(c.name))
	}
	_, _, _, _, err := configure(runtime.Spec{Container: &runtime.Container{Image: "empty"}}, container.Config{}, gpuAccess{}, place{root: t.TempDir()}, runtime.MostLimit)
	must.ErrorContains(t, err, "command:")
}

func TestTheResolverTakesFromTheHostWhatTheTaskDoesNotName(t *testing.T) {
	host := []byte("# made by hand\nnameserver 10.0.0.1\nsearch corp.example\noptions edns0\n")
	got, err := resolvConf(runtime.DNS{Searches: []string{"gpu.example"}}, host)
	must.NoError(t, err)
	must.Eq(t, "search gpu.example\nnameserver 10.0.0.1\noptions edns0\n", string(got))
	for _, bad := range []runtime.DNS{{Servers: []string{"ns.example"}}, {Searches: []string{"a b"}}, {Options: []string{"x\nnameserver 6.6.6.6"}}} {
		_, err := resolvConf(bad, host)
		must.ErrorContains(t, err, "dns.", must.Sprint(bad))
	}
}
