// SPDX-License-Identifier: MPL-2.0

package browser

import (
	"bytes"
	"fmt"
	"image"
	"image/png"
	"math"
	"strconv"
	"strings"
	"testing"

	"github.com/chromedp/cdproto/accessibility"
	"github.com/chromedp/cdproto/page"
	"github.com/chromedp/chromedp"
	"github.com/shoenig/test/must"
)

// plots are the report's, and what each draws of a point in the JSON.
var plots = []struct {
	title string
	of    func(map[string]float64) float64
}{
	{"Queue", func(p map[string]float64) float64 { return p["queued_gpus"] }},
	{"Spot nodes", func(p map[string]float64) float64 { return p["spot_nodes"] }},
	{"On-demand nodes", func(p map[string]float64) float64 { return p["on_demand_nodes"] }},
	{"Utilisation", func(p map[string]float64) float64 { return 100 * p["used_share"] }},
	{"Cost", func(p map[string]float64) float64 { return p["cost_per_hour"] }},
	{"Waits", func(p map[string]float64) float64 { return p["oldest_wait_seconds"] / 60 }},
}

func TestTheReportIsWholeInABrowser(t *testing.T) {
	r, html := replayed(t)
	p := open(t, html)
	p.look(t, 1400, "screen", "light")

	t.Run("it states its trace and seed", func(t *testing.T) {
		text := ask[string](t, p, `document.body.innerText`)
		must.StrContains(t, text, fmt.Sprintf("Trace: %s, %d tasks", r.Trace, r.Tasks))
		must.StrContains(t, text, fmt.Sprintf("Seed: %d.", r.Seed))
		must.StrContains(t, text, "us-east-2b")
	})
	t.Run("each plot has each policy's values, read off its axes", func(t *testing.T) { values(t, p, r) })
	t.Run("a policy's line has its colour and its switch", func(t *testing.T) { switches(t, p, r) })
	t.Run("texts and lines stand out, in light and in dark", func(t *testing.T) { contrast(t, p) })
	t.Run("it fits narrow and wide screens", func(t *testing.T) { fits(t, p) })
	t.Run("it can be printed", func(t *testing.T) { prints(t, p) })
	t.Run("all of it has an accessible name", func(t *testing.T) { names(t, p, r) })
	t.Run("it has no fault and asks for nothing else", func(t *testing.T) {
		p.mu.Lock()
		defer p.mu.Unlock()
		must.SliceEmpty(t, p.said)
		must.Len(t, 1, p.asked, must.Sprint(p.asked))
	})
}

// figure is a plot as the browser has laid it out, in CSS pixels.
type figure struct {
	Title, Axis, Unit string
	Box               box
	X, Y              []label
	Lines             []struct {
		Policy string
		Points [][2]float64
	}
}

type box struct{ Left, Top, Right, Bottom float64 }

type label struct {
	Text   string
	Box    box
	Height float64 // of a line of its text
}

const figuresScript = `[...document.querySelectorAll('figure')].map(f => {
  const box = e => { const r = e.getBoundingClientRect(); return {Left: r.left, Top: r.top, Right: r.right, Bottom: r.bottom} }
  const labels = s => [...f.querySelectorAll(s)].map(e => ({Text: e.textContent, Box: box(e), Height: parseFloat(getComputedStyle(e).lineHeight)}))
  const svg = f.querySelector('svg')
  return {
    Title: f.querySelector('figcaption strong').textContent, Axis: f.querySelector('figcaption span').textContent, Unit: f.querySelector('.plot p').textContent,
    Box: box(svg), X: labels('.x li'), Y: labels('.y li'),
    Lines: [...svg.querySelectorAll('path:has(title)')].map(p => ({
      Policy: p.querySelector('title').textContent,
      Points: p.getAttribute('d').slice(1).split('L').map(s => { const q = new DOMPoint(...s.split(',').map(Number)).matrixTransform(p.getScreenCTM()); return [q.x, q.y] }),
    })),
  }
})`

