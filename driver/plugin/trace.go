// SPDX-License-Identifier: MPL-2.0

package plugin

import (
	"context"
	"time"

	"go.opentelemetry.io/otel"

	"github.com/nomad-gpu/nomad-gpu/driver/member"
	"github.com/nomad-gpu/nomad-gpu/driver/trace"
)

// flushTime is how long the driver's end waits for the last spans to be sent.
const flushTime = 2 * time.Second

// newTracer makes the tracer, which lives as long as the driver.
func (d *Driver) newTracer(c trace.Config) (*trace.Tracer, error) {
	t, err := trace.New(d.ctx, c, Version)
	if t == nil || err != nil {
		return nil, err
	}
	otel.SetErrorHandler(otel.ErrorHandlerFunc(func(err error) { d.logger.Warn("spans are lost", "endpoint", c.Endpoint, "error", err) }))
	context.AfterFunc(d.ctx, func() {
		ctx, cancel := context.WithTimeout(context.WithoutCancel(d.ctx), flushTime)
		defer cancel()
		if err := t.Close(ctx); err != nil {
			d.logger.Warn("the last spans are lost", "error", err)
		}
	})
	return t, nil
}

// watched writes what the task's member does into the ledger and the trace.
func (d *Driver) watched(t *task) {
	key, alloc := t.options.Key, t.cfg.AllocID
	spans := d.tracer.Member(key, alloc, t.cfg.NodeName)
	t.runner.tracer, t.runner.spans = d.tracer, spans
	t.options.Observe = func(o member.Observation) {
		now := time.Now()
		d.ledger.Observe(now, key, alloc, o)
		spans.Observe(now, o)
	}
	t.options.Reached = func(yes bool) { d.ledger.Reached(time.Now(), alloc, yes) }
	t.over = func(r member.Result) {
		now := time.Now()
		d.ledger.Ended(now, key, alloc)
		spans.End(now, r.Outcome)
	}
}
