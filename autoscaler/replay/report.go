// SPDX-License-Identifier: MPL-2.0

package replay

import (
	"fmt"
	"io"
	"runtime"
	"time"

	"github.com/jedib0t/go-pretty/v6/table"
	"golang.org/x/sync/errgroup"
)

// Report is all policies over one trace.
type Report struct {
	Trace   string    `json:"trace"`
	Tasks   int       `json:"tasks"`
	Skipped int       `json:"tasks_skipped"`
	Seed    uint64    `json:"seed"`
	Pools   []Had     `json:"pools"`
	Bounds  Bounds    `json:"bounds"`
	Results []*Result `json:"policies"`
}

// Had is a pool that the policies had.
type Had struct {
	Pool      string  `json:"pool"`
	Lifecycle string  `json:"lifecycle"`
	Price     float64 `json:"price"` // of a node and hour
	GPUs      int     `json:"gpus"`  // of a node
	Max       int     `json:"max_nodes"`
	// Spot is where its availability is from; empty: its maximum can always be had.
	Spot string `json:"availability,omitempty"`
}

// Compare replays the trace under each policy, several at a time: they share nothing that changes.
func Compare(o Options, policies []Policy) (*Report, error) {
	r := &Report{Trace: o.Trace.Name, Tasks: len(o.Trace.Tasks), Skipped: o.Trace.Skipped, Seed: o.Seed}
	for _, p := range o.Pools {
		h := Had{Pool: p.Name, Lifecycle: p.Lifecycle, Price: p.Price, GPUs: p.Shape.GPUs, Max: p.Max}
		if p.Spot != nil {
			h.Spot = p.Spot.Name
		}
		r.Pools = append(r.Pools, h)
	}
	r.Results = make([]*Result, len(policies))
	var group errgroup.Group
	group.SetLimit(runtime.GOMAXPROCS(0))
	for i, p := range policies {
		group.Go(func() (err error) {
			r.Results[i], err = Run(o, p)
			return err
		})
	}
	if err := group.Wait(); err != nil {
		return nil, err
	}
	r.Bounds = Bound(o)
	return r, nil
}

var header = []string{"Policy", "Cost", "Of no-wait bound", "Paid GPU h", "Spot", "Used", "Lost GPU h", "Mean wait", "p95 wait", "p95 gang wait", "Nodes bought", "Interruptions", "Unfinished"}

// rows are the table's, the bounds last.
func (r *Report) rows() (rows [][]string) {
	for _, x := range r.Results {
		rows = append(rows, []string{x.Policy, fmt.Sprintf("%.0f", x.Cost), fmt.Sprintf("%.2f", x.Cost/max(r.Bounds.NoWait, 1e-9)), fmt.Sprintf("%.0f", x.PaidGPUHours),
			percent(x.SpotGPUHours, x.PaidGPUHours), percent(x.UsedGPUHours, x.PaidGPUHours), fmt.Sprintf("%.0f", x.LostGPUHours), seconds(x.MeanWait), seconds(x.P95Wait),
			seconds(x.P95GangWait), fmt.Sprint(x.Bought), fmt.Sprint(x.Interruptions), fmt.Sprint(x.Unfinished)})
	}
	for _, b := range []struct {
		name string
		cost float64
	}{{"bound: nothing waits", r.Bounds.NoWait}, {"bound: any wait", r.Bounds.Any}} {
		rows = append(rows, []string{b.name, fmt.Sprintf("%.0f", b.cost), fmt.Sprintf("%.2f", b.cost/max(r.Bounds.NoWait, 1e-9)), fmt.Sprintf("%.0f", r.Bounds.GPUHours),
			"", "100.0 %", "0", "", "", "", "", "", ""})
	}
	return rows
}

var spentHeader = []string{"Cost in % of the no-wait bound", "All", "Work at the bound's price", "Dearer pools", "Lost work", "Start", "Idle nodes", "Free GPUs of busy nodes", "Billing"}

// spent are the rows that say what the cost was for. What the bound pays for
// the same work is apart from what dearer pools cost above it; a policy whose
// work waits for cheap pools may be under it.
func (r *Report) spent() (rows [][]string) {
	part := func(v float64) string { return fmt.Sprintf("%.1f", 100*v/max(r.Bounds.NoWait, 1e-9)) }
	for _, x := range r.Results {
		s := x.Spent
		rows = append(rows, []string{x.Policy, part(x.Cost), part(r.Bounds.NoWait), part(s.Work - r.Bounds.NoWait), part(s.Lost), part(s.Start), part(s.Idle), part(s.Unfilled), part(s.Billing)})
	}
	return rows
}

// Table writes the report for people.
func (r *Report) Table(out io.Writer) {
	render(out, header, r.rows())
	render(out, spentHeader, r.spent())
}

func seconds(s float64) string {
	return time.Duration(s * float64(time.Second)).Round(time.Second).String()
}

func percent(a, b float64) string {
	if b == 0 {
		return "-"
	}
	return fmt.Sprintf("%.1f %%", 100*a/b)
}

func render(out io.Writer, header []string, rows [][]string) {
	t := table.NewWriter()
	t.SetOutputMirror(out)
	t.SetStyle(table.StyleLight)
	row := func(cells []string) (row table.Row) {
		for _, c := range cells {
			row = append(row, c)
		}
		return row
	}
	t.AppendHeader(row(header))
	for _, cells := range rows {
		t.AppendRow(row(cells))
	}
	t.Render()
}