// axis turns positions into values, by the first and the last label.
func axis(t *testing.T, labels []label, middle func(box) float64) func(float64) float64 {
	t.Helper()
	must.GreaterEq(t, 3, len(labels))
	at := func(l label) (position, value float64) {
		v, err := strconv.ParseFloat(l.Text, 64)
		must.NoError(t, err)
		return middle(l.Box), v
	}
	p0, v0 := at(labels[0])
	p1, v1 := at(labels[len(labels)-1])
	must.Eq(t, 0, v0)
	must.Greater(t, 0, v1)
	return func(p float64) float64 { return v0 + (p-p0)*(v1-v0)/(p1-p0) }
}

func values(t *testing.T, p *tab, r report) {
	figures := ask[[]figure](t, p, figuresScript)
	must.Len(t, len(plots), figures)
	for i, f := range figures {
		must.Eq(t, plots[i].title, f.Title)
		must.NotEq(t, "", f.Axis)
		must.Greater(t, 800, f.Box.Right-f.Box.Left)
		must.Greater(t, 150, f.Box.Bottom-f.Box.Top)
		x := axis(t, f.X, func(b box) float64 { return (b.Left + b.Right) / 2 })
		y := axis(t, f.Y, func(b box) float64 { return (b.Top + b.Bottom) / 2 })
		perUnit := map[string]float64{"hours": 1, "days": 24}[f.Unit]
		// A pixel may be lost.
		dx, dy := math.Abs(x(1)-x(0))*perUnit, math.Abs(y(1)-y(0))
		must.Len(t, len(r.drawn()), f.Lines, must.Sprint(f.Title))
		some := 0.0
		for j, n := range r.drawn() {
			policy, line := r.Policies[n], f.Lines[j]
			must.Eq(t, policy.Policy, line.Policy)
			must.Eq(t, len(policy.Curve), len(line.Points))
			for k, point := range policy.Curve {
				where := must.Sprintf("%s, %s, point %d", f.Title, line.Policy, k)
				must.InDelta(t, point["hours"], x(line.Points[k][0])*perUnit, dx, where)
				must.InDelta(t, plots[i].of(point), y(line.Points[k][1]), dy, where)
				must.Between(t, f.Box.Top-1, line.Points[k][1], f.Box.Bottom+1, where)
				some = max(some, plots[i].of(point))
			}
		}
		must.Greater(t, 0, some, must.Sprintf("%s: the replay must have something to draw", f.Title))
	}
}

// switches shows one policy at a time, and looks for its colour on the screen.
func switches(t *testing.T, p *tab, r report) {
	boxes := ask[int](t, p, `document.querySelectorAll('.legend input').length`)
	must.Eq(t, len(r.drawn()), boxes)
	shown := `new Set([...document.querySelectorAll('figure path:has(title)')].filter(e => e.checkVisibility()).map(e => e.querySelector('title').textContent))`
	click := func(n int) {
		t.Helper()
		must.NoError(t, chromedp.Do(p.ctx, chromedp.Click(chromedp.CSS(fmt.Sprintf("#policy-%d", n)))))
	}
	for _, n := range r.drawn() {
		click(n)
	}
	must.Eq(t, []string{}, ask[[]string](t, p, `[...`+shown+`]`))
	for _, scheme := range []string{"light", "dark"} {
		p.look(t, 1400, "screen", scheme)
		for _, n := range r.drawn() {
			click(n)
			must.Eq(t, []string{r.Policies[n].Policy}, ask[[]string](t, p, `[...`+shown+`]`))
			colour := ask[[]float64](t, p, fmt.Sprintf(`getComputedStyle(document.querySelector('.policy-%d')).stroke.match(/[\d.]+/g).map(Number)`, n))
			must.Eq(t, colour, ask[[]float64](t, p, fmt.Sprintf(`getComputedStyle(document.querySelector('label:has(#policy-%d) i')).borderTopColor.match(/[\d.]+/g).map(Number)`, n)),
				must.Sprint("the legend's colour is the line's"))
			data, err := chromedp.Run(p.ctx, chromedp.Screenshot(chromedp.CSS(`svg[aria-labelledby="figure-1"]`)))
			must.NoError(t, err)
			picture, err := png.Decode(bytes.NewReader(data))
			must.NoError(t, err)
			must.Greater(t, 300, pixels(picture, colour), must.Sprintf("%s, %s", r.Policies[n].Policy, scheme))
			click(n)
		}
	}
	p.look(t, 1400, "screen", "light")
	for _, n := range r.drawn() {
		click(n)
	}
	must.Len(t, len(r.drawn()), ask[[]string](t, p, `[...`+shown+`]`))
}

