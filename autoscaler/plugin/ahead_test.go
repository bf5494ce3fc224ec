// SPDX-License-Identifier: MPL-2.0

package plugin

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/hashicorp/go-hclog"
	"github.com/shoenig/test/must"

	"github.com/nomad-gpu/nomad-gpu/autoscaler/demand"
	"github.com/nomad-gpu/nomad-gpu/autoscaler/forecast"
	"github.com/nomad-gpu/nomad-gpu/autoscaler/plan"
)

// tuesday is one at 08:50, after three weeks of a record.
var tuesday = time.Date(2026, 12, 1, 8, 50, 0, 0, time.UTC)

// weeks are the lines of a record of some weeks before a time: each Tuesday from
// 9 to 17 o'clock 24 GPUs of the pool own, a third of them while they wait.
func weeks(until time.Time, weeks int) (all []demand.Sample) {
	for at := until.Add(-time.Duration(weeks) * 7 * 24 * time.Hour); at.Before(until); at = at.Add(4 * time.Minute) {
		// What is bought ahead is no load: there are more nodes than are used.
		own := demand.Sample{At: at, Pool: "own", Nodes: 8, GPUs: 64}
		if at.Weekday() == time.Tuesday && at.Hour() >= 9 && at.Hour() < 17 {
			own.Used = []demand.Held{{Namespace: "a", Job: "j", GPUs: 12}, {Namespace: "b", Job: "k", GPUs: 4}}
			own.Queued, own.Coming = 100, 8
		}
		all = append(all, demand.Sample{At: at, Pool: "asg"}, own, demand.Sample{At: at, Pool: "gone", Used: []demand.Held{{GPUs: 900}}})
	}
	return all
}

func expecting(t *testing.T, path string, r demand.Reading) (*Lookout, *strings.Builder) {
	l, _, _ := lookout(t, fmt.Sprintf("forecast {\n  record = %q\n}\n", path)+strings.Replace(file, "gpus = 8", "gpus  = 8\n    model = \"L40S\"", 1), r)
	var err error
	l.ahead, err = newForesight(l.File)
	must.NoError(t, err)
	var log strings.Builder
	l.logger = hclog.New(&hclog.LoggerOptions{Output: &log})
	return l, &log
}

func TestNodesAreBoughtAheadOfWhatTheRecordHasRecur(t *testing.T) {
	path := filepath.Join(t.TempDir(), "record")
	must.NoError(t, appendRecord(path, weeks(tuesday, 3)))
	l, log := expecting(t, path, demand.Reading{At: tuesday})
	decide := func() (asg, own plan.Decision) {
		in, resting, err := l.input("", 0)
		must.NoError(t, err)
		out := planAround(in, resting)
		asg, _ = out.Of("asg")
		own, _ = out.Of("own")
		return asg, own
	}
	asg, own := decide()
	must.Eq(t, 0, asg.Want, must.Sprint("it is cheaper, and has another model"))
	must.Eq(t, 3, own.Want)
	must.Eq(t, "3 more nodes are bought ahead: 24 GPUs or more were asked for between 08:50 and 09:05 UTC on 3 of the last 3 Tuesdays", own.Reason)
	must.Eq(t, "", log.String())

	l.reading.At = tuesday.Add(-10 * time.Minute)
	_, own = decide()
	must.Eq(t, 0, own.Want, must.Sprint("it is too early"))

	// The record goes on, and nobody comes.
	for at := tuesday; at.Before(tuesday.Add(31 * time.Minute)); at = at.Add(time.Minute) {
		must.NoError(t, appendRecord(path, []demand.Sample{{At: at, Pool: "own", Nodes: 3, GPUs: 24}}))
	}
	l.reading.At = tuesday.Add(20 * time.Minute)
	_, own = decide()
	must.Eq(t, 3, own.Want)
	l.reading.At = tuesday.Add(31 * time.Minute)
	_, own = decide()
	must.Eq(t, 0, own.Want)
}

