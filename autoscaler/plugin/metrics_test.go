// SPDX-License-Identifier: MPL-2.0

package plugin

import (
	"errors"
	"fmt"
	"io"
	"maps"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/hashicorp/go-hclog"
	"github.com/hashicorp/nomad-autoscaler/sdk"
	"github.com/shoenig/test/must"

	"github.com/nomad-gpu/nomad-gpu/autoscaler/demand"
	"github.com/nomad-gpu/nomad-gpu/autoscaler/plan"
	"github.com/nomad-gpu/nomad-gpu/autoscaler/pool"
)

// scrape reads what is served.
func scrape(t *testing.T, address string) string {
	t.Helper()
	response, err := http.Get("http://" + address + "/metrics")
	must.NoError(t, err)
	defer response.Body.Close()
	body, err := io.ReadAll(response.Body)
	must.NoError(t, err)
	must.Eq(t, http.StatusOK, response.StatusCode, must.Sprint(string(body)))
	return string(body)
}

func served(t *testing.T) (*instruments, string) {
	t.Helper()
	m := newInstruments()
	stop, at, err := m.serve(":0", 0)
	must.NoError(t, err)
	t.Cleanup(func() { stop() })
	must.StrHasPrefix(t, "127.0.0.1:", at.String())
	return m, at.String()
}

// aScene has each thing that a figure is of.
func aScene(at time.Time) scene {
	anywhere := func(plan.Where) bool { return true }
	work := func(namespace, model string, priority int) plan.Work {
		return plan.Work{Namespace: namespace, Job: "j", Group: "g", Gang: true, Priority: priority, Count: 2, Since: at.Add(-time.Minute), Request: plan.Shape{GPUs: 8, Model: model}, Allowed: anywhere}
	}
	lost := work("research", "", 50)
	lost.Placed = 1
	pools := []plan.Pool{{Name: "spot", Price: 40, Shape: plan.Shape{GPUs: 8, Model: "H100"}, Interrupted: 2}}
	return scene{
		reading: demand.Reading{At: at, RunningGPUs: 6, TotalGPUs: 24, Drained: []demand.Drained{{Work: lost, Lost: 1, Since: at.Add(-time.Hour)}}},
		in: plan.Input{Now: at, Pools: pools, Nodes: []plan.Node{{Pool: "spot"}, {Pool: "spot", Starting: true}, {}},
			Budget: plan.Budget{PerHour: 100, Namespaces: map[string]float64{"research": 30}}},
		out: plan.Output{Ahead: []plan.Ahead{{Model: "H100", GPUs: 24}}, Decisions: []plan.Decision{{Pool: "spot", Now: 1, Want: 4, Needed: 3}}, Waiting: []plan.Waiting{
			{Work: work("research", "H100", 60), Cause: plan.Buying}, {Work: work("research", "H100", 74), Cause: plan.Buying}, {Work: work("", "", 10), Cause: plan.Unsatisfiable, Unsatisfiable: true}}},
		resting: map[string]string{"spot": "capacity"},
		samples: []demand.Sample{{At: at, Pool: "spot", Nodes: 1, GPUs: 8, Used: []demand.Held{{Namespace: "research", Job: "a", GPUs: 4}, {Namespace: "research", Job: "b", Shared: 0.5}}}},
		pools:   []pool.Definition{{Name: "spot", Price: 40, Shape: pool.Shape{GPUs: 8}, Power: &pool.Power{Idle: 8, Busy: 8, Price: 1}}},
		tariff:  pool.Tariff{Price: 1},
	}
}

