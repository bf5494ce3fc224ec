// SPDX-License-Identifier: MPL-2.0

package gpu

// Sample is one reading of a GPU's momentary values. A nil field is one that
// this GPU or driver does not tell.
type Sample struct {
	// Percentages of the last sampling period, 0 to 100.
	UtilizationPercent, MemoryUtilizationPercent *uint
	EncoderPercent, DecoderPercent               *uint

	// TemperatureC is the die's, MemoryTemperatureC that of the memory.
	TemperatureC, MemoryTemperatureC *uint
	PowerW                           *uint
	// EnergyJ is what was used since the driver was loaded.
	EnergyJ *uint64

	// Clocks now, and why they are lower than they could be: names as
	// "sw_power_cap", sorted; empty if nothing lowers them, nil if not known.
	SMClockMHz, MemoryClockMHz *uint
	ClockReasons               []string

	// PCIe throughput of the last 20 ms, as the GPU sees it.
	PCIeSentMBps, PCIeReceivedMBps *uint
	// NVLink payload over all links since the driver was loaded.
	NVLinkSentMiB, NVLinkReceivedMiB *uint64

	// Processes is the number of processes that compute on it.
	Processes *uint

	MemoryUsedMiB, MemoryTotalMiB *uint64
	BAR1UsedMiB, BAR1TotalMiB     *uint64

	// Errors that ECC corrected and did not, since the driver was loaded.
	ECCL1, ECCL2, ECCMemory *uint64
}
