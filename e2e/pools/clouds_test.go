// SPDX-License-Identifier: MPL-2.0

package pools

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"io"
	"math/big"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/shoenig/test/must"

	"github.com/nomad-gpu/nomad-gpu/e2e/cluster"
)

// Zone and project of the Google group; the others need no such names.
const googleZone, googleProject = "us-central1-a", "my-project"

// group stands in for an Auto Scaling group, a scale set or a managed instance
// group: its instances are Nomad clients.
type group struct {
	t      *testing.T
	name   string
	id     func(n int) string // of the n-th instance
	places []cluster.Place
	// metadata is the variable that tells Nomad where an instance's metadata
	// service is: at ADDRESS, on host.
	metadata, host string

	mu    sync.Mutex
	made  int // how many were ever started
	live  map[string]*exec.Cmd
	asked []int // each size that was asked for
}

// resize starts instances; a stand-in that is asked for fewer is asked wrong.
func (g *group) resize(count int) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.asked = append(g.asked, count)
	for len(g.live) < count {
		if g.made == len(g.places) {
			g.t.Errorf("group %s is asked for %d instances", g.name, count)
			return
		}
		p, id := g.places[g.made], g.id(g.made)
		address, err := g.serveMetadata(id)
		if err != nil {
			g.t.Errorf("metadata of %s: %v", id, err)
			return
		}
		g.made++
		argv := append(p.Launch(), append(p.Argv, "-config", p.DataDir+"-cloud.hcl")...)
		cmd := exec.Command(argv[0], argv[1:]...)
		cmd.Env = append(os.Environ(), strings.ReplaceAll(g.metadata, "ADDRESS", address))
		cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
		log, err := os.OpenFile(p.DataDir+".log", os.O_CREATE|os.O_WRONLY|os.O_APPEND, 0o600)
		if err == nil {
			cmd.Stdout, cmd.Stderr = log, log
			err = cmd.Start()
			log.Close()
		}
		if err != nil {
			g.t.Errorf("start %s: %v", id, err)
			return
		}
		g.live[id] = cmd
	}
}

// terminate ends an instance at once, as its cloud does.
func (g *group) terminate(id string) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if cmd := g.live[id]; cmd != nil {
		syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL)
		cmd.Wait()
		delete(g.live, id)
	}
}

// instances are the live ones, in order of their start.
func (g *group) instances() (ids []string) {
	g.mu.Lock()
	defer g.mu.Unlock()
	for n := range g.made {
		if g.live[g.id(n)] != nil {
			ids = append(ids, g.id(n))
		}
	}
	return ids
}

// serveMetadata answers an instance as its cloud's metadata service does to
// what Nomad's fingerprint asks. Each has one of its own: AWS's knows by the
// address alone who asks.
func (g *group) serveMetadata(id string) (address string, err error) {
	answers := map[string]string{
		"/latest/meta-data/ami-id":      "ami-1",
		"/latest/meta-data/instance-id": id,
		"/compute/azEnvironment":        "AzurePublicCloud",
		"/compute/name":                 id,
		"/machine-type":                 "projects/1/machineTypes/a3-highgpu-8g",
		"/zone":                         "projects/1/zones/" + googleZone,
		"/hostname":                     id + ".internal",
	}
	service := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if answer, known := answers[r.URL.Path]; known {
			io.WriteString(w, answer)
			return
		}
		http.NotFound(w, r)
	}))
	service.Listener.Close()
	if service.Listener, err = net.Listen("tcp", net.JoinHostPort(g.host, "0")); err != nil {
		return "", err
	}
	service.Start()
	g.t.Cleanup(service.Close)
	return service.URL, nil
}

// clouds is a proxy in front of all three clouds' APIs: whatever host a client
// asks for over TLS, it finds the stand-in, with a certificate for that host.
type clouds struct {
	Proxy string // its URL
	CA    string // file with the certificate that it must be trusted by
}

func newClouds(t *testing.T, hosts map[string]http.Handler) clouds {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	must.NoError(t, err)
	names := []string{}
	for host := range hosts {
		names = append(names, host)
	}
	// Its own authority: a leaf that is trusted by itself will do.
	certificate := &x509.Certificate{SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "clouds"}, DNSNames: names, NotBefore: time.Now().Add(-time.Hour),
		NotAfter: time.Now().Add(time.Hour), IsCA: true, BasicConstraintsValid: true, KeyUsage: x509.KeyUsageDigitalSignature | x509.KeyUsageCertSign,
		ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth}}
	der, err := x509.CreateCertificate(rand.Reader, certificate, certificate, &key.PublicKey, key)
	must.NoError(t, err)
	ca := filepath.Join(t.TempDir(), "ca.pem")
	must.NoError(t, os.WriteFile(ca, pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der}), 0o600))

	api := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if hosts[r.Host] == nil {
			http.Error(w, "no stand-in of "+r.Host, http.StatusNotImplemented)
			return
		}
		hosts[r.Host].ServeHTTP(w, r)
	}))
	api.TLS = &tls.Config{Certificates: []tls.Certificate{{Certificate: [][]byte{der}, PrivateKey: key}}}
	api.StartTLS()
	t.Cleanup(api.Close)
	proxy := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		host, _, _ := net.SplitHostPort(r.Host)
		if r.Method != http.MethodConnect || hosts[host] == nil {
			http.Error(w, "no stand-in of "+r.Host, http.StatusNotImplemented)
			return
		}
		there, err := net.Dial("tcp", api.Listener.Addr().String())
		if err != nil {
			http.Error(w, err.Error(), http.StatusBadGateway)
			return
		}
		here, _, err := http.NewResponseController(w).Hijack()
		if err != nil {
			there.Close()
			return
		}
		io.WriteString(here, "HTTP/1.1 200 OK\r\n\r\n")
		join := func(to, from net.Conn) { io.Copy(to, from); to.Close() }
		go join(there, here)
		go join(here, there)
	}))
	t.Cleanup(proxy.Close)
	return clouds{proxy.URL, ca}
}
