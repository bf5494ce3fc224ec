// SPDX-License-Identifier: MPL-2.0

package notice

import (
	"fmt"
	"io"
	"net/http"
	"net/url"
	"time"
)

// maxBody is far beyond what any of the services answers.
const maxBody = 256 << 10

// newClient talks to a metadata service: never through a proxy, never
// elsewhere by a redirect, and no answer is read without end.
func newClient(address string, limit time.Duration) *http.Client {
	t := http.DefaultTransport.(*http.Transport).Clone()
	t.Proxy = nil
	t.ResponseHeaderTimeout = limit
	b := bounded{next: t}
	if address != "" {
		b.to, _ = url.Parse(address) // Validate has read it
	}
	return &http.Client{Transport: b, CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }}
}

// bounded bounds each answer, and sends requests to another address if told so.
type bounded struct {
	next http.RoundTripper
	to   *url.URL
}

func (b bounded) RoundTrip(r *http.Request) (*http.Response, error) {
	if b.to != nil {
		r = r.Clone(r.Context())
		r.URL.Scheme, r.URL.Host, r.Host = b.to.Scheme, b.to.Host, b.to.Host
	}
	answer, err := b.next.RoundTrip(r)
	if err == nil {
		answer.Body = &limited{body: answer.Body, left: maxBody}
	}
	return answer, err
}

type limited struct {
	body io.ReadCloser
	left int
}

func (l *limited) Read(p []byte) (int, error) {
	if l.left == 0 {
		return 0, fmt.Errorf("the metadata service answers more than %d bytes", maxBody)
	}
	n, err := l.body.Read(p[:min(len(p), l.left)])
	l.left -= n
	return n, err
}

func (l *limited) Close() error { return l.body.Close() }
