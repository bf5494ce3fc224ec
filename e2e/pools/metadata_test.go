// SPDX-License-Identifier: MPL-2.0

package pools

import (
	"fmt"
	"net"
	"net/http"
	"net/http/httptest"
	"sync"
	"testing"
	"time"

	"github.com/shoenig/test/must"
)

// instances stands in for EC2's instance metadata (IMDSv2), one service for each node:
// https://docs.aws.amazon.com/AWSEC2/latest/UserGuide/spot-instance-termination-notices.html
type instances struct {
	t           *testing.T
	mu          sync.Mutex
	interrupted map[string]bool
}

// metadata starts a node's service on a host and gives its address.
func (i *instances) metadata(node, host string) string {
	listener, err := net.Listen("tcp", net.JoinHostPort(host, "0"))
	must.NoError(i.t, err)
	s := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		const token = "t0k3n"
		i.mu.Lock()
		interrupted := i.interrupted[node]
		i.mu.Unlock()
		switch {
		case r.Method == http.MethodPut && r.URL.Path == "/latest/api/token":
			w.Header().Set("X-Aws-Ec2-Metadata-Token-Ttl-Seconds", "21600")
			fmt.Fprint(w, token)
		case r.Header.Get("X-Aws-Ec2-Metadata-Token") != token:
			http.Error(w, "no token", http.StatusUnauthorized)
		case r.URL.Path == "/latest/meta-data/spot/instance-action" && interrupted:
			fmt.Fprintf(w, `{"action": "terminate", "time": %q}`, time.Now().Add(2*time.Minute).UTC().Format(time.RFC3339))
		default:
			http.NotFound(w, r)
		}
	}))
	s.Listener.Close()
	s.Listener = listener
	s.Start()
	i.t.Cleanup(s.Close)
	return s.URL
}

func (i *instances) interrupt(node string) {
	i.mu.Lock()
	defer i.mu.Unlock()
	i.interrupted[node] = true
}
