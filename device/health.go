// SPDX-License-Identifier: MPL-2.0

package main

import (
	"errors"
	"fmt"
	"io"
	"maps"
	"slices"
	"strconv"
	"time"

	"github.com/jedib0t/go-pretty/v6/table"
	"github.com/spf13/cobra"

	"github.com/nomad-gpu/nomad-gpu/device/gpu"
	"github.com/nomad-gpu/nomad-gpu/device/health"
	"github.com/nomad-gpu/nomad-gpu/device/nvml"
	"github.com/nomad-gpu/nomad-gpu/device/plugin"
)

// gpuHealth is a line of `health`.
type gpuHealth struct {
	Index   int            `json:"index"`
	UUID    string         `json:"uuid"`
	Verdict health.Verdict `json:"verdict"`
}

func newHealthCommand() *cobra.Command {
	var source sourceFlags
	var faults, explain string
	var rules, asJSON bool
	cmd := &cobra.Command{
		Use:   "health",
		Short: "Judge each GPU's health, and say what would cure it",
		Long: "Takes one look at each GPU. What only shows over time (trends, Xids that came before)\n" +
			"is known to the running plugin alone: see the health descriptions in nomad node status -verbose.",
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			out := cmd.OutOrStdout()
			switch {
			case rules:
				return printRules(out, asJSON)
			case explain != "":
				return printXids(out, explain, asJSON)
			}
			list, err := judgeOnce(&source, faults)
			if err != nil {
				return err
			}
			if asJSON {
				return writeJSON(out, list)
			}
			t := newTable(table.Row{"GPU", "UUID", "State", "Rule", "Reason", "Cure"})
			for _, g := range list {
				t.AppendRow(table.Row{g.Index, g.UUID, g.Verdict.State.String(), g.Verdict.Code, g.Verdict.Reason, g.Verdict.Cure})
			}
			return printTable(out, t)
		},
	}
	flags := cmd.Flags()
	flags.StringVar(&source.profile, "profile", "", "a built-in profile by name, or a profile's .yaml `file`")
	flags.StringVar(&source.seed, "profile-seed", "", "seed of the simulated UUIDs (default: the host's name)")
	flags.StringVar(&source.library, "nvml-library", "", "path of libnvidia-ml.so.1 (default: where the loader finds it)")
	flags.StringVar(&faults, "profile-faults", "", "a `file` with faults of the simulated machine")
	flags.StringVar(&explain, "xid", "", "explain the Xid with this `number`, or all of the catalogue: all")
	flags.BoolVar(&rules, "rules", false, "list the rules")
	flags.BoolVar(&asJSON, "json", false, "print JSON")
	cmd.MarkFlagsMutuallyExclusive("profile", "nvml-library", "xid", "rules")
	return cmd
}

func judgeOnce(flags *sourceFlags, faults string) ([]gpuHealth, error) {
	var source plugin.Source
	switch {
	case flags.profile != "":
		machine, err := flags.simulated()
		if err != nil {
			return nil, err
		}
		source = plugin.Simulate(machine, faults)
	case faults != "" || flags.seed != "":
		return nil, errors.New("--profile-faults and --profile-seed are of use only together with --profile")
	default:
		source = nvml.NewReader(flags.library)
	}
	m, err := source.Machine()
	if err != nil {
		return nil, err
	}
	verdicts := plugin.NewMonitor(health.AtOnce(health.Rules())).Judge(m, source.Observe(), time.Now())
	return healthOf(m, verdicts), nil
}

func healthOf(m *gpu.Machine, verdicts []health.Verdict) []gpuHealth {
	list := make([]gpuHealth, len(m.GPUs))
	for i, g := range m.GPUs {
		list[i] = gpuHealth{Index: g.Index, UUID: g.UUID, Verdict: verdicts[i]}
	}
	return list
}

func printRules(out io.Writer, asJSON bool) error {
	type line struct {
		Rule    string `json:"rule"`
		Meaning string `json:"meaning"`
		Trips   int    `json:"trips"`
		Hold    string `json:"hold"`
	}
	var lines []line
	for _, rule := range health.Rules() {
		lines = append(lines, line{rule.Code, rule.Meaning, rule.Trips, rule.Hold.String()})
	}
	if asJSON {
		return writeJSON(out, lines)
	}
	t := newTable(table.Row{"Rule", "Meaning", "Counts after readings", "Holds for"})
	for _, l := range lines {
		t.AppendRow(table.Row{l.Rule, l.Meaning, l.Trips, l.Hold})
	}
	return printTable(out, t)
}

func printXids(out io.Writer, which string, asJSON bool) error {
	var entries []health.Entry
	if which == "all" {
		for _, number := range slices.Sorted(maps.Keys(health.Catalogue())) {
			entries = append(entries, health.Explain(number))
		}
	} else {
		number, err := strconv.ParseUint(which, 10, 32)
		if err != nil {
			return fmt.Errorf("--xid %q: it must be a number, or all", which)
		}
		entries = append(entries, health.Explain(number))
	}
	if asJSON {
		return writeJSON(out, entries)
	}
	t := newTable(table.Row{"Xid", "Recovered by", "Meaning"})
	for _, e := range entries {
		t.AppendRow(table.Row{e.Xid, e.Action, e.Meaning})
	}
	return printTable(out, t)
}
