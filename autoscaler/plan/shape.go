// SPDX-License-Identifier: MPL-2.0

package plan

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
)

// Types of devices, in Nomad's words: a GPU or MIG instance, and a slice of a
// GPU that is shared.
const (
	GPU   = "gpu"
	Slice = "gpu-slice"
)

// Shape is what a node offers, or an allocation asks for. In a request zero CPU
// or memory is any amount.
type Shape struct {
	// GPUs counts devices of type gpu: whole ones and MIG instances.
	GPUs   int
	Model  string // of GPUs where Devices and Asks say nothing; in a request an empty one takes any
	CPU    int    // MHz
	Memory int    // MiB
	// Devices are the groups of devices that a node has. Nil: its GPUs are one.
	Devices []Devices
	// Asks are the device blocks of a request. Nil: it asks for GPUs of Model.
	Asks []Ask
	// Host is what else of a node is shared out. Nil: in an offer not looked at,
	// as pools do not tell it; in a request nothing.
	Host *Host
}

// Devices are a group of like devices: Nomad serves a device block from one
// group, whatever the others have left.
type Devices struct {
	Type  string // GPU or Slice
	Model string
	Count int
	// Of is how many of them are made of one GPU; 0: of each is one.
	Of int
	// Kind is what Ask.Serves knows the group by.
	Kind string
}

// Ask is one device block.
type Ask struct {
	Type  string // GPU or Slice
	Model string // empty: any
	Count int
	// Of is how many of them are made of one GPU, where they have their devices; 0: of each is one.
	Of int
	// Serves reports whether a kind of devices has the name and attributes that
	// are asked for. Nil: type and model decide, as they do for groups without a kind.
	Serves func(kind string) bool
}

func (a Ask) takes(d Devices) bool {
	if a.Count > d.Count {
		return false
	}
	if a.Serves != nil && d.Kind != "" {
		return a.Serves(d.Kind)
	}
	return a.Type == d.Type && (a.Model == "" || strings.EqualFold(a.Model, d.Model))
}

func (s Shape) groups() []Devices {
	if s.Devices == nil && s.GPUs > 0 {
		return []Devices{{Type: GPU, Model: s.Model, Count: s.GPUs}}
	}
	return s.Devices
}

func (s Shape) asks() []Ask {
	if s.Asks == nil && s.GPUs > 0 {
		return []Ask{{Type: GPU, Model: s.Model, Count: s.GPUs}}
	}
	return s.Asks
}

// Size is how many GPUs a node has, those that are shared included.
func (s Shape) Size() float64 {
	if s.Devices == nil {
		return float64(s.GPUs)
	}
	size := 0.0
	for _, d := range s.Devices {
		size += float64(d.Count) / float64(max(d.Of, 1))
	}
	return size
}

// Worth is what a request takes of a node of this shape, in GPUs.
func (s Shape) Worth(request Shape) float64 {
	if request.Asks == nil {
		return float64(request.GPUs)
	}
	worth := 0.0
	for _, a := range request.Asks {
		of := max(a.Of, 1)
		if i := slices.IndexFunc(s.Devices, a.takes); i >= 0 {
			of = max(s.Devices[i].Of, 1)
		}
		worth += float64(a.Count) / float64(of)
	}
	return worth
}

// Slices is how many slices of GPUs a request asks for.
func (s Shape) Slices() (count int) {
	for _, a := range s.Asks {
		if a.Type == Slice {
			count += a.Count
		}
	}
	return count
}

// devices is how many a request asks for, or a node has, of all types.
func (s Shape) devices() (count int) {
	switch {
	case s.Asks != nil:
		for _, a := range s.Asks {
			count += a.Count
		}
	case s.Devices != nil:
		for _, d := range s.Devices {
			count += d.Count
		}
	default:
		count = s.GPUs
	}
	return count
}

// greatest is the most that one device block of a request asks for, or that one
// group of a node has.
func (s Shape) greatest() (count int) {
	for _, a := range s.Asks {
		count = max(count, a.Count)
	}
	for _, d := range s.Devices {
		count = max(count, d.Count)
	}
	if s.Asks == nil && s.Devices == nil {
		return s.GPUs
	}
	return count
}

