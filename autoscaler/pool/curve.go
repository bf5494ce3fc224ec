// SPDX-License-Identifier: MPL-2.0

package pool

import (
	"encoding/csv"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"time"

	"github.com/nomad-gpu/nomad-gpu/autoscaler/plan"
)

// Curve is how price and carbon go with the hours: work that has a deadline
// waits for a cheap one.
type Curve struct {
	// Price and Carbon have a value for each hour of the day in UTC: a factor of
	// the pools' prices, and the carbon of a kWh in any unit.
	Price  []float64 `hcl:"price,optional"`
	Carbon []float64 `hcl:"carbon,optional"`
	// File is a CSV file in place of both, with columns from (RFC 3339), price and carbon.
	File string `hcl:"file,optional"`
	// CarbonWeight is carbon's share in what an hour counts, 0 to 1.
	CarbonWeight *float64 `hcl:"carbon_weight,optional"`
}

const (
	// ahead is how far a curve of the day's hours is laid out.
	ahead = 7 * 24 * time.Hour
	// carbonWeight is what carbon counts where nothing else is said.
	carbonWeight = 0.5
	// Bounds of a curve's file.
	maxCurve      = 4 << 20 // bytes
	maxCurveRows  = 100_000
	maxCurveValue = 1e6
)

func (c *Curve) validate() error {
	if c == nil {
		return nil
	}
	var errs []error
	wrong := func(field string, value any, allowed string) {
		errs = append(errs, fmt.Errorf("curve: %s: %v; allowed %s", field, value, allowed))
	}
	for name, values := range map[string][]float64{"price": c.Price, "carbon": c.Carbon} {
		if values != nil && len(values) != 24 {
			wrong(name, fmt.Sprintf("%d values", len(values)), "are 24, one for each hour of the day in UTC")
		}
		if i := slices.IndexFunc(values, func(v float64) bool { return !validRate(v) }); i >= 0 {
			wrong(fmt.Sprintf("%s[%d]", name, i), values[i], fmt.Sprintf("are 0 to %g", maxCurveValue))
		}
	}
	switch inline := c.Price != nil || c.Carbon != nil; {
	case inline && c.File != "":
		wrong("file", fmt.Sprintf("%q", c.File), "is either a file, or price and carbon")
	case !inline && c.File == "":
		wrong("price, carbon and file", "none", "is one of them at least")
	case c.File != "" && !filepath.IsAbs(c.File):
		wrong("file", fmt.Sprintf("%q", c.File), "is an absolute path")
	}
	if w := c.CarbonWeight; w != nil && !(*w >= 0 && *w <= 1) {
		wrong("carbon_weight", *w, "are 0 to 1")
	}
	return errors.Join(errs...)
}

func validRate(v float64) bool { return v >= 0 && v <= maxCurveValue }

// hour is one step of a curve.
type hour struct {
	from          time.Time
	price, carbon float64
}

// Rates are the curve from about now on, for the planner. The file is read
// each time: others write it. Without a curve there are none.
func (c *Curve) Rates(now time.Time) ([]plan.Rate, error) {
	if c == nil {
		return nil, nil
	}
	hours, hasCarbon := c.daily(now), c.Carbon != nil
	if c.File != "" {
		var err error
		if hours, hasCarbon, err = c.read(); err != nil {
			return nil, err
		}
	}
	weight := 0.0
	if hasCarbon {
		weight = carbonWeight
		if c.CarbonWeight != nil {
			weight = *c.CarbonWeight
		}
	}
	return weigh(hours, weight), nil
}

// read reads the curve's file.
func (c *Curve) read() (hours []hour, hasCarbon bool, err error) {
	f, err := os.Open(c.File)
	if err != nil {
		return nil, false, fmt.Errorf("curve.file: %w", err)
	}
	defer f.Close()
	if hours, hasCarbon, err = readCurve(f); err != nil {
		return nil, false, fmt.Errorf("curve.file: %s: %w", c.File, err)
	}
	return hours, hasCarbon, nil
}

func (c *Curve) daily(now time.Time) (hours []hour) {
	begin := now.UTC().Truncate(time.Hour)
	for at := begin; at.Sub(begin) < ahead; at = at.Add(time.Hour) {
		h := hour{from: at, price: 1}
		if c.Price != nil {
			h.price = c.Price[at.Hour()]
		}
		if c.Carbon != nil {
			h.carbon = c.Carbon[at.Hour()]
		}
		hours = append(hours, h)
	}
	return hours
}

// weigh joins price and carbon: carbon as a factor of its mean.
func weigh(hours []hour, weight float64) []plan.Rate {
	mean := 0.0
	for _, h := range hours {
		mean += h.carbon / float64(len(hours))
	}
	rates := make([]plan.Rate, 0, len(hours))
	for _, h := range hours {
		factor := (1 - weight) * h.price
		if mean > 0 {
			factor += weight * h.carbon / mean
		}
		rates = append(rates, plan.Rate{From: h.from, Factor: factor})
	}
	return rates
}

// readCurve reads a curve's file. Errors name the line and column.
func readCurve(from io.Reader) (hours []hour, hasCarbon bool, err error) {
	limited := &io.LimitedReader{R: from, N: maxCurve}
	r := csv.NewReader(limited)
	header, err := r.Read()
	if err != nil {
		return nil, false, fmt.Errorf("its first line: %w; allowed are the columns from, price and carbon", err)
	}
	at, price, carbon := slices.Index(header, "from"), slices.Index(header, "price"), slices.Index(header, "carbon")
	if at < 0 || price < 0 && carbon < 0 {
		return nil, false, fmt.Errorf("columns: %.128q; allowed are from, and price, carbon or both", header)
	}
	for {
		row, err := r.Read()
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			return nil, false, err
		}
		line, _ := r.FieldPos(0)
		if len(hours) == maxCurveRows {
			return nil, false, fmt.Errorf("line %d: allowed are %d rows", line, maxCurveRows)
		}
		h := hour{price: 1}
		if h.from, err = time.Parse(time.RFC3339, row[at]); err != nil {
			return nil, false, fmt.Errorf("line %d: from: %.64q; allowed is a time such as 2027-01-31T06:00:00Z", line, row[at])
		}
		if n := len(hours); n > 0 && !h.from.After(hours[n-1].from) {
			return nil, false, fmt.Errorf("line %d: from: %.64q; allowed is a later time than in the line before", line, row[at])
		}
		for column, to := range map[int]*float64{price: &h.price, carbon: &h.carbon} {
			if column < 0 {
				continue
			}
			if *to, err = strconv.ParseFloat(row[column], 64); err != nil || !validRate(*to) {
				return nil, false, fmt.Errorf("line %d: %s: %.64q; allowed are 0 to %g", line, header[column], row[column], maxCurveValue)
			}
		}
		hours = append(hours, h)
	}
	if limited.N <= 0 {
		return nil, false, fmt.Errorf("it is larger than %d bytes", maxCurve)
	}
	return hours, carbon >= 0, nil
}
