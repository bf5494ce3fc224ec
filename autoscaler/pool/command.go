// SPDX-License-Identifier: MPL-2.0

package pool

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"time"
	"unicode/utf8"
)

// Command is a pool whose machines a program of the user's makes: for any
// cloud's command line. No shell is between.
type Command struct {
	// Dir keeps what is known of the machines.
	Dir string `hcl:"dir"`
	// Create, List and Destroy are programs with their arguments.
	Create  []string `hcl:"create"`
	List    []string `hcl:"list"`
	Destroy []string `hcl:"destroy"`
	// Timeout ends a program that takes longer.
	Timeout string `hcl:"timeout,optional"`

	timeout time.Duration
}

// Bounds of what a program may answer.
const (
	maxAnswer   = 1 << 20 // bytes
	maxMachines = 10_000
	maxText     = 256 // bytes of a name, an address or a message
	maxTimeout  = time.Hour
)

func (c *Command) validate(pool string) (errs []error) {
	if c == nil {
		return []error{fmt.Errorf(`pool %q: command: no block; kind "command" needs one`, pool)}
	}
	if !filepath.IsAbs(c.Dir) {
		errs = append(errs, fmt.Errorf("pool %q: command.dir: %q; allowed is an absolute path", pool, c.Dir))
	}
	for field, argv := range map[string][]string{"create": c.Create, "list": c.List, "destroy": c.Destroy} {
		if len(argv) == 0 || argv[0] == "" {
			errs = append(errs, fmt.Errorf("pool %q: command.%s: empty; allowed is a program with its arguments", pool, field))
		}
	}
	var err error
	if c.timeout, err = time.ParseDuration(cmp.Or(c.Timeout, "2m")); err != nil || c.timeout <= 0 || c.timeout > maxTimeout {
		errs = append(errs, fmt.Errorf("pool %q: command.timeout: %q; allowed is a duration above 0 and up to %s, such as 2m", pool, c.Timeout, maxTimeout))
	}
	return errs
}

// CommandRequest is what a program reads on its standard input, as one JSON object.
type CommandRequest struct {
	// Action is "create", "list" or "destroy".
	Action string `json:"action"`
	Pool   string `json:"pool"`
	// Count is how many machines to create. The same token again means the same order.
	Count int    `json:"count,omitempty"`
	Token string `json:"token,omitempty"`
	// IDs are the machines to destroy; one that is gone already is no error.
	IDs []string `json:"ids,omitempty"`
}

// CommandAnswer is what a program writes on its standard output, as one JSON object.
type CommandAnswer struct {
	// Machines answers "list": all of the pool, those being made included. An
	// empty list says that there is none; a list that is left out says nothing.
	Machines []CommandMachine `json:"machines,omitzero"`
	// Error says that the action was not done.
	Error *CommandError `json:"error,omitempty"`
}

// CommandMachine is one machine.
type CommandMachine struct {
	ID string `json:"id"`
	// Node is Nomad's name of it, Address its IP address; one is needed once it is there.
	Node    string `json:"node,omitempty"`
	Address string `json:"address,omitempty"`
	// Interrupted: it is taken away soon (a spot interruption, maintenance).
	Interrupted bool `json:"interrupted,omitempty"`
	// AtRisk: it may be taken away soon (a cloud's rebalance advice).
	AtRisk bool `json:"at_risk,omitempty"`
}

// CommandError is why an action was not done.
type CommandError struct {
	// Code is "capacity", "quota" or "failed": nothing was done. Other pools are tried.
	Code    string `json:"code"`
	Message string `json:"message"`
}

// commandMaker makes machines by a program.
type commandMaker struct {
	pool    string
	command *Command
}

func (m commandMaker) List(ctx context.Context) ([]Machine, string, error) {
	a, err := m.run(ctx, m.command.List, CommandRequest{Action: "list"})
	if err != nil {
		return nil, "", err
	}
	wrong := func(i int, field string, value any, allowed string) error {
		return fmt.Errorf("program %s: machines[%d].%s: %v; allowed %s", m.command.List[0], i, field, value, allowed)
	}
	if a.Machines == nil {
		// A program that failed and does not say so must not look like a pool that is gone.
		return nil, "", fmt.Errorf(`program %s: list: it wrote no machines; allowed is {"machines": []} where there are none`, m.command.List[0])
	}
	if len(a.Machines) > maxMachines {
		return nil, "", fmt.Errorf("program %s: machines: %d of them; allowed are %d", m.command.List[0], len(a.Machines), maxMachines)
	}
	var all []Machine
	seen := map[string]bool{}
	for i, c := range a.Machines {
		if c.ID == "" || len(c.ID) > maxText || seen[c.ID] {
			return nil, "", wrong(i, "id", fmt.Sprintf("%.64q", c.ID), fmt.Sprintf("is a text of up to %d bytes that no other machine has", maxText))
		}
		seen[c.ID] = true
		if len(c.Node) > maxText || len(c.Address) > maxText {
			return nil, "", wrong(i, "node and address", fmt.Sprintf("%d and %d bytes", len(c.Node), len(c.Address)), fmt.Sprintf("are texts of up to %d bytes", maxText))
		}
		all = append(all, Machine{ID: c.ID, Node: c.Node, Address: c.Address, Interrupted: c.Interrupted, AtRisk: c.AtRisk})
	}
	return all, "", nil
}

