// SPDX-License-Identifier: MPL-2.0

package pools

import (
	"bufio"
	"bytes"
	"encoding/json"
)

// Scaling is one action of the autoscaler, from its own log.
type Scaling struct {
	Pool     string
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
			Message  string `json:"@message"`
			PolicyID string `json:"policy_id"`
			Target   string `json:"target"`
			From, To int
			Reason   string
			Meta     struct {
				QueuedGPUs float64 `json:"queued_gpus"`
				Policy     string  `json:"nomad_policy_id"`
			}
		}
		if json.Unmarshal(lines.Bytes(), &l) == nil && l.Message == "scaling target" {
			all = append(all, Scaling{From: l.From, To: l.To, Reason: l.Reason, QueuedGPUs: int(l.Meta.QueuedGPUs)})
		}
	}
	return all
}
