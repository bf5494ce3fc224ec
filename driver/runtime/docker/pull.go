// SPDX-License-Identifier: MPL-2.0

package docker

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"time"

	cerrdefs "github.com/containerd/errdefs"
	"github.com/distribution/reference"
	"github.com/docker/cli/cli/config/configfile"
	"github.com/docker/go-units"
	"github.com/moby/moby/api/pkg/authconfig"
	"github.com/moby/moby/api/types/container"
	"github.com/moby/moby/api/types/jsonstream"
	"github.com/moby/moby/api/types/registry"
	"github.com/moby/moby/client"

	"github.com/nomad-gpu/nomad-gpu/driver/runtime"
)

// reportEvery is how often a pull tells how far it is.
const reportEvery = 30 * time.Second

// ensure has the image on this node, and returns its ID and what it says of
// the command.
func (e *Engine) ensure(ctx context.Context, c *runtime.Container, report func(string)) (string, container.Config, error) {
	id, config, err := e.inspectImage(ctx, c.Image)
	if err == nil && !c.Pull {
		return id, config, nil
	}
	if err != nil && !cerrdefs.IsNotFound(err) {
		return "", config, fmt.Errorf("image %s: %w", c.Image, err)
	}
	if err := e.pull(ctx, c, report); err != nil {
		return "", config, fmt.Errorf("image %s: pull: %w", c.Image, err)
	}
	id, config, err = e.inspectImage(ctx, c.Image)
	if err != nil {
		return "", config, fmt.Errorf("image %s: %w", c.Image, err)
	}
	return id, config, nil
}

func (e *Engine) inspectImage(ctx context.Context, image string) (string, container.Config, error) {
	r, err := e.client.ImageInspect(ctx, image)
	if err != nil {
		return "", container.Config{}, err
	}
	var config container.Config
	if r.Config != nil {
		config.Entrypoint, config.Cmd, config.Env = r.Config.Entrypoint, r.Config.Cmd, r.Config.Env
	}
	return r.ID, config, nil
}

func (e *Engine) pull(ctx context.Context, c *runtime.Container, report func(string)) error {
	auth, err := e.auth(c)
	if err != nil {
		return err
	}
	began := time.Now()
	report(fmt.Sprintf("Image %s: pulling", c.Image))
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	stuck := time.AfterFunc(e.config.PullTimeout, func() {
		cancel(fmt.Errorf("no progress for container.pull_timeout, %s", e.config.PullTimeout))
	})
	defer stuck.Stop()
	stream, err := e.client.ImagePull(ctx, c.Image, client.ImagePullOptions{RegistryAuth: auth})
	if err != nil {
		return errors.Join(context.Cause(ctx), err)
	}
	defer stream.Close()
	layers, told := layers{}, began
	for m, err := range stream.JSONMessages(ctx) {
		if err != nil {
			return errors.Join(context.Cause(ctx), err)
		}
		if m.Error != nil {
			return m.Error
		}
		stuck.Reset(e.config.PullTimeout)
		layers.add(m)
		if time.Since(told) >= reportEvery {
			told = time.Now()
			report(fmt.Sprintf("Image %s: pulling, %s", c.Image, layers))
		}
	}
	report(fmt.Sprintf("Image %s: pulled in %s, %s", c.Image, time.Since(began).Round(time.Second), layers))
	return nil
}

// auth is the login at the image's registry as the engine takes it; empty: none.
func (e *Engine) auth(c *runtime.Container) (string, error) {
	if c.Auth != nil {
		return authconfig.Encode(registry.AuthConfig{Username: c.Auth.Username, Password: c.Auth.Password, ServerAddress: c.Auth.Server})
	}
	if e.config.AuthConfig == "" {
		return "", nil
	}
	data, err := os.ReadFile(e.config.AuthConfig)
	if err != nil {
		return "", fmt.Errorf("container.auth_config: %w", err)
	}
	file := configfile.New(e.config.AuthConfig)
	if err := file.LoadFromReader(bytes.NewReader(data)); err != nil {
		return "", fmt.Errorf("container.auth_config: %s: %w", e.config.AuthConfig, err)
	}
	named, err := reference.ParseNormalizedNamed(c.Image)
	if err != nil {
		return "", err
	}
	domain := reference.Domain(named)
	if domain == "docker.io" {
		domain = "https://index.docker.io/v1/" // the name that docker login keeps it under
	}
	a, err := file.GetAuthConfig(domain)
	if err != nil {
		return "", fmt.Errorf("container.auth_config: login of %s: %w", domain, err)
	}
	return authconfig.Encode(registry.AuthConfig{Username: a.Username, Password: a.Password, Auth: a.Auth, ServerAddress: a.ServerAddress,
		IdentityToken: a.IdentityToken, RegistryToken: a.RegistryToken})
}

// layers is how far each layer of an image has come.
type layers map[string]layer

type layer struct {
	now, size int64
	done      bool
}

func (l layers) add(m jsonstream.Message) {
	if m.ID == "" {
		return
	}
	one := l[m.ID]
	if m.Progress != nil && m.Status == "Downloading" {
		one.now, one.size = m.Progress.Current, max(m.Progress.Total, m.Progress.Current)
	}
	switch m.Status {
	case "Download complete", "Pull complete", "Already exists":
		one.now, one.done = one.size, true
	case "Pulling fs layer", "Waiting", "Downloading", "Verifying Checksum", "Extracting":
	default:
		return // the tag itself
	}
	l[m.ID] = one
}

// String says how many layers and bytes are there.
func (l layers) String() string {
	var now, size int64
	done := 0
	for _, one := range l {
		now, size = now+one.now, size+one.size
		if one.done {
			done++
		}
	}
	return fmt.Sprintf("%d of %d layers, %s of %s", done, len(l), units.BytesSize(float64(now)), units.BytesSize(float64(size)))
}
