// SPDX-License-Identifier: MPL-2.0

package main

import (
	"bytes"
	"encoding/json"
	"math"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/shoenig/test/must"
	"pgregory.net/rapid"

	"github.com/nomad-gpu/nomad-gpu/autoscaler/demand"
	"github.com/nomad-gpu/nomad-gpu/autoscaler/pool"
)

func near(t *testing.T, want, got float64) {
	t.Helper()
	must.InDelta(t, want, got, 1e-6)
}

// ownADay is aDay's pool, which draws power, costs a fixed sum, and has a curve.
func ownADay(t *testing.T) (pools, record string, now time.Time) {
	pools, record, now = aDay(t)
	text, err := os.ReadFile(pools)
	must.NoError(t, err)
	carbon := "[" + strings.Repeat("0.5, ", 23) + "0.1]"
	own := strings.Replace(string(text), "  max   = 4\n", "  max   = 4\n  power {\n    idle  = 2\n    busy  = 10\n    price = 0.25\n    pue   = 1.5\n  }\n  fixed {\n    month = 730\n    nodes = 3\n  }\n", 1)
	must.NoError(t, os.WriteFile(pools, []byte("curve {\n  carbon = "+carbon+"\n}\n"+own), 0o600))
	return pools, record, now
}

func (c *costs) rows(t *testing.T, now time.Time) (rows []spent) {
	t.Helper()
	c.json = true
	var out bytes.Buffer
	must.NoError(t, c.cost(now, &out))
	must.NoError(t, json.Unmarshal(out.Bytes(), &rows))
	return rows
}

func TestCostIsToldByPoolNamespaceJobAndIdleTime(t *testing.T) {
	pools, record, now := aDay(t)
	c := &costs{period: period{view: view{pools: pools}, record: record, since: 24 * time.Hour}, by: byPool}
	rows := c.rows(t, now)
	must.Len(t, 4, rows, must.Sprint("the pool, its namespace, its job, and what is idle"))
	near(t, 80, rows[0].Total)
	near(t, 16, rows[0].GPUHours)
	near(t, 0.5, *rows[0].IdleShare)
	near(t, 10, *rows[0].PerHour) // of a used GPU hour, idle time included
	must.Eq(t, "research", rows[1].Namespace)
	must.Eq(t, "train", rows[2].Job)
	near(t, 40, rows[2].Price)
	near(t, 5, *rows[2].PerHour)
	must.True(t, rows[3].Idle)
	near(t, 40, rows[3].Total)
	must.Nil(t, rows[3].PerHour)
}

func TestPowerFixedCostAndCarbonAreInTheCost(t *testing.T) {
	pools, record, now := ownADay(t)
	c := &costs{period: period{view: view{pools: pools}, record: record, since: 24 * time.Hour}, by: byPool}
	rows := c.rows(t, now)
	// Two hours, from 22:00: a node at half its load draws 6 kW, with what the site adds 9 kW.
	near(t, 18, rows[0].Energy)
	near(t, 4.5, rows[0].Power)
	near(t, 9*0.5+9*0.1, rows[0].Carbon)
	near(t, 0, rows[0].Unrated)
	near(t, 6, rows[0].Fixed) // of three nodes, two of them off
	near(t, 80+4.5+6, rows[0].Total)
	near(t, 1, rows[2].Fixed)
	near(t, (1+4)*1.5*2*0.25, rows[2].Power)
	near(t, 5, rows[3].Fixed)

	c.by, c.since = byNamespace, time.Hour
	rows = c.rows(t, now)
	must.Len(t, 3, rows)
	must.Eq(t, "", rows[0].Pool)
	must.Eq(t, "research", rows[0].Namespace)
	near(t, 20+0.5+7.5*0.25, rows[1].Total)

	c.json = false
	var out bytes.Buffer
	must.NoError(t, c.cost(now, &out))
	must.StrNotContains(t, out.String(), "POOL")
	c.by = byPool
	out.Reset()
	must.NoError(t, c.cost(now, &out))
	for _, want := range []string{"CARBON", "│ h100 │           │        │  8.00 │ 40.00 │  2.25 │  3.00 │ 45.25 │ 51 % ", "│ (idle) │  4.00 │"} {
		must.StrContains(t, out.String(), want)
	}
	for line := range strings.Lines(out.String()) {
		must.LessEq(t, 105, len([]rune(line)), must.Sprint(line))
	}
}

