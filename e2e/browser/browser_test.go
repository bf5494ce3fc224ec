// SPDX-License-Identifier: MPL-2.0

// Package browser opens the replay's report in a real browser. It is a module
// of its own, so that the browser's driver does not become the project's.
package browser

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/chromedp/cdproto/cdp"
	"github.com/chromedp/cdproto/emulation"
	"github.com/chromedp/cdproto/log"
	"github.com/chromedp/cdproto/network"
	"github.com/chromedp/cdproto/runtime"
	"github.com/chromedp/chromedp"
	"github.com/shoenig/test/must"
)

// browsers are the programs that can be driven, the smallest first.
var browsers = []string{"chromium-headless-shell", "chromium", "chromium-browser", "google-chrome"}

// report is what the replay says in JSON, as far as the page draws it.
type report struct {
	Trace    string
	Tasks    int
	Seed     uint64
	Policies []struct {
		Policy string
		Curve  []map[string]float64
	}
}

// drawn are the policies that have a line, by their place in the report.
func (r report) drawn() (all []int) {
	for i, p := range r.Policies {
		if p.Policy != "fixed" {
			all = append(all, i)
		}
	}
	return all
}

// replayed runs a short replay with the built program.
func replayed(t *testing.T) (r report, page []byte) {
	t.Helper()
	root, err := filepath.Abs("../..")
	must.NoError(t, err)
	file := filepath.Join(t.TempDir(), "report.html")
	var spot []string
	for pool, zone := range map[string]string{"spot-east-2b": "us-east-2b", "spot-west-2a": "us-west-2a"} {
		spot = append(spot, "--spot", pool+"=availability_16-node_aws-08-27-2023_"+zone+"_v100_1.json")
	}
	cmd := exec.CommandContext(t.Context(), filepath.Join(root, ".cache/bin/autoscaler/nomad-autoscaler-gpu"),
		append([]string{"replay", "--pools", "pools.hcl", "--gangs", "80", "--gang-nodes", "8", "--gang-every", "20m", "--gang-longest", "6h", "--seed", "7", "--json", "--html", file}, spot...)...)
	cmd.Dir, cmd.Stderr = filepath.Join(root, "autoscaler/replay/testdata"), os.Stderr
	out, err := cmd.Output()
	must.NoError(t, err, must.Sprint("make build makes the program"))
	must.NoError(t, json.Unmarshal(out, &r))
	page, err = os.ReadFile(file)
	must.NoError(t, err)
	return r, page
}

// tab is a page in the browser, with what it said and asked for.
type tab struct {
	ctx context.Context

	mu    sync.Mutex
	said  []string
	asked []string
}

// open serves a page and opens it.
func open(t *testing.T, page []byte) *tab {
	t.Helper()
	var program string
	for _, name := range browsers {
		if found, err := exec.LookPath(name); err == nil {
			program = found
			break
		}
	}
	if program == "" {
		t.Skip("needs a browser: on Debian, apt-get install chromium-headless-shell")
	}
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Type", "text/html")
		w.Write(page)
	}))
	t.Cleanup(server.Close)
	options := append(slices.Clone(chromedp.DefaultExecAllocatorOptions[:]), chromedp.ExecPath(program), chromedp.DisableGPU, chromedp.UserDataDir(t.TempDir()))
	if os.Geteuid() == 0 {
		options = append(options, chromedp.NoSandbox) // it refuses root with one
	}
	// The browser must end also where the test's own context has.
	all, stop := context.WithTimeout(context.Background(), 5*time.Minute)
	t.Cleanup(stop)
	all, stop = chromedp.NewExecAllocator(all, options...)
	t.Cleanup(stop)
	p := &tab{}
	var end context.CancelFunc
	p.ctx, end = chromedp.NewContext(all, chromedp.WithListener(p.hear))
	t.Cleanup(end)
	_, err := chromedp.Call(p.ctx, log.Enable, cdp.Empty{})
	must.NoError(t, err)
	_, err = chromedp.Call(p.ctx, network.Enable, network.EnableParams{})
	must.NoError(t, err)
	must.NoError(t, chromedp.Do(p.ctx, chromedp.Navigate(server.URL)))
	return p
}

func (p *tab) hear(event any) {
	p.mu.Lock()
	defer p.mu.Unlock()
	switch e := event.(type) {
	case *runtime.EventConsoleAPICalled:
		p.said = append(p.said, fmt.Sprintf("console.%s", e.Type))
	case *runtime.EventExceptionThrown:
		p.said = append(p.said, e.ExceptionDetails.Text)
	case *log.EventEntryAdded:
		p.said = append(p.said, e.Entry.Text)
	case *network.EventRequestWillBeSent:
		p.asked = append(p.asked, e.Request.URL)
	}
}

// look shows the page at a width, to a medium, in a colour scheme.
func (p *tab) look(t *testing.T, width int, medium, scheme string) {
	t.Helper()
	must.NoError(t, chromedp.Do(p.ctx, chromedp.EmulateViewport(int64(width), 900)))
	_, err := chromedp.Call(p.ctx, emulation.SetEmulatedMedia, emulation.SetEmulatedMediaParams{Media: medium,
		Features: []*emulation.MediaFeature{{Name: "prefers-color-scheme", Value: scheme}}})
	must.NoError(t, err)
}

// ask evaluates JavaScript in the page.
func ask[T any](t *testing.T, p *tab, script string) T {
	t.Helper()
	got, err := chromedp.Run(p.ctx, chromedp.Evaluate[T](script))
	must.NoError(t, err)
	return got
}