// String is a request in words.
func (s Shape) String() string {
	if s.Asks == nil {
		return counted(s.GPUs, GPU, s.Model)
	}
	var parts []string
	for _, a := range s.Asks {
		parts = append(parts, counted(a.Count, a.Type, a.Model))
	}
	return strings.Join(parts, " and ")
}

// offered is what a node has in words.
func (s Shape) offered() string {
	var parts []string
	for _, d := range s.groups() {
		if text := counted(d.Count, d.Type, d.Model); !slices.Contains(parts, text) {
			parts = append(parts, text)
		}
	}
	return cmp.Or(strings.Join(parts, " and "), "no GPU")
}

func counted(count int, kind, model string) string {
	unit := "GPUs"
	if kind == Slice {
		unit = "slices"
	}
	return strings.TrimSpace(fmt.Sprintf("%d %s %s", count, unit, model))
}

func fits(request, offer Shape) bool {
	if request.Memory > offer.Memory || request.mhz(offer) > offer.CPU || !request.hosted(offer) {
		return false
	}
	if request.Asks == nil && offer.Devices == nil {
		return request.GPUs <= offer.GPUs && (request.Model == "" || strings.EqualFold(request.Model, offer.Model))
	}
	if len(request.Asks) == 1 && offer.Devices != nil { // nearly all are
		return slices.ContainsFunc(offer.Devices, request.Asks[0].takes)
	}
	_, ok := assign(request.asks(), offer.groups())
	return ok
}

// assign gives each device block the group with the least left that serves it,
// so that the greater ones stay whole, and says what is left. Nomad chooses at
// random among groups that serve a block alike.
func assign(asks []Ask, groups []Devices) (left []Devices, ok bool) {
	left = slices.Clone(groups)
	for _, a := range asks {
		best := -1
		for i, d := range left {
			if a.takes(d) && (best < 0 || d.Count < left[best].Count) {
				best = i
			}
		}
		if best < 0 {
			return left, false
		}
		left[best].Count -= a.Count
	}
	return left, true
}

// take subtracts a request from what fits it.
func take(request Shape, offer *Shape) {
	if offer.Devices != nil {
		offer.Devices, _ = assign(request.asks(), offer.Devices)
	}
	offer.GPUs -= request.GPUs
	offer.CPU -= request.mhz(*offer)
	offer.Memory -= request.Memory
	if request.Host != nil && offer.Host != nil {
		left := *offer.Host
		left.Cores -= request.Host.Cores
		left.Disk -= request.Host.Disk
		offer.Host = &left
	}
}

func add(a, b Shape) Shape {
	sum := Shape{GPUs: a.GPUs + b.GPUs, CPU: a.CPU + b.CPU, Memory: a.Memory + b.Memory}
	if a.Asks != nil || b.Asks != nil {
		sum.Asks = slices.Concat(a.asks(), b.asks())
	}
	sum.Host = a.Host.and(b.Host)
	return sum
}

// perNode is how many allocations one node of a shape takes.
func perNode(request, shape Shape) int {
	each := 1 << 20
	cores, disk := request.onHost(shape)
	for _, pair := range [][2]int{{request.mhz(shape), shape.CPU}, {request.Memory, shape.Memory}, cores, disk} {
		if pair[0] > 0 {
			each = min(each, pair[1]/pair[0])
		}
	}
	asks := request.asks()
	switch len(asks) {
	case 0:
		return each
	case 1:
		count := 0
		for _, d := range shape.groups() {
			if asks[0].takes(d) {
				count += d.Count / max(asks[0].Count, 1)
			}
		}
		return min(each, count)
	}
	left, count := shape.groups(), 0
	for ok := true; count < each; count++ {
		if left, ok = assign(asks, left); !ok {
			break
		}
	}
	return count
}

// grouped says of a request that a pool's nodes have enough devices for, and no
// group of them, why they do not serve it; empty where it is not so.
func grouped(request Shape, pool Pool) string {
	for _, a := range request.asks() {
		most, all := 0, 0
		for _, d := range pool.Shape.groups() {
			if a.Type == d.Type && (a.Model == "" || strings.HasPrefix(a.Model, d.Model)) {
				most, all = max(most, d.Count), all+d.Count
			}
		}
		if most < a.Count && all >= a.Count {
			return fmt.Sprintf("its nodes have groups of %d devices at most, and Nomad serves a request from one group", most)
		}
	}
	return ""
}
