// SPDX-License-Identifier: MPL-2.0

package consul_test

import (
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/http/httputil"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/hashicorp/consul/api"
	"github.com/shoenig/test/must"

	"github.com/nomad-gpu/nomad-gpu/driver/consul"
	"github.com/nomad-gpu/nomad-gpu/driver/consul/consultest"
	"github.com/nomad-gpu/nomad-gpu/driver/gang"
)

const (
	mayKeys     = `key_prefix "nccl/v1/" { policy = "write" }`
	maySessions = `session_prefix "" { policy = "write" }`
)

func connect(t *testing.T, c consul.Config) *api.Client {
	t.Helper()
	must.NoError(t, c.Validate())
	client, err := consul.NewClient(c)
	must.NoError(t, err)
	return client
}

// tokenIn writes a token as whoever rotates it does: a new file in its place.
func tokenIn(t *testing.T, path, secret string) {
	t.Helper()
	must.NoError(t, os.WriteFile(path+".new", []byte(secret+"\n"), 0o600))
	must.NoError(t, os.Rename(path+".new", path))
}

func TestWithACLsEachRightIsNeededAndItsLackIsSaid(t *testing.T) {
	server := consultest.Start(t, consultest.ACL)
	for name, c := range map[string]struct{ rules, want string }{
		"both rights":            {mayKeys + "\n" + maySessions, ""},
		"no right":               {`node_prefix "" { policy = "read" }`, "lacks permission 'key:read'"},
		"keys alone":             {mayKeys, "lacks permission 'session:write'"},
		"sessions alone":         {maySessions, "lacks permission 'key:read'"},
		"keys that are read":     {`key_prefix "nccl/v1/" { policy = "list" }` + "\n" + maySessions, "lacks permission 'key:write'"},
		"keys of another prefix": {`key_prefix "nccl/v2/" { policy = "write" }` + "\n" + maySessions, "lacks permission 'key:read'"},
	} {
		token := server.Token(c.rules)
		err := consul.Reach(t.Context(), connect(t, consul.Config{Address: server.Address, Token: token.SecretID}), "", true)
		if c.want == "" {
			must.NoError(t, err, must.Sprint(name))
			continue
		}
		must.ErrorContains(t, err, c.want, must.Sprint(name))
		must.ErrorContains(t, err, "must have the policy in the driver's documentation")
		must.StrNotContains(t, err.Error(), token.SecretID)
	}
	none := connect(t, consul.Config{Address: server.Address})
	must.ErrorContains(t, consul.Reach(t.Context(), none, "", true), "Consul has ACLs on, and no token is set (consul.token_file)")
	unknown := connect(t, consul.Config{Address: server.Address, Token: "7d0c1b2a-0000-4000-8000-00000000dead"})
	err := consul.Reach(t.Context(), unknown, "", true)
	must.ErrorContains(t, err, "ACL not found")
	must.StrNotContains(t, err.Error(), "dead")
	keys, _, err := server.Client.KV().Keys("nccl/", "", nil)
	must.NoError(t, err)
	must.SliceEmpty(t, keys)
	sessions, _, err := server.Client.Session().List(nil)
	must.NoError(t, err)
	for _, s := range sessions {
		// A session whose token may do no more than make it ends by its TTL.
		must.Eq(t, "10s", s.TTL)
	}
}

func TestWithListingRightsAlonePeopleSeeTheGangs(t *testing.T) {
	server := consultest.Start(t, consultest.ACL)
	key := gang.Key{Region: "global", Namespace: "default", Job: "llm", Group: "gang", Run: "0"}
	must.NoError(t, consul.New(server.Client, "", key, "test", 10*time.Second).CreateHead(t.Context(), gang.Head{State: gang.Forming}))
	token := server.Token(`key_prefix "nccl/v1/" { policy = "list" }`)
	gangs, err := consul.List(t.Context(), connect(t, consul.Config{Address: server.Address, Token: token.SecretID}), "")
	must.NoError(t, err)
	must.Len(t, 1, gangs)
}

