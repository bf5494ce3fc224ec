// SPDX-License-Identifier: MPL-2.0

package main

import (
	"bytes"
	"encoding/json"
	"os"
	"path/filepath"
	"testing"

	"github.com/shoenig/test/must"

	"github.com/nomad-gpu/nomad-gpu/autoscaler/replay"
)

func replayWith(t *testing.T, args ...string) (string, error) {
	var out bytes.Buffer
	c := command(t.Context())
	c.SetOut(&out)
	c.SetArgs(append([]string{"replay", "--pools", "replay/testdata/pools.hcl"}, args...))
	err := c.Execute()
	return out.String(), err
}

func TestReplayPrintsJSONAndWritesThePage(t *testing.T) {
	page := filepath.Join(t.TempDir(), "report.html")
	out, err := replayWith(t, "--gangs", "20", "--seed", "3", "--json", "--html", page,
		"--spot", "spot-west-2a=replay/testdata/availability_16-node_aws-08-27-2023_us-west-2a_v100_1.json")
	must.NoError(t, err)
	var r replay.Report
	must.NoError(t, json.Unmarshal([]byte(out), &r))
	must.Eq(t, 20, r.Tasks)
	must.Len(t, 10, r.Results)
	must.Eq(t, "gpu-pool, gangs move too", r.Results[1].Policy)
	must.Greater(t, 0, r.Bounds.NoWait)
	html, err := os.ReadFile(page)
	must.NoError(t, err)
	must.StrContains(t, string(html), "<svg")
}

func TestReplayRefusesWhatItCannotUse(t *testing.T) {
	for want, args := range map[string][]string{
		`--spot: pool "x"`:                   {"--gangs", "1", "--spot", "x=replay/testdata/availability_16-node_aws-08-27-2023_us-west-2a_v100_1.json"},
		"--target: 2":                        {"--gangs", "1", "--target", "2"},
		"--gang-model: \"x\"":                {"--gangs", "1", "--gang-model", "x"},
		"--gang-daily: 2":                    {"--gangs", "1", "--gang-daily", "2"},
		"--headroom: -1":                     {"--gangs", "1", "--headroom", "-1"},
		"--forecast-period: 1h0m0s; allowed": {"--gangs", "1", "--forecast-period", "1h"},
		"--notice: 25h0m0s":                  {"--gangs", "1", "--notice", "25h"},
		"--gang-restart: -1m0s":              {"--gangs", "1", "--gang-restart", "-1m"},
		"--start: 48h0m0s":                   {"--gangs", "1", "--start", "48h"},
		"--gangs":                            {"--gangs", "-1"},
		"trace: open":                        {"--trace", "nowhere.csv"},
		"none of the others":                 {"--gangs", "1", "--trace", "a"},
	} {
		_, err := replayWith(t, args...)
		must.ErrorContains(t, err, want)
	}
}
