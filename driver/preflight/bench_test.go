// SPDX-License-Identifier: MPL-2.0

package preflight

import (
	"fmt"
	"net/netip"
	"testing"

	"github.com/nomad-gpu/nomad-gpu/driver/gang"
)

// BenchmarkReach is all members of a gang in one process on loopback, from
// the first begin to the last end.
func BenchmarkReach(b *testing.B) {
	for _, n := range []int{4, 64, 256, 1024} {
		b.Run(fmt.Sprintf("members=%d", n), func(b *testing.B) {
			var members []gang.Member
			for i := range n {
				members = append(members, gang.Member{Alloc: fmt.Sprint("alloc-", i), Node: fmt.Sprint("n", i), Slots: 1,
					Address: netip.AddrFrom4([4]byte{127, 201, byte(i >> 8), byte(i)}), Ports: [2]int{22000, 22001}})
			}
			calls := 0
			for b.Loop() {
				done := make(chan error, n)
				for rank := range n {
					c := Check{Steps: Steps{Reach: true, Versions: true, Timeout: DefaultTimeout}, Versions: Versions{"NVIDIA-driver": "550.54.15"}, Warn: func(string) {}}
					go func() { done <- c.Run(b.Context(), gang.Assignment{Rank: rank, Members: members}, nil) }()
				}
				calls = 0
				for rank := range n {
					calls += len(planFor(rank, n, true).calls)
					if err := <-done; err != nil {
						b.Fatal(err)
					}
				}
			}
			b.ReportMetric(float64(calls), "calls")
		})
	}
}
