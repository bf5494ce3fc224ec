// SPDX-License-Identifier: MPL-2.0

package pool

import (
	"context"
	"errors"
	"os"
	"testing"
	"time"

	"github.com/shoenig/test/must"
	"pgregory.net/rapid"
)

// answered waits until what Tend has asked for again is done.
func (b *machineBench) answered() {
	b.pool.ordering.Lock()
	defer b.pool.ordering.Unlock()
}

func (b *machineBench) resting() string {
	b.t.Helper()
	why, err := b.next().Resting(b.now)
	must.NoError(b.t, err)
	return why
}

func TestAnOrderWithoutAnAnswerStaysTheSameWhateverIsWantedNext(t *testing.T) {
	b := newMachineBench(t)
	b.maker.lost = true
	must.ErrorContains(t, b.grow(2), "create 2 machines: no answer")
	must.Eq(t, "[{h100-order-1 false false} {h100-order-2 false false}]", b.nodes(), must.Sprint("they count: no other pool buys for the same work"))
	hidden := b.maker.machines
	b.maker.machines, b.maker.lost = nil, false // nor are they listed yet
	b.pool = b.next()
	must.ErrorContains(t, b.grow(3), "2 of the 2 machines asked for at")
	must.Eq(t, 2, b.maker.made, must.Sprint("the same token was given"))
	b.maker.machines = hidden
	must.NoError(t, b.grow(3))
	must.Eq(t, 3, b.maker.made)
	must.Eq(t, "[{m1 false false} {m2 false false} {m3 false false}]", b.nodes())
	must.NoError(t, b.grow(9))
	must.Eq(t, 4, b.maker.made, must.Sprint("the pool's maximum holds"))
}

func TestAnOrderWithoutAnAnswerIsGivenAgainByItself(t *testing.T) {
	b := newMachineBench(t)
	b.maker.fail = errors.New("no route")
	must.ErrorContains(t, b.grow(2), "no route")
	b.tend(time.Second)
	b.answered()
	must.Eq(t, 0, b.maker.made)
	must.Eq(t, "", b.resting())
	b.maker.fail = nil
	b.pool = b.next()
	b.tend(time.Second)
	b.answered()
	must.Eq(t, 2, b.maker.made)
	must.Eq(t, "[{m1 false false} {m2 false false}]", b.nodes())
	b.tend(time.Second)
	b.answered()
	must.Eq(t, 2, b.maker.made)
}

func TestAnOrderThatIsNeverAnsweredIsGivenUpAndOthersAreTried(t *testing.T) {
	b := newMachineBench(t)
	b.maker.fail = errors.New("the credentials have expired")
	must.Error(t, b.grow(2))
	b.tend(time.Minute)
	b.answered()
	must.Eq(t, "", b.resting())
	b.tend(time.Second)
	must.Eq(t, "2 of 2 machines that were asked for are not listed within 1m0s: pool \"h100\": create 2 machines: the credentials have expired", b.resting())
	must.Eq(t, "[]", b.nodes())
	must.ErrorContains(t, b.grow(2), "rests until")
}

func TestAMakerThatDoesNotTellWhatItHasLetsThePoolRest(t *testing.T) {
	b := newMachineBench(t)
	must.NoError(t, b.grow(1))
	b.maker.blind = errors.New("no route")
	must.ErrorContains(t, b.pool.Tend(t.Context(), b.now), "list machines: no route")
	must.Eq(t, "", b.resting())
	b.now = b.now.Add(time.Minute)
	must.Error(t, b.grow(2))
	must.Eq(t, `pool "h100": list machines: no route`, b.resting())
	must.Eq(t, "[{m1 false false}]", b.nodes(), must.Sprint("nothing is taken to be gone"))
	b.maker.blind = nil
	must.NoError(t, b.grow(2))
	must.Eq(t, "", b.resting())
}

// slowMaker answers a purchase when it is told to.
type slowMaker struct {
	*fakeMaker
	asked, answer chan bool
}

func (s *slowMaker) Create(ctx context.Context, token string, count int) error {
	s.asked <- true
	<-s.answer
	return s.fakeMaker.Create(ctx, token, count)
}

