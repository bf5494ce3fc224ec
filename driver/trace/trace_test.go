// SPDX-License-Identifier: MPL-2.0

package trace

import (
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/shoenig/test/must"
	"pgregory.net/rapid"

	"github.com/nomad-gpu/nomad-gpu/driver/gang"
	"github.com/nomad-gpu/nomad-gpu/driver/member"
	"github.com/nomad-gpu/nomad-gpu/driver/trace/tracetest"
)

var (
	begin = time.Date(2026, 12, 1, 10, 0, 0, 0, time.UTC)
	key   = gang.Key{Region: "global", Namespace: "default", Job: "llm", Group: "gang", Run: "0"}
)

func at(seconds int) time.Time { return begin.Add(time.Duration(seconds) * time.Second) }

func saw(rank int, state gang.State, phase gang.Phase, generation uint64) member.Observation {
	return member.Observation{Head: gang.Head{State: state, Generation: generation, World: 2}, Record: gang.Record{Phase: phase, Generation: generation}, Rank: rank}
}

// tell writes spans as "name start-end rank", in the order of their start.
func tell(spans []tracetest.Span) []string {
	var lines []string
	for _, s := range spans {
		lines = append(lines, fmt.Sprintf("%s %d-%d generation %s rank %s", s.Name, s.Start.Unix()-begin.Unix(), s.End.Unix()-begin.Unix(),
			s.Attributes["gang.generation"], s.Attributes["gang.rank"]))
	}
	return lines
}

func TestAMembersLifeBecomesSpansOfTheGangsTrace(t *testing.T) {
	c := tracetest.Start(t)
	tracer, err := New(t.Context(), Config{Endpoint: c.Endpoint, Insecure: true, Sample: 1}, "1.2.3")
	must.NoError(t, err)
	m := tracer.Member(key, "alloc-a", "node-a")
	m.Observe(at(0), saw(-1, gang.Forming, gang.Idle, 0))
	m.Observe(at(1), saw(-1, gang.Forming, gang.Idle, 0))
	m.Observe(at(5), saw(0, gang.Preparing, gang.Idle, 1))
	m.Preflight(at(5), at(6), gang.Assignment{Generation: 1, Members: make([]gang.Member, 2)}, nil)
	m.Observe(at(6), saw(0, gang.Preparing, gang.Prepared, 1))
	m.Observe(at(8), saw(0, gang.Running, gang.Started, 1))
	broken := saw(0, gang.Running, gang.Broken, 1)
	broken.Record.Exit = &gang.Exit{Generation: 1, Code: 3}
	m.Observe(at(50), broken)
	m.Observe(at(52), saw(0, gang.Forming, gang.Idle, 1))
	m.Observe(at(53), saw(0, gang.Preparing, gang.Idle, 2))
	m.Preflight(at(53), at(54), gang.Assignment{Generation: 2, Members: make([]gang.Member, 2)}, errors.New("preflight: slow"))
	m.Observe(at(54), saw(0, gang.Running, gang.Started, 2))
	m.Observe(at(90), saw(0, gang.Done, gang.Finished, 2))
	m.End(at(91), gang.Outcome{State: gang.Done, Reason: "all 2 members finished"})
	must.NoError(t, tracer.Close(t.Context()))

	var spans, checks []tracetest.Span
	for _, s := range c.Spans() {
		if s.Name == "preflight" {
			checks = append(checks, s)
		} else {
			spans = append(spans, s)
		}
	}
	must.Eq(t, []string{"preflight 5-6 generation 1 rank 0", "preflight 53-54 generation 2 rank 0"}, tell(checks))
	must.Eq(t, []string{spans[1].ID, spans[5].ID}, []string{checks[0].Parent, checks[1].Parent}, must.Sprint("they are parts of prepare"))
	must.Eq(t, []string{"", "preflight: slow"}, []string{checks[0].Failed, checks[1].Failed})
	must.Eq(t, []string{
		"form 0-5 generation 1 rank 0", "prepare 5-8 generation 1 rank 0", "run 8-50 generation 1 rank 0", "stop 50-52 generation 1 rank 0",
		"form 52-53 generation 2 rank 0", "prepare 53-54 generation 2 rank 0", "run 54-90 generation 2 rank 0", "stop 90-91 generation 2 rank 0",
		"gang 0-91 generation 2 rank ",
	}, tell(spans))
	root := spans[len(spans)-1]
	must.Eq(t, "", root.Parent)
	must.Eq(t, "all 2 members finished", root.Attributes["gang.reason"])
	for _, s := range spans[:len(spans)-1] {
		must.Eq(t, root.ID, s.Parent)
		must.Eq(t, ID(key).String(), s.Trace)
		must.Eq(t, "node-a", s.Attributes["nomad.node.name"])
	}
	must.Eq(t, "exited with code 3", spans[2].Failed)
	must.Eq(t, "3", spans[2].Attributes["process.exit.code"])
	must.Eq(t, "", spans[6].Failed)
	must.Eq(t, fmt.Sprintf("00-%s-%s-01", spans[2].Trace, spans[2].ID), tracer.Parent(key, "alloc-a", 1))
	must.Eq(t, fmt.Sprintf("00-%s-%s-01", spans[6].Trace, spans[6].ID), tracer.Parent(key, "alloc-a", 2))
}

