// SPDX-License-Identifier: MPL-2.0

package docker

import (
	"fmt"
	"maps"
	"math"
	"net/netip"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"github.com/docker/go-units"
	"github.com/moby/moby/api/types/container"
	"github.com/moby/moby/api/types/mount"

	"github.com/nomad-gpu/nomad-gpu/driver/runtime"
	"github.com/nomad-gpu/nomad-gpu/driver/runtime/process"
)

// Places inside a container.
const (
	insideInit = "/.nccl/init"
	insideDir  = "/.nccl/task"
)

// Labels of each container.
const (
	// labelDirectory is the generation's directory: where it is gone, nobody
	// will remove the container.
	labelDirectory = "io.nomad-gpu.directory"
)

// place is where the driver put what the container needs of it.
type place struct {
	program    string // the driver's own
	dir        string // the generation's
	resolvConf string // a file of the generation's; empty: the host's
	root       string // the file system's, "/"
}

// configure makes the engine's request of a spec. It asks nothing of anybody:
// can is the most that the host's limits allow, as a number for each limit.
func configure(s runtime.Spec, image container.Config, gpus gpuAccess, at place, can func(limit string) (uint64, error)) (*container.Config, *container.HostConfig, runtime.Spec, []string, error) {
	c := s.Container
	entrypoint := c.Entrypoint
	if len(entrypoint) == 0 {
		entrypoint = image.Entrypoint
	}
	argv := slices.Clone(entrypoint)
	switch {
	case s.Command != "":
		argv = append(append(argv, s.Command), s.Args...)
	case len(s.Args) > 0:
		argv = append(argv, s.Args...)
	case len(c.Entrypoint) == 0:
		argv = append(argv, image.Cmd...)
	}
	if len(argv) == 0 {
		return nil, nil, runtime.Spec{}, nil, fmt.Errorf("command: the task names none, nor does the image %s", c.Image)
	}
	inside := runtime.Spec{Command: argv[0], Args: argv[1:], Ranks: s.Ranks}
	config := &container.Config{Image: c.Image, Entrypoint: []string{insideInit}, Cmd: process.InitCommand(insideDir),
		Env: overridden(s.Env, gpus.env), User: s.User, WorkingDir: s.Dir,
		Labels: maps.Clone(c.Labels), Healthcheck: &container.HealthConfig{Test: []string{"NONE"}}}
	if config.Labels == nil {
		config.Labels = map[string]string{}
	}
	config.Labels[labelDirectory] = at.dir

	host := &container.HostConfig{NetworkMode: "host", Privileged: c.Privileged, ReadonlyRootfs: c.ReadonlyRootfs,
		CapAdd: c.CapAdd, CapDrop: c.CapDrop, ExtraHosts: c.ExtraHosts, ShmSize: c.ShmBytes, Runtime: gpus.runtime, IpcMode: "private",
		// The output waits here while the driver is away.
		LogConfig: container.LogConfig{Type: "json-file", Config: map[string]string{"max-size": "20m", "max-file": "2"}}}
	host.DeviceRequests = gpus.requests
	if g := s.Cgroup; g != nil {
		host.CPUShares, host.CpusetCpus = int64(min(g.CPUShares, math.MaxInt64)), g.CPUs
		host.Memory, host.MemorySwap = g.MemoryBytes, g.MemoryBytes // no swap beside it
		if g.PIDs > 0 {
			host.PidsLimit = &g.PIDs
		}
	}
	if s.CPUs != "" {
		host.CpusetCpus = s.CPUs // those of the reserved ones that are near the GPUs
	}
	ulimits, warnings, err := ulimits(s.Limits, can)
	if err != nil {
		return nil, nil, s, nil, err
	}
	host.Ulimits = ulimits
	for _, node := range append(slices.Clone(gpus.nodes), rdmaNodes(at.root)...) {
		host.Devices = append(host.Devices, container.DeviceMapping{PathOnHost: node, PathInContainer: insidePath(node), CgroupPermissions: "rw"})
	}
	for _, d := range c.Devices {
		host.Devices = append(host.Devices, container.DeviceMapping{PathOnHost: d.Source, PathInContainer: d.Target, CgroupPermissions: d.Permissions})
	}
	host.Mounts = []mount.Mount{
		{Type: mount.TypeBind, Source: at.program, Target: insideInit, ReadOnly: true},
		{Type: mount.TypeBind, Source: filepath.Join(at.dir, taskDir), Target: insideDir},
	}
	if at.resolvConf != "" {
		host.Mounts = append(host.Mounts, mount.Mount{Type: mount.TypeBind, Source: at.resolvConf, Target: "/etc/resolv.conf"})
	}
	for _, m := range c.Mounts {
		host.Mounts = append(host.Mounts, mount.Mount{Type: mount.TypeBind, Source: m.Source, Target: m.Target, ReadOnly: m.ReadOnly,
			BindOptions: &mount.BindOptions{Propagation: propagation(m.Propagation)}})
	}
	return config, host, inside, warnings, nil
}

