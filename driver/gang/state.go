// SPDX-License-Identifier: MPL-2.0

package gang

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
)

// State is where a gang stands, the same for all members.
type State string

const (
	// Forming: no process runs; members are waited for.
	Forming State = "forming"
	// Preparing: the members of a generation are named and get ready to start.
	Preparing State = "preparing"
	// Running: every member was prepared; all may start.
	Running State = "running"
	// Stopping: something ended the generation; all stop.
	Stopping State = "stopping"
	// Done and Failed are final: all stop and leave.
	Done   State = "done"
	Failed State = "failed"
)

// Final reports whether nothing follows this state.
func (s State) Final() bool { return s == Done || s == Failed }

// version of the values in the store. A reader refuses a newer one by name,
// so that two releases that cannot talk to each other say so.
const version = 1

const (
	maxHead   = 512
	maxRecord = 32 << 10
	maxReason = 240
	maxAlloc  = 256
	// maxViewName bounds Head.View.
	maxViewName = 16
	// MaxNodes bounds a gang: its members fit into Consul's key-value store
	// and one coordinator's reading of it.
	MaxNodes = 4096
)

// Head is the one small value that every member watches.
type Head struct {
	V          int    `json:"v"`
	State      State  `json:"state"`
	Generation uint64 `json:"generation"`
	// View names the generation's view: of several that coordinators began to
	// write, the one that this head was written with.
	View string `json:"view,omitempty"`
	// World is the number of members of the generation.
	World int `json:"world"`
	// Restarts counts the generations that a failure has ended.
	Restarts int `json:"restarts"`
	// Orphan is set on a head that a member wrote again after the gang's keys
	// had gone: the others come back soon, or they have ended.
	Orphan bool `json:"orphan,omitempty"`
	// Planned is set where a generation ends without a fault: all its processes
	// can still agree on a checkpoint, and get the whole grace for it.
	Planned bool `json:"planned,omitempty"`
	// Barren counts the failures in a row without progress between them, and
	// Step is the furthest step of training that a failed process reported.
	Barren int    `json:"barren,omitempty"`
	Step   uint64 `json:"step,omitempty"`
	// Cause is why the newest generation ended, from the stop until the next
	// one is prepared. Releases without it leave it empty.
	Cause Cause `json:"cause,omitempty"`
	// Out is the allocation that has to leave, so that the gang goes on without
	// its node; as long as Cause stands.
	Out string `json:"out,omitempty"`
	// Reason says why, for people: what is waited for, what failed.
	Reason string `json:"reason,omitempty"`
}

// Phase is what one member's node does for a generation.
type Phase string

const (
	// Idle: no process of any generation up to Record.Generation is here.
	Idle Phase = "idle"
	// Prepared: the process is ready and waits to be started.
	Prepared Phase = "prepared"
	// Started: the process runs. The store may still say Prepared: with the
	// generation running that means the same.
	Started Phase = "started"
	// Finished: the process ended with exit code 0.
	Finished Phase = "finished"
	// Broken: the process could not be prepared, or ended otherwise.
	Broken Phase = "broken"
)

// Record is a member's own key in the store.
type Record struct {
	V          int    `json:"v"`
	Member     Member `json:"member"`
	Phase      Phase  `json:"phase"`
	Generation uint64 `json:"generation"`
	// Leaving is set when this member goes on purpose.
	Leaving bool `json:"leaving,omitempty"`
	// Cause and Why say why it leaves, where it is not Nomad that stops it.
	Cause Cause  `json:"cause,omitempty"`
	Why   string `json:"why,omitempty"`
	// Exit is how the process ended, in the phases Finished and Broken.
	Exit *Exit `json:"exit,omitempty"`
}

// holdsProcess reports whether this node has a process of the record's generation.
func (r Record) holdsProcess() bool { return r.Phase == Prepared || r.Phase == Started }

// EncodeHead writes a head, its reason shortened so that it stays small.
func EncodeHead(h Head) ([]byte, error) {
	h.V = version
	h.Reason = shorten(h.Reason, maxReason)
	data, err := json.Marshal(h)
	if err == nil && len(data) > maxHead {
		// Escapes can make a reason longer than its bytes.
		h.Reason = shorten(h.Reason, maxReason/6)
		data, err = json.Marshal(h)
	}
	return data, err
}