func (m commandMaker) Create(ctx context.Context, token string, count int) error {
	_, err := m.run(ctx, m.command.Create, CommandRequest{Action: "create", Count: count, Token: token})
	return err
}

func (m commandMaker) Destroy(ctx context.Context, ids []string) error {
	_, err := m.run(ctx, m.command.Destroy, CommandRequest{Action: "destroy", IDs: ids})
	return err
}

// run starts a program, gives it the request, and reads its answer. Errors name the program.
func (m commandMaker) run(ctx context.Context, argv []string, request CommandRequest) (CommandAnswer, error) {
	request.Pool = m.pool
	in, err := json.Marshal(request)
	if err != nil {
		return CommandAnswer{}, err
	}
	ctx, cancel := context.WithTimeout(ctx, m.command.timeout)
	defer cancel()
	cmd := exec.CommandContext(ctx, argv[0], argv[1:]...)
	out, complaints := &bounded{left: maxAnswer}, &bounded{left: 4 * maxText}
	cmd.Stdin, cmd.Stdout, cmd.Stderr = bytes.NewReader(in), out, complaints
	// What the program started ends with it.
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	cmd.Cancel = func() error { return syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL) }
	cmd.WaitDelay = time.Second
	ended := cmd.Run()
	switch {
	case ctx.Err() != nil:
		return CommandAnswer{}, fmt.Errorf("program %s: %s: it was ended after %s (command.timeout): %w", argv[0], request.Action, m.command.timeout, ctx.Err())
	case out.over:
		return CommandAnswer{}, fmt.Errorf("program %s: %s: it wrote more than %d bytes", argv[0], request.Action, maxAnswer)
	}
	answer, err := parseAnswer(out.kept)
	switch {
	case err == nil && answer.Error != nil:
		return answer, fmt.Errorf("program %s: %w", argv[0], answer.Error.cause())
	case ended != nil:
		return CommandAnswer{}, fmt.Errorf("program %s: %s: %w: %s", argv[0], request.Action, ended, lastLine(complaints.kept))
	case err != nil:
		return CommandAnswer{}, fmt.Errorf("program %s: %s: its answer: %w", argv[0], request.Action, err)
	}
	return answer, nil
}

// parseAnswer reads one JSON object; nothing at all is an empty one.
func parseAnswer(data []byte) (a CommandAnswer, err error) {
	if len(bytes.TrimSpace(data)) == 0 {
		return a, nil
	}
	d := json.NewDecoder(bytes.NewReader(data))
	d.DisallowUnknownFields()
	if err := d.Decode(&a); err != nil {
		return a, err
	}
	if _, err := d.Token(); !errors.Is(err, io.EOF) {
		return a, errors.New("there is more after the JSON object; allowed is one object")
	}
	if e := a.Error; e != nil && e.Code != "capacity" && e.Code != "quota" && e.Code != "failed" {
		return a, fmt.Errorf(`error.code: %.64q; allowed are "capacity", "quota" and "failed"`, e.Code)
	}
	return a, nil
}

func (e *CommandError) cause() error {
	message := lastLine([]byte(e.Message))
	return &RefusedError{Reason: e.Code + ": " + message}
}

// lastLine is the end of what a program said, fit for one line of a log.
func lastLine(text []byte) string {
	lines := strings.Split(strings.TrimSpace(string(text)), "\n")
	line := strings.ToValidUTF8(lines[len(lines)-1], "?")
	if len(line) > maxText {
		line = line[:maxText]
		for !utf8.ValidString(line) {
			line = line[:len(line)-1]
		}
	}
	return line
}

// bounded keeps the beginning of what is written and lets the rest go.
type bounded struct {
	kept []byte
	left int
	over bool
}

func (b *bounded) Write(p []byte) (int, error) {
	n := min(len(p), b.left)
	b.kept = append(b.kept, p[:n]...)
	b.left -= n
	b.over = b.over || n < len(p)
	return len(p), nil
}