// pixels counts those of a colour, edges left out.
func pixels(picture image.Image, colour []float64) (n int) {
	b := picture.Bounds()
	for x := b.Min.X; x < b.Max.X; x++ {
		for y := b.Min.Y; y < b.Max.Y; y++ {
			red, green, blue, _ := picture.At(x, y).RGBA()
			if math.Abs(float64(red>>8)-colour[0])+math.Abs(float64(green>>8)-colour[1])+math.Abs(float64(blue>>8)-colour[2]) < 60 {
				n++
			}
		}
	}
	return n
}

// contrastScript lists texts and lines with less contrast than WCAG 2.2 asks
// for: 4.5 (success criterion 1.4.3) and 3 (1.4.11).
const contrastScript = `(() => {
  const channels = c => c.match(/[\d.]+/g).slice(0, 3).map(Number)
  const luminance = c => channels(c).map(v => v / 255).map(v => v <= .04045 ? v / 12.92 : ((v + .055) / 1.055) ** 2.4).reduce((s, v, i) => s + v * [.2126, .7152, .0722][i], 0)
  const paper = luminance(getComputedStyle(document.body).backgroundColor)
  const ratio = c => { const l = luminance(c); return (Math.max(l, paper) + .05) / (Math.min(l, paper) + .05) }
  const bad = [], texts = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT)
  while (texts.nextNode()) {
    const e = texts.currentNode.parentElement, c = getComputedStyle(e).color
    if (texts.currentNode.textContent.trim() && !e.closest('svg, style') && ratio(c) < 4.5) bad.push(e.textContent + ': ' + c)
  }
  for (const e of document.querySelectorAll('path:has(title)')) if (ratio(getComputedStyle(e).stroke) < 3) bad.push(e.textContent + ': ' + getComputedStyle(e).stroke)
  return {Paper: paper, Bad: bad}
})()`

func contrast(t *testing.T, p *tab) {
	type look struct {
		Paper float64 // its luminance
		Bad   []string
	}
	p.look(t, 1400, "screen", "light")
	light := ask[look](t, p, contrastScript)
	p.look(t, 1400, "screen", "dark")
	dark := ask[look](t, p, contrastScript)
	must.SliceEmpty(t, append(light.Bad, dark.Bad...))
	must.Greater(t, 0.9, light.Paper)
	must.Less(t, 0.05, dark.Paper)
	p.look(t, 1400, "screen", "light")
}

// outsideScript lists what is over the edge of the page, other than in a box
// that scrolls.
const outsideScript = `[...document.body.querySelectorAll('*')].filter(e => e.checkVisibility() && !e.closest('.scroll > *, svg *, legend, style')).filter(e => {
  const r = e.getBoundingClientRect()
  return r.width > 0 && (r.left < 0 || r.right > document.documentElement.clientWidth + .5)
}).map(e => e.tagName + ' ' + e.className + ' ' + e.textContent.slice(0, 40))`