func TestMetricsAreServedOnThisMachineAlone(t *testing.T) {
	m, at := served(t)
	m.observe(time.Second, nil)
	m.observe(time.Second, errors.New("no answer"))
	begin := time.Unix(1000, 0)
	m.decide(aScene(begin))
	m.decide(aScene(begin.Add(time.Minute)))
	m.decide(aScene(begin.Add(time.Minute))) // the same reading again
	refused := aScene(begin.Add(time.Hour))
	refused.in.Pools[0].Refused = begin
	m.decide(refused)
	m.decide(refused)
	m.decided("spot", &sdk.ScalingAction{Direction: sdk.ScaleDirectionUp})
	m.decided("spot", &sdk.ScalingAction{Direction: sdk.ScaleDirectionDown, Meta: map[string]any{drainMeta: "", releaseMeta: "n"}})
	m.decided("spot", &sdk.ScalingAction{Direction: sdk.ScaleDirectionDown, Meta: map[string]any{drainMeta: "n", releaseMeta: ""}})
	m.decided("spot", &sdk.ScalingAction{Direction: sdk.ScaleDirectionNone})
	body := scrape(t, at)
	for _, line := range []string{
		`cluster{figure="running_gpus"} 6`, `cluster{figure="utilisation"} 0.25`, `reading_timestamp_seconds 4600`,
		`pool_nodes{pool="spot"} 1`, `pool_wanted_nodes{pool="spot"} 4`, `pool_needed_nodes{pool="spot"} 3`, `pool_resting{pool="spot"} 1`,
		`pool_gpus{pool="spot"} 8`, `pool_used_gpus{pool="spot"} 4.5`, `pool_interruptions{pool="spot"} 2`, `pool_refusals_total{pool="spot"} 1`,
		`queue_groups{cause="buying",model="H100",namespace="research",priority="50-74"} 2`, `queue_gpus{cause="buying",model="H100",namespace="research",priority="50-74"} 32`,
		`queue_gpus{cause="unsatisfiable",model="",namespace="default",priority="0-24"} 16`, `queue_gpus{cause="drained",model="",namespace="research",priority="50-74"} 16`,
		`queue_oldest_seconds{cause="drained",model="",namespace="research",priority="50-74"} 3600`, `queue_pool_gpus{pool="spot"} 32`,
		`cost_per_hour{namespace="research",pool="spot"} 27`, `cost_per_hour{namespace="(idle)",pool="spot"} 21`,
		`budget_per_hour{namespace="*"} 100`, `budget_used_per_hour{namespace="*"} 80`, `budget_per_hour{namespace="research"} 30`, `budget_used_per_hour{namespace="research"} 22.5`,
		`paid_gpu_seconds_total{pool="spot"} 2880`, `used_gpu_seconds_total{namespace="research",pool="spot"} 1620`, // a minute, and five of the hour in which nobody looked
		`decisions_total{kind="buy",pool="spot"} 1`, `decisions_total{kind="release",pool="spot"} 1`, `decisions_total{kind="drain",pool="spot"} 1`, `decisions_total{kind="keep",pool="spot"} 1`,
		`expected_gpus{model="H100"} 24`, "reading_seconds_count 2", "reading_failures_total 1",
	} {
		must.StrContains(t, body, "nomad_gpu_autoscaler_"+line+"\n")
	}
	gone := aScene(begin.Add(2 * time.Hour))
	gone.out.Waiting, gone.reading.Drained = nil, nil
	m.decide(gone)
	must.StrNotContains(t, scrape(t, at), "queue_gpus{", must.Sprint("what waits no more is not told"))

	_, _, err := m.serve("nine", 0)
	must.ErrorContains(t, err, `metrics_listen: "nine"; allowed is host:port`)
	_, _, err = m.serve(at, 10*time.Millisecond)
	must.ErrorContains(t, err, "metrics_listen: ")
	// The plugin before it ends a moment later.
	before, err := net.Listen("tcp", "127.0.0.1:0")
	must.NoError(t, err)
	time.AfterFunc(100*time.Millisecond, func() { before.Close() })
	stop, _, err := m.serve(before.Addr().String(), time.Minute)
	must.NoError(t, err)
	must.NoError(t, stop())
	var none *instruments
	none.observe(time.Second, nil)
	none.decide(scene{})
	none.decided("spot", nil)
}

