// SPDX-License-Identifier: MPL-2.0

package gpu

import (
	"encoding/json"
	"testing"

	"github.com/shoenig/test/must"
)

func TestNormalBusID(t *testing.T) {
	cases := []struct{ name, in, want string }{
		{"eight digits of domain are cut to four", "00000000:1B:00.0", "0000:1b:00.0"},
		{"NUL padding is cut", "0000:07:00.0\x00\x00\x00", "0000:07:00.0"},
		{"a real long domain stays", "00010000:00:00.0", "10000:00:00.0"},
		{"short form stays", "0001:00:00.0", "0001:00:00.0"},
		{"what is no bus ID is only trimmed", " Foo ", "foo"},
		{"empty stays empty", "", ""},
	}
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) { must.EqOp(t, c.want, NormalBusID(c.in)) })
	}
}

func TestLevelsParseBackAndOrder(t *testing.T) {
	for l := SYS; l <= PIX; l++ {
		got, ok := ParseLevel(l.String())
		must.True(t, ok)
		must.EqOp(t, l, got)
		must.Greater(t, l-1, l)
	}
	for _, s := range []string{"", "?", "X", "NV4", "sys", "PH0-115"} {
		_, ok := ParseLevel(s)
		must.False(t, ok, must.Sprintf("%q", s))
	}
	l, ok := ParseLevel("SOC")
	must.True(t, ok)
	must.EqOp(t, SYS, l)
	must.EqOp(t, "?", Level(99).String())
}

func TestPathShowsAsTheCellOfTheMatrix(t *testing.T) {
	must.EqOp(t, "NV12", Path{NVLinks: 12, PCIe: SYS}.String())
	must.EqOp(t, "PXB", Path{PCIe: PXB}.String())
	must.EqOp(t, "?", Path{}.String())
}

func TestInferNVSwitch(t *testing.T) {
	mesh := func(n int, links uint) *Machine {
		m := &Machine{GPUs: make([]GPU, n), Paths: NewPaths(n)}
		for i := range n {
			for j := range n {
				if i != j {
					m.Paths[i][j].NVLinks = links
				}
			}
		}
		return m
	}
	cases := []struct {
		name string
		m    *Machine
		want Presence
	}{
		{"eight GPUs with twelve links to each peer need switches", mesh(8, 12), Present},
		{"four GPUs with four links to each peer are wired directly", mesh(4, 4), Absent},
		{"a bridged pair has no switch", mesh(2, 18), Absent},
		{"no NVLink, no switch", mesh(4, 0), Absent},
		{"one GPU does not tell", mesh(1, 0), Unknown},
	}
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) { must.EqOp(t, c.want, c.m.InferNVSwitch()) })
	}
}

func TestBandwidths(t *testing.T) {
	g := GPU{NVLinkVersion: 4, PCIeGeneration: 5, PCIeWidth: 16}
	must.EqOp(t, 25000, g.NVLinkMBps())
	must.EqOp(t, 63008, g.PCIeMBps())
	must.EqOp(t, 0, (&GPU{}).NVLinkMBps())
	must.EqOp(t, 0, (&GPU{PCIeGeneration: 9, PCIeWidth: 16}).PCIeMBps())

	m := &Machine{GPUs: []GPU{{NVLinkVersion: 5}, {}, {NVLinkVersion: 1}}, Paths: NewPaths(3)}
	m.Paths[0][1] = Path{NVLinks: 2}
	m.Paths[1][0] = Path{NVLinks: 2}
	m.Paths[2][0] = Path{NVLinks: 1}
	must.EqOp(t, 100000, m.PairMBps(0, 1))
	must.EqOp(t, 50000, m.PairMBps(1, 0)) // generation unknown: the typical one
	must.EqOp(t, 0, m.PairMBps(0, 2))
	for l := NoLevel; l <= PIX; l++ {
		m.Paths[1][2] = Path{PCIe: l}
		must.Less(t, m.PairMBps(2, 0), m.PairMBps(1, 2), must.Sprintf("%s must rank below one NVLink", l))
	}
}

func TestMachineIsReadableAsJSON(t *testing.T) {
	m := Machine{GPUs: []GPU{{NUMANode: NoNUMA}}, NVSwitch: Present, NICPaths: [][]Level{{PIX}}}
	b, err := json.Marshal(m)
	must.NoError(t, err)
	must.StrContains(t, string(b), `"nvswitch":"yes"`)
	must.StrContains(t, string(b), `"nic_paths":[["PIX"]]`)
	must.StrContains(t, string(b), `"numa_node":-1`)
	var back Machine
	must.NoError(t, json.Unmarshal(b, &back))
	must.Eq(t, m, back)
	must.Error(t, json.Unmarshal([]byte(`{"nvswitch":"maybe"}`), &back))
	must.Error(t, json.Unmarshal([]byte(`{"nic_paths":[["near"]]}`), &back))
}
