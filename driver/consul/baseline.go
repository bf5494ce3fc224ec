// SPDX-License-Identifier: MPL-2.0

package consul

import (
	"context"
	"encoding/json"
	"fmt"
	"net/url"

	"github.com/hashicorp/consul/api"

	"github.com/nomad-gpu/nomad-gpu/driver/preflight"
)

// Baselines keeps what pairs of nodes reach under <prefix>/baseline/<from>/<to>.
// They belong to the nodes and stay when a gang goes: about 200 B for each
// pair that was ever measured.
type Baselines struct {
	client *api.Client
	prefix string
}

var _ preflight.Baselines = (*Baselines)(nil)

const (
	baselineVersion = 1
	maxBaseline     = 4 << 10
)

// NewBaselines are those below a prefix.
func NewBaselines(client *api.Client, prefix string) *Baselines {
	if prefix == "" {
		prefix = DefaultPrefix
	}
	return &Baselines{client: client, prefix: prefix}
}

func (b *Baselines) key(from, to string) string {
	return b.prefix + "/baseline/" + url.QueryEscape(from) + "/" + url.QueryEscape(to)
}

type storedBaseline struct {
	V int `json:"v"`
	preflight.Baseline
}

// Baseline costs one read. One that another release wrote, or that cannot be
// read, is an error; Keep writes it anew.
func (b *Baselines) Baseline(ctx context.Context, from, to string) (preflight.Baseline, error) {
	key := b.key(from, to)
	pair, _, err := b.client.KV().Get(key, query(ctx, 0))
	if err != nil {
		return preflight.Baseline{}, fmt.Errorf("read the baseline of %s to %s: %w", from, to, err)
	}
	if pair == nil {
		return preflight.Baseline{}, nil
	}
	var s storedBaseline
	switch {
	case len(pair.Value) > maxBaseline:
		err = fmt.Errorf("%d bytes; allowed are %d", len(pair.Value), maxBaseline)
	default:
		err = json.Unmarshal(pair.Value, &s)
		if err == nil && s.V != baselineVersion {
			err = fmt.Errorf("version %d; this driver reads version %d", s.V, baselineVersion)
		}
		if err == nil {
			err = s.Validate()
		}
	}
	if err != nil {
		return preflight.Baseline{}, fmt.Errorf("%s: %w", key, err)
	}
	return s.Baseline, nil
}

// Keep costs one write.
func (b *Baselines) Keep(ctx context.Context, from, to string, base preflight.Baseline) error {
	data, err := json.Marshal(storedBaseline{V: baselineVersion, Baseline: base})
	if err != nil {
		return err
	}
	if _, err := b.client.KV().Put(&api.KVPair{Key: b.key(from, to), Value: data}, write(ctx)); err != nil {
		return fmt.Errorf("keep the baseline of %s to %s: %w", from, to, err)
	}
	return nil
}
