// SPDX-License-Identifier: MPL-2.0

package pool

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/shoenig/test/must"
	"pgregory.net/rapid"
)

func ptr[T any](v T) *T { return &v }

func TestWhatAnHourCosts(t *testing.T) {
	shape := Shape{GPUs: 8}
	power := &Power{Idle: 2, Busy: 10, Price: 0.25, PUE: ptr(1.5)}
	dirty := Tariff{Price: 1, Carbon: ptr(0.4)}
	plain := Tariff{Price: 1}
	for name, c := range map[string]struct {
		pool        Definition
		nodes, gpus int
		used        float64
		tariff      Tariff
		each, idle  Bill
	}{
		"the price alone, half of it used": {Definition{Shape: shape, Price: 40}, 2, 16, 8, plain, Bill{Price: 5}, Bill{Price: 40}},
		"an hour that is dearer":           {Definition{Shape: shape, Price: 40}, 1, 8, 8, Tariff{Price: 1.5}, Bill{Price: 7.5}, Bill{}},
		"electricity, by use: a node without work draws 2 kW × 1.5, and each GPU in use 1 kW × 1.5 more": {Definition{Shape: shape, Power: power}, 1, 8, 2, dirty,
			Bill{Power: (0.375 + 1.5) * 0.25, Energy: 0.375 + 1.5, Carbon: (0.375 + 1.5) * 0.4}, Bill{Power: 6 * 0.375 * 0.25, Energy: 6 * 0.375, Carbon: 6 * 0.375 * 0.4}},
		"no curve tells the carbon":    {Definition{Shape: shape, Power: power}, 1, 8, 0, plain, Bill{Power: 1.875 * 0.25, Energy: 1.875, Unrated: 1.875}, Bill{Power: 0.75, Energy: 3, Unrated: 3}},
		"the price of a kWh goes too":  {Definition{Shape: shape, Power: &Power{Idle: 8, Busy: 8, Price: 1}}, 1, 8, 0, Tariff{Price: 2}, Bill{Power: 2, Energy: 1, Unrated: 1}, Bill{Power: 16, Energy: 8, Unrated: 8}},
		"nodes that are owned and off": {Definition{Shape: shape, Fixed: &Fixed{Month: 7300, Nodes: 4}}, 1, 8, 4, plain, Bill{Fixed: 1.25}, Bill{Fixed: 5 + 30}},
		"more nodes than are owned":    {Definition{Shape: shape, Fixed: &Fixed{Month: 7300, Nodes: 1}}, 2, 16, 16, plain, Bill{Fixed: 1.25}, Bill{}},
		"more in use than is told":     {Definition{Shape: shape, Price: 40, Power: &Power{Idle: 0, Busy: 8, Price: 1}}, 1, 8, 16, plain, Bill{Price: 2.5, Power: 0.5, Energy: 0.5, Unrated: 0.5}, Bill{}},
		"no node":                      {Definition{Shape: shape, Price: 40, Power: power}, 0, 0, 0, plain, Bill{}, Bill{}},
	} {
		each, idle := c.pool.Hour(c.nodes, c.gpus, c.used, c.tariff)
		for which, pair := range map[string][2]Bill{"each": {c.each, each}, "idle": {c.idle, idle}} {
			d := pair[0].Plus(pair[1], -1)
			for _, v := range []float64{d.Price, d.Power, d.Fixed, d.Energy, d.Unrated, d.Carbon} {
				must.InDelta(t, 0, v, 1e-9, must.Sprintf("%s, %s: want %+v, is %+v", name, which, pair[0], pair[1]))
			}
		}
	}
}

