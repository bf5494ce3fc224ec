// SPDX-License-Identifier: MPL-2.0

package plugin

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"net"
	"path"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"time"

	"github.com/distribution/reference"
	"github.com/docker/go-units"
	"github.com/hashicorp/nomad/helper/pluginutils/hclutils"
	"github.com/hashicorp/nomad/plugins/drivers"
	"github.com/hashicorp/nomad/plugins/shared/hclspec"

	"github.com/nomad-gpu/nomad-gpu/driver/runtime"
	"github.com/nomad-gpu/nomad-gpu/driver/runtime/docker"
)

// defaultCaps are those a task may add or keep: the engine's own, and what
// training uses beside them: locked memory for RDMA, the policy of memory, and
// looking into its own processes (py-spy, gdb).
var defaultCaps = []string{"audit_write", "chown", "dac_override", "fowner", "fsetid", "ipc_lock", "kill", "mknod", "net_bind_service",
	"net_raw", "setfcap", "setgid", "setpcap", "setuid", "sys_chroot", "sys_nice", "sys_ptrace"}

// containerSpec is the engine, in the plugin's configuration.
var containerSpec = hclspec.NewBlock("container", false, hclspec.NewObject(map[string]*hclspec.Spec{
	"endpoint":         withDefault("endpoint", "string", `"`+docker.DefaultEndpoint+`"`),
	"ca_file":          attr("ca_file", "string"),
	"cert_file":        attr("cert_file", "string"),
	"key_file":         attr("key_file", "string"),
	"auth_config":      attr("auth_config", "string"),
	"gpus":             withDefault("gpus", "string", `"auto"`),
	"driver_root":      withDefault("driver_root", "string", `"/"`),
	"pull_timeout":     withDefault("pull_timeout", "string", `"5m"`),
	"volumes":          withDefault("volumes", "bool", "false"),
	"allow_privileged": withDefault("allow_privileged", "bool", "false"),
	"allow_caps":       attr("allow_caps", "list(string)"),
}))

// ContainerConfig is the decoded containerSpec; without a block it is all empty.
type ContainerConfig struct {
	Endpoint        string   `codec:"endpoint"`
	CAFile          string   `codec:"ca_file"`
	CertFile        string   `codec:"cert_file"`
	KeyFile         string   `codec:"key_file"`
	AuthConfig      string   `codec:"auth_config"`
	GPUs            string   `codec:"gpus"`
	DriverRoot      string   `codec:"driver_root"`
	PullTimeout     string   `codec:"pull_timeout"`
	Volumes         bool     `codec:"volumes"`
	AllowPrivileged bool     `codec:"allow_privileged"`
	AllowCaps       []string `codec:"allow_caps"`
}

func (c ContainerConfig) read() (docker.Config, error) {
	d := docker.Config{Endpoint: cmp.Or(c.Endpoint, docker.DefaultEndpoint), CAFile: c.CAFile, CertFile: c.CertFile, KeyFile: c.KeyFile,
		AuthConfig: c.AuthConfig, GPUs: cmp.Or(c.GPUs, "auto"), DriverRoot: cmp.Or(c.DriverRoot, "/")}
	var err error
	if d.PullTimeout, err = duration("container.pull_timeout", cmp.Or(c.PullTimeout, "5m"), time.Second); err != nil {
		return d, err
	}
	for _, name := range c.AllowCaps {
		if !plainCap.MatchString(name) {
			err = errors.Join(err, fmt.Errorf("container.allow_caps: %q; allowed are names such as \"sys_nice\", or \"all\"", name))
		}
	}
	return d, errors.Join(err, d.Validate())
}

// caps are the capabilities that a task may have.
func (c ContainerConfig) caps() []string {
	if c.AllowCaps == nil {
		return defaultCaps
	}
	return c.AllowCaps
}

