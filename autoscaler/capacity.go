// SPDX-License-Identifier: MPL-2.0

package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"slices"
	"time"

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

// read gives the pools file and the record.
func (p *period) read() (*pool.File, []demand.Sample, error) {
	if p.since <= 0 {
		return nil, nil, usage(fmt.Errorf("--since: %s; allowed are durations above 0", p.since))
	}
	file, err := pool.ReadFile(p.pools)
	if err != nil {
		return nil, nil, err
	}
	if err := p.checkPools(file); err != nil || p.record == "" {
		return file, nil, err
	}
	samples, err := plugin.ReadRecord(p.record)
	if err != nil {
		return nil, nil, fmt.Errorf("--record: %w", err)
	}
	return file, samples, nil
}

// past is what is known of a period.
type past struct {
	demand.Usage
	pools   []plan.Pool
	samples []demand.Sample // all of the record; none without
}

// usage is what was paid and used; paid is unknown without a record.
func (p *period) usage(ctx context.Context, now time.Time) (u past, err error) {
	file, samples, err := p.read()
	if err != nil {
		return u, err
	}
	for i := range file.Pools {
		u.pools = append(u.pools, file.Pools[i].Plan())
	}
	from := now.Add(-p.since)
	if p.record != "" {
		u.samples, u.Usage = samples, demand.UsageOf(samples, from, now, plugin.RecordGap)
		return u, nil
	}
	l, err := p.lookout()
	if err != nil {
		return u, err
	}
	u.Usage, err = l.Usage(ctx, from, now)
	return u, whereNomadIs(err)
}

// utilised is one row of the capacity: a pool as a whole, or a namespace's or
// one job's part of it.
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
	// Trend is how many more GPUs are in use a day, Full when all that the pool
	// may have will be; of all days of the record.
	Trend *float64   `json:"trend_gpus_per_day,omitempty"`
	Full  *time.Time `json:"maximum_reached,omitempty"`
	// Extra is what one node more than the maximum could have served, in GPU hours.
	Extra *float64 `json:"extra_node_gpu_hours,omitempty"`
}

// foresee adds to the pools' rows where they are heading.
func foresee(rows []utilised, u past, from, to time.Time) {
	for i := range rows {
		j := slices.IndexFunc(u.pools, func(p plan.Pool) bool { return p.Name == rows[i].Pool && rows[i].Max != nil })
		if j < 0 {
			continue
		}
		extra := unserved(u.samples, u.pools[j], from, to, plugin.RecordGap)
		rows[i].Extra = &extra
		if t, ok := trendOf(u.samples, u.pools[j]); ok {
			rows[i].Trend = &t.PerDay
			if !t.Full.IsZero() {
				rows[i].Full = &t.Full
			}
		}
	}
}

// utilisation is pure: each pool, then what its namespaces used, and of each
// its jobs, the greatest first.
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
		spaces := map[string]float64{}
		for _, j := range jobs {
			spaces[j.Namespace] += u.Used[j]
		}
		for _, space := range slices.SortedFunc(maps.Keys(spaces), func(a, b string) int {
			return cmp.Or(cmp.Compare(spaces[b], spaces[a]), cmp.Compare(a, b))
		}) {
			rows = append(rows, utilised{Pool: name, Namespace: space, Used: spaces[space], Utilisation: share(spaces[space], paid)})
			for _, j := range jobs {
				if j.Namespace == space {
					rows = append(rows, utilised{Pool: name, Namespace: space, Job: j.Job, Used: u.Used[j], Utilisation: share(u.Used[j], paid)})
				}
			}
		}
	}
	return rows
}

// jobsOf are the jobs that used a pool, the greatest first.
func jobsOf(u demand.Usage, pool string) (jobs []demand.Share) {
	for s := range u.Used {
		if s.Pool == pool {
			jobs = append(jobs, s)
		}
	}
	slices.SortFunc(jobs, func(a, b demand.Share) int {
		return cmp.Or(cmp.Compare(u.Used[b], u.Used[a]), cmp.Compare(a.Namespace, b.Namespace), cmp.Compare(a.Job, b.Job))
	})
	return jobs
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
	u, err := p.usage(ctx, now)
	if err != nil {
		return err
	}
	rows := utilisation(u.Usage, u.pools, p.record != "")
	if p.record != "" {
		foresee(rows, u, now.Add(-p.since), now)
	}
	rows = slices.DeleteFunc(rows, func(r utilised) bool { return !p.wants(r.Pool) || r.Namespace != "" && !p.wantsNamespace(r.Namespace) })
	if p.json {
		return printJSON(out, rows)
	}
	t := newTable(out, table.Row{"Pool", "Namespace", "Job", "Paid\nGPU h", "Used\nGPU h", "Used", "Nodes at\nmost", "Trend,\nGPUs/day", "Maximum\nreached", "One more,\nGPU h"})
	for _, r := range rows {
		paid, part, peak, slope, full, extra := "", "", "", "", "", ""
		if r.Trend != nil {
			slope, full = fmt.Sprintf("%+.2f", *r.Trend), fmt.Sprintf("> %d years", trendYears)
		}
		if r.Full != nil {
			full = r.Full.Format(time.DateOnly)
		}
		if r.Extra != nil {
			extra = gpuHours(*r.Extra)
		}
		if r.Paid != nil {
			paid = gpuHours(*r.Paid)
		}
		if r.Utilisation != nil {
			part = fmt.Sprintf("%.0f %%", 100**r.Utilisation)
		}
		if r.Peak != nil && r.Max != nil {
			peak = fmt.Sprintf("%d of %d", *r.Peak, *r.Max)
		}
		t.AppendRow(table.Row{named(r.Pool), r.Namespace, r.Job, paid, gpuHours(r.Used), part, peak, slope, full, extra})
	}
	if p.record == "" {
		t.SetCaption("Without --record only what Nomad still knows of its allocations is counted; what was paid is not known.")
	}
	t.Render()
	return nil
}

// gpuHours are told finer where they are few.
func gpuHours(v float64) string {
	if v < 10 {
		return fmt.Sprintf("%.2f", v)
	}
	return fmt.Sprintf("%.1f", v)
}

func named(pool string) string {
	if pool == "" {
		return "(no pool)"
	}
	return pool
}

var errRecord = usage(errors.New("--record: not set; allowed is the file that a plugin keeps (record_file): without it what was paid is not known"))
