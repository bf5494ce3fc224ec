// SPDX-License-Identifier: MPL-2.0

package process

import (
	"errors"
	"fmt"
	"strconv"

	"github.com/docker/go-units"
	"golang.org/x/sys/unix"

	"github.com/nomad-gpu/nomad-gpu/driver/runtime"
)

// limiter reads and sets limits of this process, which its children inherit.
type limiter struct {
	get func(number int, now *unix.Rlimit) error
	set func(number int, want *unix.Rlimit) error
}

var ownLimits = limiter{get: unix.Getrlimit, set: unix.Setrlimit}

// apply sets the limits. One that the user asked for is set as it is, or it is
// an error; another is raised as far as the host allows, with a warning where
// that is less.
func (l limiter) apply(limits []runtime.Limit) (warnings []string, err error) {
	for _, want := range limits {
		number, err := runtime.LimitNumber(want.Name)
		if err != nil {
			return warnings, err
		}
		var now unix.Rlimit
		if err := l.get(number, &now); err != nil {
			return warnings, fmt.Errorf("rlimits.%s: %w", want.Name, err)
		}
		if !want.Asked && now.Cur >= want.Value {
			continue
		}
		err = l.set(number, &unix.Rlimit{Cur: want.Value, Max: max(want.Value, now.Max)})
		switch {
		case err == nil:
		case want.Asked && errors.Is(err, unix.EPERM):
			return warnings, fmt.Errorf("rlimits.%s: %s; this host allows at most %s, and the Nomad agent may not raise that",
				want.Name, amount(want.Name, want.Value), amount(want.Name, now.Max))
		case want.Asked:
			return warnings, fmt.Errorf("rlimits.%s: %s: %w", want.Name, amount(want.Name, want.Value), err)
		default:
			reached := min(want.Value, now.Max)
			if l.set(number, &unix.Rlimit{Cur: reached, Max: now.Max}) != nil {
				reached = now.Cur
			}
			warnings = append(warnings, fmt.Sprintf("the limit %s is %s: this host does not allow %s",
				want.Name, amount(want.Name, reached), amount(want.Name, want.Value)))
		}
	}
	return warnings, nil
}

// amount is a limit for people.
func amount(name string, value uint64) string {
	switch {
	case value == unix.RLIM_INFINITY:
		return "unlimited"
	case name == "nofile":
		return strconv.FormatUint(value, 10)
	}
	return units.BytesSize(float64(value))
}
