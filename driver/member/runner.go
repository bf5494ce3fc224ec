// SPDX-License-Identifier: MPL-2.0

// Package member runs one member of a gang: it joins the pure state machine
// of package gang to a store and to the processes on this node.
package member

import (
	"context"

	"github.com/nomad-gpu/nomad-gpu/driver/gang"
)

// Runner runs the processes of this member, one generation at a time.
// Every method is safe to call again for the same generation.
type Runner interface {
	// Prepare makes the process of a.Generation ready without letting it run:
	// after it, only Start is missing. A nil error means prepared.
	Prepare(ctx context.Context, a gang.Assignment) error
	// Start lets the prepared process run.
	Start(ctx context.Context, generation uint64) error
	// Stop ends the generation's process and all its children: the configured
	// signal, the grace, then a kill. The grace is that for a checkpoint where
	// the stop is planned, else a short one: with a rank gone the others wait in
	// a collective that never ends. It returns when no process is left, also
	// where none had ever started.
	Stop(ctx context.Context, generation uint64, planned bool) error
	// Exited delivers the end of each started process once, also of those
	// that Stop ended.
	Exited() <-chan gang.Exit
}
