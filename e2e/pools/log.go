// SPDX-License-Identifier: MPL-2.0

package pools

import (
	"bufio"
	"bytes"
	"encoding/json"
	"time"
)

// Scaling is one action of the autoscaler, from its own log.
type Scaling struct {
	At       time.Time
	From, To int
	Reason   string
	// QueuedGPUs is the queue depth the strategy saw.
	QueuedGPUs int
}

// ParseScalings reads the actions out of the autoscaler's log in JSON.
func ParseScalings(log []byte) []Scaling {
	var all []Scaling
	lines := bufio.NewScanner(bytes.NewReader(log))
	lines.Buffer(nil, 1<<20)
	for lines.Scan() {
		var l struct {
			At       time.Time `json:"@timestamp"`
			Message  string    `json:"@message"`
			From, To int
			Reason   string
			Meta     struct {
				QueuedGPUs float64 `json:"queued_gpus"`
			}
		}
		if json.Unmarshal(lines.Bytes(), &l) == nil && l.Message == "scaling target" {
			all = append(all, Scaling{At: l.At, From: l.From, To: l.To, Reason: l.Reason, QueuedGPUs: int(l.Meta.QueuedGPUs)})
		}
	}
	return all
}
