// SPDX-License-Identifier: MPL-2.0

package runtime

import (
	"fmt"
	"maps"
	"math"
	"slices"
	"strings"

	"golang.org/x/sys/unix"
)

// limitNumbers are the limits that a Limit can name, as getrlimit(2) numbers them.
var limitNumbers = map[string]int{
	"core": unix.RLIMIT_CORE, "memlock": unix.RLIMIT_MEMLOCK, "nofile": unix.RLIMIT_NOFILE, "stack": unix.RLIMIT_STACK,
}

// LimitNumber is the number of a limit, or an error that tells which there are.
func LimitNumber(name string) (int, error) {
	number, ok := limitNumbers[name]
	if !ok {
		return 0, fmt.Errorf("rlimits: %q; allowed are %s", name, strings.Join(slices.Sorted(maps.Keys(limitNumbers)), ", "))
	}
	return number, nil
}

// MostLimit is the most that this process may give another of a limit, in the
// limit's unit: math.MaxUint64 where it may raise limits (CAP_SYS_RESOURCE,
// capabilities(7)), which root in a container often may not.
func MostLimit(name string) (uint64, error) {
	number, err := LimitNumber(name)
	if err != nil {
		return 0, err
	}
	if mayRaiseLimits() {
		return math.MaxUint64, nil
	}
	var now unix.Rlimit
	if err := unix.Getrlimit(number, &now); err != nil {
		return 0, fmt.Errorf("getrlimit of %s: %w", name, err)
	}
	return now.Max, nil
}

func mayRaiseLimits() bool {
	header := unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3}
	var data [2]unix.CapUserData
	return unix.Capget(&header, &data[0]) == nil && data[0].Effective&(1<<unix.CAP_SYS_RESOURCE) != 0
}
