// SPDX-License-Identifier: MPL-2.0

package demand

import (
	"math"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/hashicorp/hcl/v2"
	"github.com/hashicorp/hcl/v2/hclsimple"
	"github.com/shoenig/test/must"

	"github.com/nomad-gpu/nomad-gpu/autoscaler/plan"
)

var submitted = time.Date(2026, 12, 3, 22, 0, 0, 0, time.FixedZone("CET", 3600)) // 21:00 UTC

func TestWhatAJobsMetaAsksFor(t *testing.T) {
	i := intentOf(map[string]string{"gpu.spot": "only", "gpu.deadline": "06:00", "gpu.duration": "90m", "gpu.max_cost": "120.5", "gpu.move": "yes", "gpu.restart": "5m", "team": "x"}, submitted)
	must.Eq(t, intent{Spot: plan.Only, Deadline: time.Date(2026, 12, 4, 6, 0, 0, 0, time.UTC), Length: 90 * time.Minute, MaxCost: 120.5, Move: true, Restart: 5 * time.Minute}, i)
	must.Eq(t, intent{Spot: plan.Prefer}, intentOf(nil, submitted), must.Sprint("nothing is asked for"))
	for text, want := range map[string]string{"21:30": "2026-12-03T21:30:00Z", "21:00": "2026-12-04T21:00:00Z", "00:00": "2026-12-04T00:00:00Z",
		"2027-01-31T06:00:00+02:00": "2027-01-31T04:00:00Z"} {
		at, ok := deadlineOf(text, submitted)
		must.True(t, ok)
		must.Eq(t, want, at.UTC().Format(time.RFC3339), must.Sprint(text))
	}
}

func TestAWrongMetaIsNamedAndNotLookedAt(t *testing.T) {
	for key, values := range map[string][]string{
		"gpu.spot":     {"yes", "Only", strings.Repeat("x", 1<<16)},
		"gpu.deadline": {"6:00", "25:00", "tomorrow", "2027-01-31", "06:00 "},
		"gpu.duration": {"90", "-1h", "0s", "1000000h", "soon"},
		"gpu.restart":  {"5", "-1m", "0s", "1000000h", "short"},
		"gpu.max_cost": {"-1", "0", "NaN", "Inf", "1e999", "12 EUR"},
		"gpu.move":     {"true", "YES", "maybe"},
	} {
		for _, v := range values {
			i := intentOf(map[string]string{key: v}, submitted)
			must.Len(t, 1, i.Faults, must.Sprint(key, v))
			must.StrHasPrefix(t, "meta "+key+": ", i.Faults[0])
			must.StrContains(t, i.Faults[0], "; allowed ")
			must.Less(t, 400, len(i.Faults[0]))
			i.Faults = nil
			must.Eq(t, intent{Spot: plan.Prefer}, i, must.Sprint(key, v))
		}
	}
}

func TestAFaultOfTheMetaIsInTheWorkAndInItsReason(t *testing.T) {
	job := train()
	job.Meta = map[string]string{"gpu.deadline": "soon", "gpu.max_cost": "5", "gpu.duration": "2h"}
	w := read(job).Work[0]
	must.Len(t, 1, w.Faults)
	must.Eq(t, 2*time.Hour, w.Length)
	must.Eq(t, 5.0, w.MaxCost)
	must.True(t, w.Deadline.IsZero())
	out := plan.Make(plan.Input{Now: submitted, Work: []plan.Work{w}})
	must.StrContains(t, out.Waiting[0].Reason, `; meta gpu.deadline: "soon" is not looked at; allowed is a time such as`)
	job.Meta = map[string]string{"gpu.deadline": "06:00"}
	must.Eq(t, time.Unix(6*3600, 0).UTC(), read(job).Work[0].Deadline, must.Sprint("the next after it was submitted"))
}

func TestTheJobOfTheReferenceIsUnderstood(t *testing.T) {
	text, err := os.ReadFile("../README.md")
	must.NoError(t, err)
	seen := 0
	for _, block := range strings.Split(string(text), "```hcl\n")[1:] {
		block, _, _ = strings.Cut(block, "```")
		if !strings.HasPrefix(block, "job ") {
			continue
		}
		var file struct {
			Job struct {
				Name string            `hcl:"name,label"`
				Meta map[string]string `hcl:"meta"`
				Rest hcl.Body          `hcl:",remain"`
			} `hcl:"job,block"`
		}
		must.NoError(t, hclsimple.Decode("job.hcl", []byte(block), nil, &file))
		i := intentOf(file.Job.Meta, submitted)
		must.SliceEmpty(t, i.Faults)
		must.MapLen(t, 6, file.Job.Meta)
		must.True(t, i.Move && i.Restart > 0 && i.MaxCost > 0 && i.Length > 0 && !i.Deadline.IsZero())
		seen++
	}
	must.Positive(t, seen)
}

func FuzzMeta(f *testing.F) {
	f.Add("only", "06:00", "90m", "12", "yes")
	f.Add("", "2027-01-31T06:00:00Z", "1e9h", "NaN", "no")
	f.Fuzz(func(t *testing.T, spot, deadline, length, cost, move string) {
		i := intentOf(map[string]string{"gpu.spot": spot, "gpu.deadline": deadline, "gpu.duration": length, "gpu.max_cost": cost, "gpu.move": move}, submitted)
		must.SliceContains(t, []string{plan.Prefer, plan.Never, plan.Only}, i.Spot)
		must.True(t, i.Length >= 0 && i.Length <= longest)
		must.True(t, i.MaxCost >= 0 && !math.IsInf(i.MaxCost, 0))
		if len(deadline) == 5 && !i.Deadline.IsZero() {
			wait := i.Deadline.Sub(submitted)
			must.True(t, wait > 0 && wait <= 24*time.Hour)
		}
	})
}
