// SPDX-License-Identifier: MPL-2.0

package demand

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"sync"

	"github.com/hashicorp/nomad/api"
	"golang.org/x/sync/errgroup"

	"github.com/nomad-gpu/nomad-gpu/autoscaler/plan"
)

// inspect reads the nodes that are to be inspected, those not known from an
// earlier reading or changed since, and gives what all of them tell; those at
// places that are asked for beside them only as far as mostNodes goes.
func (r *Reader) inspect(ctx context.Context, nodes []*api.NodeListStub, asked func(plan.Where) bool) (map[string]map[string]string, error) {
	known := map[string]*api.Node{}
	var told map[string]map[string]string
	if r.Inspect != nil {
		told = map[string]map[string]string{}
	}
	left := mostNodes
	var mu sync.Mutex
	calls, ctx := errgroup.WithContext(ctx)
	calls.SetLimit(jobCalls)
	for _, n := range nodes {
		if n == nil || n.Status != api.NodeStatusReady {
			continue
		}
		tell := r.Inspect != nil && r.Inspect(placeOf(n))
		if !tell && !asked(placeOf(n)) {
			continue
		}
		note := func(full *api.Node) {
			mu.Lock()
			defer mu.Unlock()
			known[n.ID] = full
			if tell {
				told[n.Name] = tells(n, full)
			}
		}
		if old := r.inspected[n.ID]; old != nil && old.ModifyIndex >= n.ModifyIndex {
			note(old)
			continue
		}
		if !tell {
			if left == 0 {
				continue // the next reading does
			}
			left--
		}
		calls.Go(func() error {
			full, _, err := r.client.Nodes().Info(n.ID, (&api.QueryOptions{}).WithContext(ctx))
			var answer api.UnexpectedResponseError
			if errors.As(err, &answer) && answer.StatusCode() == http.StatusNotFound {
				return nil // it went after it was listed
			}
			if err != nil {
				return fmt.Errorf("read node %s: %w", n.Name, err)
			}
			note(full)
			return nil
		})
	}
	err := calls.Wait()
	r.inspected = known
	return told, err
}

// tells is what a node and its GPUs say of themselves, as text.
func tells(n *api.NodeListStub, full *api.Node) map[string]string {
	all := map[string]string{}
	if n.NodeResources != nil {
		for _, d := range n.NodeResources.Devices {
			if d == nil || !isGPU(d.Vendor, d.Type) {
				continue
			}
			for name, a := range d.Attributes {
				if a != nil {
					all["device."+name] = a.String()
				}
			}
		}
	}
	if full == nil {
		return all
	}
	for name, v := range full.Attributes {
		all["attr."+name] = v
	}
	for name, v := range full.Meta {
		all["meta."+name] = v
	}
	return all
}
