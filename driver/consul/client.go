// SPDX-License-Identifier: MPL-2.0

// Package consul keeps gangs in Consul's key-value store and sessions.
package consul

import (
	"errors"
	"fmt"
	"net/url"
	"os"
	"strings"

	"github.com/hashicorp/consul/api"

	"github.com/nomad-gpu/nomad-gpu/driver/gang"
)

// DefaultPrefix is where all gangs stand; v1 is the version of the layout.
const DefaultPrefix = "nccl/v1"

// Config is how to reach Consul. Empty fields take Consul's own environment
// variables (CONSUL_HTTP_ADDR, CONSUL_HTTP_TOKEN, CONSUL_CACERT …).
type Config struct {
	Address    string
	Token      string
	TokenFile  string
	TLS        bool
	CAFile     string
	CertFile   string
	KeyFile    string
	ServerName string
	Datacenter string
	// Prefix of all keys, without a slash at its ends.
	Prefix string
}

// NewClient makes a client; nothing is sent yet.
func NewClient(c Config) (*api.Client, error) {
	conf := api.DefaultConfig()
	set := func(to *string, value string) {
		if value != "" {
			*to = value
		}
	}
	set(&conf.Address, c.Address)
	set(&conf.Token, c.Token)
	set(&conf.Datacenter, c.Datacenter)
	set(&conf.TLSConfig.CAFile, c.CAFile)
	set(&conf.TLSConfig.CertFile, c.CertFile)
	set(&conf.TLSConfig.KeyFile, c.KeyFile)
	set(&conf.TLSConfig.Address, c.ServerName)
	if c.TLS {
		conf.Scheme = "https"
	}
	address := conf.Address
	path := c.TokenFile
	if path == "" && c.Token == "" {
		path = conf.TokenFile // CONSUL_HTTP_TOKEN_FILE
	}
	if path != "" {
		if err := useTokenFile(conf, path); err != nil {
			return nil, fmt.Errorf("consul at %s: %w", address, err)
		}
	}
	client, err := api.NewClient(conf)
	if err != nil {
		return nil, fmt.Errorf("consul at %s: %w", address, err)
	}
	return client, nil
}

// Validate names each field that cannot be used.
func (c Config) Validate() error {
	var errs []error
	if c.Address != "" {
		address := c.Address
		if !strings.Contains(address, "://") {
			address = "tcp://" + address
		}
		if u, err := url.Parse(address); err != nil || u.Host == "" && u.Scheme != "unix" {
			errs = append(errs, fmt.Errorf("consul.address: %q; allowed are host:port, http(s)://host:port and unix://path", c.Address))
		}
	}
	if c.Token != "" && c.TokenFile != "" {
		errs = append(errs, errors.New("consul.token and consul.token_file: both are set; allowed is one of them"))
	}
	for field, path := range map[string]string{"token_file": c.TokenFile, "ca_file": c.CAFile, "cert_file": c.CertFile, "key_file": c.KeyFile} {
		if path == "" {
			continue
		}
		if _, err := os.Stat(path); err != nil {
			errs = append(errs, fmt.Errorf("consul.%s: %w", field, err))
		}
	}
	if (c.CertFile == "") != (c.KeyFile == "") {
		errs = append(errs, errors.New("consul.cert_file and consul.key_file: only one is set; allowed are both or none"))
	}
	if strings.HasPrefix(c.Prefix, "/") || strings.HasSuffix(c.Prefix, "/") {
		errs = append(errs, fmt.Errorf("consul.prefix: %q; allowed is a path without a slash at its ends", c.Prefix))
	}
	return errors.Join(errs...)
}

// path is the prefix of one gang's keys, with a slash at its end. Each part is
// escaped: a job's name may hold a slash.
func path(prefix string, k gang.Key) string {
	if prefix == "" {
		prefix = DefaultPrefix
	}
	parts := []string{prefix}
	for _, part := range []string{k.Region, k.Namespace, k.Job, k.Group, k.Run} {
		parts = append(parts, url.QueryEscape(part))
	}
	return strings.Join(parts, "/") + "/"
}

// parsePath is the reverse of path, for a key below it.
func parsePath(prefix, key string) (gang.Key, string, bool) {
	rest, ok := strings.CutPrefix(key, prefix+"/")
	parts := strings.SplitN(rest, "/", 6)
	if !ok || len(parts) != 6 || strings.HasPrefix(rest, ".") {
		return gang.Key{}, "", false
	}
	for i, part := range parts[:5] {
		plain, err := url.QueryUnescape(part)
		if err != nil {
			return gang.Key{}, "", false
		}
		parts[i] = plain
	}
	return gang.Key{Region: parts[0], Namespace: parts[1], Job: parts[2], Group: parts[3], Run: parts[4]}, parts[5], true
}
