// SPDX-License-Identifier: MPL-2.0

package pool

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/hashicorp/cronexpr"

	"github.com/nomad-gpu/nomad-gpu/autoscaler/plan"
)

// Maintenance replaces a pool's nodes whose image or driver is old, in a window.
type Maintenance struct {
	// Start is when the window opens, as a cron expression in UTC; Duration how
	// long it is open.
	Start    string `hcl:"start"`
	Duration string `hcl:"duration"`
	// Want is what a node that is up to date has: attr.NAME and meta.NAME of
	// the node, device.NAME of its GPUs.
	Want map[string]string `hcl:"want"`
	// AtOnce is how many nodes may be on their way out for it.
	AtOnce *int `hcl:"at_once,optional"`

	start    *cronexpr.Expression
	duration time.Duration
}

const maxWindow = 7 * 24 * time.Hour

func (m *Maintenance) validate(pool, kind string) (errs []error) {
	if m == nil {
		return nil
	}
	wrong := func(field string, value any, allowed string) {
		errs = append(errs, fmt.Errorf("pool %q: maintenance%s: %v; allowed %s", pool, field, value, allowed))
	}
	if kind == "target" {
		wrong("", "a block", fmt.Sprintf("is one only with kinds whose nodes the target gpu-pool makes, %q", kinds))
	}
	var err error
	if len(m.Start) > maxText {
		wrong(".start", fmt.Sprintf("%d bytes", len(m.Start)), fmt.Sprintf("are %d", maxText))
	} else if m.start, err = cronexpr.Parse(m.Start); err != nil {
		wrong(".start", fmt.Sprintf("%q", m.Start), `is a cron expression in UTC, such as "0 2 * * SAT"`)
	}
	if m.duration, err = time.ParseDuration(m.Duration); err != nil || m.duration <= 0 || m.duration > maxWindow {
		wrong(".duration", fmt.Sprintf("%q", m.Duration), fmt.Sprintf("is a duration above 0 and up to %s, such as 4h", maxWindow))
	}
	if len(m.Want) == 0 {
		wrong(".want", "empty", `is one attribute or more, such as { "meta.image" = "2027-01" }`)
	}
	for _, name := range slices.Sorted(maps.Keys(m.Want)) {
		source, of, _ := strings.Cut(name, ".")
		if of == "" || !slices.Contains([]string{"attr", "meta", "device"}, source) {
			wrong(".want", fmt.Sprintf("%q", name), "are attr.NAME, meta.NAME and device.NAME")
		}
		if m.Want[name] == "" {
			wrong(".want", fmt.Sprintf("%q is empty", name), "is the value of a node that is up to date")
		}
	}
	if m.AtOnce != nil && *m.AtOnce < 1 {
		wrong(".at_once", *m.AtOnce, "are 1 and more")
	}
	return errs
}

// Open is the window that is open at a time; nil where none is.
func (m *Maintenance) Open(now time.Time) *plan.Maintenance {
	if m == nil {
		return nil
	}
	// The latest start: it is looked for ever further back.
	var since time.Time
	for back := time.Minute; since.IsZero(); back *= 2 {
		from := now.UTC().Add(-min(back, m.duration))
		for at := m.start.Next(from); !at.IsZero() && !at.After(now); at = m.start.Next(at) {
			since = at
		}
		if back >= m.duration {
			break
		}
	}
	if since.IsZero() {
		return nil
	}
	open := &plan.Maintenance{Since: since, AtOnce: 1}
	if m.AtOnce != nil {
		open.AtOnce = *m.AtOnce
	}
	return open
}

// Old says what of a node is not as wanted; empty where all is. What a node
// does not tell is taken to be as wanted: a name that none has would have all
// of them replaced for ever.
func (m *Maintenance) Old(has map[string]string) string {
	if m == nil {
		return ""
	}
	for _, name := range slices.Sorted(maps.Keys(m.Want)) {
		if v, ok := has[name]; ok && v != m.Want[name] {
			return fmt.Sprintf("%s is %.64q, wanted is %.64q", name, v, m.Want[name])
		}
	}
	return ""
}