func TestNothingIsExpectedOfTooShortARecord(t *testing.T) {
	path := filepath.Join(t.TempDir(), "record")
	l, log := expecting(t, path, demand.Reading{At: tuesday})
	in, _, err := l.input("", 0)
	must.NoError(t, err)
	must.SliceEmpty(t, in.Ahead, must.Sprint("there is no record yet"))
	must.NoError(t, appendRecord(path, weeks(tuesday, 2)))
	in, _, err = l.input("", 0)
	must.NoError(t, err)
	must.Eq(t, plan.Ahead{Why: "nothing is expected yet: 2 of the 3 periods of 168h0m0s that are needed are known"}, in.Ahead[0])
	must.Eq(t, "", log.String())
}

func TestARecordThatIsDamagedIsReadAsFarAsItIsWhole(t *testing.T) {
	path := filepath.Join(t.TempDir(), "record")
	must.NoError(t, appendRecord(path, weeks(tuesday, 3)))
	f, err := os.OpenFile(path, os.O_APPEND|os.O_WRONLY, 0)
	must.NoError(t, err)
	defer f.Close()
	for _, line := range []string{
		`{"at":"2026-12-01T08:40:00Z","pool":"own","nodes":1,"gpus":8,"used":[{"gpus":-8}]}`,
		`{"at":"2026-12-01T08:40:00Z","pool":"own","used":[{"gpus":9999999999}]}`,
		`{"at":"2126-12-01T08:40:00Z","pool":"own","nodes":1}`,
		`{"at":"0001-01-01T00:00:00Z","pool":"own","nodes":1}`, // so old that it is left out as that
		`{"at":"1999-01-01T00:00:00Z","pool":"own","nodes":1}`, // old, and no fault
		strings.Repeat("x", 3*recordLine),
		"\x00\x00", "{}", "",
		`{"at":"2026-12-01T08:49:30Z","pool":"own","used":[{"gpus":5}]}`,
		`{"at":"2026-12-01T08:49:40Z","po`,
	} {
		_, err := f.WriteString(line)
		must.NoError(t, err)
		if !strings.HasSuffix(line, "po") {
			_, err = f.WriteString("\n")
			must.NoError(t, err)
		}
	}
	l, log := expecting(t, path, demand.Reading{At: tuesday})
	for range 2 {
		in, _, err := l.input("", 0)
		must.NoError(t, err)
		must.Eq(t, 24, expected(plan.Output{Ahead: in.Ahead}))
	}
	must.Eq(t, 1, strings.Count(log.String(), "7 lines are left out, the first at "+path+", byte "), must.Sprint(log))
	must.Eq(t, 5, l.ahead.gpus[""])
	_, err = f.WriteString(`ol":"own","used":[{"gpus":7}]}` + "\n")
	must.NoError(t, err)
	_, _, err = l.input("", 0)
	must.NoError(t, err)
	must.Eq(t, 7, l.ahead.gpus[""], must.Sprint("the line that was being written is whole"))
}

func TestAClockThatWentBackHasTheRecordReadAnew(t *testing.T) {
	path := filepath.Join(t.TempDir(), "record")
	must.NoError(t, appendRecord(path, weeks(tuesday, 3)))
	l, log := expecting(t, path, demand.Reading{At: tuesday})
	gpus := func() int {
		in, _, err := l.input("", 0)
		must.NoError(t, err)
		return expected(plan.Output{Ahead: in.Ahead})
	}
	must.Eq(t, 24, gpus())
	l.reading.At = tuesday.AddDate(1, 0, 0)
	must.NoError(t, appendRecord(path, []demand.Sample{{At: l.reading.At, Pool: "own"}}))
	must.Eq(t, 0, gpus())
	l.reading.At = tuesday
	must.Eq(t, 24, gpus())
	must.StrContains(t, log.String(), "it is from the future: 2027-12-01T08:50:00Z")
}

