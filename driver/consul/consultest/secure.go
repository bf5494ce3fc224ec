// SPDX-License-Identifier: MPL-2.0

package consultest

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"fmt"
	"math/big"
	"net"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/hashicorp/consul/api"
	"github.com/shoenig/test/must"
)

// Option changes the server that Start runs.
type Option func(testing.TB, string, *setup)

type setup struct {
	host   string // the server's address
	lines  string // of the server's configuration
	port   string // the name of the port that clients use; empty: http
	client func(*api.Config)
}

// manager is the token that may do all on a server of a test.
const manager = "7d0c1b2a-0000-4000-8000-000000000001"

// ACL denies what no token's policy allows. The server's Client may do all.
func ACL(_ testing.TB, _ string, s *setup) {
	s.lines += fmt.Sprintf("\nacl {\n enabled = true\n default_policy = \"deny\"\n enable_key_list_policy = true\n tokens {\n initial_management = %q\n agent = %q\n }\n}", manager, manager)
	s.client = func(c *api.Config) { c.Token = manager }
}

// Token makes a token that has these rules alone.
func (s *Server) Token(rules string) *api.ACLToken {
	s.t.Helper()
	policy, _, err := s.Client.ACL().PolicyCreate(&api.ACLPolicy{Name: fmt.Sprintf("p%d", time.Now().UnixNano()), Rules: rules}, nil)
	must.NoError(s.t, err)
	token, _, err := s.Client.ACL().TokenCreate(&api.ACLToken{Policies: []*api.ACLTokenPolicyLink{{ID: policy.ID}}}, nil)
	must.NoError(s.t, err)
	return token
}

// Files are paths of certificates in PEM.
type Files struct{ CA, Cert, Key, OtherCA string }

// TLS makes the server speak HTTPS alone, with clients that have a certificate
// of its authority, and fills in where the files are.
func TLS(f *Files) Option {
	return func(t testing.TB, dir string, s *setup) {
		t.Helper()
		ca, key := authority(t, dir, "ca")
		authority(t, dir, "other")
		issue(t, dir, "server", s.host, ca, key, x509.ExtKeyUsageServerAuth)
		issue(t, dir, "client", s.host, ca, key, x509.ExtKeyUsageClientAuth)
		at := func(name string) string { return filepath.Join(dir, name) }
		*f = Files{CA: at("ca.pem"), Cert: at("client.pem"), Key: at("client.key"), OtherCA: at("other.pem")}
		s.lines += fmt.Sprintf("\ntls {\n https {\n ca_file = %q\n cert_file = %q\n key_file = %q\n verify_incoming = true\n }\n}", f.CA, at("server.pem"), at("server.key"))
		s.port = "http = -1, https"
		s.client = func(c *api.Config) {
			c.Scheme = "https"
			c.TLSConfig = api.TLSConfig{CAFile: f.CA, CertFile: f.Cert, KeyFile: f.Key}
		}
	}
}

func authority(t testing.TB, dir, name string) (*x509.Certificate, *ecdsa.PrivateKey) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	must.NoError(t, err)
	c := &x509.Certificate{SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: name}, NotAfter: time.Now().Add(time.Hour),
		IsCA: true, BasicConstraintsValid: true, KeyUsage: x509.KeyUsageCertSign}
	der, err := x509.CreateCertificate(rand.Reader, c, c, key.Public(), key)
	must.NoError(t, err)
	writePEM(t, filepath.Join(dir, name+".pem"), "CERTIFICATE", der)
	c, err = x509.ParseCertificate(der)
	must.NoError(t, err)
	return c, key
}

func issue(t testing.TB, dir, name, host string, ca *x509.Certificate, caKey *ecdsa.PrivateKey, use x509.ExtKeyUsage) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	must.NoError(t, err)
	c := &x509.Certificate{SerialNumber: big.NewInt(2), Subject: pkix.Name{CommonName: name}, NotAfter: time.Now().Add(time.Hour),
		KeyUsage: x509.KeyUsageDigitalSignature, ExtKeyUsage: []x509.ExtKeyUsage{use}, DNSNames: []string{"localhost"}, IPAddresses: []net.IP{net.ParseIP(host)}}
	der, err := x509.CreateCertificate(rand.Reader, c, ca, key.Public(), caKey)
	must.NoError(t, err)
	writePEM(t, filepath.Join(dir, name+".pem"), "CERTIFICATE", der)
	der, err = x509.MarshalECPrivateKey(key)
	must.NoError(t, err)
	writePEM(t, filepath.Join(dir, name+".key"), "EC PRIVATE KEY", der)
}

func writePEM(t testing.TB, path, kind string, der []byte) {
	must.NoError(t, os.WriteFile(path, pem.EncodeToMemory(&pem.Block{Type: kind, Bytes: der}), 0o600))
}
