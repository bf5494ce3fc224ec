// SPDX-License-Identifier: MPL-2.0

package replay

import (
	"fmt"
	"math"
	"math/rand/v2"
	"time"

	"github.com/nomad-gpu/nomad-gpu/autoscaler/plan"
)

// Models of gangs' sizes and run times.
const (
	// Philly is that of GPU clusters: sizes and run times as drawn in the
	// evaluation of Gavel (Narayanan et al., OSDI 2020, section 7.1) after the
	// traces of Microsoft's Philly (Jeon et al., USENIX ATC 2019) and Gandiva
	// (Xiao et al., OSDI 2018): 70 % of one, 10 % of two, 15 % of four and 5 % of
	// eight workers; 10^x minutes, x even in 1.5 to 3 for 80 % and in 3 to 4 for
	// the rest.
	Philly = "philly"
	// Lublin is the rigid-job model of Lublin and Feitelson, "The workload on
	// parallel supercomputers: modeling the characteristics of rigid jobs" (JPDC
	// 63(11), 2003), parameters of its batch class: sizes by a two-stage uniform
	// distribution of log2, mostly powers of two; the logarithm of the run time
	// by a hyper-gamma whose mix depends on the size.
	Lublin = "lublin"
)

// Models are those there are.
var Models = []string{Philly, Lublin}

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
	Model string // one of Models; empty: the first
	Count int
	// Every is the mean time between arrivals, which are a Poisson process.
	Every time.Duration
	// Daily is how much the rate of arrivals swings over a day, 0 (not) to 1: it
	// is a sine with its peak at 15:00 and nothing at 03:00 where Daily is 1.
	Daily float64
	// Burst gangs arrive each day at 09:00, within ten minutes of it, instead of
	// all over the day. Zero: none do.
	Burst int
	// Most is the largest gang, in nodes; GPUs what each member has; Longest bounds a run.
	Most, GPUs int
	Longest    time.Duration
}

// String says what is generated.
func (g Gangs) String() string {
	model, when := g.Model, fmt.Sprintf("one each %s on average", g.Every)
	if model == "" {
		model = Models[0]
	}
	switch {
	case g.Burst > 0:
		when = fmt.Sprintf("%d each day at 09:00", g.Burst)
	case g.Daily > 0:
		when += fmt.Sprintf(", which swings by %.0f %% over a day", 100*g.Daily)
	}
	return fmt.Sprintf("%d gangs of the model %s, of up to %d nodes and %s, %s", g.Count, model, g.Most, g.Longest, when)
}

// Generate makes gangs, the same ones for a seed.
func Generate(g Gangs, seed uint64) Trace {
	rng := rand.New(rand.NewPCG(seed, 0x67616e67))
	draw := philly
	if g.Model == Lublin {
		draw = lublin
	}
	t := Trace{Name: g.String()}
	var at time.Duration
	for i := range g.Count {
		if g.Burst > 0 {
			at = time.Duration(i/g.Burst)*24*time.Hour + 9*time.Hour + time.Duration(i%g.Burst)*10*time.Minute/time.Duration(g.Burst)
		} else {
			at = g.next(rng, at)
		}
		size, run := draw(rng, g.Most)
		run = min(max(run.Round(time.Second), time.Second), g.Longest)
		t.Tasks = append(t.Tasks, Task{Name: fmt.Sprintf("gang-%05d", i), Namespace: "gangs", Arrive: at, Run: run, Count: size, Gang: size > 1,
			Request: plan.Shape{GPUs: g.GPUs}, Spot: plan.Prefer})
	}
	return t
}

// next is the arrival after one, by thinning a process of the peak's rate.
func (g Gangs) next(rng *rand.Rand, at time.Duration) time.Duration {
	for {
		at += time.Duration(rng.ExpFloat64() * float64(g.Every) / (1 + g.Daily)).Round(time.Second)
		hour := math.Mod(at.Hours(), 24)
		if g.Daily == 0 || rng.Float64()*(1+g.Daily) < 1+g.Daily*math.Sin(2*math.Pi*(hour-9)/24) {
			return at
		}
	}
}

func philly(rng *rand.Rand, most int) (size int, run time.Duration) {
	size = 1
	switch x := rng.Float64(); {
	case x >= 0.95:
		size = 8
	case x >= 0.8:
		size = 4
	case x >= 0.7:
		size = 2
	}
	x := 1.5 + 1.5*rng.Float64()
	if rng.Float64() < 0.2 {
		x = 3 + rng.Float64()
	}
	return min(size, most), time.Duration(math.Pow(10, x) * float64(time.Minute))
}

func lublin(rng *rand.Rand, most int) (size int, run time.Duration) {
	size = gangSize(rng, most)
	p := min(max(mixPerNode*float64(size)+mixConstant, 0), 1)
	logarithm := gamma(rng, longShape) * longScale
	if rng.Float64() < p {
		logarithm = gamma(rng, shortShape) * shortScale
	}
	return size, time.Duration(math.Exp(min(logarithm, 16)) * float64(time.Second))
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
