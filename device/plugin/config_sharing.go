// SPDX-License-Identifier: MPL-2.0

package plugin

import (
	"errors"
	"fmt"
	"net/url"
	"path/filepath"

	"github.com/hashicorp/nomad/plugins/shared/structs"

	"github.com/nomad-gpu/nomad-gpu/device/mps"
	"github.com/nomad-gpu/nomad-gpu/device/sharing"
)

// defaultStateDir is that of real GPUs; simulated ones keep nothing unless told
// where, since a host can have several such nodes.
const defaultStateDir = "/var/lib/nomad-device-gpu"

// share checks how GPUs are shared and placed.
func (raw rawConfig) share(c *config) error {
	c.stateDir = raw.StateDir
	if c.stateDir == "" && raw.Profile == "" {
		c.stateDir = defaultStateDir
	}
	if c.stateDir != "" && !filepath.IsAbs(c.stateDir) {
		return fmt.Errorf("state_dir %q: it must be an absolute path", raw.StateDir)
	}
	if c.stateDir == "" && (raw.Placement == "remap" || len(raw.Power) > 0 || raw.MPSControl != "") {
		return errors.New("state_dir \"\": it must be set where a simulated machine has power, mps_control or placement \"remap\"")
	}
	switch file := raw.NCCLTopoFile; {
	case file == "write" && c.stateDir == "":
		return errors.New("nccl_topo_file \"write\": state_dir must be set where a machine is simulated")
	case file == "write":
		c.topoFile, c.writeTopo = filepath.Join(c.stateDir, "nccl-topology.xml"), true
	case file != "" && !filepath.IsAbs(file):
		return fmt.Errorf("nccl_topo_file %q: allowed are \"write\" and an absolute path", file)
	default:
		c.topoFile = file
	}
	switch raw.Placement {
	case "nomad":
	case "remap":
		c.remap = true
		if c.grouping.ByIsland {
			return fmt.Errorf("placement %q and group_by %q: a request stays within an island either by the plugin's choice or by its group; leave one out", raw.Placement, raw.GroupBy)
		}
	default:
		return fmt.Errorf("placement %q: allowed are \"nomad\" and \"remap\"", raw.Placement)
	}
	c.nomad.address, c.nomad.tokenFile, c.nomad.caFile = raw.Nomad.Address, raw.Nomad.TokenFile, raw.Nomad.CAFile
	if raw.Nomad.Address != "" {
		if u, err := url.Parse(raw.Nomad.Address); err != nil || u.Scheme != "http" && u.Scheme != "https" || u.Host == "" {
			return fmt.Errorf("nomad.address %q: it must be a URL such as \"http://127.0.0.1:4646\"", raw.Nomad.Address)
		}
	}
	for _, b := range raw.TimeSlices {
		c.grouping.Sharing = append(c.grouping.Sharing, sharing.Rule{Kind: sharing.TimeSlice, Model: b.Model, Replicas: b.Replicas, SameGPU: b.AllowSameGPU})
	}
	for n, b := range raw.MPS {
		memory, err := parseMiB(b.Memory)
		if err != nil {
			return fmt.Errorf("mps[%d].memory %q: it must be a size such as \"10 GiB\"", n, b.Memory)
		}
		c.grouping.Sharing = append(c.grouping.Sharing, sharing.Rule{Kind: sharing.MPS, Model: b.Model, Replicas: b.Replicas, SameGPU: b.AllowSameGPU, MemoryMiB: memory, Threads: b.Threads})
	}
	if len(raw.MPS) > 0 {
		c.mpsProgram = raw.MPSControl
		if raw.MPSControl == "" && raw.Profile == "" {
			c.mpsProgram = mps.Program // simulated GPUs have no daemon unless one is named
		}
	} else if raw.MPSControl != "" {
		return fmt.Errorf("mps_control %q: it is of use only together with an mps block", raw.MPSControl)
	}
	return sharing.Validate(c.grouping.Sharing)
}

// parseMiB reads a size as Nomad's constraints write it; empty: 0.
func parseMiB(text string) (uint64, error) {
	if text == "" {
		return 0, nil
	}
	a := structs.ParseAttribute(text)
	if a.Unit == "" {
		return 0, errors.New("no unit")
	}
	one := structs.NewIntAttribute(1, structs.UnitMiB)
	if order, comparable := a.Compare(one); !comparable || order < 0 {
		return 0, errors.New("no size of a MiB or more")
	}
	value, ok := a.GetInt()
	if !ok {
		return 0, errors.New("no whole number")
	}
	for unit, factor := range map[string]uint64{structs.UnitMiB: 1, structs.UnitGiB: 1 << 10, structs.UnitTiB: 1 << 20} {
		if a.Unit == unit && value > 0 && value < 1<<20 {
			return uint64(value) * factor, nil
		}
	}
	return 0, errors.New("allowed units are MiB, GiB and TiB")
}
