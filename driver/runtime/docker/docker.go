// SPDX-License-Identifier: MPL-2.0

package docker

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path"
	"path/filepath"
	"strings"
	"time"

	cerrdefs "github.com/containerd/errdefs"
	"github.com/moby/moby/api/types/container"
	"github.com/moby/moby/client"

	"github.com/nomad-gpu/nomad-gpu/driver/runtime"
	"github.com/nomad-gpu/nomad-gpu/driver/runtime/process"
)

// taskDir is what of a generation's directory the container sees.
const taskDir = "task"

// Runtime runs one task's generations as containers.
type Runtime struct {
	Engine *Engine
	// Report tells how a pull goes; may be nil.
	Report func(string)
	// Program is the driver's; empty: this one.
	Program string
}

var _ runtime.Runtime = Runtime{}

func (r Runtime) program() (string, error) {
	if r.Program != "" {
		return r.Program, nil
	}
	program, err := os.Executable()
	if err != nil {
		return "", fmt.Errorf("find the driver's own program: %w", err)
	}
	return program, nil
}

// Create pulls the image, where the node lacks it, and creates the container.
func (r Runtime) Create(ctx context.Context, dir string, s runtime.Spec) (runtime.Process, error) {
	p, err := r.create(ctx, dir, s)
	if err != nil {
		return nil, err
	}
	return p, nil
}

func (r Runtime) create(ctx context.Context, dir string, s runtime.Spec) (*generation, error) {
	program, err := r.program()
	if err != nil {
		return nil, err
	}
	report := r.Report
	if report == nil {
		report = func(string) {}
	}
	if err := os.RemoveAll(dir); err != nil {
		return nil, err
	}
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return nil, err
	}
	facts, err := r.Engine.Facts(ctx)
	if err != nil {
		return nil, err
	}
	gpus, err := r.Engine.config.gpus(facts, s.Container.GPUs)
	if err != nil {
		return nil, err
	}
	_, image, err := r.Engine.ensure(ctx, s.Container, report)
	if err != nil {
		return nil, err
	}
	at := place{program: program, dir: dir, root: "/"}
	if d := s.Container.DNS; d != nil {
		host, _ := os.ReadFile("/etc/resolv.conf") // a host without one lends nothing
		data, err := resolvConf(*d, host)
		if err != nil {
			return nil, err
		}
		at.resolvConf = filepath.Join(dir, "resolv.conf")
		if err := os.WriteFile(at.resolvConf, data, 0o644); err != nil {
			return nil, err
		}
	}
	config, host, inside, warnings, err := configure(s, image, gpus, at, runtime.MostLimit)
	if err != nil {
		return nil, err
	}
	if err := prepareTaskDir(filepath.Join(dir, taskDir), inside); err != nil {
		return nil, err
	}
	name := s.Container.Name + "-" + filepath.Base(dir)
	p := &generation{engine: r.Engine, dir: dir, program: program, about: about{Name: name, Stdout: s.Stdout, Stderr: s.Stderr, Engine: r.Engine.config}}
	// Before the container is there: what is made is found again.
	if err := runtime.WriteFile(dir, aboutFile, p.about); err != nil {
		return nil, err
	}
	if err := r.Engine.remove(ctx, name); err != nil {
		return nil, fmt.Errorf("container %s: of a former life: %w", name, err)
	}
	if _, err := r.Engine.client.ContainerCreate(ctx, client.ContainerCreateOptions{Config: config, HostConfig: host, Name: name}); err != nil {
		return nil, fmt.Errorf("container %s: %w", name, errors.Join(err, r.Engine.remove(context.WithoutCancel(ctx), name)))
	}
	if err := r.Engine.findCommand(ctx, name, inside.Command, append(image.Env, config.Env...)); err != nil {
		return nil, errors.Join(err, r.Engine.remove(context.WithoutCancel(ctx), name))
	}
	if s.Warn != nil && len(warnings) > 0 {
		s.Warn(strings.Join(warnings, "; "))
	}
	return p, nil
}

// prepareTaskDir leaves in dir what the container's first process reads. The
// container's user writes there, so it is open to all; the directory above
// keeps the host's users out.
func prepareTaskDir(dir string, inside runtime.Spec) error {
	if err := os.Mkdir(dir, 0o700); err != nil {
		return err
	}
	data, err := json.Marshal(inside)
	if err != nil {
		return err
	}
	if err := os.WriteFile(filepath.Join(dir, process.InitSpec), data, 0o644); err != nil {
		return err
	}
	return os.Chmod(dir, 0o777)
}

// findCommand looks for the command in the created container. Only what is
// surely missing is an error.
func (e *Engine) findCommand(ctx context.Context, name, command string, env []string) error {
	if path.IsAbs(command) {
		if e.missing(ctx, name, command) {
			return fmt.Errorf("command: %q does not exist in the image", command)
		}
		return nil
	}
	if strings.Contains(command, "/") {
		return nil // from the working directory, which may be made by the entrypoint
	}
	list := "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin" // the engine's own
	for _, v := range env {
		if value, ok := strings.CutPrefix(v, "PATH="); ok {
			list = value
		}
	}
	for _, dir := range filepath.SplitList(list) {
		if !path.IsAbs(dir) || !e.missing(ctx, name, path.Join(dir, command)) {
			return nil
		}
	}
	return fmt.Errorf("command: %q is not found in the image's PATH %q", command, list)
}

func (e *Engine) missing(ctx context.Context, name, file string) bool {
	_, err := e.client.ContainerStatPath(ctx, name, client.ContainerStatPathOptions{Path: file})
	return cerrdefs.IsNotFound(err)
}

// removeWithin is how long an engine may take to remove a container.
const removeWithin = 20 * time.Second

// remove takes a container away, with what runs in it; none may be there.
func (e *Engine) remove(ctx context.Context, name string) error {
	ctx, cancel := context.WithTimeout(ctx, removeWithin)
	defer cancel()
	for {
		_, err := e.client.ContainerRemove(ctx, name, client.ContainerRemoveOptions{Force: true, RemoveVolumes: true})
		if err == nil || cerrdefs.IsNotFound(err) {
			return nil
		}
		// Somebody else may be removing it, or it ends at this moment, which
		// Podman takes for an error.
		select {
		case <-ctx.Done():
			return err
		case <-time.After(200 * time.Millisecond):
		}
	}
}

// Sweep removes containers whose generation's directory is gone: Nomad has
// forgotten their tasks while no driver could remove them. It returns their names.
func (e *Engine) Sweep(ctx context.Context) ([]string, error) {
	found, err := e.client.ContainerList(ctx, client.ContainerListOptions{All: true, Filters: client.Filters{}.Add("label", labelDirectory)})
	if err != nil {
		return nil, err
	}
	var removed []string
	for _, c := range found.Items {
		dir := c.Labels[labelDirectory]
		if _, err := os.Stat(dir); !errors.Is(err, os.ErrNotExist) || !filepath.IsAbs(dir) {
			continue
		}
		if c.State == container.StateRunning || c.State == container.StateCreated || c.State == container.StateExited || c.State == container.StateDead {
			if err := e.remove(ctx, c.ID); err != nil {
				return removed, err
			}
			removed = append(removed, strings.TrimPrefix(strings.Join(c.Names, ","), "/"))
		}
	}
	return removed, nil
}
