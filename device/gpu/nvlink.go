// SPDX-License-Identifier: MPL-2.0

package gpu

// JoinNVLinks fills in the NVLinks of all paths from what each GPU says of its
// own: switched[i] is the number of GPU i's links into switches, direct[i][j]
// of those that lead to GPU j. Two GPUs behind switches share as many links as
// the one with fewer has. Of a direct connection, one end alone counts; where
// the ends differ, the fewer do, with a warning.
func (m *Machine) JoinNVLinks(switched []uint, direct [][]uint) {
	for i := range m.GPUs {
		for j := range i {
			links := min(switched[i], switched[j])
			if links == 0 {
				links = m.directLinks(i, j, direct[i][j], direct[j][i])
			}
			m.Paths[i][j].NVLinks, m.Paths[j][i].NVLinks = links, links
		}
	}
}

func (m *Machine) directLinks(i, j int, a, b uint) uint {
	if a == b {
		return a
	}
	counted := min(a, b)
	if counted == 0 {
		counted = max(a, b)
	}
	m.Warn("GPU %s says %d NVLinks to GPU %s, which says %d; %d count", m.GPUs[i].BusID, a, m.GPUs[j].BusID, b, counted)
	return counted
}
