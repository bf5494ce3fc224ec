// SPDX-License-Identifier: MPL-2.0

// Package docker runs a generation in one container of a Docker Engine, or of
// Podman through its compatible socket.
//
// The container is created when the generation is prepared and started when it
// starts. Its first process is the driver's own program, shown inside: it
// starts the user's, one or one for each GPU, as the supervisor of package
// process does on the host. The engine keeps the output, and a follower that
// outlives the driver passes it on to Nomad; the place up to which Nomad has it
// stands in the generation's directory.
//
//	driver ── Engine API ──▶ container: init ──▶ processes ──▶ children
//	Nomad's logs ◀── follower ◀── engine's logs ◀──┘
package docker

import (
	"context"
	"errors"
	"fmt"
	"net/url"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/moby/moby/client"
)

// Config says which engine runs the containers, and how it gives GPUs.
type Config struct {
	// Endpoint is a URL such as "unix:///var/run/docker.sock".
	Endpoint string
	// CAFile, CertFile and KeyFile are for an endpoint with TLS.
	CAFile, CertFile, KeyFile string
	// AuthConfig is the path of a configuration file of docker's, with logins
	// and credential helpers; may be empty.
	AuthConfig string
	// GPUs is how containers get GPUs: "auto", "cdi", "nvidia" or "devices".
	GPUs string
	// DriverRoot is where /dev and /proc of the NVIDIA driver are found.
	DriverRoot string
	// PullTimeout is how long a pull may make no progress.
	PullTimeout time.Duration
}

// DefaultEndpoint is where the system's own Docker Engine listens.
const DefaultEndpoint = "unix:///var/run/docker.sock"

// Validate checks each field; it looks at no engine.
func (c Config) Validate() error {
	var errs []error
	u, err := url.Parse(c.Endpoint)
	switch {
	case err != nil, u != nil && u.Scheme != "unix" && u.Scheme != "tcp", u != nil && u.Host+u.Path == "":
		errs = append(errs, fmt.Errorf("container.endpoint: %q; allowed is a URL such as %s or tcp://127.0.0.1:2376", c.Endpoint, DefaultEndpoint))
	}
	if (c.CertFile == "") != (c.KeyFile == "") {
		errs = append(errs, fmt.Errorf("container.cert_file: %q with container.key_file: %q; allowed are both or none", c.CertFile, c.KeyFile))
	}
	if !slices.Contains(gpuWays, c.GPUs) {
		errs = append(errs, fmt.Errorf("container.gpus: %q; allowed are %s", c.GPUs, strings.Join(gpuWays, ", ")))
	}
	if !filepath.IsAbs(c.DriverRoot) {
		errs = append(errs, fmt.Errorf("container.driver_root: %q; allowed is an absolute path, such as /run/nvidia/driver", c.DriverRoot))
	}
	if c.AuthConfig != "" && !filepath.IsAbs(c.AuthConfig) {
		errs = append(errs, fmt.Errorf("container.auth_config: %q; allowed is an absolute path", c.AuthConfig))
	}
	if c.PullTimeout < time.Second {
		errs = append(errs, fmt.Errorf("container.pull_timeout: %s; allowed is at least 1s", c.PullTimeout))
	}
	return errors.Join(errs...)
}

// Engine is one engine. It may come and go: each call finds it anew.
type Engine struct {
	config Config
	client *client.Client
}

// New makes an engine; it looks for none yet. The version of the API is
// negotiated at the first call.
func New(c Config) (*Engine, error) {
	options := []client.Opt{client.WithHost(c.Endpoint)}
	if c.CAFile != "" || c.CertFile != "" {
		options = append(options, client.WithTLSClientConfig(c.CAFile, c.CertFile, c.KeyFile))
	}
	cli, err := client.New(options...)
	if err != nil {
		return nil, fmt.Errorf("container.endpoint: %q: %w", c.Endpoint, err)
	}
	return &Engine{config: c, client: cli}, nil
}

// Facts are what an engine says of itself.
type Facts struct {
	// Name and Version are such as "docker" and "29.1.2".
	Name, Version string
	// Runtimes are those it can start containers with, such as "nvidia".
	Runtimes []string
	// CDIDirs hold the specifications of the devices that it can give by name.
	CDIDirs []string
}

// Facts asks the engine. An error says that none is reached.
func (e *Engine) Facts(ctx context.Context) (Facts, error) {
	r, err := e.client.Info(ctx, client.InfoOptions{})
	if err != nil {
		return Facts{}, fmt.Errorf("container engine at %s: %w", e.config.Endpoint, err)
	}
	v, err := e.client.ServerVersion(ctx, client.ServerVersionOptions{})
	if err != nil {
		return Facts{}, fmt.Errorf("container engine at %s: %w", e.config.Endpoint, err)
	}
	f := Facts{Name: "docker", Version: v.Version, CDIDirs: r.Info.CDISpecDirs}
	for _, c := range v.Components {
		if strings.Contains(strings.ToLower(c.Name), "podman") {
			f.Name = "podman"
		}
	}
	for name := range r.Info.Runtimes {
		f.Runtimes = append(f.Runtimes, name)
	}
	slices.Sort(f.Runtimes)
	return f, nil
}
