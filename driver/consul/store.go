// SPDX-License-Identifier: MPL-2.0

package consul

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math/rand/v2"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/hashicorp/consul/api"

	"github.com/nomad-gpu/nomad-gpu/driver/gang"
)

const (
	// shard is how many members one view key holds: about 200 B each keeps it
	// far below Consul's limit of 512 KiB a value.
	shard = 32
	// waitTime bounds a blocking query; Consul adds up to a sixteenth.
	waitTime = 50 * time.Second
)

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

func (s *Store) memberKey(alloc string) string { return s.prefix + "member/" + url.QueryEscape(alloc) }

func (s *Store) viewKey(h gang.Head, n int) string {
	return viewFolder(s.prefix, h) + strconv.Itoa(n)
}

func viewFolder(prefix string, h gang.Head) string {
	return fmt.Sprintf("%sview/%d/%s/", prefix, h.Generation, h.View)
}

// newViewName is one that no other coordinator uses.
func newViewName() string { return fmt.Sprintf("%016x", rand.Uint64()) }

func query(ctx context.Context, index uint64) *api.QueryOptions {
	return (&api.QueryOptions{WaitIndex: index, WaitTime: waitTime}).WithContext(ctx)
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

// PutRecord writes under the session: Consul refuses where the session is gone.
func (s *Store) PutRecord(ctx context.Context, session string, r gang.Record) error {
	data, err := gang.EncodeRecord(r)
	if err != nil {
		return err
	}
	key := s.memberKey(r.Member.Alloc)
	for range 4 {
		ok, _, err := s.client.KV().Acquire(&api.KVPair{Key: key, Value: data, Session: session}, write(ctx))
		if err != nil {
			if strings.Contains(err.Error(), "invalid session") {
				return gang.ErrSessionLost
			}
			return fmt.Errorf("write this member's record: %w", err)
		}
		if ok {
			return nil
		}
		// An allocation runs on one node under one driver, so whoever holds
		// its key is a former life of this member.
		pair, _, err := s.client.KV().Get(key, query(ctx, 0))
		if err != nil {
			return fmt.Errorf("read this member's record: %w", err)
		}
		if pair != nil && pair.Session != "" && pair.Session != session {
			if err := s.Close(ctx, pair.Session); err != nil {
				return err
			}
		}
		select { // the lock delay
		case <-ctx.Done():
			return ctx.Err()
		case <-time.After(20 * time.Millisecond):
		}
	}
	return fmt.Errorf("write this member's record: another session holds it")
}

// DeleteRecord takes the record out.
func (s *Store) DeleteRecord(ctx context.Context, alloc string) error {
	if _, err := s.client.KV().Delete(s.memberKey(alloc), write(ctx)); err != nil {
		return fmt.Errorf("remove this member's record: %w", err)
	}
	return nil
}

// WatchRecords reads all members at once; Consul answers when one changes.
func (s *Store) WatchRecords(ctx context.Context, index uint64) ([]gang.Record, []error, uint64, error) {
	pairs, meta, err := s.client.KV().List(s.prefix+"member/", query(ctx, index))
	if err != nil {
		return nil, nil, 0, fmt.Errorf("read the members: %w", err)
	}
	records, broken := decodeRecords(s.prefix, pairs)
	return records, broken, next(index, meta), nil
}

func decodeRecords(prefix string, pairs api.KVPairs) (records []gang.Record, broken []error) {
	for _, p := range pairs {
		alloc, err := url.QueryUnescape(strings.TrimPrefix(p.Key, prefix+"member/"))
		if err == nil && p.Session == "" {
			err = fmt.Errorf("member %s: no session holds it", alloc)
		}
		var r gang.Record
		if err == nil {
			r, err = gang.DecodeRecord(alloc, p.Value)
		}
		if err != nil {
			broken = append(broken, err)
			continue
		}
		records = append(records, r)
	}
	return records, broken
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

// ReadView costs one read.
func (s *Store) ReadView(ctx context.Context, h gang.Head) ([]gang.Member, error) {
	if h.View == "" {
		return nil, nil
	}
	pairs, _, err := s.client.KV().List(viewFolder(s.prefix, h), query(ctx, 0))
	if err != nil {
		return nil, fmt.Errorf("read the view of generation %d: %w", h.Generation, err)
	}
	return decodeView(viewFolder(s.prefix, h), h.Generation, pairs)
}

// decodeView puts a generation's members together from all keys of a folder.
func decodeView(folder string, generation uint64, pairs api.KVPairs) ([]gang.Member, error) {
	byKey := map[string][]byte{}
	for _, p := range pairs {
		byKey[p.Key] = p.Value
	}
	var view []gang.Member
	for n := range len(pairs) {
		var part []gang.Member
		data := byKey[folder+strconv.Itoa(n)]
		if err := json.Unmarshal(data, &part); err != nil {
			return nil, fmt.Errorf("read the view of generation %d, part %d: %w", generation, n, err)
		}
		view = append(view, part...)
	}
	if len(view) > gang.MaxNodes {
		return nil, fmt.Errorf("read the view of generation %d: %d members, allowed are %d", generation, len(view), gang.MaxNodes)
	}
	for rank, m := range view {
		if err := m.Validate(); err != nil {
			return nil, fmt.Errorf("read the view of generation %d, rank %d: %w", generation, rank, err)
		}
	}
	return view, nil
}

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

// brief leaves out of members what only their own node needs: every member
// reads the whole view, so its size counts with the square of the gang's.
func brief(members []gang.Member) []gang.Member {
	out := slices.Clone(members)
	for i := range out {
		out[i].GPUs, out[i].Topology = nil, ""
	}
	return out
}

// Remove takes the gang's keys out where no member is left. Each key goes
// only as it was when read, and members' keys never: a member that joins at
// the same moment loses nothing but the head, and writes it anew.
func (s *Store) Remove(ctx context.Context) error {
	pairs, _, err := s.client.KV().List(s.prefix, (&api.QueryOptions{RequireConsistent: true}).WithContext(ctx))
	if err != nil {
		return fmt.Errorf("read what the gang leaves: %w", err)
	}
	return removeAll(ctx, s.client, s.prefix, pairs)
}

func removeAll(ctx context.Context, client *api.Client, prefix string, pairs api.KVPairs) error {
	var errs []error
	for _, p := range pairs {
		if strings.HasPrefix(p.Key, prefix+"member/") {
			return nil
		}
	}
	for _, p := range pairs {
		ok, _, err := client.KV().DeleteCAS(p, write(ctx))
		if err == nil && !ok {
			err = errors.New("it has changed meanwhile")
		}
		if err != nil {
			errs = append(errs, fmt.Errorf("remove %s: %w", p.Key, err))
		}
	}
	return errors.Join(errs...)
}
