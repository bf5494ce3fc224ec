// SPDX-License-Identifier: MPL-2.0

package demand

import (
	"regexp"
	"slices"
	"strconv"
	"strings"

	"github.com/hashicorp/go-version"
	"github.com/hashicorp/nomad/api"
	"github.com/hashicorp/nomad/helper/constraints/semver"
	"github.com/hashicorp/nomad/plugins/shared/structs"

	"github.com/nomad-gpu/nomad-gpu/autoscaler/plan"
)

// Device is a group of like devices of a node: Nomad's vendor, type and name,
// and the attributes its device plugin tells.
type Device struct {
	Vendor, Type, Name string
	Attributes         map[string]*structs.Attribute
	// Partial: attributes that are not named here may be there all the same.
	Partial bool
}

// Offer is what the nodes of a selection are said to have.
type Offer struct {
	Where   plan.Where
	Devices []Device
}

// OfferOf is what a pool's file tells of its nodes' GPUs. An attribute's value
// is written as in a constraint: "80 GiB", "9.0", "hopper".
func OfferOf(where plan.Where, model string, attributes map[string]string) Offer {
	d := Device{Vendor: "nvidia", Type: "gpu", Name: model, Attributes: map[string]*structs.Attribute{}, Partial: true}
	for name, value := range attributes {
		d.Attributes[name] = structs.ParseAttribute(value)
	}
	return Offer{Where: where, Devices: []Device{d}}
}

// catalogue holds which devices the nodes of a place have: those seen on
// nodes, and for places without a node those that a pool's file tells.
type catalogue struct{ seen, told []Offer }

// at are the devices of a place; none where nothing is known of it.
func (c catalogue) at(w plan.Where) []Device {
	var all []Device
	for _, o := range c.seen {
		if w.Selects(o.Where) {
			all = append(all, o.Devices...)
		}
	}
	if len(all) > 0 {
		return all
	}
	for _, o := range c.told {
		if o.Where == w {
			all = append(all, o.Devices...)
		}
	}
	return all
}

// seenOn lists the kinds of GPUs on nodes, each once for a place.
func seenOn(nodes []*api.NodeListStub) []Offer {
	var all []Offer
	index := map[plan.Where]int{}
	for _, n := range nodes {
		if n == nil || n.NodeResources == nil {
			continue
		}
		w := plan.Where{NodePool: n.NodePool, Class: n.NodeClass, Datacenter: n.Datacenter}
		for _, d := range n.NodeResources.Devices {
			if d == nil || !isGPU(d.Vendor, d.Type) {
				continue
			}
			i, ok := index[w]
			if !ok {
				i = len(all)
				index[w] = i
				all = append(all, Offer{Where: w})
			}
			device := Device{Vendor: d.Vendor, Type: d.Type, Name: d.Name, Attributes: attributesOf(d.Attributes)}
			if !slices.ContainsFunc(all[i].Devices, device.equal) {
				all[i].Devices = append(all[i].Devices, device)
			}
		}
	}
	return all
}

func attributesOf(from map[string]*api.Attribute) map[string]*structs.Attribute {
	to := make(map[string]*structs.Attribute, len(from))
	for name, a := range from {
		if a != nil {
			to[name] = &structs.Attribute{Float: a.FloatVal, Int: a.IntVal, String: a.StringVal, Bool: a.BoolVal, Unit: a.Unit}
		}
	}
	return to
}

func (d Device) equal(o Device) bool {
	if d.Vendor != o.Vendor || d.Type != o.Type || d.Name != o.Name || len(d.Attributes) != len(o.Attributes) {
		return false
	}
	for name, a := range d.Attributes {
		b := o.Attributes[name]
		if b == nil || !a.Comparable(b) {
			return false
		}
		if order, ok := a.Compare(b); !ok || order != 0 {
			return false
		}
	}
	return true
}

// deviceName splits what a device block asks for: type, vendor/type or
// vendor/type/model. A model may hold slashes.
func deviceName(name string) (vendor, kind, model string) {
	parts := strings.SplitN(name, "/", 3)
	switch len(parts) {
	case 1:
		return "", parts[0], ""
	case 2:
		return parts[0], parts[1], ""
	}
	return parts[0], parts[1], parts[2]
}

