// SPDX-License-Identifier: MPL-2.0

// Command nomad-device-gpu is a Nomad device plugin for NVIDIA GPUs. Started by
// Nomad it serves the plugin; started by a person it shows what it sees.
package main

import (
	"fmt"
	"os"

	"github.com/hashicorp/go-hclog"
	"github.com/hashicorp/nomad/plugins"
	"github.com/hashicorp/nomad/plugins/base"

	"github.com/nomad-gpu/nomad-gpu/device/plugin"
)

const version = "0.1.0"

func main() {
	if os.Getenv(base.Handshake.MagicCookieKey) == base.Handshake.MagicCookieValue {
		var device *plugin.Device
		plugins.Serve(func(logger hclog.Logger) any {
			device = plugin.New(version, logger)
			return device
		})
		if device != nil {
			device.Close()
		}
		return
	}
	if err := newCommand().Execute(); err != nil {
		fmt.Fprintln(os.Stderr, "Error:", err)
		os.Exit(1)
	}
}
