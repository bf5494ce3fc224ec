// SPDX-License-Identifier: MPL-2.0

package notice

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
	"unicode/utf8"

	"github.com/shoenig/test/must"
	"golang.org/x/sys/unix"
	"pgregory.net/rapid"
)

// script answers one read after another, then ends the watch.
type script struct {
	answers []answer
	end     context.CancelFunc
}

type answer struct {
	notice *Notice
	err    error
}

func (s *script) Read(context.Context) (*Notice, error) {
	if len(s.answers) == 0 {
		s.end()
		return nil, nil
	}
	a := s.answers[0]
	s.answers = s.answers[1:]
	return a.notice, a.err
}

// follow watches a script to its end and returns what was told, in order.
func follow(answers ...answer) []string {
	ctx, cancel := context.WithCancel(context.Background())
	ticks := make(chan time.Time, len(answers))
	for range answers {
		ticks <- time.Time{}
	}
	var told []string
	Watch(ctx, &script{answers, cancel}, ticks, func(n *Notice) {
		if n == nil {
			told = append(told, "withdrawn")
			return
		}
		told = append(told, n.String())
	}, func(err error) {
		if err == nil {
			told = append(told, "reads again")
			return
		}
		told = append(told, "trouble: "+err.Error())
	})
	return told
}

func TestAWatchTellsEachChangeOnce(t *testing.T) {
	at := time.Date(2026, 12, 1, 10, 0, 0, 0, time.UTC)
	stop := answer{notice: &Notice{What: "a", At: at}}
	failed := answer{err: errors.New("no route")}
	for name, c := range map[string]struct {
		answers []answer
		told    []string
	}{
		"no notice, nothing to tell":        {[]answer{{}, {}}, nil},
		"a notice that stands is told once": {[]answer{stop, stop, stop}, []string{"spot notice: a at 2026-12-01T10:00:00Z"}},
		"a notice is withdrawn":             {[]answer{stop, {}, {}}, []string{"spot notice: a at 2026-12-01T10:00:00Z", "withdrawn"}},
		"another time is another notice":    {[]answer{stop, {notice: &Notice{What: "a"}}}, []string{"spot notice: a at 2026-12-01T10:00:00Z", "spot notice: a"}},
		"the same instant in another zone is the same": {[]answer{stop, {notice: &Notice{What: "a", At: at.In(time.FixedZone("x", 3600))}}},
			[]string{"spot notice: a at 2026-12-01T10:00:00Z"}},
		"an error withdraws nothing": {[]answer{stop, failed, failed, stop}, []string{"spot notice: a at 2026-12-01T10:00:00Z", "trouble: no route", "reads again"}},
		"each row of errors is told": {[]answer{failed, {}, failed}, []string{"trouble: no route", "reads again", "trouble: no route"}},
	} {
		t.Run(name, func(t *testing.T) { must.Eq(t, c.told, follow(c.answers...)) })
	}
}

func TestAFileIsANoticeWhileItIsThere(t *testing.T) {
	path := filepath.Join(t.TempDir(), "notice")
	s := New(Config{Source: "file", Path: path, Period: time.Second})
	read := func() (*Notice, error) { return s.Read(t.Context()) }
	n, err := read()
	must.NoError(t, err)
	must.Nil(t, n)
	for text, what := range map[string]string{
		"rack 3 is moved\nsecond line": "rack 3 is moved",
		"":                             path + " is there",
		"\x1b[31mred\x00":              "[31mred",
		strings.Repeat("ä", 5000):      strings.Repeat("ä", 80) + "…",
	} {
		must.NoError(t, os.WriteFile(path, []byte(text), 0o600))
		n, err = read()
		must.NoError(t, err)
		must.Eq(t, what, n.What)
	}
	must.NoError(t, os.Remove(path))
	n, err = read()
	must.NoError(t, err)
	must.Nil(t, n)
	must.NoError(t, unix.Mkfifo(path, 0o600))
	_, err = read()
	must.ErrorContains(t, err, "no regular file")
}

func TestEachFaultOfTheNoticeBlockIsNamedWithWhatIsAllowed(t *testing.T) {
	valid := Config{Source: "aws", Period: 5 * time.Second}
	must.NoError(t, valid.Validate())
	must.NoError(t, Config{}.Validate())
	must.NoError(t, Config{Source: "file", Path: "/run/notice", Period: time.Second}.Validate())
	for want, change := range map[string]func(*Config){
		`notice.source: "gcp"; allowed are "aws", "google"`:         func(c *Config) { c.Source = "gcp" },
		`notice.path: "here"; allowed is an absolute path`:          func(c *Config) { c.Source, c.Path = "file", "here" },
		`notice.path: "/x"; allowed is "" unless`:                   func(c *Config) { c.Path = "/x" },
		`notice.address: "https://x"; allowed is http://host:port`:  func(c *Config) { c.Address = "https://x" },
		`notice.address: "http://u@x"; allowed is http://host:port`: func(c *Config) { c.Address = "http://u@x" },
		`notice.address: "x:80"; allowed is http://host:port`:       func(c *Config) { c.Address = "x:80" },
		`notice.period: 1ms; allowed are 1s to 1m`:                  func(c *Config) { c.Period = time.Millisecond },
		`notice.period: 1h0m0s; allowed are 1s to 1m`:               func(c *Config) { c.Period = time.Hour },
	} {
		c := valid
		change(&c)
		must.ErrorContains(t, c.Validate(), want)
	}
}

func TestWhateverAServiceSaysBecomesOneShortLine(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		got := line(string(rapid.SliceOf(rapid.Byte()).Draw(t, "text")))
		if len(got) > 160+len("…") || !utf8.ValidString(got) || strings.ContainsFunc(got, func(r rune) bool { return r < ' ' }) {
			t.Fatalf("%q", got)
		}
	})
}
