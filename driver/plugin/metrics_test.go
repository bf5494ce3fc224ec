// SPDX-License-Identifier: MPL-2.0

package plugin

import (
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/shoenig/test/must"
	"github.com/shoenig/test/wait"

	"github.com/nomad-gpu/nomad-gpu/driver/consul/consultest"
)

func TestTheDriverServesWhatItsGangsDo(t *testing.T) {
	free, err := net.Listen("tcp", "127.0.0.1:0")
	must.NoError(t, err)
	address := free.Addr().String()
	must.NoError(t, free.Close())
	n := startNode(t, consultest.Start(t), fmt.Sprintf("metrics {\n listen = %q\n}", address))
	n.until("gangs can be joined")
	shows := func(lines ...string) {
		t.Helper()
		must.Wait(t, wait.InitialSuccess(wait.ErrorFunc(func() error {
			answer, err := http.Get("http://" + address + "/metrics")
			if err != nil {
				return err
			}
			defer answer.Body.Close()
			text, err := io.ReadAll(answer.Body)
			for _, line := range lines {
				if !strings.Contains(string(text), line) {
					return fmt.Errorf("no %s in %s: %v", line, text, err)
				}
			}
			return nil
		}), wait.Timeout(time.Minute), wait.Gap(50*time.Millisecond)))
	}
	const labels = `group="gang",job="job",namespace="default"`
	first, second := n.task(0, 2, checkpoints), n.task(1, 2, checkpoints)
	n.start(first)
	shows(`nccl_members{`+labels+`,stage="form"} 1`, `nccl_gangs{`+labels+`,state="forming"} 1`)
	n.start(second)
	shows(`nccl_members{`+labels+`,stage="run"} 2`, `nccl_gang_generation{`+labels+`} 1`, `nccl_gang_form_seconds_count{`+labels+`} 2`)
	must.NoError(t, n.StopTask(first.ID, time.Minute, ""))
	shows(`nccl_gang_restarts_total{`+labels+`,reason="leave"} 1`, `nccl_members{`+labels+`,stage="form"} 1`)
	must.NoError(t, n.StopTask(second.ID, time.Minute, ""))
	shows(`nccl_members{`+labels+`,stage="form"} 0`, `nccl_members{`+labels+`,stage="run"} 0`)
}
