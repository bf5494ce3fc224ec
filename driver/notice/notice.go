// SPDX-License-Identifier: MPL-2.0

// Package notice reads whether this node is about to be taken away: from the
// metadata service of its cloud, or from a file.
package notice

import (
	"context"
	"errors"
	"fmt"
	"net/url"
	"path/filepath"
	"strings"
	"time"
	"unicode/utf8"
)

// Notice is the announced end of this node.
type Notice struct {
	// What says who announces what, such as "AWS: spot instance-action terminate".
	What string
	// At is when; the zero time: it is not said, so at any moment.
	At time.Time
}

// String is the notice for people.
func (n Notice) String() string {
	if n.At.IsZero() {
		return "spot notice: " + n.What
	}
	return "spot notice: " + n.What + " at " + n.At.UTC().Format(time.RFC3339)
}

// NoNewGangs is what a node says beside its notice, in its driver's health too:
// the autoscaler's plugins know by it that the node will be taken away.
const NoNewGangs = "this node takes no new gangs"

// Source is where notices are read.
type Source interface {
	// Read returns the notice that stands, or nil where none does. An error
	// says nothing about either.
	Read(ctx context.Context) (*Notice, error)
}

// Config says where notices are read.
type Config struct {
	// Source is aws, google, azure, file or none; empty is none.
	Source string
	// Path is the file's, for the source file.
	Path string
	// Address of the metadata service, such as http://127.0.0.1:8080; empty:
	// the cloud's own.
	Address string
	// Period between two reads, and the longest that one may take; 1 s to 1 min.
	Period time.Duration
	// Rebalance takes AWS's rebalance recommendation, which names no time and
	// may come to nothing, for a notice.
	Rebalance bool
}

// Validate names each field that cannot be used.
func (c Config) Validate() error {
	var errs []error
	switch c.Source {
	case "", "none", "aws", "google", "azure", "file":
	default:
		errs = append(errs, fmt.Errorf(`notice.source: %q; allowed are "aws", "google", "azure", "file" and "none"`, c.Source))
	}
	if c.Source == "file" && !filepath.IsAbs(c.Path) {
		errs = append(errs, fmt.Errorf("notice.path: %q; allowed is an absolute path", c.Path))
	}
	if c.Source != "file" && c.Path != "" {
		errs = append(errs, fmt.Errorf(`notice.path: %q; allowed is "" unless notice.source is "file"`, c.Path))
	}
	if c.Address != "" {
		u, err := url.Parse(c.Address)
		if err != nil || u.Scheme != "http" || u.Host == "" || strings.Trim(u.Path, "/") != "" || u.User != nil || u.RawQuery != "" {
			errs = append(errs, fmt.Errorf("notice.address: %q; allowed is http://host:port", c.Address))
		}
	}
	if c.On() && (c.Period < time.Second || c.Period > time.Minute) {
		errs = append(errs, fmt.Errorf("notice.period: %s; allowed are 1s to 1m", c.Period))
	}
	return errors.Join(errs...)
}

// On reports whether there is anything to read.
func (c Config) On() bool { return c.Source != "" && c.Source != "none" }

// New makes the source of a valid Config that is On.
func New(c Config) Source {
	var s Source
	switch c.Source {
	case "aws":
		s = newAWS(c)
	case "google":
		s = newGoogle(c)
	case "azure":
		s = newAzure(c)
	default:
		s = file{c.Path}
	}
	return timed{s, c.Period}
}

// timed bounds each read: the libraries below try again by themselves.
type timed struct {
	Source
	limit time.Duration
}

func (t timed) Read(ctx context.Context) (*Notice, error) {
	ctx, cancel := context.WithTimeout(ctx, t.limit)
	defer cancel()
	return t.Source.Read(ctx)
}

// Watch reads the source at once and at each tick until ctx ends. It calls
// changed with each new notice, and with nil when one is withdrawn; trouble
// with the first error of a row, and with nil when reads work again. What
// stood before an error stands on.
func Watch(ctx context.Context, s Source, ticks <-chan time.Time, changed func(*Notice), trouble func(error)) {
	var stands *Notice
	failing := false
	for {
		n, err := s.Read(ctx)
		if ctx.Err() != nil {
			return
		}
		switch {
		case err != nil:
			if !failing {
				trouble(err)
			}
			failing = true
		default:
			if failing {
				trouble(nil)
			}
			failing = false
			if !same(stands, n) {
				stands = n
				changed(n)
			}
		}
		select {
		case <-ctx.Done():
			return
		case <-ticks:
		}
	}
}

func same(a, b *Notice) bool {
	if a == nil || b == nil {
		return a == b
	}
	return a.What == b.What && a.At.Equal(b.At)
}

// line makes one short line for people of what a service or a file said.
func line(s string) string {
	const most = 160
	s, _, _ = strings.Cut(strings.TrimSpace(s), "\n")
	s = strings.Map(func(r rune) rune {
		if r < ' ' || r == 0x7f || r == utf8.RuneError {
			return ' '
		}
		return r
	}, s)
	s = strings.TrimSpace(s)
	if len(s) > most {
		cut := most
		for !utf8.RuneStart(s[cut]) {
			cut--
		}
		s = s[:cut] + "…"
	}
	return s
}
