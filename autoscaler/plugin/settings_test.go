// SPDX-License-Identifier: MPL-2.0

package plugin

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"io"
	"log"
	"math/big"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/hashicorp/go-hclog"
	nomad "github.com/hashicorp/nomad-autoscaler/sdk/helper/nomad"
	"github.com/hashicorp/nomad/api"
	"github.com/shoenig/test/must"
)

// poolsFile writes the tests' pools file.
func poolsFile(t *testing.T) string {
	path := filepath.Join(t.TempDir(), "pools.hcl")
	must.NoError(t, os.WriteFile(path, []byte(file), 0o600))
	return path
}

func TestASettingThatIsNoneOrOutOfBoundsIsNamed(t *testing.T) {
	for name, c := range map[string]struct{ value, want string }{
		"metrics_lisen":         {":1", `"metrics_lisen" is no setting; allowed are pools_file, record_file, metrics_listen`},
		"record_flie":           {"/x", `"record_flie" is no setting`},
		"nomad_adress":          {"http://x", `"nomad_adress" is no setting`},
		"nomad_ca_cert":         {"/x", `nomad_ca-cert`},
		"record_file":           {"record", `record_file: "record"; allowed is an absolute path`},
		"nomad_skip-verify":     {"perhaps", `nomad_skip-verify: "perhaps"; allowed are true and false`},
		"nomad_address":         {"10.0.0.1:4646", `nomad_address: "10.0.0.1:4646"; allowed is a URL such as http://10.0.0.1:4646`},
		"nomad_ca-cert":         {"/no/such/ca.pem", "/no/such/ca.pem"},
		strings.Repeat("x", 99): {"", "is no setting"},
	} {
		_, _, err := NewLookout(map[string]string{"pools_file": poolsFile(t), name: c.value}, hclog.NewNullLogger())
		must.ErrorContains(t, err, c.want, must.Sprint(name))
	}
}

func TestWhatTheAutoscalerItselfAddsIsAllowed(t *testing.T) {
	config := map[string]string{"pools_file": poolsFile(t), "record_file": "/var/lib/record", "metrics_listen": "", "nomad_config_inherit": "true"}
	nomad.MergeMapWithAgentConfig(config, &api.Config{Address: "https://nomad:4646", Region: "r", Namespace: "n", SecretID: "s", WaitTime: time.Minute, HttpAuth: &api.HttpBasicAuth{Username: "u", Password: "p"},
		TLSConfig: &api.TLSConfig{CACert: "a", CAPath: "b", ClientCert: "c", ClientKey: "d", TLSServerName: "e", Insecure: true}})
	must.MapLen(t, 16, config)
	must.NoError(t, checkSettings(config))
}

// identity makes a certificate that is its own authority, and writes it with its key.
func identity(t *testing.T, dir string) (certFile, keyFile string, cert *x509.Certificate) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	must.NoError(t, err)
	template := &x509.Certificate{SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "autoscaler"}, NotAfter: time.Now().Add(time.Hour), ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth}}
	der, err := x509.CreateCertificate(rand.Reader, template, template, &key.PublicKey, key)
	must.NoError(t, err)
	cert, err = x509.ParseCertificate(der)
	must.NoError(t, err)
	private, err := x509.MarshalECPrivateKey(key)
	must.NoError(t, err)
	certFile, keyFile = filepath.Join(dir, "cert.pem"), filepath.Join(dir, "key.pem")
	writePEM(t, certFile, "CERTIFICATE", der)
	writePEM(t, keyFile, "EC PRIVATE KEY", private)
	return certFile, keyFile, cert
}

func writePEM(t *testing.T, path, kind string, data []byte) {
	must.NoError(t, os.WriteFile(path, pem.EncodeToMemory(&pem.Block{Type: kind, Bytes: data}), 0o600))
}

// A Nomad that wants a client's certificate, a password and a token. What the
// configuration does not say is the environment's, each setting for itself.
func TestNomadIsAskedWithTLSAPasswordAndAToken(t *testing.T) {
	dir := t.TempDir()
	certFile, keyFile, cert := identity(t, dir)
	server := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		user, password, _ := r.BasicAuth()
		if user != "gpu" || password != "pass:word" || r.Header.Get("X-Nomad-Token") != "secret" || len(r.TLS.PeerCertificates) != 1 {
			http.Error(w, "who are you?", http.StatusForbidden)
			return
		}
		io.WriteString(w, "[]")
	}))
	clients := x509.NewCertPool()
	clients.AddCert(cert)
	server.TLS = &tls.Config{ClientAuth: tls.RequireAndVerifyClientCert, ClientCAs: clients}
	server.Config.ErrorLog = log.New(io.Discard, "", 0)
	server.StartTLS()
	defer server.Close()
	authority := filepath.Join(dir, "ca.pem")
	writePEM(t, authority, "CERTIFICATE", server.Certificate().Raw)

	look := func(config map[string]string) error {
		config["pools_file"] = poolsFile(t)
		l, _, err := NewLookout(config, hclog.NewNullLogger())
		must.NoError(t, err)
		l.own = nil // its ledger is of no matter here
		_, _, err = l.Look(t.Context(), "", 0)
		return err
	}
	// The certificate is of example.com.
	all := map[string]string{"NOMAD_ADDR": server.URL, "NOMAD_TOKEN": "secret", "NOMAD_HTTP_AUTH": "gpu:pass:word", "NOMAD_CACERT": authority, "NOMAD_CLIENT_CERT": certFile, "NOMAD_CLIENT_KEY": keyFile, "NOMAD_TLS_SERVER_NAME": "example.com"}
	settings := map[string]string{"NOMAD_ADDR": "nomad_address", "NOMAD_TOKEN": "nomad_token", "NOMAD_HTTP_AUTH": "nomad_http-auth", "NOMAD_CACERT": "nomad_ca-cert", "NOMAD_CLIENT_CERT": "nomad_client-cert", "NOMAD_CLIENT_KEY": "nomad_client-key", "NOMAD_TLS_SERVER_NAME": "nomad_tls-server-name"}
	for name, value := range all {
		t.Setenv(name, value)
	}
	must.NoError(t, look(map[string]string{}))
	for name, value := range all {
		t.Setenv(name, "")
		must.NoError(t, look(map[string]string{settings[name]: value}), must.Sprint(name))
		t.Setenv(name, value)
	}
	must.ErrorContains(t, look(map[string]string{"nomad_tls-server-name": "elsewhere"}), "elsewhere")
	must.NoError(t, look(map[string]string{"nomad_tls-server-name": "elsewhere", "nomad_skip-verify": "true"}))
	must.ErrorContains(t, look(map[string]string{"nomad_http-auth": "gpu:wrong"}), "who are you?")
	t.Setenv("NOMAD_CLIENT_CERT", "")
	t.Setenv("NOMAD_CLIENT_KEY", "")
	must.ErrorContains(t, look(map[string]string{}), "certificate")
}
