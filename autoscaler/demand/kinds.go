// SPDX-License-Identifier: MPL-2.0

package demand

import (
	"fmt"
	"regexp"
	"slices"
	"strconv"

	"github.com/hashicorp/nomad/api"
	"github.com/hashicorp/nomad/plugins/shared/structs"

	"github.com/nomad-gpu/nomad-gpu/autoscaler/plan"
)

// Offer is what the nodes of a selection are said to have: what the planner
// knows as Kind.
type Offer struct {
	Kind   string
	Where  plan.Where
	Device Device
}

// Told is what a pool's file tells of one group of its nodes' devices.
type Told struct {
	Model string
	Count int
	// Slices is how many each GPU is shared as; 0: it is whole.
	Slices int
	// Island is how many GPUs an NVLink island has that is a group of its own,
	// Islands how many a node has; 0: a model's GPUs are one group.
	Island, Islands int
	// Attributes' values are written as in a constraint: "80 GiB", "9.0", "hopper".
	Attributes map[string]string
}

// OfferOf is what a pool's file tells. A group's name begins with the model;
// what follows of an island or a slice is the device plugin's.
func OfferOf(kind string, where plan.Where, t Told) Offer {
	d := Device{Vendor: vendor, Type: plan.GPU, Name: t.Model, Count: t.Count, Attributes: map[string]*structs.Attribute{}, texts: t.Attributes, Partial: true}
	derive := func(name string, value int) {
		if value > 0 {
			d.Attributes[name] = structs.NewIntAttribute(int64(value), "")
		}
	}
	derive("count", t.Count)
	derive("nvlink_island_size", t.Island)
	derive("slices", t.Slices)
	more := ""
	if t.Islands > 1 {
		more += ` island \d+`
	}
	if t.Slices > 0 {
		d.Type = plan.Slice
		more += fmt.Sprintf(` (time slice|mps)( \d+)? of %d`, t.Slices)
	}
	if more != "" && t.Model != "" {
		d.named = regexp.MustCompile("^" + regexp.QuoteMeta(t.Model) + more + "$")
	}
	for name, value := range t.Attributes {
		d.Attributes[name] = structs.ParseAttribute(value)
	}
	return Offer{Kind: kind, Where: where, Device: d}
}

// slicesOf is how many slices each GPU of a group has, by the end of the
// group's name, "… of 4": an allocation tells no more of what it holds.
var slicesName = regexp.MustCompile(` of (\d{1,3})$`)

func slicesOf(kind, name string) int {
	if kind != plan.Slice {
		return 0
	}
	if parts := slicesName.FindStringSubmatch(name); parts != nil {
		n, _ := strconv.Atoi(parts[1])
		return n
	}
	return 0
}

// catalogue holds which devices nodes have: those seen, by their kind and
// place, and for places without a node those that a pool's file tells.
type catalogue struct {
	kinds map[string]Device
	seen  map[plan.Where][]string // kinds
	told  []Offer
	of    map[*api.NodeDeviceResource]string // the kind of each node's groups
	// uses is what allocations take of their hosts whose tasks do not simply add up.
	uses map[*api.AllocationListStub]usage
	// wanted is what jobs must have alone on a node.
	wanted map[string]bool
	// bars are what groups ask for of a node itself, by what it is; inspected the
	// nodes that are known in full, by name.
	bars      map[string]*bars
	inspected map[string]*api.Node
}

// newCatalogue takes in what nodes have, and remembered, what those had that are gone.
func newCatalogue(nodes []*api.NodeListStub, told []Offer, remembered ...Offer) *catalogue {
	c := &catalogue{kinds: map[string]Device{}, seen: map[plan.Where][]string{}, told: told, of: map[*api.NodeDeviceResource]string{}, wanted: map[string]bool{}, bars: map[string]*bars{}, inspected: map[string]*api.Node{}}
	keys := map[string]string{}
	for _, n := range nodes {
		if n == nil || n.NodeResources == nil {
			continue
		}
		for _, d := range n.NodeResources.Devices {
			if d != nil && isGPU(d.Vendor, d.Type) {
				device := deviceOf(n, d)
				key := device.key()
				kind, known := keys[key]
				if !known {
					kind = fmt.Sprint("seen ", len(keys))
					keys[key], c.kinds[kind] = kind, device
				}
				c.of[d] = kind
				if at := placeOf(n); !slices.Contains(c.seen[at], kind) {
					c.seen[at] = append(c.seen[at], kind)
				}
			}
		}
	}
	for _, o := range remembered {
		if len(c.seen[o.Where]) == 0 || c.kinds[c.seen[o.Where][0]].gone {
			o.Device.gone = true
			kind := fmt.Sprint("gone ", len(c.kinds))
			c.kinds[kind], c.seen[o.Where] = o.Device, append(c.seen[o.Where], kind)
		}
	}
	return c
}

// seenNow are the devices of the nodes that are there, by place.
func (c *catalogue) seenNow() (all []Offer) {
	for place, kinds := range c.seen {
		for _, kind := range kinds {
			if d := c.kinds[kind]; !d.gone {
				all = append(all, Offer{Where: place, Device: d})
			}
		}
	}
	return all
}

func placeOf(n *api.NodeListStub) plan.Where {
	return plan.Where{NodePool: n.NodePool, Class: n.NodeClass, Datacenter: n.Datacenter}
}

func deviceOf(n *api.NodeListStub, d *api.NodeDeviceResource) Device {
	device := Device{Vendor: d.Vendor, Type: d.Type, Name: d.Name, Attributes: attributesOf(d.Attributes), Count: len(d.Instances)}
	for _, other := range n.NodeResources.Devices {
		if other != nil && other.Type == d.Type {
			device.Beside += len(other.Instances)
		}
	}
	return device
}

// at are the devices seen at a place.
func (c *catalogue) at(w plan.Where) (all []Device) {
	for place, kinds := range c.seen {
		if w.Selects(place) {
			for _, kind := range kinds {
				all = append(all, c.kinds[kind])
			}
		}
	}
	return all
}

// has reports whether the devices at a place, or else those told of it, serve
// a request. Where nothing is known of a place, it has them.
func (c *catalogue) has(w plan.Where, r *api.RequestedDevice) bool {
	offered := c.at(w)
	if len(offered) == 0 {
		for _, o := range c.told {
			if o.Where == w {
				offered = append(offered, o.Device)
			}
		}
	}
	return len(offered) == 0 || slices.ContainsFunc(offered, func(d Device) bool { return d.meets(r) })
}

// serves reports whether a kind of devices is what is asked for. What a pool's
// file tells counts while the pool has no node: then what is seen there does.
func (c *catalogue) serves(r *api.RequestedDevice, kind string) bool {
	if d, seen := c.kinds[kind]; seen {
		return d.meets(r)
	}
	i := slices.IndexFunc(c.told, func(o Offer) bool { return o.Kind == kind })
	if i < 0 {
		return true
	}
	told, alike := c.told[i].Device, false
	if byID(r) {
		return false // no new node has a device of an old one's id
	}
	for _, d := range c.at(c.told[i].Where) {
		if d.Type != told.Type {
			continue
		}
		alike = true
		// A node that lacks devices has a fault, and others may be whole. One that
		// has as many as are told, in groups that are too small, tells of them all.
		if d.meets(r) && (d.Count >= countOf(r) || d.Beside < told.Count) {
			return true
		}
	}
	return !alike && told.meets(r)
}
