// SPDX-License-Identifier: MPL-2.0

//go:build gpu

package nvml

import (
	"encoding/json"
	"regexp"
	"testing"

	"github.com/shoenig/test/must"

	"github.com/nomad-gpu/nomad-gpu/device/gpu"
)

// TestThisHost reads the GPUs that are really here (go test -tags gpu). It
// fails where there are none.
func TestThisHost(t *testing.T) {
	r := NewReader("")
	m, err := r.Machine()
	must.NoError(t, err, must.Sprint("this test needs a GPU and its driver"))
	must.Positive(t, len(m.GPUs))
	shown, err := json.MarshalIndent(m, "", "  ")
	must.NoError(t, err)
	t.Logf("%s", shown)
	must.NotEqOp(t, "", m.DriverVersion)
	must.NotEqOp(t, "", m.CUDAVersion)
	for i, g := range m.GPUs {
		must.RegexMatch(t, regexp.MustCompile(`^GPU-[0-9a-f-]{36}$`), g.UUID)
		must.RegexMatch(t, busForm, g.BusID)
		must.NotEqOp(t, "", g.Model)
		must.NotEqOp(t, "", g.ComputeCapability)
		must.EqOp(t, "", g.Fault)
		for j := range m.GPUs {
			if i != j {
				must.NotEqOp(t, gpu.Path{}, m.Paths[i][j])
			}
		}
	}
	samples, err := r.Samples()
	must.NoError(t, err)
	must.MapLen(t, len(m.GPUs), samples)
	for _, s := range samples {
		must.NotNil(t, s.UtilizationPercent)
		must.NotNil(t, s.TemperatureC)
	}
	must.MapLen(t, len(m.GPUs), r.Observe())
	again, err := r.Machine()
	must.NoError(t, err)
	must.Eq(t, m, again) // nothing flickers
}
