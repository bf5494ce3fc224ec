// SPDX-License-Identifier: MPL-2.0

package notice

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"slices"
	"strings"
	"sync"
)

// azure reads Scheduled Events. It acknowledges none: that would let the
// platform begin before the other members have written their checkpoint.
// The first call switches the service on for this machine, which can take two
// minutes; reads time out until then.
// https://learn.microsoft.com/azure/virtual-machines/linux/scheduled-events
type azure struct {
	client *http.Client
	mu     sync.Mutex
	name   string // of this machine, once known
}

const (
	azureEvents = "http://169.254.169.254/metadata/scheduledevents?api-version=2020-07-01"
	azureName   = "http://169.254.169.254/metadata/instance/compute/name?api-version=2021-02-01&format=text"
)

func newAzure(c Config) *azure { return &azure{client: newClient(c.Address, c.Period)} }

func (a *azure) Read(ctx context.Context) (*Notice, error) {
	name, err := a.machine(ctx)
	if err != nil {
		return nil, err
	}
	data, err := a.get(ctx, azureEvents)
	if err != nil {
		return nil, fmt.Errorf("read the scheduled events of Azure's metadata: %w", err)
	}
	return scheduledEvents(data, name)
}

func (a *azure) machine(ctx context.Context) (string, error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.name != "" {
		return a.name, nil
	}
	data, err := a.get(ctx, azureName)
	if err != nil {
		return "", fmt.Errorf("read this machine's name of Azure's metadata: %w", err)
	}
	if a.name = line(string(data)); a.name == "" {
		return "", fmt.Errorf("read this machine's name of Azure's metadata: it is empty")
	}
	return a.name, nil
}

func (a *azure) get(ctx context.Context, url string) ([]byte, error) {
	r, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
	if err != nil {
		return nil, err
	}
	r.Header.Set("Metadata", "true")
	answer, err := a.client.Do(r)
	if err != nil {
		return nil, err
	}
	defer answer.Body.Close()
	data, err := io.ReadAll(answer.Body)
	if err == nil && answer.StatusCode != http.StatusOK {
		err = fmt.Errorf("status %d: %s", answer.StatusCode, line(string(data)))
	}
	return data, err
}

// scheduledEvents finds the first event that ends this machine: a document
// lists those of all machines of a scale set or availability set.
func scheduledEvents(data []byte, machine string) (*Notice, error) {
	var v struct {
		Events []struct {
			EventType string
			Resources []string
			NotBefore string
		}
	}
	if err := json.Unmarshal(data, &v); err != nil {
		return nil, fmt.Errorf("read the scheduled events of Azure's metadata: %w", err)
	}
	var first *Notice
	var unknown error // does not hide an event that is known
	for _, e := range v.Events {
		if !slices.ContainsFunc(e.Resources, func(r string) bool { return strings.EqualFold(r, machine) }) {
			continue
		}
		switch e.EventType {
		case "Preempt", "Terminate", "Reboot", "Redeploy":
		case "Freeze": // seconds of pause, less than what ends a session
			continue
		default:
			unknown = fmt.Errorf("the scheduled events of Azure's metadata: EventType %q; allowed are Freeze, Reboot, Redeploy, Preempt, Terminate", line(e.EventType))
			continue
		}
		n := &Notice{What: "Azure: " + e.EventType}
		if e.NotBefore != "" { // empty once it has begun
			at, err := http.ParseTime(e.NotBefore)
			if err != nil {
				return nil, fmt.Errorf("the scheduled events of Azure's metadata: NotBefore %q; allowed is a time such as %s", line(e.NotBefore), http.TimeFormat)
			}
			n.At = at
		}
		if first == nil || n.At.Before(first.At) {
			first = n
		}
	}
	if first != nil {
		return first, nil
	}
	return nil, unknown
}
