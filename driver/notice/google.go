// SPDX-License-Identifier: MPL-2.0

package notice

import (
	"context"
	"errors"
	"fmt"

	"cloud.google.com/go/compute/metadata"
)

// google reads Compute Engine's metadata. A preempted instance has 30 s.
// https://cloud.google.com/compute/docs/instances/create-use-spot#detect-preemption
type google struct{ client *metadata.Client }

func newGoogle(c Config) google {
	return google{metadata.NewClient(newClient(c.Address, c.Period))}
}

func (g google) Read(ctx context.Context) (*Notice, error) {
	preempted, err := g.get(ctx, "instance/preempted")
	if err != nil {
		return nil, err
	}
	switch preempted {
	case "TRUE":
		return &Notice{What: "Google: preempted"}, nil
	case "", "FALSE":
	default:
		return nil, fmt.Errorf("instance/preempted of Google's metadata: %q; allowed are TRUE and FALSE", preempted)
	}
	event, err := g.get(ctx, "instance/maintenance-event")
	if err != nil {
		return nil, err
	}
	switch event {
	case "TERMINATE_ON_HOST_MAINTENANCE":
		return &Notice{What: "Google: maintenance, the instance is stopped"}, nil
	case "", "NONE", "MIGRATE_ON_HOST_MAINTENANCE": // a migration keeps the instance, and no GPU can migrate
		return nil, nil
	}
	return nil, fmt.Errorf("instance/maintenance-event of Google's metadata: %q; allowed are NONE, MIGRATE_ON_HOST_MAINTENANCE, TERMINATE_ON_HOST_MAINTENANCE", event)
}

// get returns "" where there is no such item.
func (g google) get(ctx context.Context, path string) (string, error) {
	value, err := g.client.GetWithContext(ctx, path)
	if undefined := metadata.NotDefinedError(""); errors.As(err, &undefined) {
		return "", nil
	}
	if err != nil {
		if answer := (*metadata.Error)(nil); errors.As(err, &answer) {
			err = fmt.Errorf("status %d: %s", answer.Code, line(answer.Message))
		}
		return "", fmt.Errorf("read %s of Google's metadata: %w", path, err)
	}
	return line(value), nil
}
