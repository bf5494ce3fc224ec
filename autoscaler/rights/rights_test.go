// SPDX-License-Identifier: MPL-2.0

package rights

import (
	"context"
	"encoding/json"
	"errors"
	"net/http"
	"net/http/httptest"
	"path"
	"strconv"
	"strings"
	"testing"

	"github.com/hashicorp/nomad/api"
	"github.com/shoenig/test/must"
)

// standIn is a Nomad with ACLs whose token has these policies.
func standIn(t *testing.T, kind string, policies ...string) *api.Client {
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		var out any
		switch n, err := strconv.Atoi(path.Base(r.URL.Path)); {
		case kind == "":
			http.Error(w, "ACL support disabled", http.StatusBadRequest)
			return
		case r.URL.Path == "/v1/acl/token/self":
			out = api.ACLToken{Type: kind}
		case r.URL.Path == "/v1/acl/policies":
			all := []api.ACLPolicyListStub{}
			for i := range policies {
				all = append(all, api.ACLPolicyListStub{Name: strconv.Itoa(i)})
			}
			out = all
		case err == nil && strings.HasPrefix(r.URL.Path, "/v1/acl/policy/"):
			out = api.ACLPolicy{Rules: policies[n]}
		default:
			http.NotFound(w, r)
			return
		}
		json.NewEncoder(w).Encode(out)
	}))
	t.Cleanup(server.Close)
	client, err := api.NewClient(&api.Config{Address: server.URL})
	must.NoError(t, err)
	return client
}

func TestATokenThatHidesWorkIsKnown(t *testing.T) {
	for name, c := range map[string]struct {
		kind     string
		policies []string
		want     string // empty: it sees all
	}{
		"no ACLs":                            {},
		"a management token":                 {kind: "management"},
		"the right that is documented":       {kind: "client", policies: []string{ReadJobs}},
		"by one of several policies":         {kind: "client", policies: []string{WriteNodes, `namespace "*" { policy = "read" }`}},
		"no policy":                          {kind: "client", want: `the jobs of all namespaces; it lacks namespace "*"`},
		"nodes alone":                        {kind: "client", policies: []string{WriteNodes}, want: "the jobs of all namespaces"},
		"one namespace":                      {kind: "client", policies: []string{`namespace "default" { policy = "read" }`}, want: "the jobs of all namespaces"},
		"a right of another kind":            {kind: "client", policies: []string{`namespace "*" { capabilities = ["list-jobs"] }`}, want: "the jobs of all namespaces"},
		"all but one namespace":              {kind: "client", policies: []string{ReadJobs, `namespace "secret" { policy = "deny" }`}, want: `the jobs of namespace "secret"`},
		"a policy that cannot be understood": {kind: "client", policies: []string{`{`}},
	} {
		t.Run(name, func(t *testing.T) {
			err := SeesAllJobs(t.Context(), standIn(t, c.kind, c.policies...))
			if c.want == "" {
				must.NoError(t, err)
			} else {
				must.ErrorContains(t, err, c.want)
			}
		})
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	must.ErrorIs(t, SeesAllJobs(ctx, standIn(t, "client", ReadJobs)), context.Canceled)
}

func TestARefusalNamesTheRight(t *testing.T) {
	code := http.StatusForbidden
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { http.Error(w, "Permission denied", code) }))
	t.Cleanup(server.Close)
	client, err := api.NewClient(&api.Config{Address: server.URL})
	must.NoError(t, err)
	_, _, err = client.Nodes().List(nil)
	must.ErrorContains(t, Explain(err, ReadNodes), `(Permission denied); the token lacks node { policy = "read" }`)
	code = http.StatusInternalServerError
	_, _, err = client.Nodes().List(nil)
	must.EqError(t, Explain(err, ReadNodes), err.Error())
	must.NoError(t, Explain(nil, ReadNodes))
	other := errors.New("no connection")
	must.Eq(t, other, Explain(other, ReadNodes))
}
