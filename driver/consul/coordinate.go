// SPDX-License-Identifier: MPL-2.0

package consul

import (
	"context"
	"encoding/json"
	"fmt"
	"strings"

	"github.com/hashicorp/consul/api"

	"github.com/nomad-gpu/nomad-gpu/driver/gang"
)

// WatchLock returns the session that holds the lock.
func (s *Store) WatchLock(ctx context.Context, index uint64) (string, uint64, error) {
	pair, meta, err := s.client.KV().Get(s.prefix+"lock", query(ctx, index))
	if err != nil {
		return "", 0, fmt.Errorf("read the coordinator's lock: %w", err)
	}
	if pair == nil {
		return "", next(index, meta), nil
	}
	return pair.Session, next(index, meta), nil
}

// TryLock takes the lock; it goes with the session.
func (s *Store) TryLock(ctx context.Context, session string) (bool, error) {
	ok, _, err := s.client.KV().Acquire(&api.KVPair{Key: s.prefix + "lock", Session: session}, write(ctx))
	if err != nil {
		if strings.Contains(err.Error(), "invalid session") {
			return false, gang.ErrSessionLost
		}
		return false, fmt.Errorf("take the coordinator's lock: %w", err)
	}
	return ok, nil
}

// Decide writes the view in shards and then the head. Every transaction
// checks that the session holds the lock and that the head is the one the
// decision was made for, so that a coordinator that was replaced writes
// nothing more; and the view has a name of its own, so that a write which
// arrives late cannot mix with another's. It costs 1 + members/192 transactions, of at most 8 operations each.
func (s *Store) Decide(ctx context.Context, session string, index uint64, d gang.Decision) (bool, error) {
	guard := api.TxnOps{
		{KV: &api.KVTxnOp{Verb: api.KVCheckSession, Key: s.prefix + "lock", Session: session}},
		{KV: &api.KVTxnOp{Verb: api.KVCheckIndex, Key: s.prefix + "head", Index: index}},
	}
	ops := guard
	commit := func() (bool, error) {
		ok, answer, _, err := s.client.Txn().Txn(ops, query(ctx, 0))
		if err != nil {
			return false, fmt.Errorf("write the coordinator's decision: %w", err)
		}
		_ = answer // what was refused does not matter: the lock or the head has changed
		ops = guard
		return ok, nil
	}
	head := *d.Head
	if d.View != nil {
		head.View = newViewName()
	}
	for n := 0; n*shard < len(d.View); n++ {
		data, err := json.Marshal(brief(d.View[n*shard : min((n+1)*shard, len(d.View))]))
		if err != nil {
			return false, err
		}
		ops = append(ops[:len(ops):len(ops)], &api.TxnOp{KV: &api.KVTxnOp{Verb: api.KVSet, Key: s.viewKey(head, n), Value: data}})
		if len(ops) == 7 {
			if ok, err := commit(); !ok || err != nil {
				return false, err
			}
		}
	}
	data, err := gang.EncodeHead(head)
	if err != nil {
		return false, err
	}
	ops = append(ops[:len(ops):len(ops)], &api.TxnOp{KV: &api.KVTxnOp{Verb: api.KVSet, Key: s.prefix + "head", Value: data}})
	ok, err := commit()
	if ok && d.View != nil && d.Head.Generation > 2 {
		// Only the generation before is still read; an older view is dropped,
		// so that a week of restarts does not fill the store.
		old := fmt.Sprintf("%sview/%d/", s.prefix, d.Head.Generation-2)
		_, _ = s.client.KV().DeleteTree(old, write(ctx))
	}
	return ok, err
}
