// SPDX-License-Identifier: MPL-2.0

package member_test

import (
	"testing"

	"github.com/shoenig/test/must"

	"github.com/nomad-gpu/nomad-gpu/driver/gang"
	"github.com/nomad-gpu/nomad-gpu/driver/member"
)

func TestTheStageOfAMemberFollowsFromTheHeadAndItsRecord(t *testing.T) {
	for name, c := range map[string]struct {
		state  gang.State
		phase  gang.Phase
		head   uint64
		record uint64
		rank   int
		leaves bool
		want   member.Stage
	}{
		"nothing is seen yet":                 {"", gang.Idle, 0, 0, -1, false, member.Forming},
		"members are waited for":              {gang.Forming, gang.Idle, 1, 1, 0, false, member.Forming},
		"it was not named":                    {gang.Running, gang.Idle, 3, 0, -1, false, member.Forming},
		"it prepares":                         {gang.Preparing, gang.Idle, 2, 2, 0, false, member.Preparing},
		"it waits for others to be prepared":  {gang.Preparing, gang.Prepared, 2, 2, 0, false, member.Preparing},
		"it starts":                           {gang.Running, gang.Prepared, 2, 2, 0, false, member.Preparing},
		"it runs":                             {gang.Running, gang.Started, 2, 2, 3, false, member.Running},
		"it finished before the others":       {gang.Running, gang.Finished, 2, 2, 3, false, member.Running},
		"its process failed":                  {gang.Running, gang.Broken, 2, 2, 3, false, member.Stopping},
		"the generation stops":                {gang.Stopping, gang.Started, 2, 2, 3, false, member.Stopping},
		"the generation stops, it has failed": {gang.Stopping, gang.Broken, 2, 2, 3, false, member.Stopping},
		"it has stopped, others not yet":      {gang.Stopping, gang.Idle, 2, 2, 3, false, member.Forming},
		"the gang failed":                     {gang.Failed, gang.Started, 2, 2, 3, false, member.Stopping},
		"the gang is done":                    {gang.Done, gang.Finished, 2, 2, 3, false, member.Stopping},
		"it leaves before it has a process":   {gang.Forming, gang.Idle, 2, 2, 3, true, member.Stopping},
		"it leaves":                           {gang.Running, gang.Started, 2, 2, 3, true, member.Stopping},
		"it was cut off and is behind":        {gang.Forming, gang.Started, 3, 2, -1, false, member.Stopping},
	} {
		o := member.Observation{Head: gang.Head{State: c.state, Generation: c.head}, Record: gang.Record{Phase: c.phase, Generation: c.record, Leaving: c.leaves}, Rank: c.rank}
		must.Eq(t, c.want, o.Stage(), must.Sprint(name))
	}
}
