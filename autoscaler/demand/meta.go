// SPDX-License-Identifier: MPL-2.0

package demand

import (
	"fmt"
	"maps"
	"math"
	"strconv"
	"time"

	"github.com/hashicorp/nomad/api"

	"github.com/nomad-gpu/nomad-gpu/autoscaler/plan"
)

// What a job, or a group of it, says in its meta.
const (
	spotMeta     = "gpu.spot"     // may it run on spot nodes?
	deadlineMeta = "gpu.deadline" // when it shall be done
	lengthMeta   = "gpu.duration" // how long it runs
	costMeta     = "gpu.max_cost" // the most it may cost
	moveMeta     = "gpu.move"     // may it be moved while it runs?
	restartMeta  = "gpu.restart"  // how long it is without result when it is moved
)

// longest bounds what a duration can be, so that sums of times do not overflow.
const longest = 10 * 365 * 24 * time.Hour

// intent is what a group's meta asks for. A value that is not understood is
// treated as not given, and named in Faults.
type intent struct {
	Spot     string
	Deadline time.Time
	Length   time.Duration
	MaxCost  float64
	Move     bool
	Restart  time.Duration
	Faults   []string
}

// metaOf is a group's meta over its job's, as its tasks have them.
func metaOf(job *api.Job, g *api.TaskGroup) map[string]string {
	if len(g.Meta) == 0 {
		return job.Meta
	}
	meta := maps.Clone(g.Meta)
	for key, value := range job.Meta {
		if _, set := meta[key]; !set {
			meta[key] = value
		}
	}
	return meta
}

// intentOf reads a group's meta; a deadline of a time of day is the next one
// after the job was submitted.
func intentOf(meta map[string]string, submitted time.Time) intent {
	i := intent{Spot: plan.Prefer}
	wrong := func(key, allowed string) {
		i.Faults = append(i.Faults, fmt.Sprintf("meta %s: %.64q is not looked at; allowed %s", key, meta[key], allowed))
	}
	switch s := meta[spotMeta]; s {
	case "", plan.Prefer:
	case plan.Never, plan.Only:
		i.Spot = s
	default:
		wrong(spotMeta, `are "prefer", "never" and "only"`)
	}
	if s := meta[deadlineMeta]; s != "" {
		var ok bool
		if i.Deadline, ok = deadlineOf(s, submitted); !ok {
			wrong(deadlineMeta, "is a time such as 2027-01-31T06:00:00Z, or a time of day in UTC such as 06:00")
		}
	}
	length := func(key string) time.Duration {
		d, err := time.ParseDuration(meta[key])
		if err == nil && d > 0 && d <= longest {
			return d
		}
		if meta[key] != "" {
			wrong(key, "is a duration above 0 and up to ten years, such as 90m")
		}
		return 0
	}
	i.Length, i.Restart = length(lengthMeta), length(restartMeta)
	if s := meta[costMeta]; s != "" {
		if c, err := strconv.ParseFloat(s, 64); err == nil && c > 0 && !math.IsInf(c, 0) {
			i.MaxCost = c
		} else {
			wrong(costMeta, "is a number above 0, in the currency of the pools' prices")
		}
	}
	switch meta[moveMeta] {
	case "", "no":
	case "yes":
		i.Move = true
	default:
		wrong(moveMeta, `are "yes" and "no"`)
	}
	return i
}

// deadlineOf reads a moment, or the time of day that follows another moment.
func deadlineOf(text string, after time.Time) (time.Time, bool) {
	if t, err := time.Parse(time.RFC3339, text); err == nil {
		return t, true
	}
	t, err := time.Parse("15:04", text)
	if err != nil || len(text) != len("15:04") {
		return time.Time{}, false
	}
	after = after.UTC()
	due := time.Date(after.Year(), after.Month(), after.Day(), t.Hour(), t.Minute(), 0, 0, time.UTC)
	if !due.After(after) {
		due = due.AddDate(0, 0, 1)
	}
	return due, true
}
