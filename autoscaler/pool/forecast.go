// SPDX-License-Identifier: MPL-2.0

package pool

import (
	"errors"
	"fmt"
	"path/filepath"
	"time"

	"github.com/nomad-gpu/nomad-gpu/autoscaler/forecast"
)

// Forecast buys ahead of a load that recurs.
type Forecast struct {
	// Record is the file in which the strategy keeps what was asked for.
	Record string `hcl:"record"`
	// Period is what the load recurs after, Periods how many are looked at, Share
	// the part of them that needed no more than is bought, Ahead how far is looked.
	Period  string   `hcl:"period,optional"`
	Periods *int     `hcl:"periods,optional"`
	Share   *float64 `hcl:"share,optional"`
	Ahead   string   `hcl:"ahead,optional"`

	season forecast.Season
}

func (f *Forecast) validate() error {
	if f == nil {
		return nil
	}
	var errs []error
	if !filepath.IsAbs(f.Record) {
		errs = append(errs, fmt.Errorf("forecast: record: %q; allowed is an absolute path", f.Record))
	}
	f.season = forecast.Usual
	for field, v := range map[string]struct {
		text string
		to   *time.Duration
	}{"period": {f.Period, &f.season.Period}, "ahead": {f.Ahead, &f.season.Ahead}} {
		if v.text == "" {
			continue
		}
		d, err := time.ParseDuration(v.text)
		if err != nil {
			errs = append(errs, fmt.Errorf("forecast: %s: %q; allowed is a duration such as %s", field, v.text, *v.to))
			continue
		}
		*v.to = d
	}
	if f.Periods != nil {
		f.season.Periods = *f.Periods
	}
	if f.Share != nil {
		f.season.Share = *f.Share
	}
	if err := f.season.Validate(); err != nil {
		errs = append(errs, fmt.Errorf("forecast: %w", err))
	}
	return errors.Join(errs...)
}

// Season is what recurs, checked.
func (f *Forecast) Season() forecast.Season { return f.season }
