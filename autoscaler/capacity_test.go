// SPDX-License-Identifier: MPL-2.0

package main

import (
	"bytes"
	"encoding/json"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/shoenig/test/must"

	"github.com/nomad-gpu/nomad-gpu/autoscaler/demand"
	"github.com/nomad-gpu/nomad-gpu/autoscaler/plan"
)

// aDay is a record of one pool: a node of 8 GPUs for two hours, half of it used by one job.
func aDay(t *testing.T) (pools, record string, now time.Time) {
	dir := t.TempDir()
	pools, record = filepath.Join(dir, "pools.hcl"), filepath.Join(dir, "record")
	must.NoError(t, os.WriteFile(pools, []byte(`
pool "h100" {
  kind  = "target"
  price = 40
  max   = 4
  select {
    node_class = "h100"
  }
  shape {
    gpus = 8
  }
}
`), 0o600))
	now = time.Date(2026, 1, 2, 0, 0, 0, 0, time.UTC)
	var text bytes.Buffer
	e := json.NewEncoder(&text)
	for at := now.Add(-2 * time.Hour); at.Before(now); at = at.Add(time.Minute) {
		must.NoError(t, e.Encode(demand.Sample{At: at, Pool: "h100", Nodes: 1, GPUs: 8, Used: []demand.Held{{Namespace: "research", Job: "train", GPUs: 4}}}))
	}
	must.NoError(t, os.WriteFile(record, text.Bytes(), 0o600))
	return pools, record, now
}

func TestCapacityIsToldByPoolAndJob(t *testing.T) {
	pools, record, now := aDay(t)
	p := &period{view: view{pools: pools}, record: record, since: 24 * time.Hour}
	var out bytes.Buffer
	must.NoError(t, p.capacity(t.Context(), now, &out))
	must.StrContains(t, out.String(), "│ h100 │           │       │ 16.0  │ 8.00  │ 50 % ")
	must.StrContains(t, out.String(), "│ 1 of 4   │")
	must.StrContains(t, out.String(), "│ h100 │ research  │ train │       │ 8.00  │ 50 % ")
	p.json, p.since = true, time.Hour
	out.Reset()
	must.NoError(t, p.capacity(t.Context(), now, &out))
	var rows []utilised
	must.NoError(t, json.Unmarshal(out.Bytes(), &rows))
	must.Len(t, 3, rows, must.Sprint("the pool, its namespace, and the job"))
	must.InDelta(t, 8, *rows[0].Paid, 1e-6)
	must.InDelta(t, 4, rows[1].Used, 1e-6)
	must.Eq(t, "", rows[1].Job)
	must.Eq(t, "train", rows[2].Job)
	must.Nil(t, rows[0].Trend, must.Sprint("a day is too few for a trend"))
	must.Eq(t, 0, *rows[0].Extra)
	p.since = -time.Hour
	must.ErrorContains(t, p.capacity(t.Context(), now, &out), "--since: -1h0m0s; allowed are durations above 0")
	p.since, p.record = time.Hour, filepath.Join(t.TempDir(), "none")
	must.ErrorContains(t, p.capacity(t.Context(), now, &out), "none: no such file")
}

func TestWhatIsPaidIsNotKnownWithoutARecord(t *testing.T) {
	u := demand.Usage{Used: map[demand.Share]float64{{Namespace: "a", Job: "j"}: 3}}
	rows := utilisation(u, []plan.Pool{{Name: "h100", Max: 4}}, false)
	must.Len(t, 4, rows)
	must.Nil(t, rows[0].Paid)
	must.Nil(t, rows[1].Utilisation)
	must.Eq(t, "", rows[1].Pool, must.Sprint("nodes of no pool"))
	must.Eq(t, 3, rows[2].Used)
}
