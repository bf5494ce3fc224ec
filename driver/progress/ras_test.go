// SPDX-License-Identifier: MPL-2.0

package progress

import (
	"bufio"
	"fmt"
	"net"
	"strings"
	"testing"
	"time"

	"github.com/shoenig/test/must"
)

// ncclJob answers like the RAS of a job of three ranks, with the counts given.
type ncclJob struct {
	counts  [3]int
	dead    bool
	failed  int
	textual bool // before 2.28
}

func (j *ncclJob) json() string {
	var ranks []string
	n := len(j.counts)
	missing := ""
	if j.dead {
		n--
		missing = `{"rank": 2, "host": "10.0.0.3", "pid": 1, "cuda_dev": 0, "nvml_dev": 0, "status": {"unresponsive": true, "considered_dead": false}}`
	}
	for i := range n {
		ranks = append(ranks, fmt.Sprintf(`{"rank": %d, "host": "10.0.0.%d", "pid": 7, "cuda_dev": 0, "nvml_dev": 0,
			"status": {"init_state": 0, "async_error": %d, "finalize_called": false, "destroy_flag": false, "abort_flag": false},
			"collective_counts": {"Broadcast": 3, "AllReduce": %d}}`, i, i+1, j.failed, j.counts[i]))
	}
	return fmt.Sprintf(`{"nccl_version": "2.28.3", "timestamp": "2026-01-01 00:00:00", "communicators_count": 1, "communicators": [
		{"hash": "0x1", "secondary_hash": "0x2:0x3", "size": 3, "ranks_count": %d, "missing_ranks_count": %d, "ranks": [%s], "missing_ranks": [%s]}],
		"ras": {"collection_time_sec": 0.001, "timeouts_count": 0}}`, n, 3-n, strings.Join(ranks, ","), missing)
}

func (j *ncclJob) text() string {
	return fmt.Sprintf("Communicators... (0.00s)\n#0-0 (27a0) MISMATCH\n  2 ranks have launched up to operation %d\n  1 rank has launched up to operation %d\n", j.counts[0], j.counts[2])
}

// serve runs until the test ends.
func (j *ncclJob) serve(t *testing.T) string {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	must.NoError(t, err)
	t.Cleanup(func() { l.Close() })
	go func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			lines := bufio.NewScanner(c)
			for open := true; open && lines.Scan(); {
				switch command := lines.Text(); {
				case command == "CLIENT PROTOCOL 2":
					fmt.Fprintln(c, "SERVER PROTOCOL 2")
				case command == "SET FORMAT json" && j.textual:
					fmt.Fprintln(c, "ERROR: Unknown command "+command)
				case command == "SET FORMAT json", strings.HasPrefix(command, "TIMEOUT "):
					fmt.Fprintln(c, "OK")
				case command == "STATUS":
					fmt.Fprint(c, j.json())
					open = false
				case command == "VERBOSE STATUS":
					fmt.Fprint(c, j.text())
					open = false
				}
			}
			c.Close()
		}
	}()
	return l.Addr().String()
}

func TestRASAgreesWhereARankIsBehindAndNothingMoves(t *testing.T) {
	for _, c := range []struct {
		name        string
		before, now ncclJob
		want        Opinion
	}{
		{"one behind, still", ncclJob{counts: [3]int{70, 70, 69}}, ncclJob{counts: [3]int{70, 70, 69}}, Opinion{Agrees, "NCCL RAS: rank 2 of 3 on 10.0.0.3 is 1 behind in AllReduce"}},
		{"one behind, moving", ncclJob{counts: [3]int{70, 70, 69}}, ncclJob{counts: [3]int{75, 75, 74}}, Opinion{Denies, "NCCL RAS: collectives go on"}},
		{"all equal and still", ncclJob{counts: [3]int{70, 70, 70}}, ncclJob{counts: [3]int{70, 70, 70}}, Opinion{Silent, "NCCL RAS: all ranks are at the same collective"}},
		{"one does not answer", ncclJob{counts: [3]int{70, 70, 69}}, ncclJob{counts: [3]int{71, 71, 0}, dead: true}, Opinion{Agrees, "NCCL RAS: rank 2 of 3 on 10.0.0.3 does not answer"}},
		{"in progress is no error", ncclJob{counts: [3]int{70, 70, 70}}, ncclJob{counts: [3]int{70, 70, 70}, failed: 7}, Opinion{Silent, "NCCL RAS: all ranks are at the same collective"}},
		{"an error", ncclJob{counts: [3]int{70, 70, 70}}, ncclJob{counts: [3]int{70, 70, 70}, failed: 6}, Opinion{Agrees, "NCCL RAS: rank 0 of 3 on 10.0.0.1 has error 6, rank 1 of 3 on 10.0.0.2 has error 6, rank 2 of 3 on 10.0.0.3 has error 6"}},
		{"as text, still", ncclJob{counts: [3]int{70, 70, 69}, textual: true}, ncclJob{counts: [3]int{70, 70, 69}, textual: true}, Opinion{Agrees, "NCCL RAS: 1 rank has launched up to operation 69, 2 ranks have launched up to operation 70"}},
		{"as text, moving", ncclJob{counts: [3]int{70, 70, 69}, textual: true}, ncclJob{counts: [3]int{71, 71, 70}, textual: true}, Opinion{Denies, "NCCL RAS: collectives go on"}},
	} {
		t.Run(c.name, func(t *testing.T) {
			r := &RAS{Address: c.before.serve(t)}
			must.Eq(t, Opinion{}, r.Ask(t.Context(), begin))
			r.Address = c.now.serve(t)
			must.Eq(t, Opinion{}, r.Ask(t.Context(), begin.Add(9*time.Second)), must.Sprint("too soon to compare"))
			must.Eq(t, c.want, r.Ask(t.Context(), begin.Add(10*time.Second)))
			r.Observe(t.Context(), begin, true)
			must.Eq(t, Opinion{}, r.Ask(t.Context(), begin.Add(time.Hour)), must.Sprint("what was before progress does not count"))
		})
	}
}

func TestWhereRASDoesNotAnswerItIsSilent(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	must.NoError(t, err)
	defer l.Close()
	go func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			fmt.Fprint(c, "SSH-2.0-OpenSSH\r\n")
			c.Close()
		}
	}()
	r := &RAS{Address: l.Addr().String()}
	o := r.Ask(t.Context(), begin)
	must.Eq(t, Silent, o.Verdict)
	must.StrContains(t, o.Reason, "NCCL RAS at "+r.Address)
	l.Close()
	must.Eq(t, Silent, r.Ask(t.Context(), begin).Verdict)
	_, err = parseRAS([]byte(`{"communicators": [{"ranks": 3}]}`))
	must.ErrorContains(t, err, "its answer cannot be read")
	must.Eq(t, "?", plainHost("a\x1b[2J"))
}