// insidePath is the usual place of a node that stands below another root.
func insidePath(node string) string {
	if i := strings.LastIndex(node, "/dev/"); i > 0 {
		return node[i:]
	}
	return node
}

// propagation is Linux's name for Nomad's.
func propagation(mode string) mount.Propagation {
	switch mode {
	case "host-to-task":
		return mount.PropagationRSlave
	case "bidirectional":
		return mount.PropagationRShared
	}
	return mount.PropagationRPrivate
}

// ulimits are the limits as the host can give them: one that was not asked for
// is cut down to that, with a warning.
// The engine of the same host is taken to be no freer than this process.
func ulimits(limits []runtime.Limit, can func(string) (uint64, error)) (list []*container.Ulimit, warnings []string, err error) {
	for _, l := range limits {
		value := l.Value
		most, err := can(l.Name)
		if err != nil {
			return nil, nil, err
		}
		if !l.Asked && value > most {
			value = most
			text := units.BytesSize(float64(value))
			if l.Name == "nofile" {
				text = strconv.FormatUint(value, 10)
			}
			warnings = append(warnings, fmt.Sprintf("the limit %s is %s: this host does not allow more", l.Name, text))
		}
		number := int64(-1) // unlimited
		if value <= math.MaxInt64 {
			number = int64(value)
		}
		list = append(list, &container.Ulimit{Name: l.Name, Soft: number, Hard: number})
	}
	return list, warnings, nil
}

// overridden is env with more, whose values win.
func overridden(env, more []string) []string {
	names := map[string]bool{}
	for _, e := range more {
		name, _, _ := strings.Cut(e, "=")
		names[name] = true
	}
	kept := slices.DeleteFunc(slices.Clone(env), func(e string) bool {
		name, _, _ := strings.Cut(e, "=")
		return names[name]
	})
	return append(kept, more...)
}

// resolvConf is the file that makes a resolver of d (resolv.conf(5)); what d
// does not name is the host's.
func resolvConf(d runtime.DNS, host []byte) ([]byte, error) {
	var b strings.Builder
	for _, s := range d.Servers {
		if _, err := netip.ParseAddr(s); err != nil {
			return nil, fmt.Errorf("dns.servers: %q; allowed is an IP literal", s)
		}
		fmt.Fprintf(&b, "nameserver %s\n", s)
	}
	for _, list := range []struct {
		key, field string
		words      []string
	}{{"search", "dns.searches", d.Searches}, {"options", "dns.options", d.Options}} {
		for _, w := range list.words {
			if w == "" || strings.ContainsAny(w, " \t\r\n#;") {
				return nil, fmt.Errorf("%s: %q; allowed is a word", list.field, w)
			}
		}
		if len(list.words) > 0 {
			fmt.Fprintf(&b, "%s %s\n", list.key, strings.Join(list.words, " "))
		}
	}
	for line := range strings.Lines(string(host)) {
		key, _, _ := strings.Cut(strings.TrimSpace(line), " ")
		if key == "nameserver" && len(d.Servers) == 0 || key == "search" && len(d.Searches) == 0 || key == "options" && len(d.Options) == 0 {
			b.WriteString(strings.TrimSpace(line) + "\n")
		}
	}
	return []byte(b.String()), nil
}
