// SPDX-License-Identifier: MPL-2.0

package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"time"

	"github.com/hashicorp/consul/api"
	"github.com/spf13/cobra"

	"github.com/nomad-gpu/nomad-gpu/driver/consul"
)

// view is what a person or a machine asks to see.
type view struct {
	config consul.Config
	job    string
	json   bool
	ranks  bool
	watch  bool
}

func gangsCommand() *cobra.Command {
	var v view
	c := &cobra.Command{Use: "gangs [JOB]", Short: "List gangs with their state, members and what they wait for", Args: cobra.MaximumNArgs(1),
		RunE: func(c *cobra.Command, args []string) error {
			if len(args) == 1 {
				v.job = args[0]
			}
			return v.run(c.Context(), c.OutOrStdout(), c.ErrOrStderr())
		}}
	flags := c.Flags()
	flags.BoolVar(&v.json, "json", false, "print JSON; with --watch a line for each change")
	flags.BoolVar(&v.ranks, "ranks", false, "print each gang's members in rank order too")
	flags.BoolVar(&v.watch, "watch", false, "print again at each change, until interrupted")
	flags.StringVar(&v.config.Address, "consul-address", "", "Consul's address (CONSUL_HTTP_ADDR)")
	flags.StringVar(&v.config.TokenFile, "consul-token-file", "", "a file with Consul's token (CONSUL_HTTP_TOKEN_FILE)")
	flags.StringVar(&v.config.Prefix, "prefix", consul.DefaultPrefix, "the prefix of the gangs' keys")
	return c
}

func (v view) run(ctx context.Context, out, problems io.Writer) error {
	if err := v.config.Validate(); err != nil {
		return err
	}
	client, err := consul.NewClient(v.config)
	if err != nil {
		return err
	}
	if v.watch {
		return v.follow(ctx, client, out, problems)
	}
	ctx, cancel := context.WithTimeout(ctx, 30*time.Second)
	defer cancel()
	gangs, err := consul.List(ctx, client, v.config.Prefix)
	if err != nil {
		return err
	}
	return v.print(out, selected(gangs, v.job))
}

// print returns what could not be read, unless the output says so itself.
func (v view) print(out io.Writer, gangs []consul.Gang) error {
	if v.json {
		return printJSON(out, gangs, v.watch)
	}
	printTable(out, gangs, v.ranks)
	var broken []error
	for _, g := range gangs {
		broken = append(broken, g.Broken...)
	}
	return errors.Join(broken...)
}

const (
	// top puts a terminal's cursor to its top and empties it.
	top = "\x1b[H\x1b[2J"
	// watchGap bounds how often a busy gang is drawn.
	watchGap = 250 * time.Millisecond
)

// follow prints at each change until ctx ends, which is no error. Consul tells
// when something has changed; it is not asked again and again.
func (v view) follow(ctx context.Context, client *api.Client, out, problems io.Writer) error {
	front := ""
	if f, ok := out.(*os.File); ok && !v.json {
		if info, err := f.Stat(); err == nil && info.Mode()&os.ModeCharDevice != 0 {
			front = top
		}
	}
	var index uint64
	var last []byte
	for first := true; ; first = false {
		gangs, next, err := consul.Watch(ctx, client, v.config.Prefix, index)
		switch {
		case ctx.Err() != nil:
			return nil
		case err != nil && first:
			return err
		case err != nil:
			fmt.Fprintln(problems, "nomad-driver-nccl:", err)
			index = 0
		default:
			index = next
			var now bytes.Buffer
			err := v.print(&now, selected(gangs, v.job))
			if !bytes.Equal(now.Bytes(), last) {
				last = now.Bytes()
				if _, err := io.WriteString(out, front+now.String()); err != nil {
					return err
				}
				if err != nil {
					fmt.Fprintln(problems, plain(err.Error()))
				}
			}
		}
		gap := watchGap
		if err != nil {
			gap = time.Second
		}
		select {
		case <-ctx.Done():
			return nil
		case <-time.After(gap):
		}
	}
}