// meets reports whether a device group serves a request, as Nomad's scheduler
// decides it (scheduler/feasible.go, nodeDeviceMatches). What a partial device
// does not tell is taken to hold.
func (d Device) meets(r *api.RequestedDevice) bool {
	vendor, kind, model := deviceName(r.Name)
	if vendor != "" && vendor != d.Vendor || kind != "" && kind != d.Type || model != "" && d.Name != "" && model != d.Name {
		return false
	}
	for _, c := range r.Constraints {
		if c == nil {
			continue
		}
		left, leftOK := d.resolve(c.LTarget)
		right, rightOK := d.resolve(c.RTarget)
		if d.Partial && (!leftOK || !rightOK) {
			continue
		}
		if !attributeHolds(c.Operand, left, right, leftOK, rightOK) {
			return false
		}
	}
	return true
}

func (d Device) resolve(target string) (*structs.Attribute, bool) {
	if !strings.HasPrefix(target, "${") {
		return structs.ParseAttribute(target), true
	}
	switch target {
	case "${device.model}":
		return structs.NewStringAttribute(d.Name), d.Name != ""
	case "${device.vendor}":
		return structs.NewStringAttribute(d.Vendor), true
	case "${device.type}":
		return structs.NewStringAttribute(d.Type), true
	}
	name, isAttribute := strings.CutPrefix(target, "${device.attr.")
	if !isAttribute {
		return nil, false
	}
	a := d.Attributes[strings.TrimSuffix(name, "}")]
	return a, a != nil
}

// attributeHolds follows the operators of a constraint on devices: numbers
// compare with their units, and a missing value differs from one that is there.
func attributeHolds(operand string, left, right *structs.Attribute, leftOK, rightOK bool) bool {
	switch operand {
	case "is_set":
		return leftOK
	case "is_not_set":
		return !leftOK
	case "distinct_hosts", "distinct_property":
		return true
	case "!=", "not":
		if leftOK != rightOK {
			return true
		}
	}
	if !leftOK || !rightOK {
		return false
	}
	switch operand {
	case "", "=", "==", "is", "!=", "not", "<", "<=", ">", ">=":
		order, ok := left.Compare(right)
		return ok && inOrder(operand, order)
	}
	l, lText := left.GetString()
	if n, isInt := left.GetInt(); isInt && (operand == "version" || operand == "semver") {
		l, lText = strconv.FormatInt(n, 10), true
	}
	r, rText := right.GetString()
	return lText && rText && textHolds(operand, l, r)
}

// inOrder reports whether an order of two values, -1, 0 or 1, is what an operator wants.
func inOrder(operand string, order int) bool {
	switch operand {
	case "", "=", "==", "is":
		return order == 0
	case "!=", "not":
		return order != 0
	case "<":
		return order < 0
	case "<=":
		return order <= 0
	case ">":
		return order > 0
	case ">=":
		return order >= 0
	}
	return false
}

// textHolds follows the operators that look into a text. One that does not
// parse does not hold.
func textHolds(operand, left, right string) bool {
	switch operand {
	case "regexp":
		re, err := regexp.Compile(right)
		return err == nil && re.MatchString(left)
	case "set_contains", "set_contains_all":
		have := list(left)
		return !slices.ContainsFunc(list(right), func(want string) bool { return !slices.Contains(have, want) })
	case "set_contains_any":
		have := list(left)
		return slices.ContainsFunc(list(right), func(want string) bool { return slices.Contains(have, want) })
	case "version":
		v, err := version.NewVersion(left)
		if err != nil {
			return false
		}
		c, err := version.NewConstraint(right)
		return err == nil && c.Check(v)
	case "semver":
		v, err := version.NewVersion(left)
		if err != nil {
			return false
		}
		c, err := semver.NewConstraint(right)
		return err == nil && c.Check(v)
	}
	return false
}

func list(text string) []string {
	var all []string
	for s := range strings.SplitSeq(text, ",") {
		all = append(all, strings.TrimSpace(s))
	}
	return all
}
