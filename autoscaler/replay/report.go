// SPDX-License-Identifier: MPL-2.0

package replay

import (
	"bytes"
	_ "embed"
	"fmt"
	"html/template"
	"image/color"
	"io"
	"runtime"
	"time"

	"github.com/jedib0t/go-pretty/v6/table"
	"golang.org/x/sync/errgroup"
	"gonum.org/v1/plot"
	"gonum.org/v1/plot/plotter"
	"gonum.org/v1/plot/vg"
	"gonum.org/v1/plot/vg/draw"
	"gonum.org/v1/plot/vg/vgsvg"
)

// Report is all policies over one trace.
type Report struct {
	Tasks   int       `json:"tasks"`
	Skipped int       `json:"tasks_skipped"`
	Seed    uint64    `json:"seed"`
	Bounds  Bounds    `json:"bounds"`
	Results []*Result `json:"policies"`
}

// Compare replays the trace under each policy, several at a time: they share nothing that changes.
func Compare(o Options, policies []Policy) (*Report, error) {
	r := &Report{Tasks: len(o.Trace.Tasks), Skipped: o.Trace.Skipped, Seed: o.Seed}
	r.Results = make([]*Result, len(policies))
	var group errgroup.Group
	group.SetLimit(runtime.GOMAXPROCS(0))
	for i, p := range policies {
		group.Go(func() (err error) {
			r.Results[i], err = Run(o, p)
			return err
		})
	}
	if err := group.Wait(); err != nil {
		return nil, err
	}
	r.Bounds = Bound(o)
	return r, nil
}

var header = []string{"Policy", "Cost", "Of no-wait bound", "Paid GPU h", "Spot", "Used", "Lost GPU h", "Mean wait", "p95 wait", "p95 gang wait", "Nodes bought", "Interruptions", "Unfinished"}

// rows are the table's, the bounds last.
func (r *Report) rows() (rows [][]string) {
	seconds := func(s float64) string {
		return time.Duration(s * float64(time.Second)).Round(time.Second).String()
	}
	percent := func(a, b float64) string {
		if b == 0 {
			return "-"
		}
		return fmt.Sprintf("%.1f %%", 100*a/b)
	}
	for _, x := range r.Results {
		rows = append(rows, []string{x.Policy, fmt.Sprintf("%.0f", x.Cost), fmt.Sprintf("%.2f", x.Cost/max(r.Bounds.NoWait, 1e-9)), fmt.Sprintf("%.0f", x.PaidGPUHours),
			percent(x.SpotGPUHours, x.PaidGPUHours), percent(x.UsedGPUHours, x.PaidGPUHours), fmt.Sprintf("%.0f", x.LostGPUHours), seconds(x.MeanWait), seconds(x.P95Wait),
			seconds(x.P95GangWait), fmt.Sprint(x.Bought), fmt.Sprint(x.Interruptions), fmt.Sprint(x.Unfinished)})
	}
	for _, b := range []struct {
		name string
		cost float64
	}{{"bound: nothing waits", r.Bounds.NoWait}, {"bound: any wait", r.Bounds.Any}} {
		rows = append(rows, []string{b.name, fmt.Sprintf("%.0f", b.cost), fmt.Sprintf("%.2f", b.cost/max(r.Bounds.NoWait, 1e-9)), fmt.Sprintf("%.0f", r.Bounds.GPUHours),
			"", "100.0 %", "0", "", "", "", "", "", ""})
	}
	return rows
}

var spentHeader = []string{"Cost in % of the no-wait bound", "All", "Work at the bound's price", "Dearer pools", "Lost work", "Start", "Idle nodes", "Free GPUs of busy nodes", "Billing"}

// spent are the rows that say what the cost was for. What the bound pays for
// the same work is apart from what dearer pools cost above it; a policy whose
// work waits for cheap pools may be under it.
func (r *Report) spent() (rows [][]string) {
	part := func(v float64) string { return fmt.Sprintf("%.1f", 100*v/max(r.Bounds.NoWait, 1e-9)) }
	for _, x := range r.Results {
		s := x.Spent
		rows = append(rows, []string{x.Policy, part(x.Cost), part(r.Bounds.NoWait), part(s.Work - r.Bounds.NoWait), part(s.Lost), part(s.Start), part(s.Idle), part(s.Unfilled), part(s.Billing)})
	}
	return rows
}

