// SPDX-License-Identifier: MPL-2.0

package replay

import (
	"fmt"
	"math"
	"math/rand/v2"
	"time"

	"github.com/nomad-gpu/nomad-gpu/autoscaler/plan"
)

// Sizes and run times of the rigid-job model of Lublin and Feitelson, "The
// workload on parallel supercomputers: modeling the characteristics of rigid
// jobs" (JPDC 63(11), 2003), parameters of its batch class: sizes by a
// two-stage uniform distribution of log2, mostly powers of two; the logarithm
// of the run time by a hyper-gamma whose mix depends on the size.
const (
	serial, powerOfTwo      = 0.2927, 0.6686
	lowLog, stepLog         = 1.2, 2.0 // stepLog: the middle stands this far under the largest size
	lowShare                = 0.875
	shortShape, shortScale  = 6.57, 0.823
	longShape, longScale    = 639.1, 0.0156
	mixPerNode, mixConstant = -0.003, 0.6986
)

// Gangs is a generated workload.
type Gangs struct {
	Count int
	// Every is the mean time between arrivals, which are a Poisson process.
	Every time.Duration
	// Most is the largest gang, in nodes; GPUs what each member has; Longest bounds a run.
	Most, GPUs int
	Longest    time.Duration
}

// Generate makes gangs, the same ones for a seed.
func Generate(g Gangs, seed uint64) Trace {
	rng := rand.New(rand.NewPCG(seed, 0x67616e67))
	var t Trace
	var at time.Duration
	for i := range g.Count {
		at += time.Duration(rng.ExpFloat64() * float64(g.Every)).Round(time.Second)
		size := gangSize(rng, g.Most)
		p := min(max(mixPerNode*float64(size)+mixConstant, 0), 1)
		logarithm := gamma(rng, longShape) * longScale
		if rng.Float64() < p {
			logarithm = gamma(rng, shortShape) * shortScale
		}
		run := min(max(time.Duration(math.Exp(min(logarithm, 16))*float64(time.Second)).Round(time.Second), time.Second), g.Longest)
		t.Tasks = append(t.Tasks, Task{Name: fmt.Sprintf("gang-%05d", i), Namespace: "gangs", Arrive: at, Run: run, Count: size, Gang: size > 1,
			Request: plan.Shape{GPUs: g.GPUs}, Spot: plan.Prefer})
	}
	return t
}

func gangSize(rng *rand.Rand, most int) int {
	if most == 1 || rng.Float64() < serial {
		return 1
	}
	high := math.Log2(float64(most))
	low := min(lowLog, high)
	middle := max(high-stepLog, low)
	x := low + rng.Float64()*(middle-low)
	if rng.Float64() >= lowShare {
		x = middle + rng.Float64()*(high-middle)
	}
	if rng.Float64() < powerOfTwo {
		x = math.Round(x)
	}
	return min(max(int(math.Round(math.Exp2(x))), 2), most)
}

// gamma draws from a gamma distribution of scale 1 and shape over 1, by the
// method of Marsaglia and Tsang (ACM TOMS 26(3), 2000).
func gamma(rng *rand.Rand, shape float64) float64 {
	d := shape - 1.0/3
	c := 1 / math.Sqrt(9*d)
	for {
		x := rng.NormFloat64()
		v := math.Pow(1+c*x, 3)
		if v > 0 && math.Log(1-rng.Float64()) < 0.5*x*x+d-d*v+d*math.Log(v) {
			return d * v
		}
	}
}
