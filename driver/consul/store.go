// SPDX-License-Identifier: MPL-2.0

package consul

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"time"

	"github.com/hashicorp/consul/api"

	"github.com/nomad-gpu/nomad-gpu/driver/gang"
)

// waitTime bounds a blocking query; Consul adds up to a sixteenth.
const waitTime = 50 * time.Second

// Store is one gang's state in Consul.
type Store struct {
	client *api.Client
	root   string // of all gangs' keys
	prefix string // of this gang's, with a slash at its end
	ttl    time.Duration
	owner  string
}

var _ gang.Store = (*Store)(nil)

// New is the store of one gang. The owner names the session for people;
// ttl is the session's, 10 s to 24 h.
func New(client *api.Client, prefix string, k gang.Key, owner string, ttl time.Duration) *Store {
	if prefix == "" {
		prefix = DefaultPrefix
	}
	return &Store{client: client, root: prefix, prefix: path(prefix, k), ttl: ttl, owner: owner}
}

// query waits for something newer than index. With no index it is a read of
// what stands now, and a consistent one: just after an election a leader
// answers others from what it has replayed so far, which may be nothing (Consul,
// "Consistency Modes"), and a gang whose head is gone has ended.
func query(ctx context.Context, index uint64) *api.QueryOptions {
	return (&api.QueryOptions{WaitIndex: index, WaitTime: waitTime, RequireConsistent: index == 0}).WithContext(ctx)
}

func write(ctx context.Context) *api.WriteOptions { return (&api.WriteOptions{}).WithContext(ctx) }

// Open makes a session that lives by its TTL alone: a health check would end
// gangs at each flap of the agents' gossip.
func (s *Store) Open(ctx context.Context) (string, error) {
	id, _, err := s.client.Session().CreateNoChecks(&api.SessionEntry{
		Name: s.owner, TTL: s.ttl.String(), Behavior: api.SessionBehaviorDelete,
		// The client leaves a zero out, and Consul would take 15 s.
		LockDelay: time.Millisecond,
	}, write(ctx))
	if err != nil {
		return "", fmt.Errorf("create the session: %w", err)
	}
	return id, nil
}

// Renew keeps the session for another TTL.
func (s *Store) Renew(ctx context.Context, session string) error {
	entry, _, err := s.client.Session().Renew(session, write(ctx))
	if err != nil {
		return fmt.Errorf("renew the session: %w", err)
	}
	if entry == nil {
		return gang.ErrSessionLost
	}
	return nil
}

// Close ends the session.
func (s *Store) Close(ctx context.Context, session string) error {
	if _, err := s.client.Session().Destroy(session, write(ctx)); err != nil {
		return fmt.Errorf("end the session: %w", err)
	}
	return nil
}

// AgreeSpec costs one read, and one write for the first comer.
func (s *Store) AgreeSpec(ctx context.Context, spec gang.Spec) (gang.Spec, error) {
	data, err := json.Marshal(spec)
	if err != nil {
		return spec, err
	}
	for range 3 {
		pair, _, err := s.client.KV().Get(s.prefix+"spec", query(ctx, 0))
		if err != nil {
			return spec, fmt.Errorf("read the gang's spec: %w", err)
		}
		if pair != nil {
			var stored gang.Spec
			if err := json.Unmarshal(pair.Value, &stored); err != nil {
				return spec, fmt.Errorf("read the gang's spec: %w", err)
			}
			return stored, nil
		}
		if _, _, err := s.client.KV().CAS(&api.KVPair{Key: s.prefix + "spec", Value: data}, write(ctx)); err != nil {
			return spec, fmt.Errorf("write the gang's spec: %w", err)
		}
	}
	return spec, errors.New("the gang's spec is written and removed again and again")
}

// next is the index for the following query: Consul's rule is to begin anew
// where it goes back, as it does when the store was restored.
func next(before uint64, meta *api.QueryMeta) uint64 {
	if meta.LastIndex < before {
		return 0
	}
	return meta.LastIndex
}

// CreateHead writes the head only where there is none.
func (s *Store) CreateHead(ctx context.Context, h gang.Head) error {
	data, err := gang.EncodeHead(h)
	if err != nil {
		return err
	}
	if _, _, err := s.client.KV().CAS(&api.KVPair{Key: s.prefix + "head", Value: data}, write(ctx)); err != nil {
		return fmt.Errorf("create the gang's head: %w", err)
	}
	return nil
}

// WatchHead returns the head with the index that Decide compares.
func (s *Store) WatchHead(ctx context.Context, index uint64) (*gang.Head, uint64, error) {
	pair, meta, err := s.client.KV().Get(s.prefix+"head", query(ctx, index))
	if err != nil {
		return nil, 0, fmt.Errorf("read the gang's head: %w", err)
	}
	if pair == nil && index > 0 {
		return s.WatchHead(ctx, 0) // that it is gone ends the gang: by a read that is sure
	}
	if pair == nil {
		return nil, next(index, meta), nil
	}
	h, err := gang.DecodeHead(pair.Value)
	if err != nil {
		return nil, 0, err
	}
	// For a key that exists, Consul's index of the answer is the key's own
	// or newer; the key's own is what a compare-and-set needs.
	return &h, pair.ModifyIndex, nil
}
