// SPDX-License-Identifier: MPL-2.0

package pool

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"time"
)

// cut is what is remembered of a policy whose max is below the pools file's:
// the autoscaler cuts counts down to it, and so a gang's nodes.
type cut struct {
	Max   int       `json:"max"`
	Until time.Time `json:"until"`
}

// dir is where the pool's state is kept; empty: it has none.
func (d *Definition) dir() string {
	switch {
	case d.Local != nil:
		return d.Local.Dir
	case d.Command != nil:
		return d.Command.Dir
	case d.AWS != nil:
		return d.AWS.Dir
	}
	return ""
}

func (d *Definition) cutPath() string { return filepath.Join(d.dir(), d.Name+".max.json") }

// Cut notes that the pool gets no more than max nodes, for its retry_after: then
// the policy may be another. It returns until when.
func (d *Definition) Cut(now time.Time, max int) (time.Time, error) {
	c := cut{Max: max, Until: now.Add(d.retry).UTC().Truncate(time.Second)}
	data, err := json.Marshal(c)
	if err != nil {
		return c.Until, err
	}
	if err := os.MkdirAll(d.dir(), 0o700); err != nil {
		return c.Until, err
	}
	return c.Until, replace(d.cutPath(), data)
}

// MostNow is the most nodes that the pool can have now: max, or what a policy
// was last seen to leave of it.
func (d *Definition) MostNow(now time.Time) (int, error) {
	if d.dir() == "" {
		return d.Max, nil
	}
	data, err := os.ReadFile(d.cutPath())
	if errors.Is(err, fs.ErrNotExist) {
		return d.Max, nil
	}
	if err != nil {
		return d.Max, err
	}
	var c cut
	if err := json.Unmarshal(data, &c); err != nil || c.Max < 0 {
		return d.Max, fmt.Errorf("%s: %.64q; allowed is what the target writes, or no file", d.cutPath(), data)
	}
	// A moment that is further ahead than it can have been written is a clock's fault.
	if !now.Before(c.Until) || c.Until.Sub(now) > d.retry+time.Minute {
		return d.Max, nil
	}
	return min(d.Max, max(c.Max, d.Min)), nil
}
