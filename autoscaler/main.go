// SPDX-License-Identifier: MPL-2.0

// Nomad-autoscaler-gpu holds the plugins of the Nomad Autoscaler that size GPU
// pools. Started by the autoscaler it serves the one its first argument names,
// started by a person it shows the queue and the plan.
package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/signal"
	"syscall"
	"time"

	"github.com/hashicorp/go-hclog"
	"github.com/hashicorp/nomad-autoscaler/plugins"
	"github.com/spf13/cobra"

	"github.com/nomad-gpu/nomad-gpu/autoscaler/plugin"
)

const version = "0.1.0"

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	if err := command(ctx).ExecuteContext(ctx); err != nil {
		fmt.Fprintln(os.Stderr, "nomad-autoscaler-gpu:", err)
		os.Exit(exitStatus(err))
	}
}

// misuse is an error in what a command was told: a flag, an argument.
type misuse struct{ error }

func usage(err error) error { return misuse{err} }

func (m misuse) Unwrap() error { return m.error }

// exitStatus is 2 where a command was told something wrong, 1 where it could
// not do what it was told.
func exitStatus(err error) int {
	var wrong misuse
	if errors.As(err, &wrong) {
		return 2
	}
	return 1
}

// strict makes errors in flags and arguments misuse, which cobra returns as any
// other error, and has them say where help is.
func strict(c *cobra.Command) {
	hint := func(c *cobra.Command, err error) error {
		return usage(fmt.Errorf("%w; see %s --help", err, c.CommandPath()))
	}
	for _, sub := range append(c.Commands(), c) {
		sub.SetFlagErrorFunc(hint)
		sub.Args = func(c *cobra.Command, given []string) error {
			if err := cobra.NoArgs(c, given); err != nil {
				return hint(c, err)
			}
			if err := errors.Join(c.ValidateRequiredFlags(), c.ValidateFlagGroups()); err != nil {
				return hint(c, err)
			}
			return nil
		}
	}
}

func command(ctx context.Context) *cobra.Command {
	root := &cobra.Command{Use: "nomad-autoscaler-gpu", Short: "GPU pools for the Nomad Autoscaler", Version: version,
		SilenceUsage: true, SilenceErrors: true, RunE: func(c *cobra.Command, _ []string) error { return c.Help() },
		Long: "GPU pools for the Nomad Autoscaler. The autoscaler starts it with apm, strategy or target; started by hand it shows what waits for GPUs and what would be bought. It exits with 0, with 1 where it could not do what it was told, and with 2 where that was wrong."}
	serve := func(name, short string, factory plugins.PluginFactory) {
		root.AddCommand(&cobra.Command{Use: name, Short: short, RunE: func(*cobra.Command, []string) error {
			if os.Getenv(plugins.Handshake.MagicCookieKey) != plugins.Handshake.MagicCookieValue {
				return usage(fmt.Errorf("%s: the Nomad Autoscaler starts this plugin; name it in its configuration with driver = \"nomad-autoscaler-gpu\" and args = [%q]", name, name))
			}
			plugins.Serve(func(l hclog.Logger) any {
				served := factory(l)
				go plugin.EndWithParent(served)
				return served
			})
			return nil
		}})
	}
	serve("apm", "Serve the APM "+plugin.APMName, func(l hclog.Logger) any { return plugin.NewAPM(l) })
	serve("strategy", "Serve the strategy "+plugin.StrategyName, func(l hclog.Logger) any { return plugin.NewStrategy(l) })
	serve("target", "Serve the target "+plugin.TargetName, func(l hclog.Logger) any { return plugin.NewTarget(ctx, l) })

	var show view
	var past period
	var spending costs
	for _, c := range []*cobra.Command{
		{Use: "queue", Short: "Show what waits for GPUs, since when and why", RunE: func(c *cobra.Command, _ []string) error {
			return show.queue(c.Context(), c.OutOrStdout())
		}},
		{Use: "plan", Short: "Show what would be bought and let go now, and why", RunE: func(c *cobra.Command, _ []string) error {
			return show.plan(c.Context(), c.OutOrStdout())
		}},
	} {
		show.flags(c)
		if c.Name() == "queue" {
			show.namespaceFlag(c)
		}
		root.AddCommand(c)
	}
	root.AddCommand(replayCommand())
	capacity := &cobra.Command{Use: "capacity", Short: "Show what was used of the GPU hours paid, by pool and job", RunE: func(c *cobra.Command, _ []string) error {
		return past.capacity(c.Context(), time.Now(), c.OutOrStdout())
	}}
	past.view.flags(capacity)
	past.view.namespaceFlag(capacity)
	past.flags(capacity)
	cost := &cobra.Command{Use: "cost", Short: "Show what the nodes cost, by pool, job and idle time", RunE: func(c *cobra.Command, _ []string) error {
		return spending.cost(time.Now(), c.OutOrStdout())
	}}
	spending.view.flags(cost)
	spending.view.namespaceFlag(cost)
	spending.flags(cost)
	root.AddCommand(capacity, cost)
	strict(root)
	return root
}
