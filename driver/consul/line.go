// SPDX-License-Identifier: MPL-2.0

package consul

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/url"
	"strings"
	"time"

	"github.com/hashicorp/consul/api"

	"github.com/nomad-gpu/nomad-gpu/driver/gang"
)

// Beside the gangs' own keys stand the line's: no region of Nomad has a name
// that begins with a dot.
//
//	<prefix>/.line/<pool>/<gang>  a forming gang's ticket, under its coordinator's session
//	<prefix>/.age/<gang>          how old a gang was that gave its nodes back
const (
	lineFolder = "/.line/"
	ageFolder  = "/.age/"
	// ageKept is how long a gang that gave its nodes back keeps its place.
	ageKept = 24 * time.Hour
)

// keptAge is the value of an age key.
type keptAge struct {
	Age uint64 `json:"age"`
	// Until is in Unix seconds; only the sweep compares it with a clock.
	Until int64 `json:"until"`
}

func (s *Store) ticketKey(pool string) string {
	return s.root + lineFolder + url.QueryEscape(pool) + "/" + url.QueryEscape(s.name())
}

func (s *Store) ageKey() string { return s.root + ageFolder + url.QueryEscape(s.name()) }

// name is the gang's path below the prefix: unique, and readable.
func (s *Store) name() string {
	return strings.TrimSuffix(strings.TrimPrefix(s.prefix, s.root+"/"), "/")
}

// TakeTicket costs two reads and one write. The gang's age is that of its
// spec, the first key that a gang writes.
func (s *Store) TakeTicket(ctx context.Context, session, pool string, t gang.Ticket) error {
	spec, _, err := s.client.KV().Get(s.prefix+"spec", query(ctx, 0))
	if err != nil {
		return fmt.Errorf("read the gang's age: %w", err)
	}
	if spec == nil {
		return errors.New("read the gang's age: its spec is gone")
	}
	t.Age = spec.CreateIndex
	kept, _, err := s.client.KV().Get(s.ageKey(), query(ctx, 0))
	if err != nil {
		return fmt.Errorf("read the gang's age: %w", err)
	}
	if kept != nil {
		var before keptAge
		if err := json.Unmarshal(kept.Value, &before); err == nil && before.Age > 0 {
			t.Age = min(t.Age, before.Age)
		}
	}
	data, err := gang.EncodeTicket(t)
	if err != nil {
		return err
	}
	ok, _, err := s.client.KV().Acquire(&api.KVPair{Key: s.ticketKey(pool), Value: data, Session: session}, write(ctx))
	if err != nil {
		if strings.Contains(err.Error(), "invalid session") {
			return gang.ErrSessionLost
		}
		return fmt.Errorf("take a place in the line: %w", err)
	}
	if !ok {
		return errors.New("take a place in the line: a former coordinator still holds the gang's ticket")
	}
	return nil
}

// ReadLine costs one read of the pool's tickets. Tickets that cannot be read
// are not waited for.
func (s *Store) ReadLine(ctx context.Context, pool string) (gang.Line, error) {
	own := s.ticketKey(pool)
	pairs, _, err := s.client.KV().List(s.root+lineFolder+url.QueryEscape(pool)+"/", query(ctx, 0))
	if err != nil {
		return gang.Line{}, fmt.Errorf("read the line: %w", err)
	}
	var ticket *gang.Ticket
	var all []gang.Ticket
	for _, p := range pairs {
		t, err := gang.DecodeTicket(p.Value)
		switch {
		case err != nil || p.Session == "":
		case p.Key == own:
			ticket = &t
		default:
			all = append(all, t)
		}
	}
	if ticket == nil {
		return gang.Line{}, errors.New("read the line: the gang has no ticket")
	}
	return ticket.Place(all), nil
}

// LeaveLine costs up to two reads and two writes.
func (s *Store) LeaveLine(ctx context.Context, pool string, keepAge bool) error {
	key := s.ticketKey(pool)
	pair, _, err := s.client.KV().Get(key, query(ctx, 0))
	if err != nil {
		return fmt.Errorf("leave the line: %w", err)
	}
	if keepAge && pair != nil {
		if t, err := gang.DecodeTicket(pair.Value); err == nil {
			data, err := json.Marshal(keptAge{Age: t.Age, Until: time.Now().Add(ageKept).Unix()})
			if err != nil {
				return err
			}
			if _, err := s.client.KV().Put(&api.KVPair{Key: s.ageKey(), Value: data}, write(ctx)); err != nil {
				return fmt.Errorf("keep the gang's age: %w", err)
			}
		}
	}
	if pair != nil {
		if _, err := s.client.KV().Delete(key, write(ctx)); err != nil {
			return fmt.Errorf("leave the line: %w", err)
		}
	}
	if !keepAge {
		if _, err := s.client.KV().Delete(s.ageKey(), write(ctx)); err != nil {
			return fmt.Errorf("forget the gang's age: %w", err)
		}
	}
	return nil
}

// sweepAges removes the ages that nobody came back for.
func sweepAges(ctx context.Context, client *api.Client, prefix string, now time.Time) error {
	pairs, _, err := client.KV().List(prefix+ageFolder, query(ctx, 0))
	if err != nil {
		return fmt.Errorf("read the ages of gangs: %w", err)
	}
	var errs []error
	for _, p := range pairs {
		var kept keptAge
		if json.Unmarshal(p.Value, &kept) == nil && now.Unix() < kept.Until {
			continue
		}
		if _, _, err := client.KV().DeleteCAS(p, write(ctx)); err != nil {
			errs = append(errs, fmt.Errorf("remove %s: %w", p.Key, err))
		}
	}
	return errors.Join(errs...)
}
