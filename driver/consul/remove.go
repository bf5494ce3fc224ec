// SPDX-License-Identifier: MPL-2.0

package consul

import (
	"context"
	"errors"
	"fmt"
	"strings"

	"github.com/hashicorp/consul/api"
)

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
