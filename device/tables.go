// SPDX-License-Identifier: MPL-2.0

package main

import (
	"fmt"
	"io"
	"maps"
	"slices"

	"github.com/hashicorp/nomad/plugins/device"
	"github.com/jedib0t/go-pretty/v6/table"
	"github.com/jedib0t/go-pretty/v6/text"
)

// newTable has no borders, so that its output can be cut by columns.
func newTable(head table.Row) table.Writer {
	t := table.NewWriter()
	style := table.StyleDefault
	style.Options = table.OptionsNoBordersAndSeparators
	style.Format.Header = text.FormatDefault
	style.Box.PaddingLeft, style.Box.PaddingRight = "", "  "
	t.SetStyle(style)
	t.SuppressTrailingSpaces()
	t.AppendHeader(head)
	return t
}

func printTable(w io.Writer, t table.Writer) error {
	_, err := fmt.Fprintln(w, t.Render())
	return err
}

func printGroups(w io.Writer, groups []*device.DeviceGroup) error {
	if len(groups) == 0 {
		_, err := fmt.Fprintln(w, "No GPU that Nomad could be offered: none tells its UUID.")
		return err
	}
	for _, group := range groups {
		fmt.Fprintf(w, "%s/%s/%s\n\n", group.Vendor, group.Type, group.Name)
		devices := newTable(table.Row{"ID", "Healthy", "PCI bus ID", "Reason"})
		for _, d := range group.Devices {
			busID := ""
			if d.HwLocality != nil {
				busID = d.HwLocality.PciBusID
			}
			devices.AppendRow(table.Row{d.ID, d.Healthy, busID, d.HealthDesc})
		}
		if err := printTable(w, devices); err != nil {
			return err
		}
		fmt.Fprintln(w)
		attributes := newTable(table.Row{"Attribute", "Value"})
		for _, name := range slices.Sorted(maps.Keys(group.Attributes)) {
			attributes.AppendRow(table.Row{name, group.Attributes[name].GoString()})
		}
		if err := printTable(w, attributes); err != nil {
			return err
		}
		fmt.Fprintln(w)
	}
	return nil
}
