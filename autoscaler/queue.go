// SPDX-License-Identifier: MPL-2.0

package main

import (
	"context"
	"fmt"
	"io"
	"slices"
	"strings"
	"time"

	"github.com/jedib0t/go-pretty/v6/table"

	"github.com/nomad-gpu/nomad-gpu/autoscaler/demand"
	"github.com/nomad-gpu/nomad-gpu/autoscaler/plan"
)

// waiting is one row of the queue.
type waiting struct {
	Namespace string `json:"namespace"`
	Job       string `json:"job"`
	Group     string `json:"group"`
	Gang      bool   `json:"gang"`
	Priority  int    `json:"priority"`
	Placed    int    `json:"placed"`
	Count     int    `json:"count"`
	GPUs      int    `json:"queued_gpus"`
	Slices    int    `json:"queued_slices"`
	// Models are those asked for by name.
	Models []string   `json:"models"`
	Spot   string     `json:"spot"`
	Due    *time.Time `json:"deadline,omitempty"`
	Since  time.Time  `json:"since"`
	Age    float64    `json:"age_seconds"`
	// Cause is the kind of reason, Next what lets it run.
	Cause         plan.Cause `json:"cause"`
	Reason        string     `json:"reason"`
	Next          string     `json:"next"`
	Unsatisfiable bool       `json:"unsatisfiable"`
	// Pools are those whose nodes may serve it, Starting and Buying how many
	// nodes of each are on their way, and are to be bought, for it.
	Pools    []string       `json:"pools"`
	Starting map[string]int `json:"nodes_starting"`
	Buying   map[string]int `json:"nodes_to_buy"`
}

func rowOfWaiting(w plan.Waiting, pools []plan.Pool, now time.Time) waiting {
	row := waiting{Namespace: w.Work.Namespace, Job: w.Work.Job, Group: w.Work.Group, Gang: w.Work.Gang, Priority: w.Work.Priority, Placed: w.Work.Placed, Count: w.Work.Count,
		GPUs: w.Work.QueuedGPUs(), Slices: w.Work.QueuedSlices(), Models: append([]string{}, w.Work.Request.Models()...), Spot: w.Work.Spot,
		Since: w.Work.Since.UTC(), Age: now.Sub(w.Work.Since).Seconds(), Cause: w.Cause, Reason: w.Reason, Next: w.Next(pools), Unsatisfiable: w.Unsatisfiable,
		Pools: append([]string{}, w.Serving(pools)...), Starting: w.Coming, Buying: w.Buys}
	if !w.Work.Deadline.IsZero() {
		row.Due = &w.Work.Deadline
	}
	if row.Starting == nil {
		row.Starting = map[string]int{}
	}
	if row.Buying == nil {
		row.Buying = map[string]int{}
	}
	return row
}

// queued is pure: the rows of all that waits, what no node would help last.
func (v view) queued(r demand.Reading, o plan.Output, pools []plan.Pool) []waiting {
	all := slices.Concat(o.Waiting, r.NotForNodes())
	rows := []waiting{}
	for _, w := range all {
		row := rowOfWaiting(w, pools, r.At)
		if v.wantsNamespace(row.Namespace) && (len(v.onlyPools) == 0 || slices.ContainsFunc(row.Pools, v.wants)) {
			rows = append(rows, row)
		}
	}
	return rows
}

func (v view) queue(ctx context.Context, out io.Writer) error {
	l, err := v.lookout()
	if err != nil {
		return err
	}
	r, o, err := l.Look(ctx, "", 0)
	if err != nil {
		return whereNomadIs(err)
	}
	var pools []plan.Pool
	for i := range l.File.Pools {
		pools = append(pools, l.File.Pools[i].Plan())
	}
	rows := v.queued(r, o, pools)
	if v.json {
		return printJSON(out, rows)
	}
	printQueue(out, r, rows)
	return nil
}

func printQueue(out io.Writer, r demand.Reading, rows []waiting) {
	var all []table.Row
	gpus, parts := 0, 0
	for _, w := range rows {
		asks := strings.Join(append([]string{plan.Amount(w.GPUs, w.Slices)}, w.Models...), "\n")
		all = append(all, table.Row{w.Namespace, w.Job + "/" + w.Group, w.Priority, fmt.Sprintf("%d of %d", w.Placed, w.Count), asks, time.Duration(w.Age) * time.Second, w.Reason + " → " + w.Next})
		gpus, parts = gpus+w.GPUs, parts+w.Slices
	}
	header := table.Row{"Namespace", "Job", "Prio", "Placed", "Asks for", "Waits", "Why → what lets it run"}
	t := newTable(out, header)
	wrapLast(t, out, header, all)
	use := fmt.Sprintf("%d of %d GPUs are in use", r.RunningGPUs, r.TotalGPUs)
	if r.TotalSlices > 0 {
		use += fmt.Sprintf(", %d of %d slices", r.RunningSlices, r.TotalSlices)
	}
	t.AppendFooter(table.Row{"", "", "", "queued", plan.Amount(gpus, parts), "", use})
	t.Render()
}
