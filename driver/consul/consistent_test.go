// SPDX-License-Identifier: MPL-2.0

package consul

import (
	"encoding/base64"
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/hashicorp/consul/api"
	"github.com/shoenig/test/must"

	"github.com/nomad-gpu/nomad-gpu/driver/gang"
)

// A leader that has just been elected and has replayed nothing yet: it knows of
// no key, unless it is asked for what is sure.
func TestAHeadIsGoneOnlyWhereTheLeaderIsSureOfIt(t *testing.T) {
	data, err := gang.EncodeHead(gang.Head{State: gang.Running, Generation: 3, World: 2, Cause: gang.CauseFailure})
	must.NoError(t, err)
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("X-Consul-Index", "7")
		if !r.URL.Query().Has("consistent") {
			w.WriteHeader(http.StatusNotFound)
			return
		}
		fmt.Fprintf(w, `[{"Key":"head","ModifyIndex":5,"Value":%q}]`, base64.StdEncoding.EncodeToString(data))
	}))
	defer s.Close()
	client, err := api.NewClient(&api.Config{Address: strings.TrimPrefix(s.URL, "http://")})
	must.NoError(t, err)
	store := New(client, "", gang.Key{Region: "r", Namespace: "n", Job: "j", Group: "g", Run: "0"}, "test", 10*time.Second)
	for _, index := range []uint64{0, 4} {
		head, at, err := store.WatchHead(t.Context(), index)
		must.NoError(t, err)
		must.NotNil(t, head, must.Sprint(index))
		must.Eq(t, 3, head.Generation)
		must.Eq(t, 5, at)
	}
}
