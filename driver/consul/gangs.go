// SPDX-License-Identifier: MPL-2.0

package consul

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"net/url"
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
	// Ranks are the members of the head's generation in rank order.
	Ranks []gang.Member
	// Pool is whose line the gang stands in, and Line where; no position: it
	// waits for no node.
	Pool string
	Line gang.Line
	// Broken says what could not be read.
	Broken []error
	prefix string
	pairs  api.KVPairs
}

// List reads all gangs below a prefix: one call.
func List(ctx context.Context, client *api.Client, prefix string) ([]Gang, error) {
	gangs, _, err := Watch(ctx, client, prefix, 0)
	return gangs, err
}

// Watch is List once anything below the prefix is newer than the index, or
// after about a minute; the index returned is for the next call.
func Watch(ctx context.Context, client *api.Client, prefix string, index uint64) ([]Gang, uint64, error) {
	if prefix == "" {
		prefix = DefaultPrefix
	}
	pairs, meta, err := client.KV().List(prefix+"/", query(ctx, index))
	if err != nil {
		return nil, 0, fmt.Errorf("list the gangs below %s: %w", prefix, err)
	}
	byPrefix := map[string]*Gang{}
	line := tickets{}
	for _, p := range pairs {
		key, rest, ok := parsePath(prefix, p.Key)
		if !ok {
			line.add(prefix, p)
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
		g.readRanks()
		g.Pool, g.Line = line.of(strings.TrimSuffix(strings.TrimPrefix(g.prefix, prefix+"/"), "/"))
		gangs = append(gangs, *g)
	}
	slices.SortFunc(gangs, func(a, b Gang) int { return cmp.Compare(a.prefix, b.prefix) })
	return gangs, next(index, meta), nil
}

func (g *Gang) readRanks() {
	if g.Head.View == "" {
		return
	}
	folder := viewFolder(g.prefix, g.Head)
	var parts api.KVPairs
	for _, p := range g.pairs {
		if strings.HasPrefix(p.Key, folder) {
			parts = append(parts, p)
		}
	}
	var err error
	if g.Ranks, err = decodeView(folder, g.Head.Generation, parts); err != nil {
		g.Broken = append(g.Broken, err)
	}
}

// tickets are those of each pool, by the gang's name.
type tickets map[string]map[string]gang.Ticket

func (ts tickets) add(prefix string, p *api.KVPair) {
	rest, ok := strings.CutPrefix(p.Key, prefix+lineFolder)
	pool, name, both := strings.Cut(rest, "/")
	pool, poolErr := url.QueryUnescape(pool)
	name, nameErr := url.QueryUnescape(name)
	t, err := gang.DecodeTicket(p.Value)
	if !ok || !both || p.Session == "" || errors.Join(poolErr, nameErr, err) != nil {
		return
	}
	if ts[pool] == nil {
		ts[pool] = map[string]gang.Ticket{}
	}
	ts[pool][name] = t
}

func (ts tickets) of(name string) (pool string, l gang.Line) {
	for pool, all := range ts {
		if t, ok := all[name]; ok {
			return pool, t.Place(slices.Collect(maps.Values(all)))
		}
	}
	return "", gang.Line{}
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
