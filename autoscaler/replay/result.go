// SPDX-License-Identifier: MPL-2.0

package replay

import (
	"slices"
	"time"

	"github.com/nomad-gpu/nomad-gpu/autoscaler/plan"
)

// Result is what one policy came to. A wait is all the time that a task was in
// the queue, after interruptions too.
type Result struct {
	Policy        string  `json:"policy"`
	Cost          float64 `json:"cost"`
	PaidGPUHours  float64 `json:"paid_gpu_hours"`
	SpotGPUHours  float64 `json:"spot_gpu_hours"` // of those paid
	UsedGPUHours  float64 `json:"used_gpu_hours"` // without what was lost
	LostGPUHours  float64 `json:"lost_gpu_hours"` // computed after the last checkpoint before an interruption
	Used          float64 `json:"used_share"`     // of the paid GPU hours
	MeanWait      float64 `json:"mean_wait_seconds"`
	P95Wait       float64 `json:"p95_wait_seconds"`
	P95GangWait   float64 `json:"p95_gang_wait_seconds"`
	Done          int     `json:"tasks_done"`
	Unfinished    int     `json:"tasks_unfinished"`
	Bought        int     `json:"nodes_bought"`
	Interruptions int     `json:"interruptions"`
	Moved         int     `json:"tasks_moved"`
	Refused       int     `json:"requests_refused"`
	Spent         Spent   `json:"spent"`
	Curve         []Point `json:"curve,omitempty"`
}

// Spent is what the cost was for. The parts add up to it.
type Spent struct {
	Work     float64 `json:"work"`     // GPUs that computed something that was kept
	Lost     float64 `json:"lost"`     // GPUs that computed in vain: after the last checkpoint, or on a new start
	Start    float64 `json:"start"`    // nodes from their purchase until they were ready
	Idle     float64 `json:"idle"`     // ready nodes with nothing on them
	Unfilled float64 `json:"unfilled"` // the free GPUs of nodes with something on them
	Billing  float64 `json:"billing"`  // increments that were begun
}

// Point is the cluster at one time.
type Point struct {
	Hours      float64 `json:"hours"`
	QueuedGPUs int     `json:"queued_gpus"`
	Spot       int     `json:"spot_nodes"`
	OnDemand   int     `json:"on_demand_nodes"`
	Used       float64 `json:"used_share"` // of the GPUs there
	Cost       float64 `json:"cost_per_hour"`
	Wait       float64 `json:"oldest_wait_seconds"` // of what waits now
}

type wait struct {
	time time.Duration
	gang bool
}

func newResult(policy string, o Options) *Result {
	return &Result{Policy: policy, Curve: make([]Point, 0, o.Samples)}
}

// to moves the clock, and samples the curves on the way.
func (r *run) to(t time.Duration) {
	for r.sampled < r.Samples {
		at := r.horizon * time.Duration(r.sampled) / time.Duration(r.Samples)
		if at >= t {
			break
		}
		r.result.Curve = append(r.result.Curve, r.sample(at))
		r.sampled++
	}
	r.now = t
}

func (r *run) sample(at time.Duration) Point {
	p := Point{Hours: at.Hours()}
	for _, j := range r.queue {
		p.QueuedGPUs += j.GPUs()
		p.Wait = max(p.Wait, (at - j.queued).Seconds())
	}
	total, used := 0, 0
	for _, n := range r.nodes {
		pool := r.pools[n.pool]
		if pool.Lifecycle == plan.Spot {
			p.Spot++
		} else {
			p.OnDemand++
		}
		p.Cost += pool.Price
		total += pool.Shape.GPUs
		used += pool.Shape.GPUs - n.Free.GPUs
	}
	if total > 0 {
		p.Used = float64(used) / float64(total)
	}
	return p
}

func (r *run) finish() {
	o := r.result
	if o.PaidGPUHours > 0 {
		o.Used = o.UsedGPUHours / o.PaidGPUHours
	}
	o.Done, o.Unfinished = len(r.waits), r.undone
	var all, gangs []time.Duration
	var sum time.Duration
	for _, w := range r.waits {
		sum += w.time
		all = append(all, w.time)
		if w.gang {
			gangs = append(gangs, w.time)
		}
	}
	if len(all) > 0 {
		o.MeanWait = sum.Seconds() / float64(len(all))
	}
	o.P95Wait, o.P95GangWait = percentile(all, 0.95), percentile(gangs, 0.95)
}

// percentile is the nearest-rank one, in seconds.
func percentile(all []time.Duration, q float64) float64 {
	if len(all) == 0 {
		return 0
	}
	slices.Sort(all)
	return all[min(int(q*float64(len(all))), len(all)-1)].Seconds()
}
