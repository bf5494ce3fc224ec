// SPDX-License-Identifier: MPL-2.0

package process

import "golang.org/x/sys/unix"

// raiseLimits gives what training needs as far as the host allows: open files,
// locked memory for RDMA, and a stack of 64 MiB.
func raiseLimits() {
	for resource, want := range map[int]uint64{unix.RLIMIT_NOFILE: 1 << 20, unix.RLIMIT_MEMLOCK: unix.RLIM_INFINITY, unix.RLIMIT_STACK: 64 << 20} {
		var now unix.Rlimit
		if unix.Getrlimit(resource, &now) != nil || now.Cur >= want {
			continue
		}
		if unix.Setrlimit(resource, &unix.Rlimit{Cur: want, Max: max(want, now.Max)}) != nil {
			unix.Setrlimit(resource, &unix.Rlimit{Cur: min(want, now.Max), Max: now.Max})
		}
	}
}
