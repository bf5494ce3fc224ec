// SPDX-License-Identifier: MPL-2.0

package story

import (
	"fmt"
	"io"

	"github.com/jedib0t/go-pretty/v6/table"
	"github.com/jedib0t/go-pretty/v6/text"
)

// PrintRanks prints the gang as it ended: one row a rank.
func PrintRanks(out io.Writer, o Observed) {
	t := newTable(out, "Rank", "Node", "Address", "GPUs", "Generation", "Result")
	for _, m := range ByRank(o.Members) {
		start, _ := m.last("start", 0)
		result := m.Status
		if e, ok := m.last("result", 0); ok {
			result = fmt.Sprintf("%s: loss %.4f to %.4f, parameters %s", m.Status, e.FirstLoss, e.LastLoss, e.Digest)
		}
		t.AppendRow(table.Row{start.Rank, m.Node, start.Address, len(start.GPUs), start.Generation, result})
	}
	t.Render()
}

// PrintFindings prints every figure that was checked.
func PrintFindings(out io.Writer, found []Finding) {
	t := newTable(out, "Checked", "Expected", "Seen", "")
	for _, f := range found {
		mark := "ok"
		if !f.OK {
			mark = "WRONG"
		}
		t.AppendRow(table.Row{f.What, f.Want, f.Got, mark})
	}
	t.Render()
}

func newTable(out io.Writer, header ...any) table.Writer {
	t := table.NewWriter()
	t.SetOutputMirror(out)
	t.SetStyle(table.StyleLight)
	t.Style().Format.Header = text.FormatDefault
	t.AppendHeader(header)
	return t
}