// DecodeHead reads a head that anybody may have written.
func DecodeHead(data []byte) (Head, error) {
	var h Head
	if len(data) > 2*maxHead {
		return h, fmt.Errorf("head: %d bytes, allowed are %d", len(data), 2*maxHead)
	}
	if err := json.Unmarshal(data, &h); err != nil {
		return h, fmt.Errorf("head: %w", err)
	}
	if err := checkVersion("head", h.V); err != nil {
		return h, err
	}
	switch h.State {
	case Forming, Preparing, Running, Stopping, Done, Failed:
	default:
		return h, fmt.Errorf("head: state %q; allowed are forming, preparing, running, stopping, done, failed", shorten(string(h.State), 40))
	}
	if len(h.Out) > maxAlloc {
		return h, fmt.Errorf("head: out %q; allowed are up to %d bytes", shorten(h.Out, 40), maxAlloc)
	}
	h.Cause = h.Cause.read()
	if h.World < 0 || h.World > MaxNodes || h.Restarts < 0 || h.Barren < 0 {
		return h, fmt.Errorf("head: world %d, restarts %d, barren %d; allowed are 0 to %d, 0 or more, 0 or more", h.World, h.Restarts, h.Barren, MaxNodes)
	}
	if len(h.View) > maxViewName || strings.ContainsFunc(h.View, func(r rune) bool { return !(r >= '0' && r <= '9' || r >= 'a' && r <= 'f') }) {
		return h, fmt.Errorf("head: view %q; allowed are up to %d hexadecimal digits", shorten(h.View, 40), maxViewName)
	}
	h.Reason = shorten(h.Reason, maxReason)
	return h, nil
}

// EncodeRecord writes a member's record.
func EncodeRecord(r Record) ([]byte, error) {
	r.V, r.Why = version, shorten(r.Why, maxReason)
	if r.Exit != nil {
		e := *r.Exit
		e.Err, e.Tail = shorten(e.Err, 1000), boundTail(e.Tail)
		r.Exit = &e
	}
	data, err := json.Marshal(r)
	if err == nil && len(data) > maxRecord {
		return nil, fmt.Errorf("member %s: %d bytes, allowed are %d", r.Member.Alloc, len(data), maxRecord)
	}
	return data, err
}

// DecodeRecord reads the record under an allocation's key.
func DecodeRecord(alloc string, data []byte) (Record, error) {
	var r Record
	if len(data) > maxRecord {
		return r, fmt.Errorf("member %s: %d bytes, allowed are %d", alloc, len(data), maxRecord)
	}
	if err := json.Unmarshal(data, &r); err != nil {
		return r, fmt.Errorf("member %s: %w", alloc, err)
	}
	if err := checkVersion("member "+alloc, r.V); err != nil {
		return r, err
	}
	if r.Member.Alloc != alloc {
		return r, fmt.Errorf("member %s: the record names allocation %q", alloc, shorten(r.Member.Alloc, 40))
	}
	switch r.Phase {
	case Idle, Prepared, Started, Finished, Broken:
	default:
		return r, fmt.Errorf("member %s: phase %q; allowed are idle, prepared, started, finished, broken", alloc, shorten(string(r.Phase), 40))
	}
	if err := r.Member.Validate(); err != nil {
		return r, fmt.Errorf("member %s: %w", alloc, err)
	}
	r.Cause, r.Why = r.Cause.read(), shorten(r.Why, maxReason)
	return r, nil
}

func checkVersion(what string, v int) error {
	if v != version {
		return fmt.Errorf("%s: version %d; this driver reads version %d", what, v, version)
	}
	return nil
}