func TestAnInterruptedMachineIsDrainedWhileAPurchaseTakesLong(t *testing.T) {
	b := newMachineBench(t)
	must.NoError(t, b.grow(1))
	b.up(0)
	b.tend(time.Second)
	b.nomad.busy["node-m1"] = true
	slow := &slowMaker{b.maker, make(chan bool), make(chan bool)}
	b.pool.maker = slow
	grown := make(chan error)
	now := b.now
	go func() { grown <- b.pool.Grow(t.Context(), now, 3) }()
	<-slow.asked
	must.Eq(t, "[{node-m1 true false} {h100-order-1 false false} {h100-order-2 false false}]", b.nodes(), must.Sprint("other plugins see what was asked for"))
	b.maker.machines[0].Interrupted = true
	b.tend(time.Second)
	must.Eq(t, "node-m1 drains", b.nomad.done())
	slow.answer <- true
	must.NoError(t, <-grown)
	must.Eq(t, "[{node-m1 true true} {m2 false false} {m3 false false}]", b.nodes())
}

func TestAnInterruptedMachineIsDrainedThoughNothingCanBeNoted(t *testing.T) {
	b := newMachineBench(t)
	must.NoError(t, b.grow(1))
	b.up(0)
	b.tend(time.Second)
	b.maker.machines[0].Interrupted = true
	must.NoError(t, os.Mkdir(b.pool.store.path()+".partial", 0o700)) // as a full disk
	b.now = b.now.Add(time.Second)
	must.Error(t, b.pool.Tend(t.Context(), b.now))
	must.Eq(t, "node-m1 drains", b.nomad.done())
	must.SliceEmpty(t, b.maker.did)
	must.Error(t, b.grow(2))
	must.Eq(t, 1, b.maker.made)
}

func TestAListThatIsLateBuysNothingTwice(t *testing.T) {
	b := newMachineBench(t)
	must.NoError(t, b.grow(1))
	b.maker.late = 3 // listings that do not show what is new
	must.NoError(t, b.grow(3))
	must.NoError(t, b.grow(3))
	must.Eq(t, 3, b.maker.made)
	must.Eq(t, "[{m1 false false} {h100-order-1 false false} {h100-order-2 false false}]", b.nodes())
	must.NoError(t, b.pool.Shrink(t.Context(), 3, nil))
	must.Eq(t, "[{m1 false false} {h100-order-1 false false} {h100-order-2 false false}]", b.nodes(), must.Sprint("what is on its way counts here too"))
	b.tend(time.Second)
	b.tend(time.Second)
	must.Eq(t, "[{m1 false false} {m2 false false} {m3 false false}]", b.nodes())
}

func TestNoPoolIsEverAboveItsMaximumWhateverItsMakerDoes(t *testing.T) {
	rapid.Check(t, func(r *rapid.T) {
		b := newMachineBench(t)
		for range rapid.IntRange(1, 12).Draw(r, "steps") {
			b.now = b.now.Add(time.Second)
			b.maker.lost = rapid.Bool().Draw(r, "lost")
			b.maker.late = rapid.IntRange(0, 3).Draw(r, "late")
			b.maker.fail = nil
			if rapid.Bool().Draw(r, "fail") {
				b.maker.fail = rapid.SampledFrom([]error{errors.New("no route"), &RefusedError{Reason: "capacity"}}).Draw(r, "how")
			}
			if rapid.Bool().Draw(r, "another life") {
				b.pool = b.next()
			}
			count := rapid.IntRange(0, 6).Draw(r, "count")
			switch rapid.IntRange(0, 2).Draw(r, "what") {
			case 0:
				_ = b.pool.Grow(b.t.Context(), b.now, count)
			case 1:
				_ = b.pool.Tend(b.t.Context(), b.now)
				b.answered()
			case 2:
				// No list is late for as long as a machine may take to come up.
				b.now = b.now.Add(5 * time.Minute)
				b.maker.told = append([]Machine{}, b.maker.machines...)
			}
			if have := len(b.maker.machines); have > 4 {
				r.Fatalf("%d machines, allowed are 4", have)
			}
		}
	})
}
