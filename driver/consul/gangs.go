// SPDX-License-Identifier: MPL-2.0

package consul

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/hashicorp/consul/api"

	"github.com/nomad-gpu/nomad-gpu/driver/gang"
)

// Gang is one gang as it stands in the store.
type Gang struct {
	Key     gang.Key
	Head    gang.Head
	Records []gang.Record
	// Broken says what could not be read.
	Broken []error
	prefix string
	pairs  api.KVPairs
}

// List reads all gangs below a prefix: one call.
func List(ctx context.Context, client *api.Client, prefix string) ([]Gang, error) {
	if prefix == "" {
		prefix = DefaultPrefix
	}
	pairs, _, err := client.KV().List(prefix+"/", (&api.QueryOptions{}).WithContext(ctx))
	if err != nil {
		return nil, fmt.Errorf("list the gangs below %s: %w", prefix, err)
	}
	byPrefix := map[string]*Gang{}
	for _, p := range pairs {
		key, rest, ok := parsePath(prefix, p.Key)
		if !ok {
			continue
		}
		at := path(prefix, key)
		g := byPrefix[at]
		if g == nil {
			g = &Gang{Key: key, prefix: at}
			byPrefix[at] = g
		}
		g.pairs = append(g.pairs, p)
		if rest == "head" {
			if g.Head, err = gang.DecodeHead(p.Value); err != nil {
				g.Broken = append(g.Broken, err)
			}
		}
		if strings.HasPrefix(rest, "member/") {
			records, broken := decodeRecords(at, api.KVPairs{p})
			g.Records, g.Broken = append(g.Records, records...), append(g.Broken, broken...)
		}
	}
	gangs := make([]Gang, 0, len(byPrefix))
	for _, g := range byPrefix {
		gangs = append(gangs, *g)
	}
	slices.SortFunc(gangs, func(a, b Gang) int { return cmp.Compare(a.prefix, b.prefix) })
	return gangs, nil
}

// Sweeper removes what gangs leave behind whose members all died at once.
type Sweeper struct {
	client *api.Client
	prefix string
	// idle is when a gang without members was first seen, with its newest index.
	idle map[string]seen
}

type seen struct {
	index uint64
	since time.Time
}

// NewSweeper watches all gangs below a prefix.
func NewSweeper(client *api.Client, prefix string) *Sweeper {
	if prefix == "" {
		prefix = DefaultPrefix
	}
	return &Sweeper{client: client, prefix: prefix, idle: map[string]seen{}}
}

// Sweep removes the keys of gangs that had no member and no change for at
// least the age given, over two sweeps or more. It returns their keys.
func (s *Sweeper) Sweep(ctx context.Context, now time.Time, age time.Duration) ([]gang.Key, error) {
	gangs, err := List(ctx, s.client, s.prefix)
	if err != nil {
		return nil, err
	}
	var removed []gang.Key
	idle := map[string]seen{}
	for _, g := range gangs {
		member := false
		var newest uint64
		for _, p := range g.pairs {
			newest = max(newest, p.ModifyIndex)
			member = member || p.Session != ""
		}
		if member {
			continue
		}
		was, known := s.idle[g.prefix]
		if !known || was.index != newest {
			idle[g.prefix] = seen{newest, now}
			continue
		}
		if now.Sub(was.since) < age {
			idle[g.prefix] = was
			continue
		}
		if err := removeAll(ctx, s.client, g.prefix, g.pairs); err != nil {
			return removed, err
		}
		removed = append(removed, g.Key)
	}
	s.idle = idle
	return removed, sweepAges(ctx, s.client, s.prefix, now)
}
