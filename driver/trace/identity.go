// SPDX-License-Identifier: MPL-2.0

// Package trace makes one OpenTelemetry trace of each gang's run, to which
// every member's driver adds the spans of its node.
package trace

import (
	"context"
	"crypto/rand"
	"crypto/sha256"
	"fmt"
	"strconv"

	"go.opentelemetry.io/otel/trace"

	"github.com/nomad-gpu/nomad-gpu/driver/gang"
)

// digest hashes parts so that no two lists of parts are written alike.
func digest(parts ...string) [sha256.Size]byte {
	h := sha256.New()
	for _, p := range parts {
		fmt.Fprintf(h, "%d:%s", len(p), p)
	}
	return [sha256.Size]byte(h.Sum(nil))
}

func keyParts(k gang.Key) []string {
	return []string{"nccl-gang-v1", k.Region, k.Namespace, k.Job, k.Group, k.Run}
}

// ID is the trace of a gang: the first 16 bytes of a SHA-256 over its key, so
// that all nodes know it before they have heard of each other.
func ID(k gang.Key) trace.TraceID {
	d := digest(keyParts(k)...)
	return trace.TraceID(d[:16])
}

// rootID is the span that stands for the whole gang.
func rootID(k gang.Key) trace.SpanID {
	d := digest(append(keyParts(k), "root")...)
	return trace.SpanID(d[:8])
}

// runID is the span of one member's process of one generation. It is known
// before the process is prepared, and so can stand in its environment.
func runID(k gang.Key, alloc string, generation uint64) trace.SpanID {
	d := digest(append(keyParts(k), "run", alloc, strconv.FormatUint(generation, 10))...)
	return trace.SpanID(d[:8])
}

// parent is the span context of the gang itself, as a remote parent.
func parent(k gang.Key) context.Context {
	return trace.ContextWithRemoteSpanContext(context.Background(), trace.NewSpanContext(trace.SpanContextConfig{
		TraceID: ID(k), SpanID: rootID(k), TraceFlags: trace.FlagsSampled, Remote: true}))
}

// fixed carries the identity that the next span is to have.
type fixed struct {
	trace trace.TraceID
	span  trace.SpanID
}

type fixedKey struct{}

func withIdentity(ctx context.Context, t trace.TraceID, s trace.SpanID) context.Context {
	return context.WithValue(ctx, fixedKey{}, fixed{t, s})
}

// identities gives the IDs that the context asks for, or random ones.
type identities struct{}

func (identities) NewIDs(ctx context.Context) (trace.TraceID, trace.SpanID) {
	if f, ok := ctx.Value(fixedKey{}).(fixed); ok {
		return f.trace, f.span
	}
	var t trace.TraceID
	rand.Read(t[:])
	return t, randomSpan()
}

func (identities) NewSpanID(ctx context.Context, _ trace.TraceID) trace.SpanID {
	if f, ok := ctx.Value(fixedKey{}).(fixed); ok {
		return f.span
	}
	return randomSpan()
}

func randomSpan() trace.SpanID {
	var s trace.SpanID
	for !s.IsValid() {
		rand.Read(s[:])
	}
	return s
}
