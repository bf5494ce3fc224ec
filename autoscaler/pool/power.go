// SPDX-License-Identifier: MPL-2.0

package pool

import (
	"fmt"
	"math"
	"sort"
	"time"
)

// Power is what a node draws and what its electricity costs.
type Power struct {
	// Idle is what a node draws without work, Busy with all its GPUs in use, in
	// kW. Between the two it is taken to go with the GPUs in use.
	Idle float64 `hcl:"idle"`
	Busy float64 `hcl:"busy"`
	// Price is that of a kWh, in the currency of the pools' prices.
	Price float64 `hcl:"price,optional"`
	// PUE is what the data centre draws for each kW of its nodes; 1 where none is set.
	PUE *float64 `hcl:"pue,optional"`
}

// Fixed is what nodes cost whatever they do: depreciation, place, support.
type Fixed struct {
	// Month is for a node and month, which is hoursPerMonth.
	Month float64 `hcl:"month"`
	// Nodes is how many are paid for, switched on or not; 0: those that are on.
	Nodes int `hcl:"nodes,optional"`
}

const (
	// hoursPerMonth is a twelfth of a year of 365 days.
	hoursPerMonth = 730
	// Bounds of what the file can say.
	maxDraw  = 1000 // kW, of one node
	maxPUE   = 10
	maxOwned = 1 << 20 // nodes
)

func (p *Definition) validateOwnership() (errs []error) {
	wrong := func(field string, value any, allowed string) {
		errs = append(errs, fmt.Errorf("pool %q: %s: %v; allowed %s", p.Name, field, value, allowed))
	}
	amount := func(v float64) bool { return v >= 0 && !math.IsInf(v, 0) }
	if w := p.Power; w != nil {
		if !(w.Idle >= 0 && w.Busy >= w.Idle && w.Busy <= maxDraw) {
			wrong("power.idle and power.busy", fmt.Sprintf("%g and %g", w.Idle, w.Busy), fmt.Sprintf("are 0 to %d kW, and busy not below idle", maxDraw))
		}
		if !amount(w.Price) {
			wrong("power.price", w.Price, "are 0 and more, for a kWh")
		}
		if w.PUE != nil && !(*w.PUE >= 1 && *w.PUE <= maxPUE) {
			wrong("power.pue", *w.PUE, fmt.Sprintf("are 1 to %d", maxPUE))
		}
	}
	if f := p.Fixed; f != nil {
		if !amount(f.Month) {
			wrong("fixed.month", f.Month, "are 0 and more, for a node and month")
		}
		if f.Nodes < 0 || f.Nodes > maxOwned {
			wrong("fixed.nodes", f.Nodes, fmt.Sprintf("are 0 (those that are on) to %d", maxOwned))
		}
	}
	return errs
}

// Bill is what nodes cost, in the currency of the pools' prices.
type Bill struct {
	Price, Power, Fixed float64
	// Energy is in kWh, with what the data centre adds. Unrated is the part of
	// it of which the curve tells no carbon, and Carbon that of the rest.
	Energy, Unrated, Carbon float64
}

// Total is all that is paid.
func (b Bill) Total() float64 { return b.Price + b.Power + b.Fixed }

// Plus adds another bill, times over.
func (b Bill) Plus(o Bill, times float64) Bill {
	return Bill{b.Price + times*o.Price, b.Power + times*o.Power, b.Fixed + times*o.Fixed,
		b.Energy + times*o.Energy, b.Unrated + times*o.Unrated, b.Carbon + times*o.Carbon}
}

// Hour is what some nodes of the pool cost for an hour in which used of their
// GPUs are in use: each of these, and all that is not in use. What nodes draw
// for work is paid by those who use them, all else by each GPU alike.
func (p *Definition) Hour(nodes, gpus int, used float64, t Tariff) (each, idle Bill) {
	all := max(float64(gpus), used) // nodes can have more than the file tells
	draw, work := 0.0, 0.0          // kW of a node
	if w := p.Power; w != nil {
		pue := 1.0
		if w.PUE != nil {
			pue = *w.PUE
		}
		draw, work = pue*w.Idle, pue*(w.Busy-w.Idle)
	}
	if nodes > 0 && all > 0 {
		part := float64(nodes) / all // of a node, that is one GPU's
		idle = p.drawn(part*draw, t)
		idle.Price = part * p.Price * t.Price
		if p.Fixed != nil {
			idle.Fixed = part * p.Fixed.Month / hoursPerMonth
		}
		each = idle.Plus(p.drawn(part*work, t), 1)
		idle = Bill{}.Plus(idle, all-used)
	}
	if p.Fixed != nil && p.Fixed.Nodes > nodes {
		idle.Fixed += float64(p.Fixed.Nodes-nodes) * p.Fixed.Month / hoursPerMonth
	}
	return each, idle
}

// drawn is the bill for some kWh.
func (p *Definition) drawn(energy float64, t Tariff) Bill {
	b := Bill{Energy: energy}
	if p.Power != nil {
		b.Power = energy * p.Power.Price * t.Price
	}
	if t.Carbon == nil {
		b.Unrated = energy
	} else {
		b.Carbon = energy * *t.Carbon
	}
	return b
}

// Tariff is what the curve tells of a moment.
type Tariff struct {
	// Price is the factor of prices, Carbon that of a kWh; nil: not known.
	Price  float64
	Carbon *float64
}

// Tariffs gives what the curve tells of any moment. Without a curve, and before
// a file's first line, prices are as they stand and no carbon is known.
func (c *Curve) Tariffs() (at func(time.Time) Tariff, err error) {
	plain := Tariff{Price: 1}
	if c == nil {
		return func(time.Time) Tariff { return plain }, nil
	}
	if c.File != "" {
		hours, hasCarbon, err := c.read()
		if err != nil {
			return nil, err
		}
		return func(at time.Time) Tariff {
			i := sort.Search(len(hours), func(i int) bool { return hours[i].from.After(at) }) - 1
			if i < 0 {
				return plain
			}
			t := Tariff{Price: hours[i].price}
			if hasCarbon {
				t.Carbon = &hours[i].carbon
			}
			return t
		}, nil
	}
	return func(at time.Time) Tariff {
		t := plain
		if c.Price != nil {
			t.Price = c.Price[at.UTC().Hour()]
		}
		if c.Carbon != nil {
			t.Carbon = &c.Carbon[at.UTC().Hour()]
		}
		return t
	}, nil
}