func TestAPoolCostsTheSameWhoeverUsesItButForWhatIsDrawnForWork(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		nodes := rapid.IntRange(0, 50).Draw(t, "nodes")
		idleDraw := rapid.Float64Range(0, 5).Draw(t, "idle")
		d := Definition{Shape: Shape{GPUs: 8}, Price: rapid.Float64Range(0, 100).Draw(t, "price"),
			Power: &Power{Idle: idleDraw, Busy: idleDraw + rapid.Float64Range(0, 5).Draw(t, "work"), Price: 0.3, PUE: ptr(1.2)},
			Fixed: &Fixed{Month: rapid.Float64Range(0, 1e4).Draw(t, "month"), Nodes: rapid.IntRange(0, 60).Draw(t, "owned")}}
		used := rapid.IntRange(0, nodes*8).Draw(t, "used")
		each, idle := d.Hour(nodes, nodes*8, float64(used), Tariff{Price: 1})
		got := idle.Plus(each, float64(used))
		energy := 1.2 * (float64(nodes)*d.Power.Idle + float64(used)/8*(d.Power.Busy-d.Power.Idle))
		must.InDelta(t, float64(nodes)*d.Price, got.Price, 1e-6)
		must.InDelta(t, energy, got.Energy, 1e-6)
		must.InDelta(t, energy*0.3, got.Power, 1e-6)
		must.InDelta(t, float64(max(nodes, d.Fixed.Nodes))*d.Fixed.Month/730, got.Fixed, 1e-6)
	})
}

func TestACurveTellsOfPastHoursToo(t *testing.T) {
	at, err := (*Curve)(nil).Tariffs()
	must.NoError(t, err)
	must.Eq(t, Tariff{Price: 1}, at(night))
	at, err = (&Curve{Carbon: hours(map[int]float64{22: 400})}).Tariffs()
	must.NoError(t, err)
	must.Eq(t, Tariff{Price: 1, Carbon: ptr(400.0)}, at(night))
	must.Eq(t, 1.0, *at(night.Add(2 * time.Hour)).Carbon)
	file := filepath.Join(t.TempDir(), "curve.csv")
	must.NoError(t, os.WriteFile(file, []byte("from,price,carbon\n2026-12-03T20:00:00Z,0.5,300\n2026-12-03T23:00:00Z,2,500\n"), 0o600))
	at, err = (&Curve{File: file}).Tariffs()
	must.NoError(t, err)
	must.Eq(t, Tariff{Price: 0.5, Carbon: ptr(300.0)}, at(night))
	must.Eq(t, Tariff{Price: 2, Carbon: ptr(500.0)}, at(night.Add(24*time.Hour)))
	must.Eq(t, Tariff{Price: 1}, at(night.Add(-24*time.Hour)), must.Sprint("before its first line nothing is known"))
	_, err = (&Curve{File: file + "no"}).Tariffs()
	must.ErrorContains(t, err, "curve.file: ")
}

func TestWhatANodeDrawsAndCostsIsChecked(t *testing.T) {
	for block, want := range map[string]string{
		"power {\n idle = 3\n busy = 2\n}":               `pool "spot": power.idle and power.busy: 3 and 2; allowed are 0 to 1000 kW, and busy not below idle`,
		"power {\n idle = 1\n busy = 2000\n}":            "power.idle and power.busy: 1 and 2000",
		"power {\n idle = 1\n busy = 2\n price = -1\n}":  "power.price: -1; allowed are 0 and more",
		"power {\n idle = 1\n busy = 2\n pue = 0.5\n}":   "power.pue: 0.5; allowed are 1 to 10",
		"power {\n busy = 2\n}":                          `"idle" is required`,
		"fixed {\n month = -1\n}":                        "fixed.month: -1; allowed are 0 and more",
		"fixed {\n month = 1\n nodes = -1\n}":            "fixed.nodes: -1; allowed are 0",
		"fixed {\n month = 1\n}\nfixed {\n month = 1\n}": "Duplicate fixed block",
	} {
		_, err := readText(t, strings.Replace(good, "max       = 1", "max = 1\n"+block, 1))
		must.ErrorContains(t, err, want, must.Sprint(block))
	}
	f, err := readText(t, strings.Replace(good, "max       = 1", "max = 1\npower {\n idle = 1\n busy = 2\n}\nfixed {\n month = 100\n}", 1))
	must.NoError(t, err)
	must.Eq(t, 2, f.Pools[0].Power.Busy)
}
