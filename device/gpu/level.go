// SPDX-License-Identifier: MPL-2.0

package gpu

import "fmt"

// Level is a distance over PCIe in the words of `nvidia-smi topo -m`. Nearer
// is greater; [NoLevel] is "not known" and compares as farthest of all.
type Level int8

// The levels, farthest first.
const (
	NoLevel Level = iota
	SYS           // across the interconnect between NUMA nodes
	NODE          // across PCIe host bridges of one NUMA node
	PHB           // across one PCIe host bridge (the CPU)
	PXB           // across several PCIe switches, not the host bridge
	PIX           // across at most one PCIe switch
)

var levelNames = [...]string{NoLevel: "?", SYS: "SYS", NODE: "NODE", PHB: "PHB", PXB: "PXB", PIX: "PIX"}

// String gives the word that nvidia-smi uses, "?" for NoLevel.
func (l Level) String() string {
	if l < 0 || int(l) >= len(levelNames) {
		return "?"
	}
	return levelNames[l]
}

// MarshalText makes JSON show the word.
func (l Level) MarshalText() ([]byte, error) { return []byte(l.String()), nil }

// UnmarshalText reads the word.
func (l *Level) UnmarshalText(text []byte) error {
	level, ok := ParseLevel(string(text))
	if !ok && string(text) != levelNames[NoLevel] {
		return fmt.Errorf("PCIe level %q: allowed are SYS, NODE, PHB, PXB, PIX and ?", text)
	}
	*l = level
	return nil
}

// ParseLevel reads nvidia-smi's word. SOC is what SYS was called before driver
// 384.
func ParseLevel(s string) (Level, bool) {
	if s == "SOC" {
		return SYS, true
	}
	for l, name := range levelNames {
		if name == s && Level(l) != NoLevel {
			return Level(l), true
		}
	}
	return NoLevel, false
}
