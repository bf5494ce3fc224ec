// SPDX-License-Identifier: MPL-2.0

package pool

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"
	"regexp"
	"time"

	"github.com/nomad-gpu/nomad-gpu/autoscaler/plan"
)

// Bounds of a pools file, far above what is of use.
const (
	maxFile = 4 << 20 // bytes
	maxName = 128     // bytes of a pool's name: files and metrics are named after it
)

var poolName = regexp.MustCompile(`^[A-Za-z0-9_-][A-Za-z0-9_.-]*$`)

// readBounded reads a file that is no larger than a pools file may be.
func readBounded(path string) ([]byte, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	var text bytes.Buffer
	n, err := text.ReadFrom(io.LimitReader(f, maxFile+1))
	if err != nil {
		return nil, err
	}
	if n > maxFile {
		return nil, fmt.Errorf("read %s: more than %d bytes; allowed are %[2]d", path, maxFile)
	}
	return text.Bytes(), nil
}

// times reads the pool's durations.
func (p *Definition) times(wrong func(field string, value any, allowed string)) {
	const day = 24 * time.Hour
	for _, v := range []struct {
		field, text           string
		to                    *time.Duration
		fallback, least, most time.Duration
	}{
		{"idle_time", p.IdleTime, &p.idle, 10 * time.Minute, 0, 31 * day},
		// A node that has no time to come up, or to come back, is given up at once.
		{"start_timeout", p.StartTimeout, &p.start, 10 * time.Minute, 5 * time.Second, day},
		{"down_timeout", p.DownTimeout, &p.down, 5 * time.Minute, 5 * time.Second, day},
		{"retry_after", p.RetryAfter, &p.retry, 5 * time.Minute, 0, day},
		// What was asked for, and an interruption, is seen after a period.
		{"period", p.Period, &p.period, 10 * time.Second, time.Second, 10 * time.Minute},
	} {
		*v.to = v.fallback
		if v.text == "" {
			continue
		}
		d, err := time.ParseDuration(v.text)
		if err != nil || d < v.least || d > v.most {
			wrong(v.field, fmt.Sprintf("%.64q", v.text), fmt.Sprintf("is a duration from %s to %s, such as %s", v.least, v.most, v.fallback))
		}
		*v.to = d
	}
}

// validateApart: no node, slot or group is of two pools.
func (f *File) validateApart() error {
	var errs []error
	for i := range f.Pools {
		for j := range f.Pools[:i] {
			a, b := &f.Pools[j], &f.Pools[i]
			if a.Name != b.Name { // that is an error of its own
				errs = append(errs, apart(a, b)...)
			}
		}
	}
	return errors.Join(errs...)
}

// apart finds what two pools share. Two selections of which none holds the
// other may share nodes or not: only Nomad knows.
func apart(a, b *Definition) (errs []error) {
	shared := func(what string) {
		errs = append(errs, fmt.Errorf("pools %q and %q: %s; allowed is what no two pools share", a.Name, b.Name, what))
	}
	one, other := a.Plan().Where, b.Plan().Where
	switch {
	case one == plan.Where{} || other == plan.Where{}: // each an error of its own
	case one == other:
		shared("select: both are the same, " + inWords(one))
	case one.Selects(other):
		shared(fmt.Sprintf("select: all nodes of the second, %s, are of the first too, %s", inWords(other), inWords(one)))
	case other.Selects(one):
		shared(fmt.Sprintf("select: all nodes of the first, %s, are of the second too, %s", inWords(one), inWords(other)))
	}
	if a.Local != nil && b.Local != nil {
		for _, s := range a.Local.Slots {
			for _, o := range b.Local.Slots {
				if s.Name == o.Name {
					shared(fmt.Sprintf("slot %q", s.Name))
				} else if s.DataDir != "" && s.DataDir == o.DataDir {
					shared(fmt.Sprintf("slots %q and %q: data_dir: %q", s.Name, o.Name, s.DataDir))
				}
			}
		}
	}
	if x, y := a.AWS, b.AWS; x != nil && y != nil && x.Region == y.Region && x.Group == y.Group && x.Fleet == y.Fleet {
		shared(fmt.Sprintf("aws: group %q, fleet %q", x.Group, x.Fleet))
	}
	return errs
}

// inWords is a selection as the file has it.
func inWords(w plan.Where) string {
	text := ""
	for _, f := range []struct{ key, value string }{{"node_pool", w.NodePool}, {"node_class", w.Class}, {"datacenter", w.Datacenter}} {
		if f.value != "" {
			text += fmt.Sprintf(", %s = %q", f.key, f.value)
		}
	}
	return "{ " + text[len(", "):] + " }"
}
