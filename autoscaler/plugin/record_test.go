// SPDX-License-Identifier: MPL-2.0

package plugin

import (
	"errors"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/shoenig/test/must"

	"github.com/nomad-gpu/nomad-gpu/autoscaler/demand"
	"github.com/nomad-gpu/nomad-gpu/autoscaler/plan"
)

func TestASampleCountsWhatNomadHasAndWhoHoldsIt(t *testing.T) {
	pools := []plan.Pool{{Name: "spot", Shape: plan.Shape{GPUs: 8}}, {Name: "od", Shape: plan.Shape{GPUs: 4}}}
	nodes := []plan.Node{{Name: "n1", Pool: "spot"}, {Name: "n2", Pool: "spot"}, {Name: "new", Pool: "spot", Starting: true}, {Name: "n3"}}
	running := []demand.Running{{Node: "n1", Namespace: "a", Job: "j", GPUs: 8}, {Node: "n2", Namespace: "a", Job: "j", GPUs: 2}, {Node: "n2", Namespace: "b", Job: "j", GPUs: 1}, {Node: "n3", Namespace: "a", Job: "j", GPUs: 4}}
	at := time.Unix(60, 0).UTC()
	must.Eq(t, []demand.Sample{
		{At: at, Pool: "spot", Nodes: 2, GPUs: 16, Used: []demand.Held{{Namespace: "a", Job: "j", GPUs: 10}, {Namespace: "b", Job: "j", GPUs: 1}}},
		{At: at, Pool: "od"},
	}, samples(at, pools, nodes, running))
}

func TestASampleCountsWhatWaitsForThePool(t *testing.T) {
	pools := []plan.Pool{{Name: "spot", Shape: plan.Shape{GPUs: 8}}, {Name: "od", Shape: plan.Shape{GPUs: 4}}}
	anywhere := func(plan.Where) bool { return true }
	waiting := []plan.Waiting{
		{Work: plan.Work{Count: 2, Gang: true, Placed: 1, Request: plan.Shape{GPUs: 8}, Allowed: anywhere}},
		{Work: plan.Work{Count: 3, Placed: 1, Request: plan.Shape{GPUs: 2}, Allowed: anywhere}},
		{Work: plan.Work{Count: 1, Request: plan.Shape{GPUs: 1}, Allowed: anywhere}, Unsatisfiable: true},
		{Work: plan.Work{Count: 1, Request: plan.Shape{GPUs: 16}, Allowed: anywhere}, Places: map[string]int{"od": 16}},
	}
	all := queue(samples(time.Unix(60, 0), pools, nil, nil), pools, waiting)
	must.Eq(t, []int{20, 4}, []int{all[0].Queued, all[1].Queued})
	must.Eq(t, []int{0, 16}, []int{all[0].Coming, all[1].Coming})
}

func TestARecordIsReadBackThoughItsLastLineIsHalfWritten(t *testing.T) {
	path := filepath.Join(t.TempDir(), "record")
	first := []demand.Sample{{At: time.Unix(60, 0).UTC(), Pool: "spot", Nodes: 1, GPUs: 8}}
	must.NoError(t, appendRecord(path, first))
	must.NoError(t, os.Rename(path, path+".1"))
	must.NoError(t, appendRecord(path, first))
	must.NoError(t, appendRecord(path, first))
	f, err := os.OpenFile(path, os.O_APPEND|os.O_WRONLY, 0)
	must.NoError(t, err)
	_, err = f.WriteString(`{"at":"20`)
	must.NoError(t, err)
	got, err := ReadRecord(path)
	must.NoError(t, err)
	must.Len(t, 3, got)
	must.Eq(t, first[0], got[2])
	_, err = f.WriteString("\n{}\n")
	must.NoError(t, err)
	must.NoError(t, f.Close())
	_, err = ReadRecord(path)
	must.ErrorContains(t, err, path+":3: no sample")
	_, err = ReadRecord(filepath.Join(t.TempDir(), "none"))
	must.ErrorIs(t, err, os.ErrNotExist)
}

func TestMetricsAreServedOnThisMachineAlone(t *testing.T) {
	m := newInstruments()
	stop, at, err := m.serve(":0")
	must.NoError(t, err)
	defer stop()
	must.StrHasPrefix(t, "127.0.0.1:", at.String())
	m.observe(time.Second, nil)
	m.observe(time.Second, errors.New("no answer"))
	m.decide(demand.Reading{RunningGPUs: 6, TotalGPUs: 24}, plan.Output{Decisions: []plan.Decision{{Pool: "spot", Now: 1, Want: 4, Needed: 3}}, Ahead: []plan.Ahead{{Model: "L40S", GPUs: 24}}}, map[string]string{"spot": "capacity"})
	response, err := http.Get("http://" + at.String() + "/metrics")
	must.NoError(t, err)
	defer response.Body.Close()
	body, err := io.ReadAll(response.Body)
	must.NoError(t, err)
	for _, line := range []string{
		`nomad_gpu_autoscaler_cluster{figure="running_gpus"} 6`, `nomad_gpu_autoscaler_cluster{figure="utilisation"} 0.25`, `nomad_gpu_autoscaler_pool_nodes{pool="spot"} 1`,
		`nomad_gpu_autoscaler_pool_wanted_nodes{pool="spot"} 4`, `nomad_gpu_autoscaler_pool_needed_nodes{pool="spot"} 3`, `nomad_gpu_autoscaler_pool_resting{pool="spot"} 1`, `nomad_gpu_autoscaler_expected_gpus{model="L40S"} 24`,
		"nomad_gpu_autoscaler_reading_seconds_count 2", "nomad_gpu_autoscaler_reading_failures_total 1",
	} {
		must.StrContains(t, string(body), line+"\n")
	}
	_, _, err = m.serve("nine")
	must.ErrorContains(t, err, `metrics_listen: "nine"; allowed is host:port`)
	_, _, err = m.serve(at.String())
	must.ErrorContains(t, err, "metrics_listen: ")
	var none *instruments
	none.observe(time.Second, nil)
	none.decide(demand.Reading{}, plan.Output{}, nil)
}
