// SPDX-License-Identifier: MPL-2.0

// Package dockertest runs a real Docker Engine or Podman for a test.
package dockertest

import (
	"archive/tar"
	"bytes"
	"context"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"github.com/moby/moby/client"
	"github.com/shirou/gopsutil/v4/process"
)

// Image is the image that each engine has: directories and links alone. The
// programs are the host's own: a task mounts Volumes.
const Image = "host:1"

// Volumes show the host's programs to a container of Image.
var Volumes = []string{"/usr:/usr:ro", "/etc/alternatives:/etc/alternatives:ro"}

// Engine is a running engine without networks of its own.
type Engine struct {
	// Podman: it is not Docker Engine.
	Podman bool
	// Endpoint is its URL.
	Endpoint string
	// Client asks it.
	Client *client.Client

	dir  string
	log  *os.File
	cmd  *exec.Cmd
	argv []string
	env  []string
}

// NeedsRoot says why a test with containers cannot run; empty: it can.
func NeedsRoot() string {
	if os.Geteuid() != 0 {
		return "needs root: Docker Engine"
	}
	return ""
}

// Missing says what must be installed for a test with containers; empty: nothing.
func Missing() string {
	if _, err := exec.LookPath("dockerd"); err != nil {
		return "dockerd is not found: on Debian and Ubuntu, apt-get install docker.io"
	}
	return ""
}

// Start runs Docker Engine, whose files are in dir, a short path, and gives it
// Image. The words of wrap begin its command.
func Start(ctx context.Context, dir string, wrap ...string) (*Engine, error) {
	e := &Engine{Endpoint: "unix://" + filepath.Join(dir, "docker.sock"), dir: dir}
	if err := os.WriteFile(e.in("none.json"), []byte("{}"), 0o600); err != nil {
		return nil, err
	}
	e.argv = append(append([]string{}, wrap...), "dockerd", "--data-root", e.in("data"), "--exec-root", e.in("run"), "--pidfile", e.in("pid"), "-H", e.Endpoint,
		"--config-file", e.in("none.json"), "--bridge=none", "--iptables=false", "--ip-forward=false", "--ip-masq=false", "--storage-driver=vfs")
	return e, e.begin(ctx)
}

// StartPodman runs Podman's service instead.
func StartPodman(ctx context.Context, dir string) (*Engine, error) {
	e := &Engine{Podman: true, Endpoint: "unix://" + filepath.Join(dir, "podman.sock"), dir: dir}
	// Its own defaults are more than a container without CAP_SYS_RESOURCE may have.
	config := "[containers]\ndefault_ulimits = [\"nofile=1024:1024\", \"nproc=4096:4096\"]\n[engine]\ncgroup_manager = \"cgroupfs\"\nevents_logger = \"file\"\n"
	if err := os.WriteFile(e.in("containers.conf"), []byte(config), 0o600); err != nil {
		return nil, err
	}
	e.env = []string{"CONTAINERS_CONF=" + e.in("containers.conf")}
	e.argv = []string{"podman", "--root", e.in("root"), "--runroot", e.in("run"), "--tmpdir", e.in("tmp"), "--storage-driver", "vfs", "system", "service", "--time=0", e.Endpoint}
	return e, e.begin(ctx)
}

func (e *Engine) in(name string) string { return filepath.Join(e.dir, name) }

func (e *Engine) begin(ctx context.Context) error {
	var err error
	if e.Client, err = client.New(client.WithHost(e.Endpoint)); err != nil {
		return err
	}
	if err := e.Up(ctx); err != nil {
		return err
	}
	if err := e.importImage(ctx); err != nil {
		e.Stop()
		return err
	}
	return nil
}

// Up starts the engine's program.
func (e *Engine) Up(ctx context.Context) error {
	var err error
	if e.log, err = os.OpenFile(e.in("engine.log"), os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600); err != nil {
		return err
	}
	e.cmd = exec.Command(e.argv[0], e.argv[1:]...)
	e.cmd.Stdout, e.cmd.Stderr, e.cmd.Env = e.log, e.log, append(os.Environ(), e.env...)
	e.cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	if err := e.cmd.Start(); err != nil {
		return err
	}
	for deadline := time.Now().Add(time.Minute); ; {
		if _, err = e.Client.Ping(ctx, client.PingOptions{NegotiateAPIVersion: true}); err == nil {
			return nil
		}
		if time.Now().After(deadline) || ctx.Err() != nil {
			e.Stop()
			data, _ := os.ReadFile(e.in("engine.log"))
			return fmt.Errorf("%s does not come up: %w\n%s", e.argv[0], err, data[max(0, len(data)-1000):])
		}
		time.Sleep(50 * time.Millisecond)
	}
}