// Validate checks what a member says of itself: others put it into their
// environment and host files.
func (m Member) Validate() error {
	var errs []error
	if !m.Address.IsValid() {
		errs = append(errs, errors.New("address: none; allowed is an IP literal"))
	}
	for i, p := range m.Ports {
		if p < 1 || p > 65535 {
			errs = append(errs, fmt.Errorf("ports[%d]: %d; allowed are 1 to 65535", i, p))
		}
	}
	if m.Slots < 1 || m.Slots > 1024 {
		errs = append(errs, fmt.Errorf("slots: %d; allowed are 1 to 1024", m.Slots))
	}
	if len(m.GPUs) > 1024 {
		errs = append(errs, fmt.Errorf("gpus: %d of them; allowed are 1024", len(m.GPUs)))
	}
	for _, s := range append([]string{m.Alloc, m.Node, m.Topology, m.Version}, m.GPUs...) {
		if len(s) > maxAlloc || strings.ContainsFunc(s, func(r rune) bool { return r < ' ' }) {
			errs = append(errs, fmt.Errorf("%q: allowed are up to 256 bytes without control characters", shorten(s, 40)))
		}
	}
	return errors.Join(errs...)
}

// Validate checks a spec field by field.
func (s Spec) Validate() error {
	var errs []error
	if s.Nodes < 1 || s.Nodes > MaxNodes {
		errs = append(errs, fmt.Errorf("gang.nodes: %d; allowed are 1 to %d", s.Nodes, MaxNodes))
	}
	if s.MinNodes < 0 || s.MinNodes > s.Nodes {
		errs = append(errs, fmt.Errorf("gang.min_nodes: %d; allowed are 0 (all) to gang.nodes, %d", s.MinNodes, s.Nodes))
	}
	if s.LastCall < 0 {
		errs = append(errs, fmt.Errorf("gang.last_call: %s; allowed are 0s and more", s.LastCall))
	}
	if s.GrowInterval < 0 {
		errs = append(errs, fmt.Errorf("gang.grow_interval: %s; allowed are 0s (never) and more", s.GrowInterval))
	}
	switch s.Completion {
	case "", CompletionAll, CompletionRank0:
	default:
		errs = append(errs, fmt.Errorf("gang.completion: %q; allowed are %q and %q", s.Completion, CompletionAll, CompletionRank0))
	}
	if s.NoProgress < 0 || s.NoProgress > 1_000_000 {
		errs = append(errs, fmt.Errorf("gang.no_progress: %d; allowed are 0 (off) to 1000000", s.NoProgress))
	}
	if s.Restarts < 0 || s.Restarts > 1_000_000 {
		errs = append(errs, fmt.Errorf("gang.restarts: %d; allowed are 0 to 1000000", s.Restarts))
	}
	if s.FormTimeout < 0 {
		errs = append(errs, fmt.Errorf("gang.form_timeout: %s; allowed are 0s (no limit) and more", s.FormTimeout))
	}
	if s.PrepareTimeout <= 0 {
		errs = append(errs, fmt.Errorf("gang.prepare_timeout: %s; allowed is more than 0s", s.PrepareTimeout))
	}
	if s.FenceDelay < 0 {
		errs = append(errs, fmt.Errorf("gang.fence_delay: %s; allowed are 0s and more", s.FenceDelay))
	}
	return errors.Join(errs...)
}

// Agree returns an error that names each field in which this member's spec
// differs from the gang's, with both values.
func (s Spec) Agree(gang Spec) error {
	var errs []error
	differs := func(field string, own, other any) {
		if own != other {
			errs = append(errs, fmt.Errorf("gang.%s: %v here, %v in the gang that the first member started", field, own, other))
		}
	}
	differs("nodes", s.Nodes, gang.Nodes)
	differs("min_nodes", s.Least(), gang.Least())
	differs("last_call", s.LastCall, gang.LastCall)
	differs("grow_interval", s.GrowInterval, gang.GrowInterval)
	differs("completion", cmp.Or(s.Completion, CompletionAll), cmp.Or(gang.Completion, CompletionAll))
	differs("no_progress", s.NoProgress, gang.NoProgress)
	differs("restarts", s.Restarts, gang.Restarts)
	differs("form_timeout", s.FormTimeout, gang.FormTimeout)
	differs("prepare_timeout", s.PrepareTimeout, gang.PrepareTimeout)
	differs("fence_delay", s.FenceDelay, gang.FenceDelay)
	return errors.Join(errs...)
}
