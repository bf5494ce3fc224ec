// SPDX-License-Identifier: MPL-2.0

package consul

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"strings"
	"sync"
	"time"

	"github.com/hashicorp/consul/api"
)

// maxToken is far beyond the length of a token: a UUID, or a JWT's exchange.
const maxToken = 4 << 10

// tokenFile gives the token that a file holds, and reads it again when the
// file changes: tokens are rotated while a training runs for weeks, and the
// client library reads its file only once.
type tokenFile struct {
	path string

	mu    sync.Mutex
	info  os.FileInfo // of the file that token was read from
	token string
}

// current keeps to the last token while the file cannot be read, as it is for
// a moment when it is replaced.
func (f *tokenFile) current() (string, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	info, err := os.Stat(f.path)
	if err == nil && f.info != nil && os.SameFile(info, f.info) && info.ModTime().Equal(f.info.ModTime()) && info.Size() == f.info.Size() {
		return f.token, nil
	}
	var token string
	if err == nil {
		token, err = readToken(f.path)
	}
	if err != nil {
		if f.token != "" {
			return f.token, nil
		}
		return "", fmt.Errorf("consul.token_file: %w", err)
	}
	f.info, f.token = info, token
	return token, nil
}

func readToken(path string) (string, error) {
	in, err := os.Open(path)
	if err != nil {
		return "", err
	}
	defer in.Close()
	data, err := io.ReadAll(io.LimitReader(in, maxToken+1))
	if err != nil {
		return "", err
	}
	token := strings.TrimSpace(string(data))
	if token == "" || len(data) > maxToken || strings.ContainsFunc(token, func(r rune) bool { return r <= ' ' || r > '~' }) {
		return "", fmt.Errorf("%s: %d bytes; allowed is one token of up to %d printable bytes", path, len(data), maxToken)
	}
	return token, nil
}

// bearer adds the file's token to each request.
type bearer struct {
	next http.RoundTripper
	file *tokenFile
}

func (b bearer) RoundTrip(r *http.Request) (*http.Response, error) {
	token, err := b.file.current()
	if err != nil {
		return nil, err
	}
	r = r.Clone(r.Context())
	r.Header.Set("X-Consul-Token", token)
	return b.next.RoundTrip(r)
}

// useTokenFile makes a client's requests carry the token that the file holds
// at the time.
func useTokenFile(conf *api.Config, path string) error {
	if socket, ok := strings.CutPrefix(conf.Address, "unix://"); ok {
		// The library would put a client of its own in the place of this one.
		conf.Address = "localhost"
		conf.Transport.DialContext = func(ctx context.Context, _, _ string) (net.Conn, error) {
			return (&net.Dialer{}).DialContext(ctx, "unix", socket)
		}
	}
	client, err := api.NewHttpClient(conf.Transport, conf.TLSConfig)
	if err != nil {
		return err
	}
	file := &tokenFile{path: path}
	if _, err := file.current(); err != nil {
		return err
	}
	client.Transport = bearer{client.Transport, file}
	conf.HttpClient = client
	return nil
}

// Reach reports why gangs cannot form through this Consul. With rights it also
// tries whether the token may do what members do: a session, and a key under it.
func Reach(ctx context.Context, client *api.Client, prefix string, rights bool) error {
	if prefix == "" {
		prefix = DefaultPrefix
	}
	leader, err := client.Status().LeaderWithQueryOptions((&api.QueryOptions{}).WithContext(ctx))
	if err == nil && leader == "" {
		err = errors.New("it has no leader")
	}
	if err != nil {
		return fmt.Errorf("no gang can form: Consul cannot be reached: %w", err)
	}
	key := prefix + "/.reach"
	if _, _, err := client.KV().Get(key, query(ctx, 0)); err != nil {
		return refused(err)
	}
	if !rights {
		return nil
	}
	id, _, err := client.Session().CreateNoChecks(&api.SessionEntry{Name: "nccl: may gangs form here", TTL: "10s", Behavior: api.SessionBehaviorDelete, LockDelay: time.Millisecond}, write(ctx))
	if err != nil {
		return refused(err)
	}
	_, _, err = client.KV().Acquire(&api.KVPair{Key: fmt.Sprintf("%s/%s", key, id), Session: id}, write(ctx))
	_, closeErr := client.Session().Destroy(id, write(ctx)) // the key goes with it
	return refused(errors.Join(err, closeErr))
}

// anonymous is the accessor of requests without a token, on every Consul.
const anonymous = "00000000-0000-0000-0000-000000000002"

// refused tells a lack of rights from other trouble.
func refused(err error) error {
	var answer api.StatusError
	switch {
	case err == nil:
		return nil
	case strings.Contains(err.Error(), anonymous):
		return fmt.Errorf("no gang can form: Consul has ACLs on, and no token is set (consul.token_file); one needs the policy in the driver's documentation: %w", err)
	case errors.As(err, &answer) && answer.Code == http.StatusForbidden:
		return fmt.Errorf("no gang can form: Consul refuses what gangs need; the token (consul.token_file) must have the policy in the driver's documentation: %w", err)
	}
	return fmt.Errorf("no gang can form through Consul: %w", err)
}
