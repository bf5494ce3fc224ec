// SPDX-License-Identifier: MPL-2.0

package progress

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"slices"
	"strings"
	"time"
)

// RAS is a witness that asks NCCL itself: its RAS threads answer on a local
// port from NCCL 2.24 on, for all processes of the job, also while a
// collective hangs. With JSON (2.28 and later) the counts of collectives tell
// which rank is behind; the text before that tells it in words. (NCCL user
// guide, "RAS"; the dialogue is that of its client, src/ras/client.cc.)
type RAS struct {
	// Address is where NCCL_RAS_ADDR has it, host:port.
	Address string

	before   *rasState
	beforeAt time.Time
}

const (
	rasTime = 20 * time.Second
	maxRAS  = 32 << 20
	// rasApart is how far apart two answers are compared: less tells nothing,
	// since ranks are never all at the same collective.
	rasApart = 10 * time.Second
)

// Observe does nothing: RAS is asked only under suspicion.
func (r *RAS) Observe(context.Context, time.Time, bool) { r.before = nil }

// Ask compares with the answer of an earlier Ask, at least rasApart before.
func (r *RAS) Ask(ctx context.Context, now time.Time) Opinion {
	if r.before != nil && now.Sub(r.beforeAt) < rasApart {
		return Opinion{}
	}
	state, err := queryRAS(ctx, r.Address)
	if err != nil {
		return Opinion{Silent, fmt.Sprintf("NCCL RAS at %s: %v", r.Address, err)}
	}
	before := r.before
	r.before, r.beforeAt = state, now
	if before == nil {
		return Opinion{}
	}
	return compareRAS(*before, *state)
}

// queryRAS holds one dialogue.
func queryRAS(ctx context.Context, address string) (*rasState, error) {
	ctx, cancel := context.WithTimeout(ctx, rasTime)
	defer cancel()
	c, err := (&net.Dialer{}).DialContext(ctx, "tcp", address)
	if err != nil {
		return nil, err
	}
	defer c.Close()
	stop := context.AfterFunc(ctx, func() { c.SetDeadline(time.Now()) })
	defer stop()
	in := bufio.NewReaderSize(io.LimitReader(c, maxRAS), 4096)
	ask := func(line string) (string, error) {
		if _, err := io.WriteString(c, line+"\n"); err != nil {
			return "", err
		}
		answer, err := in.ReadSlice('\n')
		return strings.TrimSpace(string(answer)), err
	}
	answer, err := ask("CLIENT PROTOCOL 2")
	if err != nil {
		return nil, err
	}
	if !strings.HasPrefix(answer, "SERVER PROTOCOL ") {
		return nil, errors.New("what answers is not NCCL's RAS")
	}
	if answer, err = ask("TIMEOUT 5"); err != nil || answer != "OK" {
		return nil, errors.Join(errors.New("it refuses a timeout"), err)
	}
	answer, err = ask("SET FORMAT json")
	if err != nil {
		return nil, err
	}
	command := "STATUS"
	asText := answer != "OK"
	if asText { // before 2.28
		command = "VERBOSE STATUS"
	}
	if _, err := io.WriteString(c, command+"\n"); err != nil {
		return nil, err
	}
	data, err := io.ReadAll(in)
	if err != nil {
		return nil, err
	}
	if asText {
		return parseRASText(string(data)), nil
	}
	return parseRAS(data)
}

// rasState is what an answer says of the job.
type rasState struct {
	// counts are collectives by rank and kind, in each communicator.
	counts map[rasRank]map[string]uint64
	// lost are ranks that do not answer; failed those with an error. Words.
	lost, failed []string
	// operations are the text's lines on how far ranks are.
	operations []string
}

type rasRank struct {
	communicator string
	size, rank   int
	host         string
}

func (r rasRank) String() string {
	return fmt.Sprintf("rank %d of %d on %s", r.rank, r.size, r.host)
}

// inProgress is ncclInProgress, which is no error.
const inProgress = 7