func TestARecordIsReadOnceThroughItsRenaming(t *testing.T) {
	path := filepath.Join(t.TempDir(), "record")
	var got []string
	begun := 0
	tail := recordTail{path: path}
	read := func() string {
		got = nil
		must.NoError(t, tail.read(func() { begun++ }, func(line []byte, _ string) { got = append(got, string(line)) }))
		return strings.Join(got, " ")
	}
	write := func(path, text string) {
		f, err := os.OpenFile(path, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
		must.NoError(t, err)
		_, err = f.WriteString(text)
		must.NoError(t, err)
		must.NoError(t, f.Close())
	}
	must.Eq(t, "", read())
	write(path+".1", "a\nb\n")
	write(path, "c\nd")
	must.Eq(t, "a b c", read())
	must.Eq(t, "", read())
	write(path, "d\ne\n")
	must.Eq(t, "dd e", read())
	write(path, "f\n")
	must.NoError(t, os.Rename(path, path+".1"))
	must.Eq(t, "", read(), must.Sprint("the next is not there yet"))
	write(path, "g\n")
	must.Eq(t, "f g", read())
	begun = 0
	must.NoError(t, os.WriteFile(path, []byte("h\n"), 0o600))
	must.Eq(t, "", read(), must.Sprint("as long as before: not seen to be another"))
	must.NoError(t, os.WriteFile(path, nil, 0o600))
	must.Eq(t, "c dd e f", read())
	must.Eq(t, 1, begun)
	must.NoError(t, os.Remove(path))
	must.NoError(t, os.Mkdir(path, 0o700))
	must.ErrorContains(t, tail.read(func() {}, nil), "allowed is a file")
}

func TestTheStrategyKeepsTheRecordOfTheForecast(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, "record")
	l, _ := expecting(t, path, demand.Reading{})
	must.NoError(t, l.keepRecord())
	must.Eq(t, path, l.record)
	must.NoError(t, l.keepRecord(), must.Sprint("the same file twice is no fault"))
	l.record = filepath.Join(dir, "other")
	must.ErrorContains(t, l.keepRecord(), fmt.Sprintf("record_file: %q; with the pools file's forecast allowed is its record, %q, or none", l.record, path))
	l, _ = expecting(t, filepath.Join(dir, "no", "record"), demand.Reading{})
	must.ErrorContains(t, l.keepRecord(), "forecast.record: open ")
	l, _, _ = lookout(t, file, demand.Reading{})
	must.NoError(t, l.keepRecord())
	must.Eq(t, "", l.record)
}

func FuzzRecordLine(f *testing.F) {
	for _, s := range weeks(tuesday, 1)[:6] {
		line, err := json.Marshal(s)
		must.NoError(f, err)
		f.Add(line)
	}
	f.Add([]byte(`{"at":"2026-12-01T08:49:30Z","pool":"own","used":[{"gpus":1048577}]}`))
	f.Add([]byte("\x00\n{}\n"))
	f.Fuzz(func(t *testing.T, text []byte) {
		path := filepath.Join(t.TempDir(), "record")
		must.NoError(t, os.WriteFile(path, text, 0o600))
		l, _ := expecting(t, path, demand.Reading{At: tuesday})
		for range 2 {
			ahead, _ := l.ahead.expect(tuesday)
			for _, a := range ahead {
				must.Eq(t, 0, a.GPUs, must.Sprint("of less than three weeks"))
			}
		}
		must.False(t, l.ahead.newest.Sub(tuesday) > RecordGap)
	})
}

// BenchmarkForecastRecord reads two files of the largest size, and then a minute's lines.
func BenchmarkForecastRecord(b *testing.B) {
	path := filepath.Join(b.TempDir(), "record")
	line := demand.Sample{Pool: "own", Nodes: 8, GPUs: 64, Queued: 16, Coming: 8}
	for i := range 6 {
		line.Used = append(line.Used, demand.Held{Namespace: "research", Job: fmt.Sprintf("training-%d", i), GPUs: 8})
	}
	line.At = tuesday.AddDate(0, -9, 0)
	for _, name := range []string{path + ".1", path} {
		var text []byte
		for len(text) < recordSize {
			line.At = line.At.Add(time.Minute)
			one, err := json.Marshal(line)
			must.NoError(b, err)
			text = append(append(text, one...), '\n')
		}
		must.NoError(b, os.WriteFile(name, text, 0o600))
	}
	for name, periods := range map[string]int{"five weeks": 4, "all": 60} {
		season := forecast.Usual
		season.Periods = periods
		f := &foresight{season: season, models: map[string]string{"own": ""}}
		b.Run(name, func(b *testing.B) {
			b.SetBytes(2 * recordSize)
			for b.Loop() {
				f.tail = recordTail{path: path}
				f.expect(line.At)
			}
		})
		b.Run(name+", again", func(b *testing.B) {
			for b.Loop() {
				f.expect(line.At)
			}
		})
	}
}