func TestTheReferenceNamesEachMetricWithItsLabelsAndNoOther(t *testing.T) {
	text, err := os.ReadFile("../README.md")
	must.NoError(t, err)
	_, section, ok := strings.Cut(string(text), "\n## Metrics\n")
	must.True(t, ok)
	section, _, _ = strings.Cut(section, "\n## ")
	documented := map[string]string{}
	for _, m := range regexp.MustCompile("`nomad_gpu_autoscaler_([a-z_]+)(?:\\{([a-z, ]+)\\})?`").FindAllStringSubmatch(section, -1) {
		labels := strings.Split(m[2], ", ")
		slices.Sort(labels)
		documented[m[1]] = strings.Join(labels, ",")
	}
	m, at := served(t)
	m.decide(aScene(time.Unix(1000, 0)))
	m.decided("spot", &sdk.ScalingAction{})
	serves := map[string]string{}
	for _, line := range strings.Split(scrape(t, at), "\n") {
		name, ok := strings.CutPrefix(line, "nomad_gpu_autoscaler_")
		if !ok {
			continue
		}
		name, _, _ = strings.Cut(name, " ")
		name, labels, _ := strings.Cut(strings.TrimSuffix(name, "}"), "{")
		for _, part := range []string{"_bucket", "_sum", "_count"} {
			if rest, ok := strings.CutSuffix(name, part); ok && rest == "reading_seconds" {
				name, labels = rest, ""
			}
		}
		serves[name] = regexp.MustCompile(`="[^"]*"`).ReplaceAllString(labels, "")
	}
	must.Eq(t, serves, documented)
	for _, cause := range plan.Causes {
		must.StrContains(t, section, "`"+string(cause)+"`")
	}
}

func TestTheNumberOfSeriesIsBoundedWhateverJobsAreCalled(t *testing.T) {
	s := aScene(time.Unix(1000, 0))
	for i := range 3000 {
		w := s.out.Waiting[0]
		w.Work.Namespace, w.Work.Priority = fmt.Sprint("ns-", i), i%100
		w.Work.Request.Model = fmt.Sprint("model-", i%700)
		s.out.Waiting = append(s.out.Waiting, w)
		s.samples[0].Used = append(s.samples[0].Used, demand.Held{Namespace: fmt.Sprint("ns-", i), Job: "j", GPUs: 1})
	}
	s.out.Waiting[0].Work.Namespace = strings.Repeat("x", 1<<16)
	m, at := served(t)
	m.decide(s)
	count, gpus := map[string]int{}, 0.0
	for _, line := range strings.Split(scrape(t, at), "\n") {
		if name, rest, ok := strings.Cut(line, "{"); ok && !strings.HasPrefix(line, "#") {
			count[name]++
			var v float64
			_, value, _ := strings.Cut(rest, "} ")
			if _, err := fmt.Sscan(value, &v); err == nil && name == "nomad_gpu_autoscaler_queue_gpus" {
				gpus += v
			}
		}
	}
	must.Eq(t, float64((3000+3+1)*16), gpus, must.Sprint("none is lost"))
	for name, n := range count {
		must.LessEq(t, maxQueue+4*len(plan.Causes), n, must.Sprint(name))
	}
	must.LessEq(t, maxNamespaces+2, count["nomad_gpu_autoscaler_cost_per_hour"])
	must.Greater(t, 10, len(slices.Collect(maps.Keys(count))))
}

func TestAPluginServesTheMetricsOfWhatItReads(t *testing.T) {
	nomad := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { fmt.Fprint(w, "[]") }))
	defer nomad.Close()
	path := filepath.Join(t.TempDir(), "pools.hcl")
	text := strings.ReplaceAll(strings.Split(file, "\npool \"own\"")[0], "max           = 8", "max           = 8\n  min           = 1")
	must.NoError(t, os.WriteFile(path, []byte("budget {\n  per_hour = 99\n}\ncurve {\n  file = \"/no/such/file\"\n}\n"+text), 0o600))
	s := NewStrategy(hclog.NewNullLogger())
	must.NoError(t, s.SetConfig(map[string]string{"pools_file": path, "nomad_address": nomad.URL, "metrics_listen": "127.0.0.1:0"}))
	defer s.lookout.Close()
	stop, at, err := s.lookout.metrics.serve(":0", 0)
	must.NoError(t, err)
	defer stop()
	must.StrContains(t, scrape(t, at.String()), `decisions_total{kind="buy",pool="asg"} 0`)
	eval := &sdk.ScalingCheckEvaluation{Check: &sdk.ScalingPolicyCheck{Strategy: &sdk.ScalingPolicyStrategy{Config: map[string]string{"pool": "asg"}}}}
	_, err = s.Run(eval, 0)
	must.NoError(t, err)
	body := scrape(t, at.String())
	must.StrContains(t, body, `decisions_total{kind="buy",pool="asg"} 1`)
	must.StrContains(t, body, `pool_wanted_nodes{pool="asg"} 1`)
	must.StrContains(t, body, `budget_per_hour{namespace="*"} 99`)
	must.StrContains(t, body, `reading_seconds_count 1`)
}
