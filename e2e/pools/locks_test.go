// SPDX-License-Identifier: MPL-2.0

package pools

import (
	"crypto/rand"
	"encoding/json"
	"io"
	"log"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"sync"
	"testing"
	"time"

	"github.com/hashicorp/nomad/api"
	"github.com/shoenig/test/must"
)

// locks stands in for the lock of a variable, which Nomad has from 1.7 on, and
// passes all else on to the real Nomad. Each agent has an address of its own,
// so that it is known who holds the lock.
type locks struct {
	mu     sync.Mutex
	id     string
	holder string
	until  time.Time // the holder has it till then
	free   time.Time // and nobody else till then
	taken  int
}

// door is an agent's address of Nomad.
func (l *locks) door(t *testing.T, agent, nomad string) string {
	real, err := url.Parse(nomad)
	must.NoError(t, err)
	onward := httputil.NewSingleHostReverseProxy(real)
	onward.ErrorLog = log.New(io.Discard, "", 0) // agents are killed while they ask
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		for _, operation := range []string{"lock-acquire", "lock-renew", "lock-release"} {
			if r.URL.Query().Has(operation) {
				l.serve(w, r, agent, operation)
				return
			}
		}
		onward.ServeHTTP(w, r)
	}))
	t.Cleanup(server.Close)
	return server.URL
}

func (l *locks) serve(w http.ResponseWriter, r *http.Request, agent, operation string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	var v api.Variable
	if err := json.NewDecoder(r.Body).Decode(&v); err != nil || v.Lock == nil {
		http.Error(w, "no lock", http.StatusBadRequest)
		return
	}
	now := time.Now()
	own := l.id != "" && v.Lock.ID == l.id && now.Before(l.until)
	if operation == "lock-acquire" && now.Before(l.free) || operation != "lock-acquire" && !own {
		http.Error(w, "conflict", http.StatusConflict)
		return
	}
	if operation == "lock-release" {
		l.id, l.holder, l.until, l.free = "", "", now, now
	} else {
		ttl, _ := time.ParseDuration(v.Lock.TTL)
		delay, _ := time.ParseDuration(v.Lock.LockDelay)
		if operation == "lock-acquire" {
			l.id, l.holder = rand.Text(), agent
			l.taken++
		}
		l.until, l.free = now.Add(ttl), now.Add(ttl+delay)
	}
	v.Lock.ID = l.id
	json.NewEncoder(w).Encode(v)
}

// leader is who holds the lock now, and how often the lock was taken so far; empty: nobody.
func (l *locks) leader() (name string, nth int) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if time.Now().Before(l.until) {
		return l.holder, l.taken
	}
	return "", l.taken
}