func fits(t *testing.T, p *tab) {
	for _, width := range []int{400, 1400} {
		p.look(t, width, "screen", "light")
		must.LessEq(t, width, ask[int](t, p, `document.documentElement.scrollWidth`))
		must.SliceEmpty(t, ask[[]string](t, p, outsideScript), must.Sprint(width))
		for _, f := range ask[[]figure](t, p, figuresScript) {
			must.Greater(t, float64(width)*0.6, f.Box.Right-f.Box.Left)
			must.Greater(t, 100, f.Box.Bottom-f.Box.Top)
			for _, labels := range [][]label{f.X, f.Y} {
				for i, l := range labels {
					must.LessEq(t, 1.5*l.Height, l.Box.Bottom-l.Box.Top, must.Sprintf("%d wide, %s: %q is broken into lines", width, f.Title, l.Text))
					for _, other := range labels[:i] {
						apart := l.Box.Left >= other.Box.Right || other.Box.Left >= l.Box.Right || l.Box.Top >= other.Box.Bottom || other.Box.Top >= l.Box.Bottom
						must.True(t, apart, must.Sprintf("%d wide, %s: %q is over %q", width, f.Title, l.Text, other.Text))
					}
				}
			}
		}
	}
	p.look(t, 1400, "screen", "light")
}

func prints(t *testing.T, p *tab) {
	// A4, landscape, without the page's margins: 273 mm of 96 pixels an inch.
	p.look(t, 1031, "print", "dark")
	must.Eq(t, "rgb(255, 255, 255)", ask[string](t, p, `getComputedStyle(document.body).backgroundColor`), must.Sprint("paper is white"))
	must.Eq(t, 0, ask[int](t, p, `[...document.querySelectorAll('input')].filter(e => e.checkVisibility()).length`))
	must.SliceEmpty(t, ask[[]string](t, p, `[...document.querySelectorAll('.scroll')].filter(e => e.scrollWidth > e.clientWidth).map(e => e.getAttribute('aria-labelledby'))`),
		must.Sprint("nothing scrolls on paper"))
	p.look(t, 1400, "", "light")
	yes := true
	pdf, err := chromedp.Call(p.ctx, page.PrintToPDF, page.PrintToPDFParams{PreferCSSPageSize: &yes, PrintBackground: &yes})
	must.NoError(t, err)
	must.True(t, bytes.HasPrefix(pdf.Data, []byte("%PDF-")))
	must.Between(t, 3, strings.Count(string(pdf.Data), "/MediaBox"), 8, must.Sprint("pages"))
	p.look(t, 1400, "screen", "light")
}

func names(t *testing.T, p *tab, r report) {
	tree, err := chromedp.Call(p.ctx, accessibility.GetFullAXTree, accessibility.GetFullAXTreeParams{})
	must.NoError(t, err)
	text := func(v *accessibility.Value) string {
		if v == nil {
			return ""
		}
		s, _ := strconv.Unquote(string(v.Value))
		return s
	}
	named := map[string][]string{}
	for _, n := range tree.Nodes {
		if n.Ignored {
			continue
		}
		role, name := text(n.Role), text(n.Name)
		switch role {
		case "image", "img", "checkbox", "table", "region", "RootWebArea", "columnheader", "rowheader", "group", "heading", "figure":
			must.NotEq(t, "", name, must.Sprintf("a %s has no name", role))
			named[role] = append(named[role], name)
		}
	}
	var figures, policies []string
	for _, f := range ask[[]figure](t, p, figuresScript) {
		figures = append(figures, f.Title+" "+f.Axis)
	}
	for _, n := range r.drawn() {
		policies = append(policies, r.Policies[n].Policy)
	}
	must.Eq(t, figures, append(named["image"], named["img"]...))
	must.Eq(t, policies, named["checkbox"])
	must.Eq(t, []string{"Policies", "What the cost was for", "Pools"}, named["table"])
	must.Eq(t, []string{"Replay of GPU pools: " + r.Trace}, named["RootWebArea"])
}
