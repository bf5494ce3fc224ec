// SPDX-License-Identifier: MPL-2.0

package replay

import (
	_ "embed"
	"fmt"
	"html/template"
	"io"
	"math"
	"strconv"
	"strings"
)

//go:embed report.html
var page string

var pageTemplate = template.Must(template.New("report").Parse(page))

// curves are the plots: what each draws of a point. A curve of shares ends at 1.
var curves = []struct {
	title, axis string
	share       bool
	of          func(Point) float64
}{
	{"Queue", "GPUs that wait", false, func(p Point) float64 { return float64(p.QueuedGPUs) }},
	{"Spot nodes", "number of nodes", false, func(p Point) float64 { return float64(p.Spot) }},
	{"On-demand nodes", "number of nodes", false, func(p Point) float64 { return float64(p.OnDemand) }},
	{"Utilisation", "% of the GPUs there that are in use", true, func(p Point) float64 { return 100 * p.Used }},
	{"Cost", "per hour, in the currency of the pools' prices", false, func(p Point) float64 { return p.Cost }},
	{"Waits", "minutes that the oldest task in the queue has waited", false, func(p Point) float64 { return p.Wait / 60 }},
}

// A plot is drawn in units of its own, which the page stretches to the width
// there is; its texts are the page's and keep their size.
const plotWidth, plotHeight = 1000, 400

// colours is how many the page has; further policies have them again, dashed.
const colours = 7

type figure struct {
	Title, Axis   string
	Width, Height int
	X, Y          []tick
	XUnit         string
	Grid          string // path data
	Lines         []line
}

// tick is a label, in per cent of the axis.
type tick struct {
	At   float64
	Text string
}

type line struct {
	Policy string
	// N is its place among all policies, which its colour and its switch have too.
	N, Colour int
	Dashed    bool
	Path      string
}

// HTML writes the report as one page that needs nothing else, no script either.
func (r *Report) HTML(out io.Writer) error {
	var figures []figure
	for i := range curves {
		figures = append(figures, r.figure(i))
	}
	var flat []string
	for _, x := range r.Results {
		if r.constant(x) {
			flat = append(flat, x.Policy)
		}
	}
	return pageTemplate.Execute(out, map[string]any{"Report": r, "Header": header, "Rows": r.rows(), "SpentHeader": spentHeader, "Spent": r.spent(),
		"Figures": figures, "Legend": figures[0].Lines, "Flat": flat})
}

// constant policies have the same nodes all the time: a line of theirs would
// only press the others together.
func (r *Report) constant(x *Result) bool { return x.Policy == Fixed{}.Name() && len(r.Results) > 1 }

func (r *Report) figure(i int) figure {
	c := curves[i]
	var hours, most float64
	for _, x := range r.Results {
		for _, p := range x.Curve {
			hours = max(hours, p.Hours)
			if !r.constant(x) {
				most = max(most, c.of(p))
			}
		}
	}
	unit, perUnit := "days", 24.0
	if hours < 72 {
		unit, perUnit = "hours", 1
	}
	hours = max(hours, 1e-9)
	if c.share {
		most = 100
	}
	f := figure{Title: c.title, Axis: c.axis, Width: plotWidth, Height: plotHeight, XUnit: unit}
	f.X, _ = ticks(hours/perUnit, 8, false)
	var top float64
	f.Y, top = ticks(most, 5, true)
	var grid strings.Builder
	for _, t := range f.Y {
		fmt.Fprintf(&grid, "M0,%sH%d", coordinate(plotHeight*(1-t.At/100)), plotWidth)
	}
	f.Grid = grid.String()
	for n, x := range r.Results {
		if len(x.Curve) == 0 || r.constant(x) {
			continue
		}
		var path strings.Builder
		for j, p := range x.Curve {
			separator := "L"
			if j == 0 {
				separator = "M"
			}
			path.WriteString(separator + coordinate(plotWidth*p.Hours/hours) + "," + coordinate(plotHeight*(1-c.of(p)/top)))
		}
		f.Lines = append(f.Lines, line{Policy: x.Policy, N: n, Colour: n % colours, Dashed: n >= colours, Path: path.String()})
	}
	return f
}

// coordinate is to a twentieth of a pixel of a wide screen.
func coordinate(v float64) string { return strconv.FormatFloat(math.Round(v*20)/20, 'f', -1, 64) }

// ticks are round numbers from 0 to most, about count of them and never many
// more, and where the axis ends: at most, or whole at the tick after it.
func ticks(most float64, count int, whole bool) (all []tick, top float64) {
	if !(most > 0) {
		most, whole = 1, true
	}
	step := math.Pow(10, math.Floor(math.Log10(most/float64(count))))
	for _, factor := range []float64{2, 2.5, 2} { // 1, 2, 5, 10
		if most/step <= float64(count) {
			break
		}
		step *= factor
	}
	top = most
	if whole {
		top = step * math.Ceil(most/step-1e-9)
	}
	digits := max(0, -int(math.Floor(math.Log10(step)+1e-9)))
	for i := 0; float64(i)*step <= top*(1+1e-9); i++ {
		v := float64(i) * step
		all = append(all, tick{math.Round(1e4*v/top) / 100, strconv.FormatFloat(v, 'f', digits, 64)})
	}
	return all, top
}
