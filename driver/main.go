// SPDX-License-Identifier: MPL-2.0

// Nomad-driver-nccl is the Nomad task driver "nccl". Started by Nomad it
// serves the plugin, started by a person it lists gangs.
package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"strconv"
	"syscall"
	"time"

	"github.com/hashicorp/go-hclog"
	"github.com/hashicorp/nomad/plugins"
	"github.com/hashicorp/nomad/plugins/base"
	"github.com/spf13/cobra"

	"github.com/nomad-gpu/nomad-gpu/driver/consul"
	"github.com/nomad-gpu/nomad-gpu/driver/plugin"
	"github.com/nomad-gpu/nomad-gpu/driver/runtime/process"
)

func main() {
	if len(os.Args) == 3 && os.Args[1] == process.Argument {
		if err := process.Supervise(os.Args[2], os.NewFile(3, "ready")); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		return
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
	var config consul.Config
	var asJSON bool
	gangs := &cobra.Command{Use: "gangs", Short: "List gangs with their state, members and what they wait for", Args: cobra.NoArgs,
		RunE: func(c *cobra.Command, _ []string) error {
			return listGangs(c.Context(), c.OutOrStdout(), config, asJSON)
		}}
	flags := gangs.Flags()
	flags.BoolVar(&asJSON, "json", false, "print JSON")
	flags.StringVar(&config.Address, "consul-address", "", "Consul's address (CONSUL_HTTP_ADDR)")
	flags.StringVar(&config.TokenFile, "consul-token-file", "", "a file with Consul's token (CONSUL_HTTP_TOKEN_FILE)")
	flags.StringVar(&config.Prefix, "prefix", consul.DefaultPrefix, "the prefix of the gangs' keys")
	root.AddCommand(gangs)
	return root
}

func listGangs(ctx context.Context, out io.Writer, config consul.Config, asJSON bool) error {
	if err := config.Validate(); err != nil {
		return err
	}
	client, err := consul.NewClient(config)
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, 30*time.Second)
	defer cancel()
	gangs, err := consul.List(ctx, client, config.Prefix)
	if err != nil {
		return err
	}
	if asJSON {
		return printJSON(out, gangs)
	}
	printTable(out, gangs)
	var broken []error
	for _, g := range gangs {
		broken = append(broken, g.Broken...)
	}
	return errors.Join(broken...)
}

func count(n int, one string) string {
	if n == 1 {
		return "1 " + one
	}
	return strconv.Itoa(n) + " " + one + "s"
}
