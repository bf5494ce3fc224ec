// SPDX-License-Identifier: MPL-2.0

package metrics

import (
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/common/expfmt"
	"github.com/shoenig/test/must"
	"pgregory.net/rapid"

	"github.com/nomad-gpu/nomad-gpu/driver/gang"
	"github.com/nomad-gpu/nomad-gpu/driver/member"
)

var (
	begin = time.Date(2026, 12, 1, 10, 0, 0, 0, time.UTC)
	key   = gang.Key{Region: "global", Namespace: "default", Job: "llm", Group: "gang", Run: "0"}
)

func at(seconds int) time.Time { return begin.Add(time.Duration(seconds) * time.Second) }

func saw(state gang.State, phase gang.Phase, generation uint64) member.Observation {
	return member.Observation{Head: gang.Head{State: state, Generation: generation}, Record: gang.Record{Phase: phase, Generation: generation}}
}

// exposed is what a scrape at that time reads.
func exposed(t *testing.T, l *Ledger, now time.Time) string {
	t.Helper()
	registry := prometheus.NewPedanticRegistry()
	must.NoError(t, registry.Register(Collector{l, func() time.Time { return now }}))
	families, err := registry.Gather()
	must.NoError(t, err)
	var text strings.Builder
	for _, f := range families {
		_, err := expfmt.MetricFamilyToText(&text, f)
		must.NoError(t, err)
	}
	return text.String()
}

// has fails unless a scrape at that time reads each line.
func has(t *testing.T, l *Ledger, now time.Time, lines ...string) {
	t.Helper()
	text := exposed(t, l, now)
	for _, line := range lines {
		must.StrContains(t, "\n"+text, "\n"+line+"\n")
	}
}

const labels = `group="gang",job="llm",namespace="default"`

func TestAGangsLifeIsCounted(t *testing.T) {
	l := NewLedger()
	for _, alloc := range []string{"a", "b"} {
		l.Observe(at(0), key, alloc, saw(gang.Forming, gang.Idle, 0))
	}
	has(t, l, at(1), `nccl_members{`+labels+`,stage="form"} 2`, `nccl_gangs{`+labels+`,state="forming"} 1`,
		`nccl_effective_training_time_ratio{`+labels+`} 0`)
	for _, alloc := range []string{"a", "b"} {
		l.Observe(at(10), key, alloc, saw(gang.Preparing, gang.Idle, 1))
		l.Observe(at(25), key, alloc, saw(gang.Running, gang.Started, 1))
	}
	has(t, l, at(75), `nccl_members{`+labels+`,stage="run"} 2`, `nccl_members{`+labels+`,stage="form"} 0`,
		`nccl_gang_generation{`+labels+`} 1`,
		`nccl_gang_form_seconds_count{`+labels+`} 2`, `nccl_gang_form_seconds_sum{`+labels+`} 50`,
		`nccl_gang_form_seconds_bucket{`+labels+`,le="20"} 0`, `nccl_gang_form_seconds_bucket{`+labels+`,le="30"} 2`,
		`nccl_member_stage_seconds_total{`+labels+`,stage="form"} 20`, `nccl_member_stage_seconds_total{`+labels+`,stage="prepare"} 30`,
		`nccl_member_stage_seconds_total{`+labels+`,stage="run"} 100`)
	has(t, l, at(125), `nccl_effective_training_time_ratio{`+labels+`} 0.8`)

	// One member fails; both stop and form again.
	failed := saw(gang.Stopping, gang.Started, 1)
	failed.Head.Restarts, failed.Head.Cause = 1, gang.CauseFailure
	l.Observe(at(125), key, "a", failed)
	l.Observe(at(125), key, "b", failed)
	l.Observe(at(130), key, "a", saw(gang.Forming, gang.Idle, 1))
	l.Observe(at(135), key, "a", saw(gang.Running, gang.Started, 2))
	has(t, l, at(135), `nccl_gang_restarts_total{`+labels+`,reason="failure"} 1`, `nccl_gang_restarts_total{`+labels+`,reason="lost"} 0`,
		`nccl_gang_restarts_total{`+labels+`,reason="slow"} 0`, `nccl_gang_restarts_total{`+labels+`,reason="notice"} 0`,
		`nccl_gang_generation{`+labels+`} 2`, `nccl_gang_form_seconds_count{`+labels+`} 3`, `nccl_gang_form_seconds_sum{`+labels+`} 60`)

	l.Ended(at(140), key, "a")
	l.Ended(at(140), key, "b")
	has(t, l, at(141), `nccl_members{`+labels+`,stage="run"} 0`, `nccl_gang_restarts_total{`+labels+`,reason="failure"} 1`)
	must.StrNotContains(t, exposed(t, l, at(141)), "nccl_gangs{")
	must.StrNotContains(t, exposed(t, l, at(140+3600)), labels)
}

