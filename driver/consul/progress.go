// SPDX-License-Identifier: MPL-2.0

package consul

import (
	"context"
	"encoding/json"
	"fmt"
	"net/url"

	"github.com/hashicorp/consul/api"

	"github.com/nomad-gpu/nomad-gpu/driver/gang"
	"github.com/nomad-gpu/nomad-gpu/driver/progress"
)

// Board is where the members of one gang see each other's progress, a key
// each under <gang>/progress/<alloc>. No session holds the keys: a record
// that is left says of which generation it was, and the keys go with the
// gang's others.
type Board struct {
	client *api.Client
	prefix string
	alloc  string
}

var _ progress.Board = (*Board)(nil)

// maxProgress is the longest record, of 64 processes.
const maxProgress = 32 << 10

// NewBoard is one member's.
func NewBoard(client *api.Client, prefix string, k gang.Key, alloc string) *Board {
	return &Board{client: client, prefix: path(prefix, k) + "progress/", alloc: alloc}
}

// Publish costs one write.
func (b *Board) Publish(ctx context.Context, r progress.Record) error {
	data, err := json.Marshal(r)
	if err != nil {
		return err
	}
	if len(data) > maxProgress {
		return fmt.Errorf("progress: %d bytes; allowed are %d", len(data), maxProgress)
	}
	if _, err := b.client.KV().Put(&api.KVPair{Key: b.prefix + url.QueryEscape(b.alloc), Value: data}, write(ctx)); err != nil {
		return fmt.Errorf("write this member's progress: %w", err)
	}
	return nil
}

// Read costs one read, about 100 B for each process of the gang.
func (b *Board) Read(ctx context.Context) ([]progress.Record, error) {
	pairs, _, err := b.client.KV().List(b.prefix, query(ctx, 0))
	if err != nil {
		return nil, fmt.Errorf("read the members' progress: %w", err)
	}
	var records []progress.Record
	for _, p := range pairs {
		var r progress.Record
		if len(p.Value) <= maxProgress && json.Unmarshal(p.Value, &r) == nil && r.Validate() == nil {
			records = append(records, r)
		}
	}
	return records, nil
}
