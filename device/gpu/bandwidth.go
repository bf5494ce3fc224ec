// SPDX-License-Identifier: MPL-2.0

package gpu

// nvlinkMBps is the bandwidth of one NVLink in one direction, in MB/s, by
// generation: NVLink 1 (P100) 20 GB/s; 2 (V100), 3 (A100) and 4 (H100) 25 GB/s;
// 5 (B200) and 6 (Rubin) 50 GB/s. Source: NVIDIA's architecture papers, which
// give the sum of both directions: 160, 300, 600, 900, 1800 and 3600 GB/s for
// 4, 6, 12, 18, 18 and 36 links.
var nvlinkMBps = map[int]uint{1: 20000, 2: 25000, 3: 25000, 4: 25000, 5: 50000, 6: 50000}

// typicalNVLinkMBps is what a link is taken to carry where its generation is
// not known: the value of three generations out of six.
const typicalNVLinkMBps = 25000

// NVLinkMBps is one link's bandwidth in one direction, in MB/s. Zero where the
// generation is not known.
func (g *GPU) NVLinkMBps() uint { return nvlinkMBps[int(g.NVLinkVersion)] }

// pcieLaneMBps is one lane's bandwidth in one direction by PCIe generation, in
// MB/s, after encoding (PCI-SIG: 2.5, 5, 8, 16, 32, 64 GT/s).
var pcieLaneMBps = map[uint]uint{1: 250, 2: 500, 3: 985, 4: 1969, 5: 3938, 6: 7563}

// PCIeMBps is the PCIe bandwidth in one direction, in MB/s; zero where
// generation or width is not known.
func (g *GPU) PCIeMBps() uint { return pcieLaneMBps[g.PCIeGeneration] * g.PCIeWidth }

// pcieMBps ranks PCIe distances by a typical bandwidth in MB/s. Only the order
// and the gap to the slowest NVLink (20000) matter: peers below one switch do
// not share the root port, those across sockets share the interconnect too.
var pcieMBps = [...]uint{NoLevel: 0, SYS: 6000, NODE: 8000, PHB: 9000, PXB: 10000, PIX: 12000}

// PairMBps estimates the bandwidth between GPUs i and j in one direction, in
// MB/s. It ranks pairs; it is no measurement.
func (m *Machine) PairMBps(i, j int) uint {
	path := m.Paths[i][j]
	if path.NVLinks == 0 {
		return pcieMBps[path.PCIe]
	}
	link := m.GPUs[i].NVLinkMBps()
	if link == 0 {
		link = typicalNVLinkMBps
	}
	return path.NVLinks * link
}