// imageSpec are a task's options of its container.
var imageSpec = map[string]*hclspec.Spec{
	"image":           attr("image", "string"),
	"entrypoint":      attr("entrypoint", "list(string)"),
	"force_pull":      withDefault("force_pull", "bool", "false"),
	"shm_size":        attr("shm_size", "string"),
	"cap_add":         attr("cap_add", "list(string)"),
	"cap_drop":        attr("cap_drop", "list(string)"),
	"privileged":      withDefault("privileged", "bool", "false"),
	"readonly_rootfs": withDefault("readonly_rootfs", "bool", "false"),
	"volumes":         attr("volumes", "list(string)"),
	"extra_hosts":     attr("extra_hosts", "list(string)"),
	"labels":          attr("labels", "list(map(string))"),
	"auth": hclspec.NewBlock("auth", false, hclspec.NewObject(map[string]*hclspec.Spec{
		"username":       hclspec.NewAttr("username", "string", true),
		"password":       hclspec.NewAttr("password", "string", true),
		"server_address": attr("server_address", "string"),
	})),
}

// ImageConfig is the decoded imageSpec.
type ImageConfig struct {
	Image          string             `codec:"image"`
	Entrypoint     []string           `codec:"entrypoint"`
	ForcePull      bool               `codec:"force_pull"`
	ShmSize        string             `codec:"shm_size"`
	CapAdd         []string           `codec:"cap_add"`
	CapDrop        []string           `codec:"cap_drop"`
	Privileged     bool               `codec:"privileged"`
	ReadonlyRootfs bool               `codec:"readonly_rootfs"`
	Volumes        []string           `codec:"volumes"`
	ExtraHosts     []string           `codec:"extra_hosts"`
	Labels         hclutils.MapStrStr `codec:"labels"`
	Auth           struct {
		Username      string `codec:"username"`
		Password      string `codec:"password"`
		ServerAddress string `codec:"server_address"`
	} `codec:"auth"`
}

var plainCap = regexp.MustCompile(`^(?i)[a-z][a-z_]{1,40}$`)

// usualShm is what NCCL's manual asks of a container.
const usualShm = 1 << 30

// set reports the options that only a container has.
func (c ImageConfig) set() (names []string) {
	for name, is := range map[string]bool{"entrypoint": len(c.Entrypoint) > 0, "force_pull": c.ForcePull, "shm_size": c.ShmSize != "", "cap_add": len(c.CapAdd) > 0,
		"cap_drop": len(c.CapDrop) > 0, "privileged": c.Privileged, "readonly_rootfs": c.ReadonlyRootfs, "volumes": len(c.Volumes) > 0,
		"extra_hosts": len(c.ExtraHosts) > 0, "labels": len(c.Labels) > 0, "auth": c.Auth.Username != ""} {
		if is {
			names = append(names, name)
		}
	}
	slices.Sort(names)
	return names
}

