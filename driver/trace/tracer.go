// SPDX-License-Identifier: MPL-2.0

package trace

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/url"
	"strings"
	"time"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/exporters/otlp/otlptrace/otlptracehttp"
	"go.opentelemetry.io/otel/sdk/resource"
	sdk "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/trace"

	"github.com/nomad-gpu/nomad-gpu/driver/gang"
)

// Config says where traces go.
type Config struct {
	// Endpoint is host:port of a collector that takes OTLP over HTTP; empty: nowhere.
	Endpoint string
	// Insecure speaks plain HTTP.
	Insecure bool
	// Sample is the part of the gangs that is traced, 0 to 1. All members of a
	// gang come to the same choice.
	Sample float64
}

// Validate names each field that cannot be used.
func (c Config) Validate() error {
	if c.Endpoint == "" {
		return nil
	}
	var errs []error
	host, port, err := net.SplitHostPort(c.Endpoint)
	u, wrong := url.Parse("http://" + c.Endpoint)
	if err != nil || host == "" || port == "" || strings.Contains(c.Endpoint, "/") || wrong != nil || u.User != nil {
		errs = append(errs, fmt.Errorf("tracing.endpoint: %q; allowed is host:port", c.Endpoint))
	}
	if !(c.Sample >= 0 && c.Sample <= 1) {
		errs = append(errs, fmt.Errorf("tracing.sample: %v; allowed are 0 to 1", c.Sample))
	}
	return errors.Join(errs...)
}

// Tracer sends the spans of this node's members. The nil Tracer traces nothing.
type Tracer struct {
	provider *sdk.TracerProvider
	tracer   trace.Tracer
	sampler  sdk.Sampler
}

// New makes a tracer for a valid Config; nothing is sent yet. Headers for the
// collector come from OTEL_EXPORTER_OTLP_HEADERS.
func New(ctx context.Context, c Config, version string) (*Tracer, error) {
	if c.Endpoint == "" {
		return nil, nil
	}
	options := []otlptracehttp.Option{otlptracehttp.WithEndpoint(c.Endpoint), otlptracehttp.WithTimeout(10 * time.Second)}
	if c.Insecure {
		options = append(options, otlptracehttp.WithInsecure())
	}
	exporter, err := otlptracehttp.New(ctx, options...)
	if err != nil {
		return nil, fmt.Errorf("tracing.endpoint %s: %w", c.Endpoint, err)
	}
	return newTracer(sdk.WithBatcher(exporter, sdk.WithBatchTimeout(2*time.Second)), c.Sample, version), nil
}

func newTracer(out sdk.TracerProviderOption, sample float64, version string) *Tracer {
	t := &Tracer{sampler: sdk.TraceIDRatioBased(sample)}
	t.provider = sdk.NewTracerProvider(out, sdk.WithIDGenerator(identities{}), sdk.WithSampler(t.sampler),
		sdk.WithResource(resource.NewSchemaless(attribute.String("service.name", "nomad-driver-nccl"), attribute.String("service.version", version))))
	t.tracer = t.provider.Tracer("github.com/nomad-gpu/nomad-gpu/driver/trace")
	return t
}

// Close sends what waits.
func (t *Tracer) Close(ctx context.Context) error {
	if t == nil {
		return nil
	}
	return t.provider.Shutdown(ctx)
}

// Parent is the TRACEPARENT of a member's process of one generation, after
// W3C's Trace Context, version 00; empty where nothing is traced.
func (t *Tracer) Parent(k gang.Key, alloc string, generation uint64) string {
	if t == nil {
		return ""
	}
	flags := trace.TraceFlags(0)
	if t.sampler.ShouldSample(sdk.SamplingParameters{TraceID: ID(k)}).Decision == sdk.RecordAndSample {
		flags = trace.FlagsSampled
	}
	return fmt.Sprintf("00-%s-%s-%s", ID(k), runID(k, alloc, generation), flags)
}