// Table writes the report for people.
func (r *Report) Table(out io.Writer) {
	render(out, header, r.rows())
	render(out, spentHeader, r.spent())
}

func render(out io.Writer, header []string, rows [][]string) {
	t := table.NewWriter()
	t.SetOutputMirror(out)
	t.SetStyle(table.StyleLight)
	row := func(cells []string) (row table.Row) {
		for _, c := range cells {
			row = append(row, c)
		}
		return row
	}
	t.AppendHeader(row(header))
	for _, cells := range rows {
		t.AppendRow(row(cells))
	}
	t.Render()
}

//go:embed report.html
var page string

var pageTemplate = template.Must(template.New("report").Parse(page))

// curves are the plots: what each draws of a point.
var curves = []struct {
	title, axis string
	of          func(Point) float64
}{
	{"Queue", "GPUs that wait", func(p Point) float64 { return float64(p.QueuedGPUs) }},
	{"Spot nodes", "nodes", func(p Point) float64 { return float64(p.Spot) }},
	{"On-demand nodes", "nodes", func(p Point) float64 { return float64(p.OnDemand) }},
	{"Utilisation", "share of GPUs in use", func(p Point) float64 { return p.Used }},
	{"Cost", "per hour", func(p Point) float64 { return p.Cost }},
	{"Wait", "oldest, minutes", func(p Point) float64 { return p.Wait / 60 }},
}

// HTML writes the report as one page that needs nothing else.
func (r *Report) HTML(out io.Writer) error {
	var plots []template.HTML
	for _, c := range curves {
		svg, err := r.draw(c.title, c.axis, c.of)
		if err != nil {
			return fmt.Errorf("plot %q: %w", c.title, err)
		}
		plots = append(plots, svg)
	}
	return pageTemplate.Execute(out, map[string]any{"Report": r, "Header": header, "Rows": r.rows(), "SpentHeader": spentHeader, "Spent": r.spent(), "Legend": r.legend(), "Plots": plots})
}

// colours are told apart by those who see colours poorly, too (Okabe and Ito);
// further policies have them again, dashed.
var colours = []color.RGBA{{0, 114, 178, 255}, {230, 159, 0, 255}, {0, 158, 115, 255}, {204, 121, 167, 255}, {86, 180, 233, 255}, {213, 94, 0, 255}, {0, 0, 0, 255}}

// label is a policy in the page's legend.
type label struct {
	Name, Colour string
	Dashed       bool
}

func (r *Report) legend() (all []label) {
	for i, x := range r.Results {
		if !r.constant(x) {
			c := colours[i%len(colours)]
			all = append(all, label{x.Policy, fmt.Sprintf("#%02x%02x%02x", c.R, c.G, c.B), i >= len(colours)})
		}
	}
	return all
}

// constant policies have the same nodes all the time: a line of theirs would
// only press the others together.
func (r *Report) constant(x *Result) bool { return x.Policy == Fixed{}.Name() && len(r.Results) > 1 }

func (r *Report) draw(title, axis string, of func(Point) float64) (template.HTML, error) {
	p := plot.New()
	p.Title.Text, p.X.Label.Text, p.Y.Label.Text = title, "days", axis
	for i, x := range r.Results {
		points := make(plotter.XYs, len(x.Curve))
		for j, point := range x.Curve {
			points[j] = plotter.XY{X: point.Hours / 24, Y: of(point)}
		}
		if len(points) == 0 || r.constant(x) {
			continue
		}
		line, err := plotter.NewLine(points)
		if err != nil {
			return "", err
		}
		line.Color, line.Width = colours[i%len(colours)], vg.Points(1)
		if i >= len(colours) {
			line.Dashes = []vg.Length{vg.Points(4), vg.Points(2)}
		}
		p.Add(line)
	}
	p.Y.Min = 0
	canvas := vgsvg.NewWith(vgsvg.UseWH(26*vg.Centimeter, 7*vg.Centimeter))
	p.Draw(draw.New(canvas))
	var b bytes.Buffer
	if _, err := canvas.WriteTo(&b); err != nil {
		return "", err
	}
	svg := b.Bytes()
	// The XML declaration has no place inside of a page.
	if i := bytes.Index(svg, []byte("<svg")); i > 0 {
		svg = svg[i:]
	}
	return template.HTML(svg), nil // #nosec G203: gonum/plot escapes the texts it draws
}