// container is what the task runs in, nil: the host. The memory limit is the
// task's in bytes, 0: none.
func (c ImageConfig) container(p ContainerConfig, cfg *drivers.TaskConfig, gpus []string, memory int64) (*runtime.Container, error) {
	if c.Image == "" {
		if names := c.set(); len(names) > 0 {
			return nil, fmt.Errorf("%s: set, and image is not; allowed in a container alone", strings.Join(names, ", "))
		}
		return nil, hostOnly(cfg)
	}
	var errs []error
	fail := func(format string, args ...any) { errs = append(errs, fmt.Errorf(format, args...)) }
	if _, err := reference.ParseNormalizedNamed(c.Image); err != nil {
		fail("image: %q: %w; allowed is a reference such as ghcr.io/team/train:v3", c.Image, err)
	}
	box := &runtime.Container{Image: c.Image, Pull: c.ForcePull, Entrypoint: c.Entrypoint, GPUs: gpus, Privileged: c.Privileged,
		ReadonlyRootfs: c.ReadonlyRootfs, ExtraHosts: c.ExtraHosts,
		Name: "nccl-" + cfg.AllocID + "-" + notPlain.ReplaceAllString(cfg.Name, "_")}
	if c.Auth.Username != "" {
		box.Auth = &runtime.Auth{Username: c.Auth.Username, Password: c.Auth.Password, Server: c.Auth.ServerAddress}
	}
	if c.Privileged && !p.AllowPrivileged {
		fail("privileged: true; the driver's container.allow_privileged is false")
	}
	var err error
	if box.ShmBytes, err = c.shm(memory); err != nil {
		errs = append(errs, err)
	}
	box.CapAdd, box.CapDrop, err = c.caps(p.caps())
	errs = append(errs, err)
	for _, h := range c.ExtraHosts {
		name, address, ok := strings.Cut(h, ":")
		if !ok || name == "" || net.ParseIP(address) == nil && address != "host-gateway" {
			fail("extra_hosts: %q; allowed is name:address", h)
		}
	}
	box.Labels = map[string]string{}
	for k, v := range c.Labels {
		if strings.HasPrefix(k, "io.nomad-gpu.") || strings.HasPrefix(k, "com.hashicorp.nomad.") || k == "" {
			fail("labels: %q; it is the driver's to set", k)
		}
		box.Labels[k] = v
	}
	maps.Copy(box.Labels, map[string]string{"com.hashicorp.nomad.alloc_id": cfg.AllocID, "com.hashicorp.nomad.job_name": cfg.JobName,
		"com.hashicorp.nomad.task_group_name": cfg.TaskGroupName, "com.hashicorp.nomad.task_name": cfg.Name, "com.hashicorp.nomad.namespace": cfg.Namespace})
	if box.Mounts, err = c.mounts(p.Volumes, cfg); err != nil {
		errs = append(errs, err)
	}
	for _, d := range cfg.Devices {
		box.Devices = append(box.Devices, runtime.Device{Source: d.HostPath, Target: d.TaskPath, Permissions: cmp.Or(d.Permissions, "rwm")})
	}
	if d := cfg.DNS; d != nil && len(d.Servers)+len(d.Searches)+len(d.Options) > 0 {
		box.DNS = &runtime.DNS{Servers: d.Servers, Searches: d.Searches, Options: d.Options}
	}
	return box, errors.Join(errs...)
}

var notPlain = regexp.MustCompile(`[^A-Za-z0-9_.-]+`)

// shm is the size of /dev/shm, which counts as the task's memory: half of it,
// as Linux has it, and at least what NCCL wants, where there is as much.
func (c ImageConfig) shm(memory int64) (int64, error) {
	if c.ShmSize == "" {
		if memory == 0 {
			return usualShm, nil
		}
		return min(memory, max(usualShm, memory/2)), nil
	}
	size, err := units.RAMInBytes(c.ShmSize)
	if err != nil || size < 1<<20 {
		return 0, fmt.Errorf("shm_size: %q; allowed is a size of at least 1MiB, such as 16GiB", c.ShmSize)
	}
	if memory > 0 && size > memory {
		return 0, fmt.Errorf("shm_size: %q is more than the task's memory, %s, which it counts as; allowed is up to that", c.ShmSize, units.BytesSize(float64(memory)))
	}
	return size, nil
}

// caps are what to add to and take from the engine's own, as allowed.
func (c ImageConfig) caps(allowed []string) (add, drop []string, err error) {
	allowed = slices.Clone(allowed)
	for i := range allowed {
		allowed[i] = bareCap(allowed[i])
	}
	for _, name := range c.CapAdd {
		name = bareCap(name)
		if !slices.Contains(allowed, name) && !slices.Contains(allowed, "ALL") {
			err = errors.Join(err, fmt.Errorf("cap_add: %q; the driver's container.allow_caps allows %s", name, strings.ToLower(strings.Join(allowed, ", "))))
		}
		add = append(add, name)
	}
	for _, name := range c.CapDrop {
		if !plainCap.MatchString(name) {
			err = errors.Join(err, fmt.Errorf("cap_drop: %q; allowed are names such as \"net_raw\", or \"all\"", name))
		}
		drop = append(drop, bareCap(name))
	}
	// RDMA registers memory, which locks it.
	const lock = "IPC_LOCK"
	if may := slices.Contains(allowed, lock) || slices.Contains(allowed, "ALL"); may && !slices.Contains(add, lock) && !slices.Contains(drop, lock) && !slices.Contains(drop, "ALL") {
		add = append(add, lock)
	}
	// What the engine gives by itself and is not allowed here.
	if !slices.Contains(allowed, "ALL") && !slices.Contains(drop, "ALL") {
		for _, name := range engineCaps {
			if !slices.Contains(allowed, name) && !slices.Contains(drop, name) {
				drop = append(drop, name)
			}
		}
	}
	return add, drop, err
}

