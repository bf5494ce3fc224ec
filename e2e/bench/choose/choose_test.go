// SPDX-License-Identifier: MPL-2.0

// Package choose measures the chooser of GPUs beside the best-effort policy of
// NVIDIA's go-gpuallocator, on the same machines. It is a module of its own, so
// that the other's dependencies do not become the project's.
package choose

import (
	"fmt"
	"math/rand/v2"
	"reflect"
	"slices"
	"testing"
	"time"

	"github.com/NVIDIA/go-gpuallocator/gpuallocator"

	"github.com/nomad-gpu/nomad-gpu/device/gpu"
	"github.com/nomad-gpu/nomad-gpu/device/profile"
	"github.com/nomad-gpu/nomad-gpu/device/topology"
)

// linkType is the policy's number for a path: 1 to 6 are PCIe levels from SYS
// on, and 6 and n stands for n NVLinks.
func linkType(p gpu.Path) uint64 {
	if p.NVLinks > 0 {
		return 6 + uint64(p.NVLinks)
	}
	switch p.PCIe {
	case gpu.PIX:
		return 5
	case gpu.PXB:
		return 4
	case gpu.PHB:
		return 3
	case gpu.NODE:
		return 2
	}
	return 1
}

// devices are the machine's GPUs as the policy knows them.
func devices(m *gpu.Machine) []*gpuallocator.Device {
	all := make([]*gpuallocator.Device, len(m.GPUs))
	for i := range m.GPUs {
		d := &gpuallocator.Device{Index: i, Links: map[int][]gpuallocator.P2PLink{}}
		d.UUID = m.GPUs[i].UUID
		all[i] = d
	}
	for i := range m.GPUs {
		for j := range m.GPUs {
			if i == j {
				continue
			}
			link := gpuallocator.P2PLink{GPU: all[j]}
			// The type's package is internal to the other module.
			reflect.ValueOf(&link.Type).Elem().SetUint(linkType(m.Paths[i][j]))
			all[i].Links[j] = append(all[i].Links[j], link)
		}
	}
	return all
}

func internal(m *gpu.Machine, set []int) (sum uint64) {
	for x, i := range set {
		for _, j := range set[x+1:] {
			sum += uint64(m.PairMBps(i, j))
		}
	}
	return sum
}

// request is some of the machine's GPUs, the others being in use.
func request(rng *rand.Rand, n, count int) topology.Request {
	order := rng.Perm(n)
	free := count + rng.IntN(n-count+1)
	return topology.Request{Free: order[:free], InUse: order[free:], Count: count}
}

// BenchmarkChoose prints, for each machine and count over many states of use,
// how long both take, and how much bandwidth the other's choices have among
// them as a part of ours.
func BenchmarkChoose(b *testing.B) {
	for _, name := range []string{"dgx-h100", "dgx-a100", "dgx1-v100", "pcie-nvlink-pairs"} {
		m, err := profile.Load(name)
		if err == nil {
			err = profile.Simulate(m, "bench")
		}
		if err != nil {
			b.Fatal(err)
		}
		policy, all := gpuallocator.NewBestEffortPolicy(), devices(m)
		for count := 2; count < len(m.GPUs); count++ {
			b.Run(fmt.Sprintf("%s/%d-of-%d", name, count, len(m.GPUs)), func(b *testing.B) {
				rng := rand.New(rand.NewPCG(1, uint64(count)))
				var ours, theirs time.Duration
				var oursSum, theirsSum uint64
				for range b.N {
					r := request(rng, len(m.GPUs), count)
					begin := time.Now()
					chosen, err := topology.Choose(m, r)
					ours += time.Since(begin)
					if err != nil {
						b.Fatal(err)
					}
					var available []*gpuallocator.Device
					for _, i := range r.Free {
						available = append(available, all[i])
					}
					begin = time.Now()
					other := policy.Allocate(available, nil, count)
					theirs += time.Since(begin)
					var set []int
					for _, d := range other {
						set = append(set, d.Index)
					}
					if len(set) != count || len(slices.Compact(slices.Sorted(slices.Values(set)))) != count {
						b.Fatalf("the policy gave %v of %v", set, r.Free)
					}
					oursSum += internal(m, chosen)
					theirsSum += internal(m, set)
				}
				b.ReportMetric(float64(ours.Nanoseconds())/float64(b.N), "ns/ours")
				b.ReportMetric(float64(theirs)/float64(ours), "time-theirs/ours")
				b.ReportMetric(float64(theirsSum)/float64(oursSum), "bandwidth-theirs/ours")
				b.ReportMetric(0, "ns/op")
			})
		}
	}
}
