// SPDX-License-Identifier: MPL-2.0

package gpu

// Sample is one reading of a GPU's momentary values. A nil field is one that
// this GPU or driver does not tell.
type Sample struct {
	// Percentages of the last sampling period, 0 to 100.
	UtilizationPercent, MemoryUtilizationPercent *uint
	EncoderPercent, DecoderPercent               *uint

	TemperatureC *uint
	PowerW       *uint

	MemoryUsedMiB, MemoryTotalMiB *uint64
	BAR1UsedMiB, BAR1TotalMiB     *uint64

	// Errors that ECC corrected and did not, since the driver was loaded.
	ECCL1, ECCL2, ECCMemory *uint64
}
