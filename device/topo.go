// SPDX-License-Identifier: MPL-2.0

package main

import (
	"fmt"
	"strconv"
	"strings"

	"github.com/jedib0t/go-pretty/v6/table"
	"github.com/spf13/cobra"

	"github.com/nomad-gpu/nomad-gpu/device/gpu"
	"github.com/nomad-gpu/nomad-gpu/device/topology"
)

// report is what `topo` shows; GPUs and NICs are positions in the machine.
type report struct {
	Machine *gpu.Machine `json:"machine"`
	Islands []island     `json:"islands"`
	Alone   []int        `json:"alone"`
	Nearest []nearest    `json:"nearest_nics"`
	// VisibleOrder is that of a task that reserves all GPUs.
	VisibleOrder []int `json:"visible_order"`
	Chosen       []int `json:"chosen,omitempty"`
}

type island struct {
	GPUs     []int   `json:"gpus"`
	FullMesh bool    `json:"full_mesh"`
	Cliques  [][]int `json:"cliques,omitempty"`
}

type nearest struct {
	GPU   int       `json:"gpu"`
	Level gpu.Level `json:"level"`
	NICs  []int     `json:"nics"`
}

func newReport(m *gpu.Machine) report {
	// Empty lists rather than null, so that programs can go through them.
	r := report{Machine: m, Islands: []island{}, Alone: append([]int{}, topology.Alone(m)...)}
	for _, gpus := range topology.Islands(m) {
		i := island{GPUs: gpus, FullMesh: topology.FullMesh(m, gpus)}
		if !i.FullMesh {
			i.Cliques = topology.Cliques(m, gpus)
		}
		r.Islands = append(r.Islands, i)
	}
	all := make([]int, len(m.GPUs))
	for i, n := range topology.NearestNICs(m) {
		all[i] = i
		r.Nearest = append(r.Nearest, nearest{GPU: i, Level: n.Level, NICs: append([]int{}, n.NICs...)})
	}
	r.VisibleOrder = topology.VisibleOrder(m, all)
	return r
}

func newTopoCommand() *cobra.Command {
	var source sourceFlags
	var asJSON bool
	var count int
	cmd := &cobra.Command{
		Use:   "topo",
		Short: "Show how GPUs and NICs are connected, and what follows from it",
		Args:  cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			m, err := source.machine(cmd.InOrStdin())
			if err != nil {
				return err
			}
			warn(cmd.ErrOrStderr(), m)
			r := newReport(m)
			if cmd.Flags().Changed("choose") {
				all := make([]int, len(m.GPUs))
				for i := range all {
					all[i] = i
				}
				chosen, err := topology.Choose(m, topology.Request{Free: all, Count: count})
				if err != nil {
					return fmt.Errorf("--choose: %w", err)
				}
				r.Chosen = topology.VisibleOrder(m, chosen)
			}
			if asJSON {
				return writeJSON(cmd.OutOrStdout(), r)
			}
			return r.print(cmd)
		},
	}
	source.add(cmd)
	cmd.Flags().BoolVar(&asJSON, "json", false, "print JSON")
	cmd.Flags().IntVar(&count, "choose", 0, "also show the best `N` of the machine's GPUs")
	return cmd
}

func (r report) print(cmd *cobra.Command) error {
	out := cmd.OutOrStdout()
	m := r.Machine
	if head := headline(m); head != "" {
		fmt.Fprintln(out, head)
	}
	if err := printTable(out, r.matrix()); err != nil {
		return err
	}
	fmt.Fprintln(out)
	for _, i := range r.Islands {
		shape := "full mesh"
		if !i.FullMesh {
			var sets []string
			for _, clique := range i.Cliques {
				sets = append(sets, r.gpus(clique))
			}
			shape = "cliques " + strings.Join(sets, ", ")
		}
		fmt.Fprintf(out, "NVLink island:  %s (%s)\n", r.gpus(i.GPUs), shape)
	}
	if len(r.Alone) > 0 {
		fmt.Fprintf(out, "No NVLink:      %s\n", r.gpus(r.Alone))
	}
	fmt.Fprintf(out, "NVSwitch:       %s\n", m.NVSwitch)
	for _, n := range r.Nearest {
		if len(n.NICs) == 0 {
			continue
		}
		var names []string
		for _, k := range n.NICs {
			names = append(names, nicLabel(m.NICs[k]))
		}
		fmt.Fprintf(out, "Nearest to %-5s%s (%s)\n", r.gpus([]int{n.GPU})+":", strings.Join(names, " "), n.Level)
	}
	fmt.Fprintf(out, "Visible order:  %s\n", r.gpus(r.VisibleOrder))
	if len(r.Chosen) > 0 {
		fmt.Fprintf(out, "Best %d:         %s\n", len(r.Chosen), r.gpus(r.Chosen))
	}
	return nil
}

func headline(m *gpu.Machine) string {
	var parts []string
	if m.Name != "" {
		parts = append(parts, m.Name)
	}
	models := make(map[string]int)
	var order []string
	for _, g := range m.GPUs {
		if g.Model != "" {
			if models[g.Model]++; models[g.Model] == 1 {
				order = append(order, g.Model)
			}
		}
	}
	for _, model := range order {
		parts = append(parts, fmt.Sprintf("%d × %s", models[model], model))
	}
	if m.Simulated {
		parts = append(parts, "simulated")
	}
	return strings.Join(parts, ", ")
}

// gpus names GPUs by the driver's numbers.
func (r report) gpus(positions []int) string {
	words := make([]string, len(positions))
	for x, i := range positions {
		words[x] = strconv.Itoa(r.Machine.GPUs[i].Index)
	}
	return strings.Join(words, " ")
}

// matrix is laid out like that of nvidia-smi, GPU rows only: the distances
// between NICs play no part here.
func (r report) matrix() table.Writer {
	m := r.Machine
	head := table.Row{""}
	for _, g := range m.GPUs {
		head = append(head, fmt.Sprintf("GPU%d", g.Index))
	}
	for _, n := range m.NICs {
		head = append(head, nicLabel(n))
	}
	t := newTable(append(head, "NUMA", "CPUs"))
	for i, g := range m.GPUs {
		row := table.Row{fmt.Sprintf("GPU%d", g.Index)}
		for j := range m.GPUs {
			if i == j {
				row = append(row, "X")
			} else {
				row = append(row, m.Paths[i][j].String())
			}
		}
		for k := range m.NICs {
			row = append(row, m.NICPaths[i][k].String())
		}
		numa := ""
		if g.NUMANode != gpu.NoNUMA {
			numa = strconv.Itoa(g.NUMANode)
		}
		t.AppendRow(append(row, numa, g.CPUs))
	}
	return t
}

func nicLabel(n gpu.NIC) string {
	if n.Device != "" {
		return n.Device
	}
	return n.Name
}
