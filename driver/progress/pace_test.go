// SPDX-License-Identifier: MPL-2.0

package progress

import (
	"testing"
	"time"

	"github.com/shoenig/test/must"
)

var begin = time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)

func at(seconds float64) time.Time { return begin.Add(time.Duration(seconds * float64(time.Second))) }

func node(step uint64) []Sample { return []Sample{{Local: WholeNode, Line: Line{Step: step}}} }

// steady makes a step each second up to the n-th.
func steady(n int) *Pace {
	p := NewPace(begin)
	for i := range n {
		p.Observe(at(float64(i+1)), node(uint64(i+1)))
	}
	return p
}

func TestProgressHasStoppedAfterAManifoldOfTheUsualStepAndNotBefore(t *testing.T) {
	r := Rule{Factor: 10, Floor: 30 * time.Second}
	p := steady(10)
	usual, ok := p.Usual()
	must.True(t, ok)
	must.Eq(t, time.Second, usual)
	_, stalled := p.Stalled(at(39), r)
	must.False(t, stalled)
	s, stalled := p.Stalled(at(40), r)
	must.True(t, stalled)
	must.Eq(t, "no progress for 30s after step 10, a step usually takes 1s", s.String())
	r.Factor = 100
	_, stalled = p.Stalled(at(109), r)
	must.False(t, stalled, must.Sprint("long steps take longer than the floor"))
	_, stalled = p.Stalled(at(110), r)
	must.True(t, stalled)
}

func TestWritingTheFileWithoutAStepIsASignOfLife(t *testing.T) {
	p := steady(10)
	saving := node(10)
	saving[0].Changed = at(35)
	p.Observe(at(36), saving)
	_, stalled := p.Stalled(at(60), Rule{Factor: 10, Floor: 30 * time.Second})
	must.False(t, stalled)
	s, stalled := p.Stalled(at(66), Rule{Factor: 10, Floor: 30 * time.Second})
	must.True(t, stalled)
	must.Eq(t, 10, s.Step)
}

func TestAnyProcessOfTheNodeThatGoesOnIsProgress(t *testing.T) {
	p := NewPace(begin)
	for i := range 100 {
		p.Observe(at(float64(i+1)), []Sample{{Local: 0, Line: Line{Step: uint64(i + 1)}}, {Local: 1, Line: Line{Step: 5}}})
	}
	_, stalled := p.Stalled(at(101), Rule{Factor: 1, Floor: 10 * time.Second})
	must.False(t, stalled)
}

func TestBeforeAFewStepsOnlyTheLimitOfTheFirstCounts(t *testing.T) {
	p := NewPace(begin)
	_, stalled := p.Stalled(at(1e6), Rule{Factor: 1, Floor: time.Second})
	must.False(t, stalled)
	s, stalled := p.Stalled(at(600), Rule{Factor: 1, Floor: time.Second, First: 10 * time.Minute})
	must.True(t, stalled)
	must.Eq(t, "no step within 10m0s of the start", s.String())
	p.Observe(at(1), node(1))
	p.Observe(at(2), node(2))
	_, stalled = p.Stalled(at(1e6), Rule{Factor: 1, Floor: time.Second, First: 10 * time.Minute})
	must.False(t, stalled, must.Sprint("two steps tell no usual one"))
}

func TestStepsBetweenTwoLooksAreAveragedAndARewindIsNoPace(t *testing.T) {
	p := NewPace(begin)
	p.Observe(at(1), node(1))
	p.Observe(at(11), node(21))
	p.Observe(at(21), node(41))
	p.Observe(at(22), node(5))
	p.Observe(at(32), node(25))
	usual, ok := p.Usual()
	must.True(t, ok)
	must.Eq(t, 500*time.Millisecond, usual)
	step, seen := p.Step()
	must.True(t, seen)
	must.Eq(t, 25, step)
}

func TestTheUsualStepForgetsAndOneSlowStepDoesNotMoveIt(t *testing.T) {
	p := steady(200)
	must.Len(t, maxPaces, p.paces)
	p.Observe(at(1200), node(201))
	usual, _ := p.Usual()
	must.Eq(t, time.Second, usual)
}