// engineCaps are what Docker Engine gives a container that asks for nothing
// (docs.docker.com, "Runtime privilege and Linux capabilities").
var engineCaps = []string{"AUDIT_WRITE", "CHOWN", "DAC_OVERRIDE", "FOWNER", "FSETID", "KILL", "MKNOD", "NET_BIND_SERVICE", "NET_RAW", "SETFCAP", "SETGID", "SETPCAP", "SETUID", "SYS_CHROOT"}

func bareCap(name string) string { return strings.TrimPrefix(strings.ToUpper(name), "CAP_") }

// mounts are the allocation's directories, at their own paths, which the
// task's environment and arguments name, and at those that a container of
// Nomad's own docker driver has; then Nomad's volumes, then the user's.
func (c ImageConfig) mounts(allowed bool, cfg *drivers.TaskConfig) ([]runtime.Mount, error) {
	dir := cfg.TaskDir()
	var all []runtime.Mount
	for _, d := range []struct{ path, short string }{{dir.SharedAllocDir, "/alloc"}, {dir.LocalDir, "/local"}, {dir.SecretsDir, "/secrets"}} {
		all = append(all, runtime.Mount{Source: d.path, Target: d.path}, runtime.Mount{Source: d.path, Target: d.short})
	}
	for _, m := range cfg.Mounts {
		all = append(all, runtime.Mount{Source: m.HostPath, Target: m.TaskPath, ReadOnly: m.Readonly, Propagation: m.PropagationMode})
	}
	var errs []error
	for _, v := range c.Volumes {
		m, err := volume(v)
		if err == nil && !allowed && !within(m.Source, dir.SharedAllocDir) && !within(m.Source, dir.LocalDir) {
			err = fmt.Errorf("volumes: %q; the driver's container.volumes is false: allowed are Nomad's own volume_mount, and paths of the allocation", v)
		}
		errs = append(errs, err)
		all = append(all, m)
	}
	seen := map[string]bool{}
	for _, m := range all {
		if target := path.Clean(m.Target); seen[target] || target == "/" || within(target, "/.nccl") {
			errs = append(errs, fmt.Errorf("volumes: two for the same place, or for one of the driver's: %q", m.Target))
		} else {
			seen[target] = true
		}
	}
	return all, errors.Join(errs...)
}

// within reports whether p is dir or below it.
func within(p, dir string) bool {
	p, dir = path.Clean(p), path.Clean(dir)
	return p == dir || strings.HasPrefix(p, dir+"/")
}

// volume reads "source:target" or "source:target:ro".
func volume(text string) (runtime.Mount, error) {
	parts := strings.Split(text, ":")
	m := runtime.Mount{}
	ok := len(parts) == 2 || len(parts) == 3 && (parts[2] == "ro" || parts[2] == "rw")
	if ok {
		m = runtime.Mount{Source: filepath.Clean(parts[0]), Target: path.Clean(parts[1]), ReadOnly: len(parts) == 3 && parts[2] == "ro"}
		ok = filepath.IsAbs(parts[0]) && path.IsAbs(parts[1])
	}
	if !ok {
		return m, fmt.Errorf("volumes: %q; allowed are source:target and source:target:ro with absolute paths", text)
	}
	return m, nil
}

// reachEngine makes sure that there is an engine for a task with an image.
func (d *Driver) reachEngine() error {
	if d.engine == nil {
		return errors.New("container engine: the driver is not configured yet")
	}
	ctx, cancel := context.WithTimeout(d.ctx, 10*time.Second)
	defer cancel()
	_, err := d.engine.Facts(ctx)
	return err
}

// sweepContainers removes what former lives left.
func (d *Driver) sweepContainers() {
	ctx, cancel := context.WithTimeout(d.ctx, time.Minute)
	defer cancel()
	removed, err := d.engine.Sweep(ctx)
	if err != nil {
		d.logger.Debug("leftover containers cannot be looked for", "error", err)
	}
	for _, name := range removed {
		d.logger.Info("removed the container of a task that Nomad has forgotten", "container", name)
	}
}
