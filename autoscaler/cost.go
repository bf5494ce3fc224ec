// SPDX-License-Identifier: MPL-2.0

package main

import (
	"cmp"
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/jedib0t/go-pretty/v6/table"
	"github.com/jedib0t/go-pretty/v6/text"
	"github.com/spf13/cobra"

	"github.com/nomad-gpu/nomad-gpu/autoscaler/demand"
	"github.com/nomad-gpu/nomad-gpu/autoscaler/plugin"
	"github.com/nomad-gpu/nomad-gpu/autoscaler/pool"
)

// costs is the cost command.
type costs struct {
	period
	by string
}

// What costs are told by.
const (
	byPool      = "pool"
	byNamespace = "namespace"
)

func (c *costs) flags(cmd *cobra.Command) {
	c.period.flags(cmd)
	cmd.Flags().StringVar(&c.by, "by", byPool, `"pool": each pool, then the namespaces and jobs in it; "namespace": each namespace, then its jobs, all pools together`)
}

// account is what hours cost and who had the GPUs.
type account struct {
	// Used is each job's part of a pool, Idle what of a pool nobody used.
	Used map[demand.Share]entry
	Idle map[string]entry
	// Unknown are pools of the record that are not in the file.
	Unknown []string
}

// entry is GPU hours with what they cost.
type entry struct {
	GPUHours float64
	pool.Bill
}

func (e entry) plus(o entry) entry {
	return entry{e.GPUHours + o.GPUHours, e.Bill.Plus(o.Bill, 1)}
}

// accountOf is pure: what a record's samples cost between two moments. Each
// job pays for its GPUs, the pool's idle entry for the rest.
func accountOf(samples []demand.Sample, pools []pool.Definition, tariff func(time.Time) pool.Tariff, from, to time.Time, gap time.Duration) account {
	a := account{Used: map[demand.Share]entry{}, Idle: map[string]entry{}}
	for s, hours := range demand.Spans(samples, from, to, gap) {
		i := slices.IndexFunc(pools, func(d pool.Definition) bool { return d.Name == s.Pool })
		if i < 0 {
			if !slices.Contains(a.Unknown, s.Pool) {
				a.Unknown = append(a.Unknown, s.Pool)
			}
			continue
		}
		used := usedOf(s)
		each, idle := pools[i].Hour(s.Nodes, s.GPUs, used, tariff(s.At))
		for _, h := range s.Used {
			share := demand.Share{Pool: s.Pool, Namespace: h.Namespace, Job: h.Job}
			gpuHours := hours * h.All()
			a.Used[share] = a.Used[share].plus(entry{gpuHours, pool.Bill{}.Plus(each, gpuHours)})
		}
		a.Idle[s.Pool] = a.Idle[s.Pool].plus(entry{hours * max(float64(s.GPUs)-used, 0), pool.Bill{}.Plus(idle, hours)})
	}
	return a
}

// spent is one row of the cost: a pool, a namespace, one job, or what nobody
// used. What is not told by is empty.
type spent struct {
	Pool      string `json:"pool,omitempty"`
	Namespace string `json:"namespace,omitempty"`
	Job       string `json:"job,omitempty"`
	// Idle: what was paid and nobody used.
	Idle     bool    `json:"idle,omitempty"`
	GPUHours float64 `json:"gpu_hours"`
	// Price is that of the nodes, Power that of their electricity, Fixed what
	// they cost whatever they do; in the pools file's currency.
	Price float64 `json:"price"`
	Power float64 `json:"power"`
	Fixed float64 `json:"fixed"`
	Total float64 `json:"total"`
	// IdleShare is the part of a pool's total that nobody used, 0 to 1.
	IdleShare *float64 `json:"idle_share,omitempty"`
	// PerHour is the total for each GPU hour used: of a pool its idle time included.
	PerHour *float64 `json:"cost_of_a_used_gpu_hour,omitempty"`
	Energy  float64  `json:"energy_kwh"`
	// Carbon is that of the energy of which the curve tells it, in the curve's
	// unit, Unrated the energy of which it does not.
	Carbon  float64 `json:"carbon"`
	Unrated float64 `json:"energy_without_carbon_kwh"`
}

func rowOf(e entry, used float64) spent {
	row := spent{GPUHours: e.GPUHours, Price: e.Price, Power: e.Power, Fixed: e.Fixed, Total: e.Total(), Energy: e.Energy, Carbon: e.Carbon, Unrated: e.Unrated}
	if used > 0 {
		each := e.Total() / used
		row.PerHour = &each
	}
	return row
}

