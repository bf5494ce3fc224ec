// SPDX-License-Identifier: MPL-2.0

package main

import (
	"cmp"
	"context"
	"fmt"
	"io"
	"slices"
	"time"

	"github.com/jedib0t/go-pretty/v6/table"
	"github.com/spf13/cobra"

	"github.com/nomad-gpu/nomad-gpu/autoscaler/demand"
	"github.com/nomad-gpu/nomad-gpu/autoscaler/plan"
)

// prices are what a node costs besides its pool's price.
type prices struct {
	// power is the price of a kWh, node the kW that a node draws.
	power, node float64
}

// costs is the cost command.
type costs struct {
	period
	prices
}

func (c *costs) flags(cmd *cobra.Command) {
	c.period.flags(cmd)
	cmd.Flags().Float64Var(&c.power, "power-price", 0, "the price of a kWh, in the currency of the pools file")
	cmd.Flags().Float64Var(&c.node, "node-power", 0, "what a node draws, in kW")
}

// spent is one row of the cost: a pool, or one job's part, or what nobody used.
type spent struct {
	Pool      string  `json:"pool"`
	Namespace string  `json:"namespace,omitempty"`
	Job       string  `json:"job,omitempty"`
	GPUHours  float64 `json:"gpu_hours"`
	// Price is that of the nodes, Power that of their electricity, in the pools file's currency.
	Price float64 `json:"price"`
	Power float64 `json:"power"`
	// Idle: what was paid and nobody used.
	Idle bool `json:"idle,omitempty"`
}

// bill is pure: for each pool what it cost, then how that is shared: each job
// its part of the GPU hours, and the rest is idle. The parts add up to the pool.
func bill(u demand.Usage, pools []plan.Pool, p prices) []spent {
	rows := []spent{}
	for _, pool := range pools {
		hours := u.Nodes[pool.Name]
		whole := spent{Pool: pool.Name, GPUHours: u.Paid[pool.Name], Price: hours * pool.Price, Power: hours * p.node * p.power}
		rows = append(rows, whole)
		if whole.GPUHours == 0 {
			continue
		}
		left := whole
		left.Idle = true
		for _, j := range jobsOf(u, pool.Name) {
			part := u.Used[j] / whole.GPUHours
			row := spent{Pool: pool.Name, Namespace: j.Namespace, Job: j.Job, GPUHours: u.Used[j], Price: part * whole.Price, Power: part * whole.Power}
			left.GPUHours -= row.GPUHours
			left.Price -= row.Price
			left.Power -= row.Power
			rows = append(rows, row)
		}
		rows = append(rows, left)
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

func (c *costs) cost(ctx context.Context, now time.Time, out io.Writer) error {
	if c.record == "" {
		return errRecord
	}
	if c.power < 0 || c.node < 0 {
		return fmt.Errorf("--power-price and --node-power: %g and %g; allowed are 0 and more", c.power, c.node)
	}
	u, err := c.usage(ctx, now)
	if err != nil {
		return err
	}
	rows := bill(u.Usage, u.pools, c.prices)
	if c.json {
		return printJSON(out, rows)
	}
	t := newTable(out, table.Row{"Pool", "Namespace", "Job", "GPU h", "Nodes", "Power", "Total"})
	total := 0.0
	for _, r := range rows {
		job := r.Job
		switch {
		case r.Idle:
			job = "(idle)"
		case job == "":
			total += r.Price + r.Power
		}
		t.AppendRow(table.Row{r.Pool, r.Namespace, job, fmt.Sprintf("%.1f", r.GPUHours), fmt.Sprintf("%.2f", r.Price), fmt.Sprintf("%.2f", r.Power), fmt.Sprintf("%.2f", r.Price+r.Power)})
	}
	t.AppendFooter(table.Row{"", "", "", "", "", "all pools", fmt.Sprintf("%.2f", total)})
	t.Render()
	return nil
}
