// SPDX-License-Identifier: MPL-2.0

package pool

import (
	"errors"
	"fmt"
	"maps"
	"math"
	"slices"
	"time"

	"github.com/nomad-gpu/nomad-gpu/autoscaler/plan"
)

// Budget bounds what nodes may cost, in the currency of the pools' prices.
type Budget struct {
	// PerHour is for all pools together.
	PerHour *float64 `hcl:"per_hour,optional"`
	// Namespaces is for what runs of one Nomad namespace and is bought for it.
	Namespaces map[string]float64 `hcl:"namespaces,optional"`
}

// validateBudget: what the pools' minima cost is spent whatever waits.
func (f *File) validateBudget() error {
	if f.Budget == nil {
		return nil
	}
	var errs []error
	if f.Budget.PerHour == nil && len(f.Budget.Namespaces) == 0 {
		errs = append(errs, errors.New("budget: empty; allowed are per_hour, namespaces or both"))
	}
	least := 0.0
	for _, p := range f.Pools {
		least += float64(p.Min) * p.Price
	}
	if b := f.Budget.PerHour; b != nil && (!(*b > 0) || math.IsInf(*b, 0) || *b < least) {
		errs = append(errs, fmt.Errorf("budget: per_hour: %g; allowed is more than 0, and not less than the pools' minima cost, %g", *b, least))
	}
	for _, name := range slices.Sorted(maps.Keys(f.Budget.Namespaces)) {
		if b := f.Budget.Namespaces[name]; name == "" || !(b >= 0) || math.IsInf(b, 0) {
			errs = append(errs, fmt.Errorf("budget: namespaces: %q = %g; allowed is a namespace's name with 0 or more", name, b))
		}
	}
	return errors.Join(errs...)
}

// Spend is the budget for the planner; without a block there is no limit.
func (f *File) Spend() plan.Budget {
	if f.Budget == nil {
		return plan.Budget{}
	}
	b := plan.Budget{Namespaces: f.Budget.Namespaces}
	if f.Budget.PerHour != nil {
		b.PerHour = *f.Budget.PerHour
	}
	return b
}

// Billing is how a pool's nodes are paid for: it keeps an idle node that is
// paid for anyway.
type Billing struct {
	// Increment is what is billed at once, Minimum the least that is billed of a node.
	Increment string `hcl:"increment,optional"`
	Minimum   string `hcl:"minimum,optional"`
	// Margin is how long before the next increment an idle node goes.
	Margin string `hcl:"margin,optional"`

	increment, minimum, margin time.Duration
}

// defaultMargin is longer than the autoscaler takes from one evaluation to the next.
const defaultMargin = 2 * time.Minute

func (b *Billing) validate(pool string) (errs []error) {
	if b == nil {
		return nil
	}
	if b.Increment == "" && b.Minimum == "" {
		return []error{fmt.Errorf("pool %q: billing: neither increment nor minimum is set; allowed is one of them or both", pool)}
	}
	for _, f := range []struct {
		name, text string
		to         *time.Duration
	}{{"increment", b.Increment, &b.increment}, {"minimum", b.Minimum, &b.minimum}, {"margin", b.Margin, &b.margin}} {
		if f.text == "" {
			continue
		}
		d, err := time.ParseDuration(f.text)
		if err != nil || d <= 0 || d > maxBilling {
			errs = append(errs, fmt.Errorf("pool %q: billing.%s: %q; allowed is a duration above 0 and up to %s, such as 1h", pool, f.name, f.text, maxBilling))
		}
		*f.to = d
	}
	if b.Margin == "" {
		b.margin = defaultMargin
	} else if b.increment > 0 && b.margin > b.increment {
		errs = append(errs, fmt.Errorf("pool %q: billing.margin: %q; allowed is not more than billing.increment, %q", pool, b.Margin, b.Increment))
	}
	return errs
}

const maxBilling = 31 * 24 * time.Hour