func parseRAS(data []byte) (*rasState, error) {
	var answer struct {
		Communicators []struct {
			Hash      string `json:"hash"`
			Secondary string `json:"secondary_hash"`
			Size      int    `json:"size"`
			Ranks     []struct {
				Rank   int    `json:"rank"`
				Host   string `json:"host"`
				Status struct {
					AsyncError int `json:"async_error"`
				} `json:"status"`
				Counts map[string]uint64 `json:"collective_counts"`
			} `json:"ranks"`
			Missing []struct {
				Rank   int    `json:"rank"`
				Host   string `json:"host"`
				Status struct {
					Unresponsive bool `json:"unresponsive"`
					Dead         bool `json:"considered_dead"`
				} `json:"status"`
			} `json:"missing_ranks"`
		} `json:"communicators"`
	}
	// NCCL writes what it knows already before the JSON.
	if begin := strings.IndexByte(string(data), '{'); begin > 0 {
		data = data[begin:]
	}
	if err := json.Unmarshal(data, &answer); err != nil {
		return nil, fmt.Errorf("its answer cannot be read: %w", err)
	}
	s := &rasState{counts: map[rasRank]map[string]uint64{}}
	for _, c := range answer.Communicators {
		for _, r := range c.Ranks {
			who := rasRank{c.Hash + ":" + c.Secondary, c.Size, r.Rank, plainHost(r.Host)}
			s.counts[who] = r.Counts
			if e := r.Status.AsyncError; e != 0 && e != inProgress {
				s.failed = append(s.failed, fmt.Sprintf("%s has error %d", who, e))
			}
		}
		for _, m := range c.Missing {
			if m.Status.Unresponsive || m.Status.Dead {
				s.lost = append(s.lost, rasRank{"", c.Size, m.Rank, plainHost(m.Host)}.String()+" does not answer")
			}
		}
	}
	return s, nil
}

// plainHost: the answer comes from a process of the task's.
func plainHost(host string) string {
	if len(host) > 64 || strings.ContainsFunc(host, func(c rune) bool { return c <= ' ' || c > '~' }) {
		return "?"
	}
	return host
}

func parseRASText(text string) *rasState {
	s := &rasState{}
	for line := range strings.Lines(text) {
		line = strings.TrimSpace(line)
		if strings.Contains(line, "launched up to operation") && len(line) <= maxLine {
			s.operations = append(s.operations, line)
		}
	}
	return s
}

// compareRAS judges two answers. Ranks that wait for one that is behind, by
// the same counts in both, hang. Equal and still counts tell nothing: no
// collective is under way, as while a checkpoint is saved.
func compareRAS(before, now rasState) Opinion {
	const few = 3
	opinion := func(words []string) Opinion {
		slices.Sort(words)
		words = slices.Compact(words)
		return Opinion{Agrees, "NCCL RAS: " + strings.Join(words[:min(few, len(words))], ", ")}
	}
	if len(now.lost) > 0 {
		return opinion(now.lost)
	}
	if len(now.failed) > 0 {
		return opinion(now.failed)
	}
	if len(now.operations) > 0 || len(before.operations) > 0 {
		if !slices.Equal(now.operations, before.operations) {
			return Opinion{Denies, "NCCL RAS: collectives go on"}
		}
		return opinion(now.operations)
	}
	most := map[string]uint64{} // by communicator and kind
	for who, counts := range now.counts {
		for kind, n := range counts {
			if b, known := before.counts[who]; known && b[kind] != n {
				return Opinion{Denies, "NCCL RAS: collectives go on"}
			}
			key := who.communicator + " " + kind
			most[key] = max(most[key], n)
		}
	}
	var behind []string
	for who, counts := range now.counts {
		for kind, n := range counts {
			if by := most[who.communicator+" "+kind] - n; by > 0 {
				behind = append(behind, fmt.Sprintf("%s is %d behind in %s", who, by, plainHost(kind)))
			}
		}
	}
	if len(behind) > 0 {
		return opinion(behind)
	}
	return Opinion{Silent, "NCCL RAS: all ranks are at the same collective"}
}
