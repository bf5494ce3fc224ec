// SPDX-License-Identifier: MPL-2.0

package plugin

import (
	"errors"
	"fmt"

	"github.com/hashicorp/nomad/plugins/drivers"
)

// hostOnly refuses what a process of the host would run without: it has the
// host's resolver and the host's files. Nomad 1.6 asks only its own drivers
// whether they mount; what it tells of an external one's answer is lost.
func hostOnly(cfg *drivers.TaskConfig) error {
	if cfg.DNS != nil {
		return errors.New("network: dns: a process of the host asks the host's resolver; allowed is no dns block")
	}
	for _, m := range cfg.Mounts {
		// Those of device plugins have no propagation: they are for containers.
		if m.PropagationMode != "" && m.TaskPath != m.HostPath {
			return fmt.Errorf("volume_mount: destination %q; a process of the host sees the host's paths, allowed is %q", m.TaskPath, m.HostPath)
		}
	}
	return nil
}
