// SPDX-License-Identifier: MPL-2.0

package process

import (
	"errors"
	"fmt"

	"golang.org/x/sys/unix"
	"k8s.io/utils/cpuset"

	"github.com/nomad-gpu/nomad-gpu/driver/runtime"
)

// place is where on the machine a process runs: the CPUs it keeps to and the
// memory nodes it takes memory from first. The zero place is anywhere.
type place struct {
	cpus  cpuset.CPUSet
	nodes cpuset.CPUSet
}

func placeOf(spec runtime.Spec, r runtime.Rank) (place, error) {
	cpus := r.CPUs
	if cpus == "" {
		cpus = spec.CPUs
	}
	var p place
	var err error
	if p.cpus, err = cpuset.Parse(cpus); err != nil {
		return p, fmt.Errorf("CPUs %q: %w", cpus, err)
	}
	if p.nodes, err = cpuset.Parse(spec.MemoryNodes); err != nil {
		return p, fmt.Errorf("memory nodes %q: %w", spec.MemoryNodes, err)
	}
	return p, nil
}

// during runs do with this thread at the place: what do starts is there too
// (sched(7) and set_mempolicy(2): both are inherited). The thread must be
// locked. do runs in any case; the error says why it was not at the place.
func (p place) during(do func()) (err error) {
	if p.cpus.Size() > 0 {
		before := unix.NewCPUSet(8192)
		if err = unix.SchedGetaffinityDynamic(0, before); err == nil {
			err = setAffinity(0, p.cpus)
			defer func() { err = errors.Join(err, unix.SchedSetaffinityDynamic(0, before)) }()
		}
	}
	if p.nodes.Size() > 0 {
		// Preferred and not bound: a full node is no reason to be killed.
		mask := mask(p.nodes)
		policy := unix.SetMemPolicyDynamic(unix.MPOL_PREFERRED_MANY, mask)
		if errors.Is(policy, unix.EINVAL) { // before Linux 5.15 one node only
			mask.Zero()
			mask.Set(p.nodes.List()[0])
			policy = unix.SetMemPolicyDynamic(unix.MPOL_PREFERRED, mask)
		}
		if policy != nil {
			err = errors.Join(err, fmt.Errorf("memory nodes %s: %w", p.nodes, policy))
		} else {
			defer func() { err = errors.Join(err, unix.SetMemPolicyDynamic(unix.MPOL_DEFAULT, nil)) }()
		}
	}
	do()
	return err
}

func setAffinity(pid int, cpus cpuset.CPUSet) error {
	if err := unix.SchedSetaffinityDynamic(pid, mask(cpus)); err != nil {
		return fmt.Errorf("CPUs %s: %w", cpus, err)
	}
	return nil
}

func mask(numbers cpuset.CPUSet) unix.CPUSetDynamic {
	list := numbers.List()
	m := unix.NewCPUSet(list[len(list)-1] + 1)
	for _, n := range list {
		m.Set(n)
	}
	return m
}
