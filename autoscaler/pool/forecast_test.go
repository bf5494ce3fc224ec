// SPDX-License-Identifier: MPL-2.0

package pool

import (
	"testing"
	"time"

	"github.com/shoenig/test/must"

	"github.com/nomad-gpu/nomad-gpu/autoscaler/forecast"
)

func TestAForecastIsOffUnlessItsBlockIsThere(t *testing.T) {
	f, err := readText(t, good)
	must.NoError(t, err)
	must.Nil(t, f.Forecast)
	f, err = readText(t, "forecast {\n  record = \"/var/lib/record\"\n}\n"+good)
	must.NoError(t, err)
	must.Eq(t, forecast.Usual, f.Forecast.Season())
	f, err = readText(t, "forecast {\n  record = \"/var/lib/record\"\n  period = \"24h\"\n  periods = 7\n  share = 1\n  ahead = \"6m\"\n}\n"+good)
	must.NoError(t, err)
	must.Eq(t, forecast.Season{Period: 24 * time.Hour, Periods: 7, Share: 1, Ahead: 6 * time.Minute}, f.Forecast.Season())
}

func TestAForecastThatCannotBeIsRefused(t *testing.T) {
	for want, block := range map[string]string{
		`forecast: record: "record"; allowed is an absolute path`:                 `record = "record"`,
		`The argument "record" is required`:                                       `periods = 4`,
		`forecast: period: "weekly"; allowed is a duration such as 168h0m0s`:      "record = \"/r\"\n  period = \"weekly\"",
		`forecast: period: 12h0m0s; allowed are 24h and 168h`:                     "record = \"/r\"\n  period = \"12h\"",
		`forecast: periods: 2; allowed are 3 to 60`:                               "record = \"/r\"\n  periods = 2",
		`forecast: share: 0; allowed are over 0 to 1`:                             "record = \"/r\"\n  share = 0",
		`forecast: ahead: 25h0m0s; allowed are over 0 to 24h`:                     "record = \"/r\"\n  ahead = \"25h\"",
		`Unsupported argument; An argument named "horizon" is not expected here.`: "record = \"/r\"\n  horizon = \"1h\"",
	} {
		_, err := readText(t, "forecast {\n  "+block+"\n}\n"+good)
		must.ErrorContains(t, err, want)
	}
}
