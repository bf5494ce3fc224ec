// SPDX-License-Identifier: MPL-2.0

package plugin

import (
	"net"
	"time"

	"github.com/nomad-gpu/nomad-gpu/driver/metrics"
)

// metricsPeriod is how often a listener that cannot be had is tried again: a
// former life of the driver may still hold the port.
const metricsPeriod = 5 * time.Second

// serveMetrics serves as long as the driver lives, if it is told to.
func (d *Driver) serveMetrics() {
	if d.settings.metrics == "" {
		return
	}
	c := metrics.Collector{Ledger: d.ledger, Now: time.Now}
	told := ""
	for d.ctx.Err() == nil {
		l, err := (&net.ListenConfig{}).Listen(d.ctx, "tcp", d.settings.metrics)
		if err == nil {
			d.logger.Info("metrics are served", "address", l.Addr())
			err = metrics.Serve(d.ctx, l, c)
		}
		if err != nil && err.Error() != told {
			told = err.Error()
			d.logger.Error("metrics cannot be served; trying again", "period", metricsPeriod, "error", err)
		}
		select {
		case <-d.ctx.Done():
		case <-time.After(metricsPeriod):
		}
	}
}
