// SPDX-License-Identifier: MPL-2.0

package plugin

import (
	"cmp"
	"fmt"
	"maps"
	"net/url"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"github.com/hashicorp/nomad-autoscaler/plugins"
	"github.com/hashicorp/nomad-autoscaler/sdk/helper/nomad"
	"github.com/hashicorp/nomad/api"
)

// ownSettings are those of a plugin's configuration that are ours.
var ownSettings = []string{configFile, configRecord, configMetrics}

// Settings of the connection to Nomad whose values are checked here.
const (
	configAddress  = "nomad_address"
	configInsecure = "nomad_skip-verify"
)

// nomadSettings are those of the connection to Nomad, named as the autoscaler
// names them: it adds to every plugin's configuration what its own block
// "nomad" and its environment say.
var nomadSettings = []string{configAddress, "nomad_region", "nomad_namespace", "nomad_token", "nomad_http-auth", "nomad_ca-cert", "nomad_ca-path",
	"nomad_client-cert", "nomad_client-key", "nomad_tls-server-name", configInsecure, "nomad_block-query-wait-time", plugins.ConfigKeyNomadConfigInherit}

// checkSettings finds settings that are none, and values that cannot be meant.
func checkSettings(config map[string]string) error {
	allowed := slices.Concat(ownSettings, nomadSettings)
	for _, name := range slices.Sorted(maps.Keys(config)) {
		if !slices.Contains(allowed, name) {
			return fmt.Errorf("%.64q is no setting; allowed are %s", name, strings.Join(allowed, ", "))
		}
	}
	if config[configFile] == "" {
		return fmt.Errorf("%s: not set; allowed is the path of a pools file", configFile)
	}
	if path := config[configRecord]; path != "" && !filepath.IsAbs(path) {
		return fmt.Errorf("%s: %q; allowed is an absolute path", configRecord, path)
	}
	if text := config[configInsecure]; text != "" {
		if _, err := strconv.ParseBool(text); err != nil {
			return fmt.Errorf("%s: %q; allowed are true and false", configInsecure, text)
		}
	}
	return nil
}

// connect makes a client of Nomad. Each setting that a plugin's configuration
// has stands above the environment's (NOMAD_*), each for itself.
func connect(config map[string]string) (*api.Client, error) {
	own, set := api.DefaultConfig(), nomad.ConfigFromNamespacedMap(config)
	own.Address = cmp.Or(set.Address, own.Address)
	own.SecretID = cmp.Or(set.SecretID, own.SecretID)
	own.Region = cmp.Or(set.Region, own.Region)
	own.HttpAuth = cmp.Or(set.HttpAuth, own.HttpAuth)
	tls := own.TLSConfig
	tls.CACert = cmp.Or(set.TLSConfig.CACert, tls.CACert)
	tls.CAPath = cmp.Or(set.TLSConfig.CAPath, tls.CAPath)
	tls.ClientCert = cmp.Or(set.TLSConfig.ClientCert, tls.ClientCert)
	tls.ClientKey = cmp.Or(set.TLSConfig.ClientKey, tls.ClientKey)
	tls.TLSServerName = cmp.Or(set.TLSConfig.TLSServerName, tls.TLSServerName)
	if config[configInsecure] != "" {
		tls.Insecure = set.TLSConfig.Insecure
	}
	if at, err := url.Parse(own.Address); err != nil || at.Scheme == "" || at.Host+at.Path == "" {
		return nil, fmt.Errorf("%s: %q; allowed is a URL such as http://10.0.0.1:4646", configAddress, own.Address)
	}
	client, err := api.NewClient(own)
	if err != nil {
		return nil, fmt.Errorf("connect to Nomad at %s: %w", own.Address, err)
	}
	return client, nil
}
