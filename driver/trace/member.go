// SPDX-License-Identifier: MPL-2.0

package trace

import (
	"strings"
	"sync"
	"time"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/codes"
	"go.opentelemetry.io/otel/trace"

	"github.com/nomad-gpu/nomad-gpu/driver/gang"
	"github.com/nomad-gpu/nomad-gpu/driver/member"
)

// Member makes the spans of one member: form, prepare, run and stop, one after
// the other, for each generation, and preflight below prepare. It reads no clock.
type Member struct {
	tracer *Tracer
	key    gang.Key
	alloc  string
	node   string

	mu     sync.Mutex
	span   trace.Span
	stage  member.Stage
	last   member.Observation
	joined time.Time
}

// Member begins a member's spans; nil where nothing is traced.
func (t *Tracer) Member(k gang.Key, alloc, node string) *Member {
	if t == nil {
		return nil
	}
	return &Member{tracer: t, key: k, alloc: alloc, node: node}
}

// Observe takes what the member saw at that time.
func (m *Member) Observe(now time.Time, o member.Observation) {
	if m == nil {
		return
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	before, stage := m.stage, o.Stage()
	if m.joined.IsZero() {
		m.joined = now
	}
	same := m.span != nil && stage == before && (stage == member.Forming || o.Record.Generation == m.last.Record.Generation)
	if !same {
		m.finish(now, o)
		m.begin(now, before, stage, o)
	}
	m.stage, m.last = stage, o
}

func (m *Member) begin(now time.Time, before, stage member.Stage, o member.Observation) {
	ctx := parent(m.key)
	// A run that a former life of the driver began has sent its span already.
	if stage == member.Running && before == member.Preparing {
		ctx = withIdentity(ctx, ID(m.key), runID(m.key, m.alloc, o.Record.Generation))
	}
	_, m.span = m.tracer.tracer.Start(ctx, string(stage), trace.WithTimestamp(now), trace.WithAttributes(m.attributes()...))
}

// finish ends the span that is open, with what is known by then.
func (m *Member) finish(now time.Time, o member.Observation) {
	if m.span == nil {
		return
	}
	known := o
	if m.stage != member.Forming {
		known.Head.Generation, known.Rank = m.last.Record.Generation, m.last.Rank
	}
	m.span.SetAttributes(attribute.Int64("gang.generation", int64(known.Head.Generation)), attribute.Int("gang.rank", known.Rank),
		attribute.Int("gang.world", o.Head.World), attribute.String("gang.reason", strings.ToValidUTF8(o.Head.Reason, "?")),
		attribute.String("gang.cause", string(o.Head.Cause)))
	if x := o.Record.Exit; x != nil && m.stage != member.Forming {
		m.span.SetAttributes(attribute.Int("process.exit.code", x.Code), attribute.Int("process.exit.signal", x.Signal))
		if !x.OK() {
			m.span.SetStatus(codes.Error, strings.ToValidUTF8(x.String(), "?"))
		}
	}
	m.span.End(trace.WithTimestamp(now))
	m.span = nil
}

// Preflight sends the span of the checks before a generation's process is
// made, below the span that is open: its member prepares.
func (m *Member) Preflight(begin, end time.Time, a gang.Assignment, err error) {
	if m == nil {
		return
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	ctx := parent(m.key)
	if m.span != nil {
		ctx = trace.ContextWithSpan(ctx, m.span)
	}
	_, span := m.tracer.tracer.Start(ctx, "preflight", trace.WithTimestamp(begin), trace.WithAttributes(m.attributes()...))
	span.SetAttributes(attribute.Int64("gang.generation", int64(a.Generation)), attribute.Int("gang.rank", a.Rank), attribute.Int("gang.world", len(a.Members)))
	if err != nil {
		span.SetStatus(codes.Error, strings.ToValidUTF8(err.Error(), "?"))
	}
	span.End(trace.WithTimestamp(end))
}

// End closes the member's spans. Where the gang has ended too, its last rank 0
// sends the span of the whole gang, since only one may.
func (m *Member) End(now time.Time, o gang.Outcome) {
	if m == nil {
		return
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	m.finish(now, m.last)
	if m.last.Rank != 0 || !o.State.Final() {
		return
	}
	ctx := withIdentity(parent(m.key), ID(m.key), rootID(m.key))
	_, span := m.tracer.tracer.Start(ctx, "gang", trace.WithNewRoot(), trace.WithTimestamp(m.joined), trace.WithAttributes(m.attributes()...))
	span.SetAttributes(attribute.Int64("gang.generation", int64(m.last.Head.Generation)), attribute.Int("gang.restarts", m.last.Head.Restarts),
		attribute.Int("gang.world", m.last.Head.World), attribute.String("gang.reason", strings.ToValidUTF8(o.Reason, "?")))
	if o.State == gang.Failed {
		span.SetStatus(codes.Error, strings.ToValidUTF8(o.Reason, "?"))
	}
	span.End(trace.WithTimestamp(now))
}

func (m *Member) attributes() []attribute.KeyValue {
	text := func(name, value string) attribute.KeyValue {
		return attribute.String(name, strings.ToValidUTF8(value, "?"))
	}
	return []attribute.KeyValue{text("nomad.region", m.key.Region), text("nomad.namespace", m.key.Namespace), text("nomad.job.id", m.key.Job),
		text("nomad.group.name", m.key.Group), text("nomad.alloc.id", m.alloc), text("nomad.node.name", m.node), text("gang.run", m.key.Run)}
}
