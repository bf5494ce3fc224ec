// SPDX-License-Identifier: MPL-2.0

package pool

import "time"

// contact tells for how long nodes that were up have been out of Nomad's
// contact, as far as that was watched: where nothing was seen for a while,
// because Nomad's servers did not answer or the autoscaler was not there, no
// node is taken to have been away all the time.
type contact struct {
	away map[string]time.Time
	seen time.Time
}

// watchGap is how long nothing may be seen, beside three periods.
const watchGap = time.Minute

// look begins a look at all nodes that Nomad has.
func (c *contact) look(now time.Time, period time.Duration) {
	if c.away == nil || now.Sub(c.seen) > watchGap+3*period || now.Before(c.seen) {
		c.away = map[string]time.Time{}
	}
	c.seen = now
}

// lost is for how long a node has been away; 0 while it is up.
func (c *contact) lost(name string, up bool) time.Duration {
	since, away := c.away[name]
	switch {
	case up:
		delete(c.away, name)
	case !away:
		c.away[name] = c.seen
	default:
		return c.seen.Sub(since)
	}
	return 0
}
