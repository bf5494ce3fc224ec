// SPDX-License-Identifier: MPL-2.0

package plugin

import (
	"os"
	"strings"
	"testing"

	"github.com/shoenig/test/must"

	"github.com/nomad-gpu/nomad-gpu/device/gpu"
	"github.com/nomad-gpu/nomad-gpu/device/health"
)

// TestTheReferenceNamesEverything keeps README.md whole: every option, every
// attribute and every health rule stands in a table there.
func TestTheReferenceNamesEverything(t *testing.T) {
	text, err := os.ReadFile("../README.md")
	must.NoError(t, err)
	named := func(section string) string {
		_, rest, found := strings.Cut(string(text), "## "+section+"\n")
		must.True(t, found, must.Sprint(section))
		body, _, _ := strings.Cut(rest, "\n## ")
		return body
	}
	configuration := named("Configuration")
	for key := range configSpec.GetObject().GetAttributes() {
		if key == "health" {
			continue
		}
		must.StrContains(t, configuration, "`"+key+"`")
	}
	must.StrContains(t, configuration, "`health.period`")
	must.StrContains(t, configuration, "`health.disabled_rules`")

	m := simulated(t, "dgx-h100")
	m.GPUs[0].Fault = "lost"
	for i := range m.GPUs {
		m.GPUs[i].MIGProfile = "1g.10gb"
	}
	attributes := named("Attributes")
	must.StrContains(t, attributes, "`slices`")
	for name := range DeviceGroups(m, Grouping{})[0].Attributes {
		must.StrContains(t, attributes, "`"+name+"`")
	}
	must.NotEqOp(t, gpu.Unknown, m.NVSwitch) // or an attribute would be missing here

	rules := named("Health")
	for _, rule := range health.Rules() {
		must.StrContains(t, rules, "`"+rule.Code+"`")
	}
}