func TestTroubleWithConsulCountsOnceHoweverManyMembersHaveIt(t *testing.T) {
	l := NewLedger()
	l.Reached(at(0), "a", false)
	l.Reached(at(5), "b", false)
	l.Reached(at(10), "a", true)
	has(t, l, at(12), "nccl_consul_trouble_seconds_total 12")
	l.Reached(at(20), "b", true)
	l.Reached(at(25), "b", true)
	has(t, l, at(90), "nccl_consul_trouble_seconds_total 20")
	l.Reached(at(100), "c", false)
	l.Ended(at(101), key, "c")
	has(t, l, at(900), "nccl_consul_trouble_seconds_total 21")
}

func TestNoNumberOfJobsMakesSeriesWithoutEnd(t *testing.T) {
	l := NewLedger()
	for i := range 3 * maxGangs {
		k := key
		k.Job = fmt.Sprintf("job-%d\xff", i)
		l.Observe(at(0), k, "a", saw(gang.Forming, gang.Idle, 0))
		l.Ended(at(0), k, "a")
	}
	must.Eq(t, maxGangs, len(l.gangs))
	has(t, l, at(1), `nccl_members{group="gang",job="job-3071?",namespace="default",stage="form"} 0`)
}

func TestTheTimesOfTheStagesAddUpToTheTimeSinceTheJoin(t *testing.T) {
	states := []gang.State{gang.Forming, gang.Preparing, gang.Running, gang.Stopping, gang.Failed}
	phases := []gang.Phase{gang.Idle, gang.Prepared, gang.Started, gang.Finished, gang.Broken}
	rapid.Check(t, func(t *rapid.T) {
		l := NewLedger()
		now := 0
		for range rapid.IntRange(1, 50).Draw(t, "steps") {
			now += rapid.IntRange(0, 100).Draw(t, "wait")
			l.Observe(at(now), key, "a", saw(rapid.SampledFrom(states).Draw(t, "state"), rapid.SampledFrom(phases).Draw(t, "phase"), rapid.Uint64Range(0, 3).Draw(t, "generation")))
		}
		a := l.gangs[nameOf(key)]
		var sum time.Duration
		for _, d := range a.spent {
			sum += d
		}
		m := a.members["a"]
		if sum != m.since.Sub(m.joined) || m.ran != a.spent[member.Running] {
			t.Fatalf("spent %s since the join %s ago; ran %s", sum, m.since.Sub(m.joined), m.ran)
		}
	})
}

func TestMetricsAreServedUntilTheEnd(t *testing.T) {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	must.NoError(t, err)
	l := NewLedger()
	l.Observe(at(0), key, "a", saw(gang.Running, gang.Started, 7))
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- Serve(ctx, listener, Collector{l, time.Now}) }()
	answer, err := http.Get("http://" + listener.Addr().String() + "/metrics")
	must.NoError(t, err)
	text, err := io.ReadAll(answer.Body)
	must.NoError(t, err)
	answer.Body.Close()
	must.True(t, strings.Contains(string(text), `nccl_gang_generation{`+labels+`} 7`), must.Sprint(string(text)))
	cancel()
	must.NoError(t, <-done)
}

func TestTheAddressToListenOnNamesItsInterface(t *testing.T) {
	for _, ok := range []string{"", "127.0.0.1:9501", "[::1]:9501", "0.0.0.0:9501", "10.0.0.7:1"} {
		must.NoError(t, Validate(ok))
	}
	for _, bad := range []string{":9501", "9501", "localhost:9501", "127.0.0.1", "127.0.0.1:0", "127.0.0.1:99999"} {
		must.ErrorContains(t, Validate(bad), fmt.Sprintf(`metrics.listen: %q; allowed are an IP literal and a port such as "127.0.0.1:9501"`, bad))
	}
}
