// SPDX-License-Identifier: MPL-2.0

package plugin

import (
	"fmt"
	"testing"
	"time"

	"github.com/shoenig/test/must"
	"github.com/shoenig/test/wait"

	"github.com/nomad-gpu/nomad-gpu/driver/consul/consultest"
	"github.com/nomad-gpu/nomad-gpu/driver/trace/tracetest"
)

func TestAGangsNodesWriteOneTraceThatItsProcessesCanJoin(t *testing.T) {
	c := tracetest.Start(t)
	server := consultest.Start(t)
	lines := fmt.Sprintf("tracing {\n endpoint = %q\n insecure = true\n}", c.Endpoint)
	nodes := []*node{startNode(t, server, lines), startNode(t, server, lines)}
	for i, n := range nodes {
		n.start(n.task(i, 2, `echo $TRACEPARENT >>$OUT`))
	}
	var spans []tracetest.Span
	must.Wait(t, wait.InitialSuccess(wait.BoolFunc(func() bool {
		spans = c.Spans()
		counts := map[string]int{}
		for _, s := range spans {
			counts[s.Name]++
		}
		return counts["gang"] == 1 && counts["form"] == 2 && counts["prepare"] == 2 && counts["preflight"] == 2 && counts["run"] == 2 && counts["stop"] == 2
	}), wait.Timeout(time.Minute), wait.Gap(50*time.Millisecond)), must.Sprint(spans))
	on := map[string]bool{}
	for _, s := range spans {
		must.Eq(t, spans[0].Trace, s.Trace)
		if s.Name == "run" {
			on[s.Attributes["nomad.node.name"]] = true
			must.False(t, s.End.Before(s.Start))
			want := fmt.Sprintf("00-%s-%s-01", s.Trace, s.ID)
			if s.Attributes["nomad.node.name"] == "node-0" {
				nodes[0].out(want)
			} else {
				nodes[1].out(want)
			}
		}
	}
	must.Eq(t, map[string]bool{"node-0": true, "node-1": true}, on)
}
