// SPDX-License-Identifier: MPL-2.0

package main

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"time"

	"github.com/hashicorp/go-hclog"
	"github.com/jedib0t/go-pretty/v6/table"
	"github.com/spf13/cobra"

	"github.com/nomad-gpu/nomad-gpu/autoscaler/demand"
	"github.com/nomad-gpu/nomad-gpu/autoscaler/plan"
	"github.com/nomad-gpu/nomad-gpu/autoscaler/plugin"
)

// view shows one look at the cluster.
type view struct {
	pools, address string
	json           bool
}

func (v *view) flags(c *cobra.Command) {
	c.Flags().StringVar(&v.pools, "pools", "", "the pools file")
	c.Flags().StringVar(&v.address, "address", "", "Nomad's address (NOMAD_ADDR)")
	c.Flags().BoolVar(&v.json, "json", false, "print JSON")
	c.MarkFlagRequired("pools")
}

func (v view) look(ctx context.Context) (demand.Reading, plan.Output, error) {
	config := map[string]string{"pools_file": v.pools}
	if v.address != "" {
		config["nomad_address"] = v.address
	}
	l, _, err := plugin.NewLookout(config, hclog.NewNullLogger())
	if err != nil {
		return demand.Reading{}, plan.Output{}, err
	}
	l.ReadAll()
	return l.Look(ctx, "", 0)
}

// waiting is one row of the queue.
type waiting struct {
	Namespace     string    `json:"namespace"`
	Job           string    `json:"job"`
	Group         string    `json:"group"`
	Gang          bool      `json:"gang"`
	Priority      int       `json:"priority"`
	Placed        int       `json:"placed"`
	Count         int       `json:"count"`
	GPUs          int       `json:"queued_gpus"`
	Slices        int       `json:"queued_slices"`
	Since         time.Time `json:"since"`
	Reason        string    `json:"reason"`
	Unsatisfiable bool      `json:"unsatisfiable"`
}

func (v view) queue(ctx context.Context, out io.Writer) error {
	r, o, err := v.look(ctx)
	if err != nil {
		return err
	}
	rows := []waiting{}
	gpus, slices := 0, 0
	for _, w := range o.Waiting {
		rows = append(rows, waiting{w.Work.Namespace, w.Work.Job, w.Work.Group, w.Work.Gang, w.Work.Priority, w.Work.Placed, w.Work.Count,
			w.Work.QueuedGPUs(), w.Work.QueuedSlices(), w.Work.Since.UTC(), w.Reason, w.Unsatisfiable})
		gpus, slices = gpus+w.Work.QueuedGPUs(), slices+w.Work.QueuedSlices()
	}
	if v.json {
		return printJSON(out, rows)
	}
	t := newTable(out, table.Row{"Namespace", "Job", "Group", "Gang", "Priority", "Placed", "Asks for", "Waits", "Why"})
	for _, w := range rows {
		t.AppendRow(table.Row{w.Namespace, w.Job, w.Group, w.Gang, w.Priority, fmt.Sprintf("%d of %d", w.Placed, w.Count), plan.Amount(w.GPUs, w.Slices),
			r.At.Sub(w.Since).Round(time.Second), w.Reason})
	}
	use := fmt.Sprintf("%d of %d GPUs are in use", r.RunningGPUs, r.TotalGPUs)
	if r.TotalSlices > 0 {
		use += fmt.Sprintf(", %d of %d slices", r.RunningSlices, r.TotalSlices)
	}
	t.AppendFooter(table.Row{"", "", "", "", "", "queued", plan.Amount(gpus, slices), "", use})
	t.Render()
	return nil
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
	_, o, err := v.look(ctx)
	if err != nil {
		return err
	}
	rows := []decision{}
	for _, d := range o.Decisions {
		rows = append(rows, decision{d.Pool, d.Now, d.Want, append([]string{}, d.Release...), append([]string{}, d.Drain...), d.Reason})
	}
	if v.json {
		return printJSON(out, rows)
	}
	t := newTable(out, table.Row{"Pool", "Nodes", "Wanted", "Why"})
	for _, d := range rows {
		t.AppendRow(table.Row{d.Pool, d.Now, d.Want, d.Reason})
	}
	t.Render()
	return nil
}

func newTable(out io.Writer, header table.Row) table.Writer {
	t := table.NewWriter()
	t.SetOutputMirror(out)
	t.SetStyle(table.StyleLight)
	t.AppendHeader(header)
	return t
}

func printJSON(out io.Writer, v any) error {
	e := json.NewEncoder(out)
	e.SetIndent("", "  ")
	return e.Encode(v)
}
