// SPDX-License-Identifier: MPL-2.0

package main

import (
	"bytes"
	"net/http"
	"net/http/httptest"
	"testing"

	"github.com/shoenig/test/must"
)

func TestAnErrorSaysWhatIsWrongAndItsExitStatusWhoseFaultItIs(t *testing.T) {
	pools, record, _ := aDay(t)
	denied := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { http.Error(w, "Permission denied", http.StatusForbidden) }))
	defer denied.Close()
	nobody := httptest.NewServer(http.NotFoundHandler())
	nobody.Close()
	for _, c := range []struct {
		args   []string
		status int
		want   string
	}{
		{[]string{"que"}, 2, `unknown command "que" for "nomad-autoscaler-gpu"; see nomad-autoscaler-gpu --help`},
		{[]string{"apm"}, 2, "apm: the Nomad Autoscaler starts this plugin"},
		{[]string{"queue"}, 2, `required flag(s) "pools" not set; see nomad-autoscaler-gpu queue --help`},
		{[]string{"queue", "--pool"}, 2, "flag needs an argument: --pool; see"},
		{[]string{"queue", "--pools", pools, "more"}, 2, `unknown command "more" for "nomad-autoscaler-gpu queue"`},
		{[]string{"queue", "--pools", pools, "--pool", "a100"}, 2, `--pool: "a100"; allowed are ["h100"]`},
		{[]string{"queue", "--pools", pools + "no"}, 1, "no such file"},
		{[]string{"queue", "--pools", pools, "--address", nobody.URL}, 1, "connection refused; Nomad's address is from --address, or else NOMAD_ADDR"},
		{[]string{"queue", "--pools", pools, "--address", denied.URL}, 1, "the token lacks namespace"},
		{[]string{"plan", "--pools", pools, "--address", nobody.URL}, 1, "connection refused; Nomad's address"},
		{[]string{"capacity", "--pools", pools, "--address", nobody.URL}, 1, "connection refused; Nomad's address"},
		{[]string{"capacity", "--pools", pools, "--since", "tomorrow"}, 2, `invalid argument "tomorrow" for "--since" flag`},
		{[]string{"capacity", "--pools", pools, "--since", "-1h"}, 2, "--since: -1h0m0s; allowed are durations above 0"},
		{[]string{"cost", "--pools", pools}, 2, "--record: not set"},
		{[]string{"cost", "--pools", pools, "--record", record + "no"}, 1, "--record: open "},
		{[]string{"cost", "--pools", pools, "--record", record, "--by", "user"}, 2, `--by: "user"`},
		{[]string{"cost", "--pools", pools, "--record", record, "--node-power", "7"}, 2, "unknown flag: --node-power"},
		{[]string{"replay", "--pools", pools}, 2, "at least one of the flags in the group [trace gangs] is required"},
		{[]string{"replay", "--pools", pools, "--gangs", "2", "--target", "7"}, 2, "--target: 7; allowed"},
	} {
		cmd := command(t.Context())
		cmd.SetArgs(c.args)
		cmd.SetOut(new(bytes.Buffer))
		err := cmd.ExecuteContext(t.Context())
		must.ErrorContains(t, err, c.want, must.Sprint(c.args))
		must.Eq(t, c.status, exitStatus(err), must.Sprint(c.args, err))
	}
	cmd := command(t.Context())
	var out bytes.Buffer
	cmd.SetArgs(nil)
	cmd.SetOut(&out)
	must.NoError(t, cmd.ExecuteContext(t.Context()))
	must.StrContains(t, out.String(), "It exits with 0, with 1")
}