// tree is pure: rows for each pool, its namespaces and their jobs, the dearest
// first, and what was idle; or the same without pools. The parts add up.
func (a account) tree(pools []pool.Definition, by string) (rows []spent) {
	groups := []string{""}
	if by == byPool {
		groups = nil
		for _, p := range pools {
			groups = append(groups, p.Name)
		}
	}
	rows = []spent{}
	for _, group := range groups {
		mine := func(name string) bool { return by != byPool || name == group }
		spaces, jobs := map[string]entry{}, map[demand.Share]entry{}
		var used, idle entry
		for share, e := range a.Used {
			if mine(share.Pool) {
				share.Pool = group
				jobs[share] = jobs[share].plus(e)
				spaces[share.Namespace] = spaces[share.Namespace].plus(e)
				used = used.plus(e)
			}
		}
		for name, e := range a.Idle {
			if mine(name) {
				idle = idle.plus(e)
			}
		}
		all := used.plus(idle)
		if by == byPool {
			row := rowOf(all, used.GPUHours)
			row.Pool = group
			if total := all.Total(); total > 0 {
				share := idle.Total() / total
				row.IdleShare = &share
			}
			rows = append(rows, row)
		}
		for _, space := range dearest(spaces, cmp.Compare[string]) {
			row := rowOf(spaces[space], spaces[space].GPUHours)
			row.Pool, row.Namespace = group, space
			rows = append(rows, row)
			for _, job := range dearest(jobs, func(a, b demand.Share) int { return cmp.Compare(a.Job, b.Job) }) {
				if job.Namespace == space {
					row := rowOf(jobs[job], jobs[job].GPUHours)
					row.Pool, row.Namespace, row.Job = group, space, job.Job
					rows = append(rows, row)
				}
			}
		}
		if idle.GPUHours > 0 || idle.Total() > 0 {
			row := rowOf(idle, 0)
			row.Pool, row.Idle = group, true
			rows = append(rows, row)
		}
	}
	return rows
}

// dearest are the keys by what they cost, then by name.
func dearest[K comparable](all map[K]entry, name func(a, b K) int) []K {
	keys := make([]K, 0, len(all))
	for k := range all {
		keys = append(keys, k)
	}
	slices.SortFunc(keys, func(a, b K) int {
		return cmp.Or(cmp.Compare(all[b].Total(), all[a].Total()), cmp.Compare(all[b].GPUHours, all[a].GPUHours), name(a, b))
	})
	return keys
}

func (c *costs) cost(now time.Time, out io.Writer) error {
	if c.record == "" {
		return errRecord
	}
	if c.by != byPool && c.by != byNamespace {
		return usage(fmt.Errorf("--by: %q; allowed are %q and %q", c.by, byPool, byNamespace))
	}
	file, samples, err := c.read()
	if err != nil {
		return err
	}
	tariff, err := file.Curve.Tariffs()
	if err != nil {
		return err
	}
	a := accountOf(samples, file.Pools, tariff, now.Add(-c.since), now, plugin.RecordGap)
	maps.DeleteFunc(a.Used, func(s demand.Share, _ entry) bool { return !c.wants(s.Pool) })
	maps.DeleteFunc(a.Idle, func(pool string, _ entry) bool { return !c.wants(pool) })
	pools := slices.DeleteFunc(file.Pools, func(d pool.Definition) bool { return !c.wants(d.Name) })
	rows := slices.DeleteFunc(a.tree(pools, c.by), func(r spent) bool {
		return !c.wantsNamespace(r.Namespace) && (r.Namespace != "" || r.Idle)
	})
	if c.json {
		return printJSON(out, rows)
	}
	printCost(out, rows, c.by, a.Unknown)
	return nil
}

func printCost(out io.Writer, rows []spent, by string, unknown []string) {
	var all spent
	for _, r := range rows {
		if r.Job != "" || r.Idle { // the parts, of which the others are sums
			all.Total, all.Carbon, all.Unrated, all.Energy = all.Total+r.Total, all.Carbon+r.Carbon, all.Unrated+r.Unrated, all.Energy+r.Energy
		}
	}
	header := table.Row{"Pool", "Namespace", "Job", "GPU h", "Price", "Power", "Fixed", "Total", "Idle", "A used GPU h"}
	carbon := all.Energy > all.Unrated
	if carbon {
		header = append(header, "Carbon")
	}
	t := newTable(out, header)
	money := func(v float64) string { return fmt.Sprintf("%.2f", v) }
	for _, r := range rows {
		job, share, each := r.Job, "", ""
		if r.Idle {
			job = "(idle)"
		}
		if r.IdleShare != nil {
			share = fmt.Sprintf("%.0f %%", 100**r.IdleShare)
		}
		if r.PerHour != nil {
			each = money(*r.PerHour)
		}
		row := table.Row{r.Pool, r.Namespace, job, gpuHours(r.GPUHours), money(r.Price), money(r.Power), money(r.Fixed), money(r.Total), share, each}
		if carbon {
			row = append(row, fmt.Sprintf("%.1f", r.Carbon))
		}
		t.AppendRow(row)
	}
	t.AppendFooter(table.Row{"", "", "", "", "", "", "all", money(all.Total)})
	var notes []string
	if carbon && all.Unrated > 0 {
		notes = append(notes, fmt.Sprintf("Of %.1f of %.1f kWh the curve tells no carbon.", all.Unrated, all.Energy))
	}
	if len(unknown) > 0 {
		notes = append(notes, "Not in the pools file, so without a price: "+strings.Join(unknown, ", "))
	}
	if len(notes) > 0 {
		t.SetCaption("%s", strings.Join(notes, "\n"))
	}
	var columns []table.ColumnConfig
	for i, name := range header {
		c := table.ColumnConfig{Name: name.(string), Hidden: by == byNamespace && (name == "Pool" || name == "Idle")}
		if i >= 3 {
			c.Align, c.AlignHeader, c.AlignFooter = text.AlignRight, text.AlignRight, text.AlignRight
		}
		columns = append(columns, c)
	}
	t.SetColumnConfigs(columns)
	t.Render()
}
