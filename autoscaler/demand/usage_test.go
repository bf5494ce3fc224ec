// SPDX-License-Identifier: MPL-2.0

package demand

import (
	"testing"
	"time"

	"github.com/hashicorp/nomad/api"
	"github.com/shoenig/test/must"
	"pgregory.net/rapid"
)

func hour(h float64) time.Time { return time.Unix(0, 0).Add(time.Duration(h * float64(time.Hour))) }

func TestASampleStandsUntilTheNextButNoLongerThanTheGap(t *testing.T) {
	used := []Held{{Namespace: "default", Job: "train", GPUs: 3, Shared: 1}}
	samples := []Sample{{At: hour(0), Pool: "spot", Nodes: 1, GPUs: 8, Used: used}, {At: hour(1), Pool: "spot", Nodes: 3, GPUs: 24},
		{At: hour(1), Pool: "od", Nodes: 1, GPUs: 8, Used: used}, {At: hour(9), Pool: "spot", Nodes: 1, GPUs: 8, Used: used}}
	u := UsageOf(samples, hour(0.5), hour(10), 2*time.Hour)
	must.Eq(t, 0.5*8+2*24+1*8, u.Paid["spot"])
	must.Eq(t, 0.5*1+2*3+1*1, u.Nodes["spot"])
	must.Eq(t, 3, u.Peak["spot"])
	must.Eq(t, 2*8.0, u.Paid["od"])
	must.Eq(t, map[Share]float64{{"spot", "default", "train"}: 0.5*4 + 4, {"od", "default", "train"}: 8}, u.Used)
}

func TestNoMoreIsUsedThanIsPaidAndSpansAddUp(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		var samples []Sample
		at := 0.0
		for range rapid.IntRange(0, 20).Draw(t, "n") {
			at += rapid.Float64Range(0, 3).Draw(t, "after")
			gpus := rapid.IntRange(0, 16).Draw(t, "gpus")
			samples = append(samples, Sample{At: hour(at), Pool: "p", Nodes: gpus / 8, GPUs: gpus, Used: []Held{{Namespace: "ns", Job: "j", GPUs: rapid.IntRange(0, gpus).Draw(t, "used")}}})
		}
		middle := rapid.Float64Range(0, 60).Draw(t, "middle")
		whole := UsageOf(samples, hour(0), hour(60), time.Hour)
		parts := UsageOf(samples, hour(0), hour(middle), time.Hour).Paid["p"] + UsageOf(samples, hour(middle), hour(60), time.Hour).Paid["p"]
		if diff := whole.Paid["p"] - parts; diff > 1e-6 || diff < -1e-6 {
			t.Fatalf("the whole is %v, its parts %v", whole.Paid["p"], parts)
		}
		if used := whole.Used[Share{"p", "ns", "j"}]; used > whole.Paid["p"]+1e-9 {
			t.Fatalf("%v used of %v", used, whole.Paid["p"])
		}
	})
}

func TestWhatAllocationsUsedIsTheirTasksTime(t *testing.T) {
	with := func(client string, states ...*api.TaskState) *api.AllocationListStub {
		a := alloc(client, "run", 1)
		a.TaskStates = map[string]*api.TaskState{}
		for i, s := range states {
			a.TaskStates[string(rune('a'+i))] = s
		}
		return a
	}
	share := Share{"spot", "default", "train"}
	for name, c := range map[string]struct {
		a    *api.AllocationListStub
		want float64
	}{
		"it runs":                   {with("running", &api.TaskState{StartedAt: hour(4)}), 8 * 6},
		"it has ended":              {with("complete", &api.TaskState{StartedAt: hour(2), FinishedAt: hour(3)}), 8},
		"one of two tasks runs":     {with("running", &api.TaskState{StartedAt: hour(4), FinishedAt: hour(5)}, &api.TaskState{StartedAt: hour(5)}), 8 * 6},
		"it began before":           {with("complete", &api.TaskState{StartedAt: hour(0), FinishedAt: hour(2)}), 8},
		"it never began":            {with("pending", &api.TaskState{}, nil), 0},
		"its node was lost, no end": {with("lost", &api.TaskState{StartedAt: hour(4)}), 0},
		"it asks for no GPU":        {&api.AllocationListStub{TaskStates: map[string]*api.TaskState{"t": {StartedAt: hour(4)}}}, 0},
	} {
		u := UsageOfAllocs([]*api.AllocationListStub{nil, c.a}, func(string) string { return "spot" }, hour(1), hour(10))
		must.Eq(t, c.want, u.Used[share], must.Sprint(name))
	}
}