func TestWhatCostCannotTellIsNamed(t *testing.T) {
	pools, record, now := aDay(t)
	c := &costs{period: period{view: view{pools: pools}, since: 24 * time.Hour}, by: byPool}
	must.ErrorIs(t, c.cost(now, nil), errRecord)
	c.record, c.by = record, "user"
	must.ErrorContains(t, c.cost(now, nil), `--by: "user"; allowed are "pool" and "namespace"`)
	c.by, c.record = byPool, record+"no"
	must.ErrorContains(t, c.cost(now, nil), "--record: ")
	c.record = record
	text, err := os.ReadFile(pools)
	must.NoError(t, err)
	must.NoError(t, os.WriteFile(pools, []byte(strings.ReplaceAll(string(text), `pool "h100"`, `pool "other"`)), 0o600))
	var out bytes.Buffer
	must.NoError(t, c.cost(now, &out))
	must.StrContains(t, out.String(), "Not in the pools file, so without a price: h100")
}

func TestThePartsOfABillAddUpToIt(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		pools := []pool.Definition{{Name: "p", Price: 40, Shape: pool.Shape{GPUs: 8}, Power: &pool.Power{Idle: 1, Busy: 7, Price: 0.3}, Fixed: &pool.Fixed{Month: 100, Nodes: 5}},
			{Name: "q", Price: 3, Shape: pool.Shape{GPUs: 4}}}
		begin := time.Unix(0, 0)
		var samples []demand.Sample
		for i := range rapid.IntRange(1, 20).Draw(t, "n") {
			p := pools[rapid.IntRange(0, 1).Draw(t, "pool")]
			nodes := rapid.IntRange(0, 10).Draw(t, "nodes")
			s := demand.Sample{At: begin.Add(time.Duration(i) * time.Minute), Pool: p.Name, Nodes: nodes, GPUs: nodes * p.Shape.GPUs}
			for _, job := range rapid.SliceOfDistinct(rapid.StringMatching("[a-c]{1,2}"), rapid.ID).Draw(t, "jobs") {
				if left := s.GPUs - int(math.Ceil(usedOf(s))); left > 0 {
					s.Used = append(s.Used, demand.Held{Namespace: job[:1], Job: job, GPUs: rapid.IntRange(1, left).Draw(t, "used") - 1, Shared: 0.25})
				}
			}
			samples = append(samples, s)
		}
		a := accountOf(samples, pools, func(time.Time) pool.Tariff { return pool.Tariff{Price: 1} }, begin, begin.Add(time.Hour), 5*time.Minute)
		whole := map[string]float64{} // by level
		for _, r := range a.tree(pools, byPool) {
			switch {
			case r.Idle:
				whole["parts"] += r.Total
				whole["GPU hours"] -= r.GPUHours
			case r.Job != "":
				whole["parts"] += r.Total
				whole["GPU hours"] -= r.GPUHours
			case r.Namespace != "":
				whole["namespaces"] += r.Total
			default:
				whole["pools"] += r.Total
				whole["GPU hours"] += r.GPUHours
			}
		}
		for _, r := range a.tree(pools, byNamespace) {
			if r.Job == "" {
				whole["by namespace"] += r.Total
			}
			if r.Job == "" && !r.Idle {
				whole["namespaces"] -= r.Total
			}
		}
		must.InDelta(t, whole["pools"], whole["parts"], 1e-6)
		must.InDelta(t, whole["pools"], whole["by namespace"], 1e-6)
		must.InDelta(t, 0, whole["namespaces"], 1e-6)
		must.InDelta(t, 0, whole["GPU hours"], 1e-6)
		u := demand.UsageOf(samples, begin, begin.Add(time.Hour), 5*time.Minute)
		paid := 0.0
		for _, r := range a.tree(pools, byPool) {
			if r.Namespace == "" && !r.Idle {
				paid += r.GPUHours
			}
		}
		must.InDelta(t, u.Paid["p"]+u.Paid["q"], paid, 1e-6)
	})
}

func TestCostAndCapacityAreToldOfPartsOnRequest(t *testing.T) {
	pools, record, now := aDay(t)
	asked := func(pools2, namespaces []string) view {
		return view{pools: pools, json: true, onlyPools: pools2, onlyNamespaces: namespaces}
	}
	for _, c := range []struct {
		view           view
		cost, capacity int // rows
	}{
		{asked(nil, nil), 4, 3},
		{asked([]string{"h100"}, nil), 4, 3},
		{asked(nil, []string{"research"}), 3, 3},
		{asked(nil, []string{"default"}), 1, 1},
	} {
		p := period{view: c.view, record: record, since: 24 * time.Hour}
		must.Len(t, c.cost, (&costs{period: p, by: byPool}).rows(t, now), must.Sprintf("%+v", c.view))
		var out bytes.Buffer
		must.NoError(t, p.capacity(t.Context(), now, &out))
		var rows []utilised
		must.NoError(t, json.Unmarshal(out.Bytes(), &rows))
		must.Len(t, c.capacity, rows, must.Sprintf("%+v", c.view))
	}
	p := period{view: asked([]string{"a100"}, nil), record: record, since: time.Hour}
	must.ErrorContains(t, p.capacity(t.Context(), now, nil), `--pool: "a100"; allowed are ["h100"]`)
}
