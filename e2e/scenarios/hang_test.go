// SPDX-License-Identifier: MPL-2.0

package scenarios

import (
	"strings"
	"testing"

	"github.com/hashicorp/nomad/api"
	"github.com/shoenig/test/must"
)

// slowly makes a step each half second, with some work in it.
const slowly = `i=0; while [ $i -lt LAST ]; do i=$((i+1)); echo $i > $GANG_PROGRESS_FILE; j=0; while [ $j -lt 20000 ]; do j=$((j+1)); done; sleep 0.4; done; `

func TestAHungTrainingIsRestarted(t *testing.T) {
	w := newWorld(t)
	w.gang("hang", strings.Replace(slowly, "LAST", "60", 1)+`[ $GANG_GENERATION = 1 ] && sleep 1000; exit 0`,
		"checkpoint {\n          grace = \"2s\"", `progress {
          factor     = 3
          floor      = "10s"
          stragglers = true
          stacks     = ["/bin/sh", "-c", "cat /proc/$0/comm", "{pid}"]
        }
        checkpoint {
          grace = "2s"`)
	w.untilEvent("hang", "no progress for 1")
	w.untilAll("hang", api.AllocClientStatusComplete)
	must.StrContains(t, w.events("hang"), "the processes use")
	must.StrContains(t, w.events("hang"), "a step usually takes")
	t.Log(w.events("hang"))
	t.Log(w.output("hang"))
	w.nothingLeft("hang")
}

func TestAPreflightWithBandwidthPasses(t *testing.T) {
	w := newWorld(t)
	w.gang("fast", `exit 0`, "checkpoint {\n          grace = \"2s\"", `preflight {
          bandwidth = true
          min_gbps  = 0.01
        }
        checkpoint {
          grace = "2s"`)
	w.untilAll("fast", api.AllocClientStatusComplete)
	t.Log(w.events("fast"))
}

func TestAPreflightThatFindsASlowPairSaysWhich(t *testing.T) {
	w := newWorld(t)
	w.gang("slow", `exit 0`, "checkpoint {\n          grace = \"2s\"", `preflight {
          bandwidth = true
          min_gbps  = 900000
        }
        checkpoint {
          grace = "2s"`)
	w.untilEvent("slow", "min_gbps is 900000")
	w.untilAll("slow", api.AllocClientStatusFailed)
	t.Log(w.events("slow"))
}
