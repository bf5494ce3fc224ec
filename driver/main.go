// SPDX-License-Identifier: MPL-2.0

// Nomad-driver-nccl is the Nomad task driver "nccl". Started by Nomad it
// serves the plugin, started by a person it lists gangs.
package main

import (
	"context"
	"fmt"
	"os"
	"os/signal"
	"syscall"

	"github.com/hashicorp/go-hclog"
	"github.com/hashicorp/nomad/plugins"
	"github.com/hashicorp/nomad/plugins/base"
	"github.com/spf13/cobra"

	"github.com/nomad-gpu/nomad-gpu/driver/plugin"
	"github.com/nomad-gpu/nomad-gpu/driver/runtime/docker"
	"github.com/nomad-gpu/nomad-gpu/driver/runtime/process"
)

func main() {
	for _, role := range []func([]string) (bool, error){process.Main, docker.Main} {
		if asked, err := role(os.Args); asked {
			if err != nil {
				fmt.Fprintln(os.Stderr, err)
				os.Exit(1)
			}
			return
		}
	}
	if os.Getenv(base.Handshake.MagicCookieKey) == base.Handshake.MagicCookieValue {
		plugins.ServeCtx(func(ctx context.Context, l hclog.Logger) any { return plugin.New(ctx, l) })
		return
	}
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	if err := command().ExecuteContext(ctx); err != nil {
		fmt.Fprintln(os.Stderr, "nomad-driver-nccl:", err)
		os.Exit(1)
	}
}

func command() *cobra.Command {
	root := &cobra.Command{Use: "nomad-driver-nccl", Short: "The Nomad task driver for gangs", Version: plugin.Version,
		SilenceUsage: true, SilenceErrors: true,
		Long: "The Nomad task driver for gangs. Nomad starts it from its plugin_dir; started by hand it shows what gangs there are."}
	root.AddCommand(gangsCommand())
	return root
}
