// SPDX-License-Identifier: MPL-2.0

package consul

import (
	"context"
	"fmt"
	"net/url"
	"strings"
	"time"

	"github.com/hashicorp/consul/api"

	"github.com/nomad-gpu/nomad-gpu/driver/gang"
)

func (s *Store) memberKey(alloc string) string { return s.prefix + "member/" + url.QueryEscape(alloc) }

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
