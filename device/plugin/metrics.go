// SPDX-License-Identifier: MPL-2.0

package plugin

import (
	"context"
	"strings"
	"sync"
	"time"

	"github.com/nomad-gpu/nomad-gpu/device/gpu"
	"github.com/nomad-gpu/nomad-gpu/device/metrics"
)

// sampleFor is how long a sample serves all who ask: Nomad's statistics and
// metrics together cost NVML one reading.
const sampleFor = time.Second

// sampleOnce gives samples that are not older than sampleFor.
func (d *Device) sampleOnce(source Source) (map[string]gpu.Sample, error) {
	d.sampling.Lock()
	defer d.sampling.Unlock()
	if d.samples != nil && time.Since(d.sampled) < sampleFor {
		return d.samples, nil
	}
	samples, err := source.Samples()
	if err == nil {
		d.samples, d.sampled = samples, time.Now()
	}
	return samples, err
}

// serveMetrics begins once, with the first fingerprint: Nomad starts a plugin
// several times only to look at it.
func (d *Device) serveMetrics(c config, source Source) {
	d.mu.Lock()
	first := c.listen != "" && !d.serving
	d.serving = d.serving || first
	d.mu.Unlock()
	if !first {
		return
	}
	owners := ownership{agent: c.agent}
	collector := metrics.New(func() (metrics.Snapshot, error) {
		samples, err := d.sampleOnce(source)
		if err != nil {
			return metrics.Snapshot{}, err
		}
		d.mu.Lock()
		s := metrics.Snapshot{Machine: d.machine, Samples: samples, Verdicts: d.verdicts, Xids: d.xids}
		d.mu.Unlock()
		if s.Machine != nil {
			s.Owners = owners.of(s.Machine, c.bound())
		}
		return s, nil
	})
	go func() {
		for {
			err := metrics.Serve(context.Background(), c.listen, collector)
			d.logger.Error("metrics cannot be served; trying again", "error", err, "period", retryPeriod.String())
			time.Sleep(retryPeriod)
		}
	}()
}

// ownersFor is how long an answer of the agent serves.
const ownersFor = 10 * time.Second

// ownership asks the node's agent who has which GPU.
type ownership struct {
	agent *agent

	mu    sync.Mutex
	known map[string][]Owner // by device ID
	asked time.Time
}

// of gives the owners by the GPU's UUID; none where the agent does not answer.
func (o *ownership) of(m *gpu.Machine, grouping Grouping) map[string][]metrics.Owner {
	if o.agent == nil {
		return nil
	}
	o.mu.Lock()
	defer o.mu.Unlock()
	if time.Since(o.asked) >= ownersFor {
		ctx, cancel := context.WithTimeout(context.Background(), askGap)
		defer cancel()
		known, err := o.agent.owners(ctx)
		if err != nil {
			known = nil
		}
		o.known, o.asked = known, time.Now()
	}
	owners := make(map[string][]metrics.Owner)
	slot := make(map[string]string) // UUID by slot
	for uuid, id := range grouping.SlotOf {
		slot[id] = uuid
	}
	for id, who := range o.known {
		uuid, _, _ := strings.Cut(id, "::")
		if bound, ok := slot[id]; ok {
			uuid = bound
		}
		for _, w := range who {
			owners[uuid] = append(owners[uuid], metrics.Owner(w))
		}
	}
	return owners
}
