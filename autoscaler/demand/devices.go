// SPDX-License-Identifier: MPL-2.0

package demand

import (
	"fmt"
	"maps"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"github.com/hashicorp/go-version"
	"github.com/hashicorp/nomad/api"
	"github.com/hashicorp/nomad/helper/constraints/semver"
	"github.com/hashicorp/nomad/plugins/shared/structs"
)

// Device is a group of like devices of a node: Nomad's vendor, type and name,
// and the attributes its device plugin tells.
type Device struct {
	Vendor, Type, Name string
	Attributes         map[string]*structs.Attribute
	// Count is how many there are, in order or not; Beside how many of its type
	// the node has in all.
	Count, Beside int
	// gone: no node has it any more.
	gone bool
	// Partial: attributes that are not named here may be there all the same.
	Partial bool
	// named matches the names that the group can have, where only a part is known.
	named *regexp.Regexp
	// texts are attributes as a pool's file has them: whether the device plugin
	// tells "9.0" as a number or a text is not known there.
	texts map[string]string
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

// key tells groups apart that are not alike.
func (d Device) key() string {
	var b strings.Builder
	fmt.Fprintf(&b, "%s/%s/%s %d %d", d.Vendor, d.Type, d.Name, d.Count, d.Beside)
	for _, name := range slices.Sorted(maps.Keys(d.Attributes)) {
		b.WriteString("\x00" + name + "=" + d.Attributes[name].GoString())
	}
	return b.String()
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
	if vendor != "" && vendor != d.Vendor || kind != "" && kind != d.Type || model != "" && !d.called(model) {
		return false
	}
	for _, c := range r.Constraints {
		if c == nil || c.LTarget == deviceIDs || c.RTarget == deviceIDs {
			continue
		}
		if name := namedBy(c); name != "" && d.Partial {
			if !d.called(name) {
				return false
			}
			continue
		}
		left, leftOK := d.resolve(c.LTarget, c.Operand)
		right, rightOK := d.resolve(c.RTarget, c.Operand)
		if d.Partial && (!leftOK || !rightOK) {
			continue
		}
		if !attributeHolds(c.Operand, left, right, leftOK, rightOK) {
			return false
		}
	}
	return true
}

// called reports whether a name is the group's. One that a pool's file does not
// tell is no name that work asks for: nodes would be bought for it in vain.
func (d Device) called(name string) bool {
	if d.named != nil {
		return d.named.MatchString(name)
	}
	return d.Name == name
}

func (d Device) resolve(target, operand string) (*structs.Attribute, bool) {
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
	name = strings.TrimSuffix(name, "}")
	if text, told := d.texts[name]; told && ofTexts(operand) {
		return structs.NewStringAttribute(text), true
	}
	a := d.Attributes[name]
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

// ofTexts are the operators that look into a text.
func ofTexts(operand string) bool {
	switch operand {
	case "regexp", "set_contains", "set_contains_all", "set_contains_any", "version", "semver":
		return true
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