func TestOnlyTheLastRank0SendsTheSpanOfTheGang(t *testing.T) {
	c := tracetest.Start(t)
	tracer, err := New(t.Context(), Config{Endpoint: c.Endpoint, Insecure: true, Sample: 1}, "1")
	must.NoError(t, err)
	for rank, outcome := range []gang.Outcome{{Reason: "stopped by Nomad"}, {State: gang.Failed, Reason: "no restart left"}, {State: gang.Failed, Reason: "no restart left"}} {
		m := tracer.Member(key, fmt.Sprint("alloc-", rank), "node")
		m.Observe(at(0), saw(rank%2, gang.Running, gang.Started, 4))
		m.End(at(1), outcome)
	}
	must.NoError(t, tracer.Close(t.Context()))
	var names, failed []string
	for _, s := range c.Spans() {
		names = append(names, s.Name)
		if s.Name == "gang" {
			failed = append(failed, s.Failed)
		}
	}
	must.SliceContainsAll(t, names, []string{"run", "run", "run", "gang"})
	must.Eq(t, []string{"no restart left"}, failed)
}

func TestARunThatAFormerLifeOfTheDriverBeganIsNoSpanTwice(t *testing.T) {
	c := tracetest.Start(t)
	tracer, err := New(t.Context(), Config{Endpoint: c.Endpoint, Insecure: true, Sample: 1}, "1")
	must.NoError(t, err)
	for range 2 {
		m := tracer.Member(key, "a", "node")
		m.Observe(at(0), saw(1, gang.Running, gang.Started, 4))
		m.End(at(1), gang.Outcome{})
	}
	must.NoError(t, tracer.Close(t.Context()))
	spans := c.Spans()
	must.Len(t, 2, spans)
	must.NotEq(t, spans[0].ID, spans[1].ID)
}

func TestAllMembersOfAGangComeToTheSameIdentityAndChoice(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		word := rapid.StringN(0, 8, -1)
		k := gang.Key{Region: word.Draw(t, "region"), Namespace: word.Draw(t, "namespace"), Job: word.Draw(t, "job"), Group: word.Draw(t, "group"), Run: word.Draw(t, "run")}
		c := Config{Endpoint: "127.0.0.1:4318", Insecure: true, Sample: rapid.Float64Range(0, 1).Draw(t, "sample")}
		var parents []string
		for range 2 {
			tracer, err := New(t.Context(), c, "1")
			if err != nil {
				t.Fatal(err)
			}
			parents = append(parents, tracer.Parent(k, "a", 1), tracer.Parent(k, "b", 1))
		}
		if parents[0] != parents[2] || parents[0] == parents[1] || parents[0][:35] != parents[1][:35] || parents[0][53:] != parents[1][53:] {
			t.Fatal(parents)
		}
		other := k
		other.Job, other.Group = k.Job+k.Group, ""
		if k.Group != "" && ID(other) == ID(k) {
			t.Fatal("two gangs, one trace")
		}
		if !ID(k).IsValid() || !rootID(k).IsValid() || len(parents[0]) != 55 || !strings.HasPrefix(parents[0], "00-") {
			t.Fatal(parents)
		}
	})
}

func TestAGangThatIsNotSampledSendsNothingAndSaysSo(t *testing.T) {
	c := tracetest.Start(t)
	tracer, err := New(t.Context(), Config{Endpoint: c.Endpoint, Insecure: true}, "1")
	must.NoError(t, err)
	m := tracer.Member(key, "a", "node")
	m.Observe(at(0), saw(0, gang.Running, gang.Started, 1))
	m.End(at(1), gang.Outcome{State: gang.Done})
	must.NoError(t, tracer.Close(t.Context()))
	must.SliceEmpty(t, c.Spans())
	must.StrHasSuffix(t, "-00", tracer.Parent(key, "a", 1))
}

func TestWithoutAnEndpointNothingIsTraced(t *testing.T) {
	tracer, err := New(t.Context(), Config{}, "1")
	must.NoError(t, err)
	m := tracer.Member(key, "a", "node")
	m.Observe(at(0), saw(0, gang.Running, gang.Started, 1))
	m.Preflight(at(0), at(1), gang.Assignment{}, nil)
	m.End(at(1), gang.Outcome{State: gang.Done})
	must.Eq(t, "", tracer.Parent(key, "a", 1))
	must.NoError(t, tracer.Close(t.Context()))
}

func TestEachFaultOfTheTracingBlockIsNamedWithWhatIsAllowed(t *testing.T) {
	must.NoError(t, Config{}.Validate())
	must.NoError(t, Config{Endpoint: "otel.example:4318", Sample: 0.1}.Validate())
	for want, c := range map[string]Config{
		`tracing.endpoint: "otel"; allowed is host:port`:          {Endpoint: "otel"},
		`tracing.endpoint: "http://otel:1"; allowed is host:port`: {Endpoint: "http://otel:1"},
		`tracing.endpoint: ":4318"; allowed is host:port`:         {Endpoint: ":4318"},
		`tracing.endpoint: "u@otel:1"; allowed is host:port`:      {Endpoint: "u@otel:1"},
		`tracing.sample: 1.5; allowed are 0 to 1`:                 {Endpoint: "otel:4318", Sample: 1.5},
		`tracing.sample: -1; allowed are 0 to 1`:                  {Endpoint: "otel:4318", Sample: -1},
	} {
		must.ErrorContains(t, c.Validate(), want)
	}
}
