// SPDX-License-Identifier: MPL-2.0

package docker

import (
	"encoding/base64"
	"fmt"
	"io"
	"log"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-containerregistry/pkg/authn"
	"github.com/google/go-containerregistry/pkg/name"
	"github.com/google/go-containerregistry/pkg/registry"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/random"
	"github.com/google/go-containerregistry/pkg/v1/remote"
	"github.com/moby/moby/client"
	"github.com/shoenig/test/must"

	"github.com/nomad-gpu/nomad-gpu/driver/runtime"
)

// newRegistry is a registry that asks for user "u" and password "p", and holds
// an image with one layer; it returns the image's reference.
func newRegistry(t *testing.T, wrap func(http.Handler) http.Handler) string {
	t.Helper()
	inner := registry.New(registry.Logger(log.New(io.Discard, "", 0)))
	var outer http.Handler = http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if user, password, ok := r.BasicAuth(); !ok || user != "u" || password != "p" {
			w.Header().Set("WWW-Authenticate", `Basic realm="test"`)
			w.WriteHeader(http.StatusUnauthorized)
			return
		}
		inner.ServeHTTP(w, r)
	})
	if wrap != nil {
		outer = wrap(outer)
	}
	s := httptest.NewServer(outer)
	t.Cleanup(s.Close)
	image, err := random.Image(64<<10, 1)
	must.NoError(t, err)
	image, err = mutate.Config(image, v1.Config{Entrypoint: []string{"/entry"}, Cmd: []string{"x"}})
	must.NoError(t, err)
	// Engines take a registry on 127.0.0.0/8 without TLS.
	text := strings.TrimPrefix(s.URL, "http://") + "/team/train:v3"
	ref, err := name.ParseReference(text)
	must.NoError(t, err)
	must.NoError(t, remote.Write(ref, image, remote.WithAuth(&authn.Basic{Username: "u", Password: "p"})))
	t.Cleanup(func() {
		_, _ = engine.Client.ImageRemove(t.Context(), text, client.ImageRemoveOptions{Force: true})
	})
	return text
}

func puller(t *testing.T, authConfig string) *Engine {
	t.Helper()
	e, err := New(Config{Endpoint: engine.Endpoint, GPUs: wayAuto, DriverRoot: "/", PullTimeout: 30 * time.Second, AuthConfig: authConfig})
	must.NoError(t, err)
	return e
}

// dockerAlone: Podman wants TLS of any registry that its configuration does not name.
func dockerAlone(t *testing.T) {
	t.Helper()
	if engine.Podman {
		t.Skip("Podman wants TLS of a registry on this machine; the requests are the same")
	}
}

func TestAnImageIsPulledWithTheTasksLoginOrTheNodes(t *testing.T) {
	dockerAlone(t)
	image := newRegistry(t, nil)
	var told []string
	report := func(text string) { told = append(told, text) }
	ensure := func(e *Engine, c runtime.Container) error {
		c.Image = image
		_, config, err := e.ensure(t.Context(), &c, report)
		if err == nil {
			must.Eq(t, []string{"/entry"}, config.Entrypoint)
		}
		return err
	}
	err := ensure(puller(t, ""), runtime.Container{})
	must.ErrorContains(t, err, "image "+image+": pull:")
	err = ensure(puller(t, ""), runtime.Container{Auth: &runtime.Auth{Username: "u", Password: "secret-of-mine"}})
	must.ErrorContains(t, err, "pull:")
	must.StrNotContains(t, err.Error(), "secret-of-mine")
	told = nil
	must.NoError(t, ensure(puller(t, ""), runtime.Container{Auth: &runtime.Auth{Username: "u", Password: "p"}}))
	must.Eq(t, "Image "+image+": pulling", told[0])
	must.StrContains(t, told[len(told)-1], "pulled in ")
	must.StrContains(t, told[len(told)-1], "1 of 1 layers")

	told = nil
	must.NoError(t, ensure(puller(t, ""), runtime.Container{}), must.Sprint("the node has it"))
	must.SliceEmpty(t, told)

	host, _, _ := strings.Cut(image, "/")
	file := filepath.Join(t.TempDir(), "config.json")
	must.NoError(t, os.WriteFile(file, fmt.Appendf(nil, `{"auths":{%q:{"auth":%q}}}`, host, base64.StdEncoding.EncodeToString([]byte("u:p"))), 0o600))
	must.NoError(t, ensure(puller(t, file), runtime.Container{Pull: true}))
	must.StrContains(t, told[0], "pulling")
	must.ErrorContains(t, ensure(puller(t, filepath.Join(t.TempDir(), "none")), runtime.Container{Pull: true}), "container.auth_config:")
}

func TestAPullWithoutProgressIsGivenUp(t *testing.T) {
	dockerAlone(t)
	stuck := make(chan struct{})
	image := newRegistry(t, func(next http.Handler) http.Handler {
		return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			if r.Method == http.MethodGet && strings.Contains(r.URL.Path, "/blobs/") {
				select {
				case <-stuck:
				case <-r.Context().Done():
				}
				return
			}
			next.ServeHTTP(w, r)
		})
	})
	t.Cleanup(func() { close(stuck) }) // before the server waits for its calls
	e := puller(t, "")
	e.config.PullTimeout = 2 * time.Second
	_, _, err := e.ensure(t.Context(), &runtime.Container{Image: image, Auth: &runtime.Auth{Username: "u", Password: "p"}}, func(string) {})
	must.ErrorContains(t, err, "no progress for container.pull_timeout, 2s")
}
