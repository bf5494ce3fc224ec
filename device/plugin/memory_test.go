// SPDX-License-Identifier: MPL-2.0

package plugin

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/hashicorp/go-hclog"
	"github.com/shoenig/test/must"

	"github.com/nomad-gpu/nomad-gpu/device/health"
)

func TestWhatIsWrongIsRememberedOverARestartOfThePlugin(t *testing.T) {
	m := simulated(t, "dgx-h100")
	dir := t.TempDir()
	now := time.Unix(1000, 0)
	bad := map[string]health.Observation{m.GPUs[3].UUID: {Xids: []uint64{48}, Epoch: "boot/4/2"}}
	first := NewMonitor(health.Rules())
	first.Judge(m, bad, now)
	must.Eq(t, map[string]map[uint64]uint64{m.GPUs[3].UUID: {48: 1}}, first.Xids())
	openMemory(dir, hclog.NewNullLogger()).keep(first.Memories())

	second := NewMonitor(health.Rules())
	file := openMemory(dir, hclog.NewNullLogger())
	second.Recall(file.recall())
	other := withVerdicts(m, nil)
	other.GPUs = other.GPUs[:2] // the bad one does not answer yet
	second.Judge(other, nil, now.Add(time.Second))
	must.MapContainsKey(t, second.Memories(), m.GPUs[3].UUID, must.Sprint("it is not forgotten for that"))
	verdicts := second.Judge(m, map[string]health.Observation{m.GPUs[3].UUID: {Epoch: "boot/1/0"}}, now.Add(2*time.Second))
	must.EqOp(t, health.Unhealthy, verdicts[3].State)
	must.StrContains(t, verdicts[3].Reason, "Xid 48")
	verdicts = second.Judge(m, map[string]health.Observation{m.GPUs[3].UUID: {Epoch: "boot/1/1"}}, now.Add(3*time.Second))
	must.EqOp(t, health.Healthy, verdicts[3].State)
	file.keep(second.Memories())
	must.MapEmpty(t, openMemory(dir, hclog.NewNullLogger()).recall())
}

func TestAMemoryOfAnotherStartOfTheMachineOrABrokenOneIsForgotten(t *testing.T) {
	good := `{"boot":"` + bootID() + `","gpus":{"GPU-a":{"xid":{"state":"unhealthy","reason":"r","cure":"c"}}}}`
	for name, text := range map[string]string{
		"another start": strings.Replace(good, bootID(), "other", 1),
		"cut":           good[:40],
		"state":         strings.Replace(good, "unhealthy", "ill", 1),
		"large":         good + strings.Repeat(" ", maxState),
	} {
		path := filepath.Join(t.TempDir(), "health.json")
		must.NoError(t, os.WriteFile(path, []byte(text), 0o600))
		must.MapEmpty(t, openMemory(filepath.Dir(path), hclog.NewNullLogger()).recall(), must.Sprint(name))
	}
	path := filepath.Join(t.TempDir(), "health.json")
	must.NoError(t, os.WriteFile(path, []byte(good), 0o600))
	must.MapLen(t, 1, openMemory(filepath.Dir(path), hclog.NewNullLogger()).recall())
}

func TestNothingIsWrittenWhereNothingIsWrong(t *testing.T) {
	dir := t.TempDir()
	openMemory(dir, hclog.NewNullLogger()).keep(nil)
	_, err := os.Stat(filepath.Join(dir, "health.json"))
	must.ErrorIs(t, err, os.ErrNotExist)
}
