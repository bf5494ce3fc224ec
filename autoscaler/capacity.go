// SPDX-License-Identifier: MPL-2.0

package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"slices"
	"time"

	"github.com/hashicorp/go-hclog"
	"github.com/jedib0t/go-pretty/v6/table"
	"github.com/spf13/cobra"

	"github.com/nomad-gpu/nomad-gpu/autoscaler/demand"
	"github.com/nomad-gpu/nomad-gpu/autoscaler/plan"
	"github.com/nomad-gpu/nomad-gpu/autoscaler/plugin"
	"github.com/nomad-gpu/nomad-gpu/autoscaler/pool"
)

// period is a span of time that is looked back on.
type period struct {
	view
	record string
	since  time.Duration
}

func (p *period) flags(c *cobra.Command) {
	c.Flags().StringVar(&p.record, "record", "", "the record that a plugin keeps (record_file); without it only what Nomad still knows of its allocations is counted")
	c.Flags().DurationVar(&p.since, "since", 24*time.Hour, "how far to look back")
}

// usage is what was paid and used; paid is unknown without a record.
func (p *period) usage(ctx context.Context, now time.Time) (u demand.Usage, pools []plan.Pool, err error) {
	if p.since <= 0 {
		return u, nil, fmt.Errorf("--since: %s; allowed are durations above 0", p.since)
	}
	file, err := pool.ReadFile(p.pools)
	if err != nil {
		return u, nil, err
	}
	for i := range file.Pools {
		pools = append(pools, file.Pools[i].Plan())
	}
	from := now.Add(-p.since)
	if p.record != "" {
		samples, err := plugin.ReadRecord(p.record)
		if err != nil {
			return u, nil, err
		}
		return demand.UsageOf(samples, from, now, plugin.RecordGap), pools, nil
	}
	config := map[string]string{"pools_file": p.pools}
	if p.address != "" {
		config["nomad_address"] = p.address
	}
	l, _, err := plugin.NewLookout(config, hclog.NewNullLogger())
	if err != nil {
		return u, nil, err
	}
	u, err = l.Usage(ctx, from, now)
	return u, pools, err
}

// utilised is one row of the capacity: a pool as a whole, or one job's part of it.
type utilised struct {
	Pool      string `json:"pool"`
	Namespace string `json:"namespace,omitempty"`
	Job       string `json:"job,omitempty"`
	// Paid and Used are GPU hours. Paid is null where it is not known.
	Paid *float64 `json:"paid_gpu_hours"`
	Used float64  `json:"used_gpu_hours"`
	// Utilisation is the part of what the pool had that was used, 0 to 1.
	Utilisation *float64 `json:"utilisation"`
	// Peak is the most nodes that the pool had at once, Max the most it may have.
	Peak *int `json:"peak_nodes,omitempty"`
	Max  *int `json:"max_nodes,omitempty"`
}

// utilisation is pure: each pool, then what its jobs used, the greatest first.
func utilisation(u demand.Usage, pools []plan.Pool, recorded bool) []utilised {
	rows := []utilised{}
	share := func(used, paid float64) *float64 {
		if !recorded || paid == 0 {
			return nil
		}
		part := used / paid
		return &part
	}
	for _, name := range poolsOf(u, pools) {
		jobs := jobsOf(u, name)
		whole := utilised{Pool: name}
		for _, j := range jobs {
			whole.Used += u.Used[j]
		}
		if i := slices.IndexFunc(pools, func(p plan.Pool) bool { return p.Name == name }); i >= 0 {
			whole.Max = &pools[i].Max
		}
		paid := u.Paid[name]
		if recorded {
			peak := u.Peak[name]
			whole.Paid, whole.Peak = &paid, &peak
		}
		whole.Utilisation = share(whole.Used, paid)
		rows = append(rows, whole)
		for _, j := range jobs {
			rows = append(rows, utilised{Pool: name, Namespace: j.Namespace, Job: j.Job, Used: u.Used[j], Utilisation: share(u.Used[j], paid)})
		}
	}
	return rows
}

// poolsOf are those of the file, then others that were used: "" is nodes of no pool.
func poolsOf(u demand.Usage, pools []plan.Pool) (names []string) {
	for _, p := range pools {
		names = append(names, p.Name)
	}
	others := map[string]bool{}
	for s := range u.Used {
		others[s.Pool] = true
	}
	for name := range u.Paid {
		others[name] = true
	}
	for _, name := range slices.Sorted(maps.Keys(others)) {
		if !slices.Contains(names, name) {
			names = append(names, name)
		}
	}
	return names
}

func (p *period) capacity(ctx context.Context, now time.Time, out io.Writer) error {
	u, pools, err := p.usage(ctx, now)
	if err != nil {
		return err
	}
	rows := utilisation(u, pools, p.record != "")
	if p.json {
		return printJSON(out, rows)
	}
	t := newTable(out, table.Row{"Pool", "Namespace", "Job", "Paid GPU h", "Used GPU h", "Utilisation", "Peak of max nodes"})
	for _, r := range rows {
		paid, part, peak := "", "", ""
		if r.Paid != nil {
			paid = fmt.Sprintf("%.1f", *r.Paid)
		}
		if r.Utilisation != nil {
			part = fmt.Sprintf("%.0f %%", 100**r.Utilisation)
		}
		if r.Peak != nil && r.Max != nil {
			peak = fmt.Sprintf("%d of %d", *r.Peak, *r.Max)
		}
		t.AppendRow(table.Row{named(r.Pool), r.Namespace, r.Job, paid, fmt.Sprintf("%.1f", r.Used), part, peak})
	}
	if p.record == "" {
		t.SetCaption("Without --record only what Nomad still knows of its allocations is counted; what was paid is not known.")
	}
	t.Render()
	return nil
}

func named(pool string) string {
	if pool == "" {
		return "(no pool)"
	}
	return pool
}

var errRecord = errors.New("--record: not set; allowed is the file that a plugin keeps (record_file): without it what was paid is not known")
