// SPDX-License-Identifier: MPL-2.0

package process

import (
	"encoding/json"
	"fmt"
	"net"
	"os"
	"syscall"
	"time"

	"github.com/nomad-gpu/nomad-gpu/driver/gang"
)

// request is what the driver asks on the socket; one a connection.
type request struct {
	Op     string         `json:"op"` // exec, start, signal, stop, wait
	Signal syscall.Signal `json:"signal,omitempty"`
	Grace  time.Duration  `json:"grace,omitempty"`
	// Args and TTY are for exec, whose files come with the request.
	Args []string `json:"args,omitempty"`
	TTY  bool     `json:"tty,omitempty"`
}

type answer struct {
	Err string `json:"err,omitempty"`
	// Warnings are what could not be had and was not asked for.
	Warnings []string   `json:"warnings,omitempty"`
	Exit     *gang.Exit `json:"exit,omitempty"`
}

// serve answers the driver.
func (s *supervisor) serve(l *net.UnixListener) {
	for {
		c, err := l.AcceptUnix()
		if err != nil {
			return
		}
		go s.answer(c)
	}
}

// answer takes one request. That for a command is answered by its companion,
// once there is one.
func (s *supervisor) answer(c *net.UnixConn) {
	defer c.Close()
	in := &receiver{conn: c}
	defer in.close()
	var r request
	if json.NewDecoder(in).Decode(&r) != nil {
		return
	}
	if r.Op != "exec" {
		json.NewEncoder(c).Encode(s.handle(r))
		return
	}
	if err := s.execute(r, c, in.files); err != nil {
		json.NewEncoder(c).Encode(answer{Err: err.Error()})
	}
}

func (s *supervisor) handle(r request) answer {
	switch r.Op {
	case "start":
		done := make(chan error, 1)
		select {
		case s.start <- done:
			if err := <-done; err != nil {
				return answer{Err: err.Error()}
			}
			return answer{}
		case <-s.started:
			return answer{}
		case <-s.over:
			return answer{Err: "it was stopped before it started"}
		}
	case "signal":
		if err := s.running(); err != nil {
			return answer{Err: err.Error()}
		}
		if err := signalAll(s.workers, r.Signal); err != nil {
			return answer{Err: err.Error()}
		}
		return answer{}
	case "stop":
		select {
		case s.stop <- r:
			<-s.over
		case <-s.over:
		}
		return answer{Exit: &s.exit}
	case "wait":
		<-s.over
		return answer{Exit: &s.exit}
	}
	return answer{Err: fmt.Sprintf("op %q; allowed are exec, start, signal, stop, wait", r.Op)}
}

// running says why nothing runs; nil: something does, or is about to end.
// A start that is under way is waited for.
func (s *supervisor) running() error {
	select {
	case <-s.over:
		return os.ErrProcessDone
	default:
	}
	select {
	case <-s.starting:
	default:
		return errNotStarted
	}
	select {
	case <-s.over:
		return os.ErrProcessDone
	case <-s.started:
		return nil
	}
}
