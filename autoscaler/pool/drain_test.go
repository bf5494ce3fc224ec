// SPDX-License-Identifier: MPL-2.0

package pool

import (
	"errors"
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/hashicorp/nomad/api"
	"github.com/shoenig/test/must"
	"pgregory.net/rapid"
)

func TestWhatIsDoneWithANode(t *testing.T) {
	late, early := 2*time.Minute, 10*time.Second
	cases := map[string]struct {
		s    situation
		idle bool
		want move
	}{
		"its machine is gone":                    {situation{Ready: true}, true, forget},
		"its machine is gone while it leaves":    {situation{Leaving: true}, true, forget},
		"it was told to end, whatever runs":      {situation{Exists: true, Leaving: true, Ending: true}, false, remove},
		"it was told to end, is up and in use":   {situation{Exists: true, Ready: true, Up: true, Leaving: true, Ending: true}, false, keep},
		"it was told to end and is up still":     {situation{Exists: true, Ready: true, Up: true, Leaving: true, Ending: true}, true, remove},
		"it leaves and nothing runs":             {situation{Exists: true, Ready: true, Leaving: true}, true, remove},
		"it leaves and got work":                 {situation{Exists: true, Ready: true, Leaving: true}, false, keep},
		"it will be taken away":                  {situation{Exists: true, Ready: true, Doomed: true}, false, evacuate},
		"it will be taken away and work goes on": {situation{Exists: true, Ready: true, Doomed: true, Leaving: true}, false, stay},
		"it will be taken away and is empty":     {situation{Exists: true, Ready: true, Doomed: true, Leaving: true}, true, remove},
		"its work was asked to stop":             {situation{Exists: true, Ready: true, Leaving: true, Moving: true, Draining: true}, false, stay},
		"its work has stopped":                   {situation{Exists: true, Ready: true, Leaving: true, Moving: true, Draining: true}, true, remove},
		"its work was not asked after all":       {situation{Exists: true, Ready: true, Leaving: true, Moving: true}, false, ask},
		"it came up":                             {situation{Exists: true, Up: true, Age: early, Start: time.Minute}, true, welcome},
		"it came up late":                        {situation{Exists: true, Up: true, Age: late, Start: time.Minute}, true, welcome},
		"it did not come up":                     {situation{Exists: true, Age: late, Start: time.Minute}, true, giveUp},
		"it has time to come up":                 {situation{Exists: true, Age: early, Start: time.Minute}, true, stay},
		"it was up once and is down":             {situation{Exists: true, Ready: true, Age: late, Start: time.Minute, Lost: early, Patience: time.Minute}, true, stay},
		"it is down for too long":                {situation{Exists: true, Ready: true, Age: late, Start: time.Minute, Lost: late, Patience: time.Minute}, false, lose},
		"it is down for too long and leaves":     {situation{Exists: true, Ready: true, Leaving: true, Doomed: true, Lost: late, Patience: time.Minute}, false, lose},
		"it is down and never came up":           {situation{Exists: true, Age: early, Start: time.Minute, Lost: late, Patience: time.Minute}, true, stay},
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			got, err := next(c.s, func() (bool, error) { return c.idle, nil })
			must.NoError(t, err)
			must.Eq(t, c.want, got)
		})
	}
	_, err := next(situation{Exists: true, Leaving: true}, func() (bool, error) { return false, errors.New("no answer") })
	must.EqError(t, err, "no answer")
}

func TestANodeWithWorkIsNeverLetGo(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		names := rapid.SliceOfDistinct(rapid.StringMatching(`[a-z]{1,3}`), rapid.ID).Draw(t, "names")
		wanted := rapid.SliceOf(rapid.StringMatching(`[a-z]{1,3}`)).Draw(t, "wanted")
		busy := map[string]bool{}
		for _, n := range names {
			busy[n] = rapid.Bool().Draw(t, "busy")
		}
		count := rapid.IntRange(0, 10).Draw(t, "count")
		gone := map[string]bool{}
		err := release(names, count, wanted, func(n string) (bool, error) { return !busy[n], nil }, func(n string) error {
			if gone[n] {
				t.Fatalf("%s is marked twice", n)
			}
			gone[n] = true
			return nil
		})
		idle := 0
		for _, n := range names {
			may := len(wanted) == 0 || slices.Contains(wanted, n)
			if !busy[n] && may {
				idle++
			}
			if gone[n] && !may {
				t.Fatalf("%s goes and was not named", n)
			}
			if busy[n] && gone[n] {
				t.Fatalf("%s has work and goes", n)
			}
		}
		surplus := max(len(names)-count, 0)
		if want := min(surplus, idle); len(gone) != want {
			t.Fatalf("%d go, want %d", len(gone), want)
		}
		if (err != nil) != (surplus > idle) {
			t.Fatalf("error %v with %d to go and %d idle", err, surplus, idle)
		}
	})
}

// show is what of nodes most tests look at: name, ready, leaving.
func show(nodes []Node) string {
	all := []string{}
	for _, n := range nodes {
		all = append(all, fmt.Sprintf("{%s %t %t}", n.Name, n.Ready, n.Leaving))
	}
	return fmt.Sprint(all)
}

func TestAGroupsLeaveToMoveGoesOverItsJobs(t *testing.T) {
	meta := func(value string) map[string]string {
		if value == "" {
			return nil
		}
		return map[string]string{"gpu.move": value}
	}
	group := "train"
	for _, c := range []struct {
		job, group string
		want       bool
	}{{"yes", "", true}, {"", "yes", true}, {"yes", "no", false}, {"no", "yes", true}, {"", "", false}, {"no", "", false}} {
		a := &api.Allocation{TaskGroup: group, Job: &api.Job{Meta: meta(c.job), TaskGroups: []*api.TaskGroup{{Name: &group, Meta: meta(c.group)}}}}
		must.Eq(t, c.want, mayMove(a), must.Sprint(c))
	}
	must.False(t, mayMove(&api.Allocation{TaskGroup: group}))
}
