// SPDX-License-Identifier: MPL-2.0

package plugin

import (
	"fmt"
	"time"

	"github.com/nomad-gpu/nomad-gpu/autoscaler/plan"
)

// What is remembered of work that a pool's nodes do not serve.
const (
	// reluctance is how long Nomad may leave nodes unused that are ready and held
	// for a work. Nomad places within seconds what it can.
	reluctance = 5 * time.Minute
	// shunAge is for how long such nodes are not held for it then, nor others
	// bought: why Nomad does so is not known, and may change.
	shunAge = time.Hour
	// misfitAge is for how long a pool whose nodes lack something for a work is not
	// bought from for it, once it has no node any more.
	misfitAge = 24 * time.Hour
)

// suitor is a work that a pool's nodes are looked at for.
type suitor struct {
	name    string
	version uint64 // of its job
	pool    string
}

type misfit struct {
	plan.Misfit
	until time.Time
}

// misfits remembers which works are not served by which pools' nodes, so that
// no more are bought for them once those nodes are let go.
type misfits struct {
	held  map[suitor]time.Time // since when ready nodes are
	found map[suitor]misfit
}

// tell tells the work what is known of it, and forgets works that wait no more.
func (m *misfits) tell(work []plan.Work, pools []plan.Pool, now time.Time) {
	found, held := map[suitor]misfit{}, map[suitor]time.Time{}
	for i := range work {
		w := &work[i]
		w.Misfits = nil
		for _, pool := range append([]plan.Pool{{}}, pools...) {
			s := suitor{w.Name(), w.Version, pool.Name}
			if since, ok := m.held[s]; ok {
				held[s] = since
			}
			if f, ok := m.found[s]; ok && now.Before(f.until) {
				found[s] = f
				if w.Misfits == nil {
					w.Misfits = map[string]plan.Misfit{}
				}
				w.Misfits[pool.Name] = f.Misfit
			}
		}
	}
	m.found, m.held = found, held
}

// learn takes in what a plan saw.
func (m *misfits) learn(waiting []plan.Waiting, now time.Time) {
	held := map[suitor]time.Time{}
	for _, w := range waiting {
		for _, pool := range w.Ready {
			s := suitor{w.Work.Name(), w.Work.Version, pool}
			since, ok := m.held[s]
			if !ok {
				since = now
			}
			held[s] = since
			if now.Sub(since) >= reluctance {
				why := fmt.Sprintf("its nodes were ready for %s and Nomad did not place it there (`nomad eval status` tells why); they are tried again at %s",
					reluctance, now.Add(shunAge).UTC().Format("15:04"))
				m.found[s] = misfit{plan.Misfit{Why: why, Shunned: true}, now.Add(shunAge)}
				delete(held, s)
			}
		}
		for pool, why := range w.Misfits {
			m.found[suitor{w.Work.Name(), w.Work.Version, pool}] = misfit{plan.Misfit{Why: why}, now.Add(misfitAge)}
		}
	}
	m.held = held
}
