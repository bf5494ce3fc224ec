// SPDX-License-Identifier: MPL-2.0

package main

import (
	"bytes"
	"encoding/json"
	"strings"
	"testing"
	"time"

	"github.com/jedib0t/go-pretty/v6/table"
	"github.com/shoenig/test/must"

	"github.com/nomad-gpu/nomad-gpu/autoscaler/demand"
	"github.com/nomad-gpu/nomad-gpu/autoscaler/plan"
)

func someQueue() (demand.Reading, plan.Output, []plan.Pool) {
	now := time.Date(2026, 12, 3, 12, 0, 0, 0, time.UTC)
	anywhere := func(plan.Where) bool { return true }
	work := func(namespace, job string, count int) plan.Work {
		return plan.Work{Namespace: namespace, Job: job, Group: "gang", Gang: true, Distinct: true, Priority: 50, Count: count, Since: now.Add(-90 * time.Minute),
			Spot: plan.Prefer, Request: plan.Shape{GPUs: 8, Model: "H100"}, Allowed: anywhere}
	}
	pools := []plan.Pool{{Name: "spot", Lifecycle: plan.Spot, Max: 4, Shape: plan.Shape{GPUs: 8, Model: "H100"}}, {Name: "old", Lifecycle: plan.Spot, Max: 4, Shape: plan.Shape{GPUs: 8, Model: "V100"}}}
	waits, never := work("research", "train", 2), work("default", "huge", 40)
	out := plan.Make(plan.Input{Now: now, Work: []plan.Work{waits, never}, Pools: pools})
	lost := work("research", "taken", 2)
	lost.Placed = 1
	return demand.Reading{At: now, RunningGPUs: 8, TotalGPUs: 16, Drained: []demand.Drained{{Work: lost, Lost: 1, Since: now.Add(-time.Minute)}}}, out, pools
}

func TestTheQueueTellsWhatWaitsWhyAndWhatLetsItRun(t *testing.T) {
	r, o, pools := someQueue()
	rows := view{}.queued(r, o, pools)
	must.Len(t, 3, rows)
	byJob := map[string]waiting{}
	for _, w := range rows {
		byJob[w.Job] = w
		must.NotEq(t, "", w.Next)
	}
	train := byJob["train"]
	must.Eq(t, plan.Buying, train.Cause)
	must.Eq(t, map[string]int{"spot": 2}, train.Buying)
	must.Eq(t, []string{"spot"}, train.Pools)
	must.Eq(t, []string{"H100"}, train.Models)
	must.Eq(t, 5400, train.Age)
	must.True(t, byJob["huge"].Unsatisfiable)
	taken := byJob["taken"]
	must.Eq(t, plan.Drained, taken.Cause)
	must.Eq(t, 60, taken.Age, must.Sprint("since the drain"))
	must.StrContains(t, taken.Reason, "a drain stopped 1 of its 2 allocations while there was no place for others")
	must.StrContains(t, taken.Next, "another priority in its file: nomad job run -namespace=research;")

	must.Len(t, 2, view{onlyNamespaces: []string{"research"}}.queued(r, o, pools))
	must.Len(t, 3, view{onlyPools: []string{"spot"}}.queued(r, o, pools))
	must.SliceEmpty(t, view{onlyPools: []string{"old"}}.queued(r, o, pools))

	data, err := json.Marshal(view{onlyNamespaces: []string{"none"}}.queued(r, o, pools))
	must.NoError(t, err)
	must.Eq(t, "[]", string(data))
	var out bytes.Buffer
	printQueue(&out, r, rows)
	for _, want := range []string{"│ research  │ train/gang │   50 │ 0 of 2  │ 16 GPUs  │ 1h30m0s │ 0 of 2 placed; nodes are bought: 2 of pool spot → nothing to do", "│ H100     │", "8 of 16 GPUs are in use"} {
		must.StrContains(t, out.String(), want)
	}
}

func TestASentenceIsWrappedToWhatTheOtherColumnsLeave(t *testing.T) {
	header := table.Row{"Job", "Why"}
	sentence := strings.Repeat("word ", 60)
	for width, most := range map[int]int{100: 100, 20: 44, 0: 400} {
		var out bytes.Buffer
		w := newTable(&out, header)
		wrapAt(w, width, header, []table.Row{{"train", sentence}})
		w.Render()
		widest := 0
		for line := range strings.Lines(out.String()) {
			widest = max(widest, len([]rune(strings.TrimSpace(line))))
		}
		must.LessEq(t, most, widest, must.Sprint(width))
		must.Eq(t, width == 0, widest > 100, must.Sprint(width))
	}
}
