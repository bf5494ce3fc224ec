// SPDX-License-Identifier: MPL-2.0

package plugin

import (
	"errors"
	"os"
	"path/filepath"
	"testing"

	"github.com/hashicorp/go-hclog"
	"github.com/shoenig/test/must"

	"github.com/nomad-gpu/nomad-gpu/device/power"
)

// weak is a simulation that may not set limits.
type weak struct{ *simulation }

func (weak) SetPowerLimit(string, uint) error {
	return errors.New("setting a power limit needs root: the Nomad agent must run as root")
}

func keeper(dir string, rules ...power.Rule) *powerKeeper {
	return &powerKeeper{path: powerPath(dir), rules: rules, logger: hclog.NewNullLogger()}
}

func TestPowerLimitsAreSetAndPutBackAtTheEnd(t *testing.T) {
	dir := t.TempDir()
	source := &simulation{machine: simulated(t, "dgx-h100")}
	k := keeper(dir, power.Rule{Watts: 350})
	limit := func() uint {
		m, err := source.Machine()
		must.NoError(t, err)
		k.apply(m, source)
		m, err = source.Machine()
		must.NoError(t, err)
		return m.GPUs[7].PowerLimitW
	}
	must.EqOp(t, 350, limit())
	must.EqOp(t, 350, limit(), must.Sprint("again changes nothing"))
	k.restore()
	m, err := source.Machine()
	must.NoError(t, err)
	must.EqOp(t, 700, m.GPUs[0].PowerLimitW)
	text, err := os.ReadFile(powerPath(dir))
	must.NoError(t, err)
	must.EqOp(t, "{}", string(text))
}

func TestAfterACrashTheNextStartPutsLimitsBack(t *testing.T) {
	dir := t.TempDir()
	source := &simulation{machine: simulated(t, "dgx-h100")}
	m, err := source.Machine()
	must.NoError(t, err)
	keeper(dir, power.Rule{Watts: 350}).apply(m, source)
	next := keeper(dir) // killed meanwhile; the rule is gone
	m, err = source.Machine()
	must.NoError(t, err)
	next.apply(m, source)
	m, err = source.Machine()
	must.NoError(t, err)
	must.EqOp(t, 700, m.GPUs[3].PowerLimitW)
}

func TestALimitThatIsRefusedIsSaid(t *testing.T) {
	source := &simulation{machine: simulated(t, "dgx-h100")}
	for want, try := range map[string]struct {
		rule   power.Rule
		source Source
		dir    string
	}{
		"power: power limit 100 W: the part allows 233 to 700 W":               {power.Rule{Watts: 100}, source, t.TempDir()},
		"power: setting a power limit needs root: the Nomad agent must run as": {power.Rule{Watts: 300}, weak{source}, t.TempDir()},
		"power: the limit it had cannot be kept: ":                             {power.Rule{Watts: 300}, source, "/proc/nomad-device-gpu"},
	} {
		judged := withVerdicts(source.machine, nil)
		keeper(try.dir, try.rule).apply(judged, try.source)
		must.StrHasPrefix(t, want, judged.GPUs[0].Degraded)
		must.EqOp(t, 700, source.PowerBounds()[judged.GPUs[0].UUID].Now)
	}
}

func TestWithoutARuleNothingIsTouched(t *testing.T) {
	dir := t.TempDir()
	source := &simulation{machine: simulated(t, "dgx-h100")}
	k := keeper(dir)
	k.apply(withVerdicts(source.machine, nil), source)
	k.restore()
	_, err := os.Stat(filepath.Join(dir, "power.json"))
	must.ErrorIs(t, err, os.ErrNotExist)
}
