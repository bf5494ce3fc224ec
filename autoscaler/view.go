// SPDX-License-Identifier: MPL-2.0

package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/url"
	"os"
	"slices"
	"strings"
	"unicode/utf8"

	"github.com/hashicorp/go-hclog"
	"github.com/jedib0t/go-pretty/v6/table"
	"github.com/jedib0t/go-pretty/v6/text"
	"github.com/spf13/cobra"
	"golang.org/x/sys/unix"

	"github.com/nomad-gpu/nomad-gpu/autoscaler/plugin"
	"github.com/nomad-gpu/nomad-gpu/autoscaler/pool"
)

// view shows one look at the cluster.
type view struct {
	pools, address string
	json           bool
	// onlyPools and onlyNamespaces choose rows; empty: all.
	onlyPools, onlyNamespaces []string
}

func (v *view) flags(c *cobra.Command) {
	c.Flags().StringVar(&v.pools, "pools", "", "the pools file")
	c.Flags().StringVar(&v.address, "address", "", "Nomad's address (NOMAD_ADDR)")
	c.Flags().StringSliceVar(&v.onlyPools, "pool", nil, "only this pool; repeat for more")
	c.Flags().BoolVar(&v.json, "json", false, "print JSON")
	c.MarkFlagRequired("pools")
}

func (v *view) namespaceFlag(c *cobra.Command) {
	c.Flags().StringSliceVar(&v.onlyNamespaces, "namespace", nil, "only this namespace; repeat for more")
}

func (v view) lookout() (*plugin.Lookout, error) {
	config := map[string]string{"pools_file": v.pools}
	if v.address != "" {
		config["nomad_address"] = v.address
	}
	l, _, err := plugin.NewLookout(config, hclog.New(&hclog.LoggerOptions{Level: hclog.Warn, Output: os.Stderr}))
	if err != nil {
		return nil, err
	}
	l.ReadAll()
	return l, v.checkPools(l.File)
}

// whereNomadIs adds to an error of the way to Nomad where its address is from.
func whereNomadIs(err error) error {
	var way *url.Error
	if errors.As(err, &way) {
		return fmt.Errorf("%w; Nomad's address is from --address, or else NOMAD_ADDR", err)
	}
	return err
}

// checkPools names a pool that is asked for and not in the file.
func (v view) checkPools(file *pool.File) error {
	for _, name := range v.onlyPools {
		if _, err := file.Find(name); err != nil {
			return usage(fmt.Errorf("--%w", err))
		}
	}
	return nil
}

// wants reports whether a pool is one of those asked for.
func (v view) wants(pool string) bool {
	return len(v.onlyPools) == 0 || slices.Contains(v.onlyPools, pool)
}

func (v view) wantsNamespace(name string) bool {
	return len(v.onlyNamespaces) == 0 || slices.Contains(v.onlyNamespaces, name)
}

// decision is one row of the plan.
type decision struct {
	Pool    string   `json:"pool"`
	Now     int      `json:"now"`
	Want    int      `json:"want"`
	Release []string `json:"release"`
	Drain   []string `json:"drain"`
	Reason  string   `json:"reason"`
}

func (v view) plan(ctx context.Context, out io.Writer) error {
	l, err := v.lookout()
	if err != nil {
		return err
	}
	_, o, err := l.Look(ctx, "", 0)
	if err != nil {
		return whereNomadIs(err)
	}
	rows := []decision{}
	for _, d := range o.Decisions {
		if !v.wants(d.Pool) {
			continue
		}
		rows = append(rows, decision{d.Pool, d.Now, d.Want, append([]string{}, d.Release...), append([]string{}, d.Drain...), d.Reason})
	}
	if v.json {
		return printJSON(out, rows)
	}
	header := table.Row{"Pool", "Nodes", "Wanted", "Why"}
	t := newTable(out, header)
	var all []table.Row
	for _, d := range rows {
		all = append(all, table.Row{d.Pool, d.Now, d.Want, d.Reason})
	}
	wrapLast(t, out, header, all)
	t.Render()
	return nil
}

func newTable(out io.Writer, header table.Row) table.Writer {
	t := table.NewWriter()
	t.SetOutputMirror(out)
	t.SetStyle(table.StyleLight)
	t.Style().Format.Footer = text.FormatDefault
	t.AppendHeader(header)
	return t
}

// wrapLast adds rows, whose last column is a sentence. On a terminal it is
// wrapped so that the table fits; elsewhere a row is a line.
func wrapLast(t table.Writer, out io.Writer, header table.Row, rows []table.Row) {
	wrapAt(t, terminalWidth(out), header, rows)
}

func wrapAt(t table.Writer, width int, header table.Row, rows []table.Row) {
	t.AppendRows(rows)
	if width <= 0 {
		return
	}
	left := width - 1
	for i := range header {
		left -= 3
		if i == len(header)-1 {
			break
		}
		widest := len(fmt.Sprint(header[i]))
		for _, row := range rows {
			for line := range strings.SplitSeq(fmt.Sprint(row[i]), "\n") {
				widest = max(widest, utf8.RuneCountInString(line))
			}
		}
		left -= widest
	}
	t.SetColumnConfigs([]table.ColumnConfig{{Number: len(header), WidthMax: max(left, leastSentence), WidthMaxEnforcer: text.WrapSoft}})
}

// leastSentence is the narrowest column that a sentence is wrapped to.
const leastSentence = 30

// terminalWidth is that of the terminal that is written to; 0: it is none.
func terminalWidth(out io.Writer) int {
	f, ok := out.(*os.File)
	if !ok {
		return 0
	}
	size, err := unix.IoctlGetWinsize(int(f.Fd()), unix.TIOCGWINSZ)
	if err != nil {
		return 0
	}
	return int(size.Col)
}

func printJSON(out io.Writer, v any) error {
	e := json.NewEncoder(out)
	e.SetIndent("", "  ")
	return e.Encode(v)
}