func TestATokenIsRotatedUnderAClientThatIsInUse(t *testing.T) {
	server := consultest.Start(t, consultest.ACL)
	path := filepath.Join(t.TempDir(), "token")
	old, fresh := server.Token(mayKeys+"\n"+maySessions), server.Token(mayKeys+"\n"+maySessions)
	tokenIn(t, path, old.SecretID)
	client := connect(t, consul.Config{Address: server.Address, TokenFile: path})
	s := consul.New(client, "", gang.Key{Region: "global", Namespace: "default", Job: "llm", Group: "gang", Run: "0"}, "test", 10*time.Second)
	session, err := s.Open(t.Context())
	must.NoError(t, err)
	must.NoError(t, s.PutRecord(t.Context(), session, record(1)))

	must.NoError(t, os.Remove(path))
	must.NoError(t, s.Renew(t.Context(), session), must.Sprint("the last token serves while the file is replaced"))
	tokenIn(t, path, fresh.SecretID)
	_, err = server.Client.ACL().TokenDelete(old.AccessorID, nil)
	must.NoError(t, err)
	must.NoError(t, s.Renew(t.Context(), session), must.Sprint("the session lives on under the new token"))
	must.NoError(t, s.PutRecord(t.Context(), session, record(1)))
	tokenIn(t, path, "7d0c1b2a-0000-4000-8000-00000000dead")
	must.ErrorContains(t, s.Renew(t.Context(), session), "403")
}

func TestATokenFileComesFromConsulsVariableTooAndOverAUnixSocket(t *testing.T) {
	server := consultest.Start(t, consultest.ACL)
	dir := t.TempDir()
	path, socket := filepath.Join(dir, "token"), filepath.Join(dir, "s")
	tokenIn(t, path, server.Token(mayKeys+"\n"+maySessions).SecretID)
	t.Setenv("CONSUL_HTTP_TOKEN_FILE", path)
	must.NoError(t, consul.Reach(t.Context(), connect(t, consul.Config{Address: server.Address}), "", true))
	l, err := net.Listen("unix", socket)
	must.NoError(t, err)
	proxy := &http.Server{Handler: httputil.NewSingleHostReverseProxy(&url.URL{Scheme: "http", Host: server.Address})}
	go proxy.Serve(l)
	defer proxy.Close()
	must.NoError(t, consul.Reach(t.Context(), connect(t, consul.Config{Address: "unix://" + socket}), "", true))
	wrong := connect(t, consul.Config{Address: server.Address, Token: "7d0c1b2a-0000-4000-8000-00000000dead"})
	must.ErrorContains(t, consul.Reach(t.Context(), wrong, "", true), "ACL not found", must.Sprint("a token that is set wins"))
}

func TestATokenFileThatHoldsNoTokenIsNamedWithoutWhatItHolds(t *testing.T) {
	path := filepath.Join(t.TempDir(), "token")
	for _, text := range []string{"", " \n", "two tokens", "a\nb", strings.Repeat("x", 5000), "sécret"} {
		must.NoError(t, os.WriteFile(path, []byte(text), 0o600))
		_, err := consul.NewClient(consul.Config{Address: "127.0.0.1:1", TokenFile: path})
		must.ErrorContains(t, err, fmt.Sprintf("consul.token_file: %s: %d bytes; allowed is one token", path, min(len(text), 4097)))
		must.StrNotContains(t, err.Error(), "cret")
	}
}

func TestAGangFormsOverTLSWithCertificatesOfBothSides(t *testing.T) {
	var f consultest.Files
	server := consultest.Start(t, consultest.TLS(&f))
	whole := consul.Config{Address: server.Address, TLS: true, CAFile: f.CA, CertFile: f.Cert, KeyFile: f.Key}
	must.NoError(t, consul.Reach(t.Context(), connect(t, whole), "", true))
	named := whole
	named.ServerName = "localhost"
	must.NoError(t, consul.Reach(t.Context(), connect(t, named), "", true))
	for want, change := range map[string]func(*consul.Config){
		"https://" + server.Address: func(c *consul.Config) { c.CertFile, c.KeyFile = "", "" },
		"unknown authority":         func(c *consul.Config) { c.CAFile = f.OtherCA },
		"not other.example":         func(c *consul.Config) { c.ServerName = "other.example" },
		"HTTP request to an HTTPS server": func(c *consul.Config) {
			c.TLS, c.CAFile, c.CertFile, c.KeyFile = false, "", "", ""
		},
	} {
		c := whole
		change(&c)
		err := consul.Reach(t.Context(), connect(t, c), "", true)
		must.ErrorContains(t, err, want)
		must.ErrorContains(t, err, "no gang can form: Consul cannot be reached")
		must.False(t, errors.Is(err, gang.ErrSessionLost))
	}
}
