// SPDX-License-Identifier: MPL-2.0

package plan

// Host is what a node has, or an allocation asks for, beside devices, MHz and
// memory.
type Host struct {
	// Cores are whole CPU cores that a task has for itself.
	Cores int
	// Charged is how many of a request's cores count in the node's MHz: tasks
	// that run one after the other have each their cores, and share the MHz.
	Charged int
	// MHz is a core's, of an offer. Nomad takes so many for each core.
	MHz int
	// Disk is what allocations keep on the node, in MiB.
	Disk int
}

// mhz is what a request takes of a node's CPU.
func (s Shape) mhz(offer Shape) int {
	if s.Host == nil || offer.Host == nil {
		return s.CPU
	}
	return s.CPU + s.Host.Charged*offer.Host.MHz
}

// onHost are the cores and the disk that a request asks for, each with what
// there is; zeros where the node's are not looked at.
func (s Shape) onHost(offer Shape) (cores, disk [2]int) {
	if s.Host == nil || offer.Host == nil {
		return cores, disk
	}
	return [2]int{s.Host.Cores, offer.Host.Cores}, [2]int{s.Host.Disk, offer.Host.Disk}
}

// hosted reports whether a node's cores and disk are enough for a request.
func (s Shape) hosted(offer Shape) bool {
	cores, disk := s.onHost(offer)
	return cores[0] <= cores[1] && disk[0] <= disk[1]
}

// and is what two requests ask for together.
func (h *Host) and(other *Host) *Host {
	if h == nil {
		return other
	}
	if other == nil {
		return h
	}
	return &Host{Cores: h.Cores + other.Cores, Charged: h.Charged + other.Charged, Disk: h.Disk + other.Disk}
}
