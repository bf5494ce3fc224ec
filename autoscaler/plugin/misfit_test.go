// SPDX-License-Identifier: MPL-2.0

package plugin

import (
	"fmt"
	"testing"
	"time"

	"github.com/shoenig/test/must"

	"github.com/nomad-gpu/nomad-gpu/autoscaler/plan"
)

// day lets a pool live for a day whose nodes come up as real says, and Nomad
// place nothing. It is how many nodes were bought, and the last reason.
func day(t *testing.T, p plan.Pool, real plan.Shape, w plan.Work) (bought int, reason string) {
	t.Helper()
	type machine struct {
		plan.Node
		up time.Time
	}
	var all []machine
	seen := &misfits{}
	for now := time.Unix(1e9, 0); now.Before(time.Unix(1e9, 0).Add(24 * time.Hour)); now = now.Add(30 * time.Second) {
		in := plan.Input{Now: now, Work: []plan.Work{w}, Pools: []plan.Pool{p}}
		for i := range all {
			m := &all[i]
			if m.Starting && !now.Before(m.up) {
				m.Starting, m.Free, m.Whole, m.IdleSince = false, real, real, now
			}
			in.Nodes = append(in.Nodes, m.Node)
		}
		seen.tell(in.Work, in.Pools, now)
		out := plan.Make(in)
		seen.learn(out.Waiting, now)
		d, _ := out.Of(p.Name)
		for _, name := range d.Release {
			for i := range all {
				if all[i].Name == name {
					all = append(all[:i], all[i+1:]...)
					break
				}
			}
		}
		for len(d.Release) == 0 && len(all) < d.Want {
			bought++
			all = append(all, machine{plan.Node{Name: fmt.Sprint("n", bought), Pool: p.Name, Free: p.Shape, Starting: true}, now.Add(3 * time.Minute)})
		}
		reason = out.Waiting[0].Reason
	}
	must.LessEq(t, 2, len(all))
	return bought, reason
}

func TestWorkThatItsNodesNeverServeBuysFewOfThem(t *testing.T) {
	pool := plan.Pool{Name: "p", Max: 16, Price: 30, IdleTime: 10 * time.Minute, Shape: plan.Shape{GPUs: 8, Model: "H100", CPU: 1 << 30, Memory: 1 << 30}}
	ask := plan.Shape{GPUs: 8, Memory: 600_000}
	w := plan.Work{Job: "j", Group: "g", Count: 1, Request: ask, Allowed: func(plan.Where) bool { return true }}
	gpus := func(count int, model string, memory int) plan.Shape {
		return plan.Shape{GPUs: count, Model: model, CPU: 100_000, Memory: memory, Devices: []plan.Devices{{Type: plan.GPU, Model: model, Count: count}}}
	}
	bought, reason := day(t, pool, gpus(8, "H100", 500_000), w)
	must.Eq(t, 1, bought)
	must.StrContains(t, reason, "500000 MiB of memory and it asks for 600000")

	named := w
	named.Request = plan.Shape{GPUs: 8, Model: "H100"}
	bought, _ = day(t, pool, gpus(8, "NVIDIA H100 80GB HBM3", 500_000), named)
	must.Eq(t, 1, bought)

	bought, _ = day(t, pool, gpus(7, "H100", 700_000), w)
	must.Eq(t, 2, bought, must.Sprint("one may have a fault"))

	// It fits, as far as anyone can see.
	bought, reason = day(t, pool, gpus(8, "H100", 700_000), w)
	must.Between(t, 12, bought, 24, must.Sprint("one an hour, kept until idle"))
	must.StrContains(t, reason, "Nomad")
}

func TestAnotherVersionOfAJobIsTriedAnew(t *testing.T) {
	w := plan.Work{Job: "j", Group: "g", Version: 1}
	pools := []plan.Pool{{Name: "p"}}
	m := &misfits{}
	now := time.Unix(1e9, 0)
	tell := func(version uint64, at time.Time) map[string]plan.Misfit {
		w.Version = version
		work := []plan.Work{w}
		m.tell(work, pools, at)
		return work[0].Misfits
	}
	tell(1, now)
	m.learn([]plan.Waiting{{Work: w, Misfits: map[string]string{"p": "no memory"}}}, now)
	must.Eq(t, map[string]plan.Misfit{"p": {Why: "no memory"}}, tell(1, now.Add(misfitAge-1)))
	must.Nil(t, tell(1, now.Add(misfitAge)), must.Sprint("it is tried again"))
	m.learn([]plan.Waiting{{Work: w, Misfits: map[string]string{"p": "no memory"}}}, now)
	must.Nil(t, tell(2, now))
	must.MapEmpty(t, m.found, must.Sprint("the old version is forgotten"))
}

func TestNodesAreShunnedOnlyWhenNomadLeavesThemUnusedAllTheTime(t *testing.T) {
	w := plan.Work{Job: "j", Group: "g"}
	m := &misfits{}
	now := time.Unix(1e9, 0)
	step := func(after time.Duration, ready ...string) bool {
		work := []plan.Work{w}
		m.tell(work, []plan.Pool{{Name: "p"}}, now.Add(after))
		m.learn([]plan.Waiting{{Work: work[0], Ready: ready}}, now.Add(after))
		m.tell(work, []plan.Pool{{Name: "p"}}, now.Add(after))
		return work[0].Misfits["p"].Shunned
	}
	must.False(t, step(0, "p"))
	must.False(t, step(reluctance-1, "p"))
	must.False(t, step(reluctance), must.Sprint("it used them, or others did"))
	must.False(t, step(reluctance+1, "p"))
	must.False(t, step(2*reluctance, "p"))
	must.True(t, step(2*reluctance+1, "p"))
	must.False(t, step(2*reluctance+1+shunAge))
}
