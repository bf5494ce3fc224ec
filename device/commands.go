// SPDX-License-Identifier: MPL-2.0

package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"

	"github.com/jedib0t/go-pretty/v6/table"
	"github.com/spf13/cobra"

	"github.com/nomad-gpu/nomad-gpu/device/gpu"
	"github.com/nomad-gpu/nomad-gpu/device/nvml"
	"github.com/nomad-gpu/nomad-gpu/device/plugin"
	"github.com/nomad-gpu/nomad-gpu/device/profile"
)

func newCommand() *cobra.Command {
	root := &cobra.Command{
		Use:           plugin.Name,
		Short:         "NVIDIA GPUs for Nomad: a device plugin, and a look at what it sees",
		Version:       version,
		SilenceUsage:  true,
		SilenceErrors: true,
	}
	root.AddCommand(newTopoCommand(), newFingerprintCommand(), newHealthCommand(), newProfilesCommand())
	return root
}

// sourceFlags say which machine a command is about; at most one may be set.
type sourceFlags struct {
	profile, seed, matrix, nccl, library string
}

func (f *sourceFlags) add(cmd *cobra.Command) {
	flags := cmd.Flags()
	flags.StringVar(&f.profile, "profile", "", "a built-in profile by name, or a profile's .yaml `file`")
	flags.StringVar(&f.seed, "profile-seed", "", "seed of the simulated UUIDs (default: the host's name)")
	flags.StringVar(&f.matrix, "topo-file", "", "a `file` with the output of nvidia-smi topo -m (- for standard input)")
	flags.StringVar(&f.nccl, "nccl-xml", "", "a topology `file` of NCCL (- for standard input)")
	flags.StringVar(&f.library, "nvml-library", "", "path of libnvidia-ml.so.1 (default: where the loader finds it)")
	cmd.MarkFlagsMutuallyExclusive("profile", "topo-file", "nccl-xml", "nvml-library")
}

// machine reads what the flags say; this host's GPUs if they say nothing.
func (f *sourceFlags) machine(stdin io.Reader) (*gpu.Machine, error) {
	switch {
	case f.profile != "":
		return f.simulated()
	case f.seed != "":
		return nil, errors.New("--profile-seed is of use only together with --profile")
	case f.matrix != "":
		return parseFile(f.matrix, stdin, profile.ParseMatrix)
	case f.nccl != "":
		return parseFile(f.nccl, stdin, profile.ParseNCCL)
	}
	m, err := nvml.NewReader(f.library).Machine()
	if err != nil {
		return nil, fmt.Errorf("%w\n(--profile NAME shows a machine that is not here; %s profiles lists them)", err, plugin.Name)
	}
	return m, nil
}

func (f *sourceFlags) simulated() (*gpu.Machine, error) {
	m, err := profile.Load(f.profile)
	if err != nil {
		return nil, err
	}
	seed := f.seed
	if seed == "" {
		if seed, err = os.Hostname(); err != nil {
			return nil, fmt.Errorf("the host's name cannot be read; set --profile-seed: %w", err)
		}
	}
	return m, profile.Simulate(m, seed)
}

func parseFile(name string, stdin io.Reader, parse func(string) (*gpu.Machine, error)) (*gpu.Machine, error) {
	text, err := readInput(name, stdin)
	if err != nil {
		return nil, err
	}
	m, err := parse(string(text))
	if err != nil {
		return nil, fmt.Errorf("%s: %w", name, err)
	}
	return m, nil
}

func readInput(name string, stdin io.Reader) ([]byte, error) {
	if name == "-" {
		return profile.ReadText("standard input", stdin)
	}
	return profile.ReadFile(name)
}

func newProfilesCommand() *cobra.Command {
	var asJSON bool
	cmd := &cobra.Command{
		Use:   "profiles",
		Short: "List the machine profiles that are built in",
		Args:  cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			type entry struct {
				Profile string `json:"profile"`
				Machine string `json:"machine"`
				GPUs    int    `json:"gpus"`
				Model   string `json:"model"`
				NICs    int    `json:"nics"`
			}
			var entries []entry
			for _, name := range profile.Names() {
				m, err := profile.Load(name)
				if err != nil {
					return err
				}
				entries = append(entries, entry{name, m.Name, len(m.GPUs), m.GPUs[0].Model, len(m.NICs)})
			}
			if asJSON {
				return writeJSON(cmd.OutOrStdout(), entries)
			}
			t := newTable(table.Row{"Profile", "Machine", "GPUs", "Model", "NICs"})
			for _, e := range entries {
				t.AppendRow(table.Row{e.Profile, e.Machine, e.GPUs, e.Model, e.NICs})
			}
			return printTable(cmd.OutOrStdout(), t)
		},
	}
	cmd.Flags().BoolVar(&asJSON, "json", false, "print JSON")
	return cmd
}

func newFingerprintCommand() *cobra.Command {
	var source sourceFlags
	var asJSON, byIsland bool
	cmd := &cobra.Command{
		Use:   "fingerprint",
		Short: "Show the device groups that Nomad would see",
		Args:  cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			m, err := source.machine(cmd.InOrStdin())
			if err != nil {
				return err
			}
			warn(cmd.ErrOrStderr(), m)
			groups := plugin.DeviceGroups(m, plugin.Grouping{ByIsland: byIsland})
			if asJSON {
				return writeJSON(cmd.OutOrStdout(), groups)
			}
			return printGroups(cmd.OutOrStdout(), groups)
		},
	}
	source.add(cmd)
	cmd.Flags().BoolVar(&asJSON, "json", false, "print JSON")
	cmd.Flags().BoolVar(&byIsland, "by-island", false, "a group for each NVLink island, as with group_by = \"island\"")
	return cmd
}

func warn(w io.Writer, m *gpu.Machine) {
	for _, warning := range m.Warnings {
		fmt.Fprintln(w, "Warning:", warning)
	}
}

func writeJSON(w io.Writer, value any) error {
	encoder := json.NewEncoder(w)
	encoder.SetIndent("", "  ")
	return encoder.Encode(value)
}
