// SPDX-License-Identifier: MPL-2.0

package plugin

import (
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

func TestSlicesAreRecordedInGPUs(t *testing.T) {
	pools := []plan.Pool{{Name: "shared", Shape: plan.Shape{Devices: []plan.Devices{{Type: plan.Slice, Count: 8, Of: 4}, {Type: plan.Slice, Count: 8, Of: 4}}}}}
	nodes := []plan.Node{{Name: "n1", Pool: "shared"}, {Name: "n2", Pool: "shared"}}
	running := []demand.Running{{Node: "n1", Namespace: "a", Job: "j", Shared: 0.25}, {Node: "n2", Namespace: "a", Job: "j", Shared: 1.5}}
	waiting := []plan.Waiting{{Work: plan.Work{Count: 3, Request: plan.Shape{Asks: []plan.Ask{{Type: plan.Slice, Count: 2}}}, Allowed: func(plan.Where) bool { return true }}}}
	at := time.Unix(60, 0).UTC()
	all := queue(samples(at, pools, nodes, running), pools, waiting)
	must.Eq(t, []demand.Sample{{At: at, Pool: "shared", Nodes: 2, GPUs: 8, Used: []demand.Held{{Namespace: "a", Job: "j", Shared: 1.75}}, QueuedShared: 1.5}}, all)
	path := filepath.Join(t.TempDir(), "record")
	must.NoError(t, appendRecord(path, all))
	got, err := ReadRecord(path)
	must.NoError(t, err)
	must.Eq(t, all, got)
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
	for _, line := range []string{`{"gpus":-1}`, `{"nodes":-1}`, `{"queued":-1}`, `{"queued_shared":-0.5}`, `{"used":[{"gpus":-8}]}`, `{"used":[{"shared":-0.25}]}`} {
		damaged := filepath.Join(t.TempDir(), "record")
		must.NoError(t, os.WriteFile(damaged, []byte(line+"\n{}\n"), 0o600))
		_, err = ReadRecord(damaged)
		must.ErrorContains(t, err, ":1: no sample", must.Sprint(line))
	}
	_, err = ReadRecord(filepath.Join(t.TempDir(), "none"))
	must.ErrorIs(t, err, os.ErrNotExist)
}
