// SPDX-License-Identifier: MPL-2.0

// Package tracetest collects spans over OTLP/HTTP for a test.
package tracetest

import (
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
	"time"

	collector "go.opentelemetry.io/proto/otlp/collector/trace/v1"
	"google.golang.org/protobuf/proto"
)

// Span is a span as it was received.
type Span struct {
	Trace, ID, Parent string // hexadecimal
	Name              string
	Start, End        time.Time
	Failed            string // the status's words; empty: no error
	Attributes        map[string]string
}

// Collector is a collector on loopback.
type Collector struct {
	// Endpoint is its host:port.
	Endpoint string
	mu       sync.Mutex
	spans    []Span
}

// Start runs a collector until the test ends.
func Start(t *testing.T) *Collector {
	c := &Collector{}
	s := httptest.NewServer(c)
	t.Cleanup(s.Close)
	c.Endpoint = strings.TrimPrefix(s.URL, "http://")
	return c
}

// Spans are those received so far.
func (c *Collector) Spans() []Span {
	c.mu.Lock()
	defer c.mu.Unlock()
	return append([]Span(nil), c.spans...)
}

func (c *Collector) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	data, err := io.ReadAll(r.Body)
	var batch collector.ExportTraceServiceRequest
	if err == nil {
		err = proto.Unmarshal(data, &batch)
	}
	if err != nil || r.URL.Path != "/v1/traces" {
		http.Error(w, fmt.Sprint(r.URL.Path, err), http.StatusBadRequest)
		return
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, rs := range batch.ResourceSpans {
		for _, ss := range rs.ScopeSpans {
			for _, s := range ss.Spans {
				span := Span{Trace: fmt.Sprintf("%x", s.TraceId), ID: fmt.Sprintf("%x", s.SpanId), Parent: fmt.Sprintf("%x", s.ParentSpanId), Name: s.Name,
					Start: time.Unix(0, int64(s.StartTimeUnixNano)), End: time.Unix(0, int64(s.EndTimeUnixNano)), Attributes: map[string]string{}}
				if s.Status.GetCode() == 2 {
					span.Failed = s.Status.GetMessage()
				}
				for _, a := range s.Attributes {
					v := a.Value.GetStringValue()
					if v == "" {
						v = fmt.Sprint(a.Value.GetIntValue())
					}
					span.Attributes[a.Key] = v
				}
				c.spans = append(c.spans, span)
			}
		}
	}
	w.Header().Set("Content-Type", "application/x-protobuf")
}