// Stop ends the engine with all its containers.
func (e *Engine) Stop() {
	if e.cmd == nil {
		return
	}
	ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
	defer cancel()
	if all, err := e.Client.ContainerList(ctx, client.ContainerListOptions{All: true}); err == nil {
		for _, c := range all.Items {
			_, _ = e.Client.ContainerRemove(ctx, c.ID, client.ContainerRemoveOptions{Force: true})
		}
	}
	e.Down(syscall.SIGTERM)
	e.cmd = nil
	// Podman leaves a process for each command in a container, for minutes.
	if all, err := process.Processes(); err == nil {
		for _, p := range all {
			if line, err := p.Cmdline(); err == nil && strings.Contains(line, e.dir+"/") && int(p.Pid) != os.Getpid() {
				_ = p.Kill()
			}
		}
	}
	// What its own end leaves mounted.
	if mounts, err := os.ReadFile("/proc/self/mounts"); err == nil {
		for line := range strings.Lines(string(mounts)) {
			if f := strings.Fields(line); len(f) > 1 && strings.HasPrefix(f[1], e.dir+"/") {
				_ = syscall.Unmount(f[1], syscall.MNT_DETACH)
			}
		}
	}
}

// Down signals the engine's program and waits for its end.
func (e *Engine) Down(sig syscall.Signal) {
	_ = syscall.Kill(-e.cmd.Process.Pid, sig)
	done := make(chan struct{})
	go func() {
		_ = e.cmd.Wait() // its exit says nothing
		close(done)
	}()
	select {
	case <-done:
	case <-time.After(20 * time.Second):
		_ = syscall.Kill(-e.cmd.Process.Pid, syscall.SIGKILL)
		<-done
	}
	e.log.Close()
}

// Names are the containers there are, running or not.
func (e *Engine) Names(ctx context.Context) ([]string, error) {
	all, err := e.Client.ContainerList(ctx, client.ContainerListOptions{All: true})
	if err != nil {
		return nil, err
	}
	var names []string
	for _, c := range all.Items {
		names = append(names, strings.TrimPrefix(strings.Join(c.Names, ","), "/")+" "+string(c.State))
	}
	return names, nil
}

func (e *Engine) importImage(ctx context.Context) error {
	var b bytes.Buffer
	w := tar.NewWriter(&b)
	for _, name := range []string{"usr", "etc", "etc/alternatives", "tmp", "proc", "sys", "dev", "root"} {
		mode := int64(0o755)
		if name == "tmp" {
			mode = 0o1777
		}
		if err := w.WriteHeader(&tar.Header{Typeflag: tar.TypeDir, Name: name + "/", Mode: mode}); err != nil {
			return err
		}
	}
	for _, name := range []string{"bin", "sbin", "lib", "lib64"} {
		if err := w.WriteHeader(&tar.Header{Typeflag: tar.TypeSymlink, Name: name, Linkname: "usr/" + name, Mode: 0o777}); err != nil {
			return err
		}
	}
	for name, text := range map[string]string{
		"etc/passwd": "root:x:0:0::/root:/bin/sh\nnobody:x:65534:65534::/:/bin/sh\n", "etc/group": "root:x:0:\nnogroup:x:65534:\n",
		"etc/nsswitch.conf": "hosts: files dns\n"} {
		if err := w.WriteHeader(&tar.Header{Typeflag: tar.TypeReg, Name: name, Mode: 0o644, Size: int64(len(text))}); err != nil {
			return err
		}
		if _, err := io.WriteString(w, text); err != nil {
			return err
		}
	}
	if err := w.Close(); err != nil {
		return err
	}
	r, err := e.Client.ImageImport(ctx, client.ImageImportSource{Source: &b, SourceName: "-"}, Image, client.ImageImportOptions{
		Changes: []string{"ENV PATH=/usr/local/bin:/usr/bin:/bin", `CMD ["sh", "-c", "echo what the image runs"]`, "WORKDIR /root"}})
	if err != nil {
		return fmt.Errorf("import %s: %w", Image, err)
	}
	defer r.Close()
	_, err = io.Copy(io.Discard, r)
	return err
}
