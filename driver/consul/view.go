// SPDX-License-Identifier: MPL-2.0

package consul

import (
	"context"
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"slices"
	"strconv"

	"github.com/hashicorp/consul/api"

	"github.com/nomad-gpu/nomad-gpu/driver/gang"
)

// shard is how many members one view key holds: about 200 B each keeps it far
// below Consul's limit of 512 KiB a value.
const shard = 32

func (s *Store) viewKey(h gang.Head, n int) string {
	return viewFolder(s.prefix, h) + strconv.Itoa(n)
}

func viewFolder(prefix string, h gang.Head) string {
	return fmt.Sprintf("%sview/%d/%s/", prefix, h.Generation, h.View)
}

// newViewName is one that no other coordinator uses.
func newViewName() string { return fmt.Sprintf("%016x", rand.Uint64()) }

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

// brief leaves out of members what only their own node needs: every member
// reads the whole view, so its size counts with the square of the gang's.
func brief(members []gang.Member) []gang.Member {
	out := slices.Clone(members)
	for i := range out {
		out[i].GPUs, out[i].Topology = nil, ""
	}
	return out
}
