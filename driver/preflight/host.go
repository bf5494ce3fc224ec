// SPDX-License-Identifier: MPL-2.0

package preflight

import (
	"errors"
	"fmt"
	"io/fs"
	"math"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/nomad-gpu/nomad-gpu/driver/runtime"
)

// Host is where the local checks look. The zero value is this machine.
type Host struct {
	// Sys, Dev and Shm are the directories; empty: /sys, /dev, /dev/shm.
	Sys, Dev, Shm string
	// ShmSize is the size of a container's own shared memory in bytes; 0: the
	// processes see Shm.
	ShmSize uint64
	// Memlock is the most locked memory that the process can get, in bytes,
	// math.MaxUint64 for unlimited; nil: what the driver itself can give.
	Memlock func() (uint64, error)
	// GPUs is how many are reserved for the task here.
	GPUs int
	// AskedHCA: NCCL_IB_HCA is the user's, not the device plugin's.
	AskedHCA bool
}

func or(path, standard string) string {
	if path == "" {
		return standard
	}
	return path
}

const mib = 1 << 20

// What NCCL's manual asks of a container (troubleshooting, "shared memory"
// and "memory locking"): 1 GiB of /dev/shm; and all memory lockable, which
// RDMA alone needs.
const (
	enoughShm     = 1 << 30
	enoughMemlock = math.MaxUint64
)

// limits compares /dev/shm and locked memory with what was asked for, else
// with what NCCL needs: /dev/shm between the GPUs of a node, locked memory
// with RDMA.
func (h Host) limits(s Steps, env map[string]string) (warnings []string, err error) {
	var errs []error
	shm := or(h.Shm, "/dev/shm")
	var fs unix.Statfs_t
	size := h.ShmSize
	if size == 0 {
		err := unix.Statfs(shm, &fs)
		if err != nil {
			errs = append(errs, fmt.Errorf("shared memory: read the size of %s: %w", shm, err))
		}
		size = fs.Blocks * uint64(fs.Bsize)
	}
	if len(errs) == 0 {
		text := fmt.Sprintf("%s has %d MiB", shm, size/mib)
		switch {
		case s.ShmMiB > 0 && size < uint64(s.ShmMiB)*mib:
			errs = append(errs, fmt.Errorf("shared memory: %s, preflight.shm_mib asks for %d: mount it larger", text, s.ShmMiB))
		case s.ShmMiB == 0 && size < enoughShm && h.GPUs > 1 && env["NCCL_SHM_DISABLE"] != "1":
			warnings = append(warnings, fmt.Sprintf("shared memory: %s, NCCL between GPUs of one node needs up to %d: mount it larger", text, uint64(enoughShm)/mib))
		}
	}
	if h.Memlock == nil {
		h.Memlock = func() (uint64, error) { return runtime.MostLimit("memlock") }
	}
	limit, err := h.Memlock()
	text := fmt.Sprintf("locked memory is limited to %d MiB", limit/mib)
	const remedy = "raise LimitMEMLOCK of the Nomad agent's service"
	switch {
	case err != nil:
		errs = append(errs, fmt.Errorf("locked memory: %w", err))
	case s.MemlockMiB > 0 && limit < uint64(s.MemlockMiB)*mib:
		errs = append(errs, fmt.Errorf("%s, preflight.memlock_mib asks for %d: %s", text, s.MemlockMiB, remedy))
	case s.MemlockMiB == 0 && limit < enoughMemlock && usesRDMA(env) && len(h.ports()) > 0:
		warnings = append(warnings, fmt.Sprintf("%s, RDMA needs it unlimited: %s", text, remedy))
	}
	if len(errs) > 0 {
		return warnings, oneLine(errs)
	}
	return warnings, nil
}

func usesRDMA(env map[string]string) bool { return env["NCCL_IB_DISABLE"] != "1" }

// port is one port of an RDMA device.
type port struct {
	device, number, state string
	// verbs is false where the device has no node below /dev/infiniband.
	verbs bool
}

var (
	plainDevice = regexp.MustCompile(`^[A-Za-z0-9_.-]{1,64}$`)
	portNumber  = regexp.MustCompile(`^[0-9]{1,3}$`)
)

// ports are those of all RDMA devices, as sysfs's class infiniband has them.
func (h Host) ports() []port {
	class := filepath.Join(or(h.Sys, "/sys"), "class", "infiniband")
	devices, err := os.ReadDir(class)
	if err != nil {
		return nil
	}
	var all []port
	for _, d := range devices {
		verbs := false
		names, _ := os.ReadDir(filepath.Join(class, d.Name(), "device", "infiniband_verbs"))
		for _, n := range names {
			if _, err := os.Stat(filepath.Join(or(h.Dev, "/dev"), "infiniband", n.Name())); err == nil {
				verbs = true
			}
		}
		numbers, _ := os.ReadDir(filepath.Join(class, d.Name(), "ports"))
		for _, n := range numbers {
			state, err := readSmall(filepath.Join(class, d.Name(), "ports", n.Name(), "state"))
			if err != nil || !portNumber.MatchString(n.Name()) {
				continue
			}
			if _, word, ok := strings.Cut(state, ": "); ok { // "4: ACTIVE"
				state = word
			}
			all = append(all, port{device: d.Name(), number: n.Name(), state: state, verbs: verbs})
		}
	}
	return all
}

// rdma looks for what NCCL_IB_HCA lists. A NIC that it names and that is not
// there, is down or has no device node is an error; one that nobody named and
// that is down is a warning, since NCCL goes on without it, slower.
func (h Host) rdma(env map[string]string) (warnings []string, err error) {
	if !usesRDMA(env) || env["NCCL_IB_HCA"] != "" && !h.AskedHCA && h.simulated() {
		return nil, nil
	}
	all := h.ports()
	list, err := parseHCAs(env["NCCL_IB_HCA"])
	if err != nil {
		return nil, err
	}
	var errs []error
	for _, want := range list.names {
		if list.except {
			continue
		}
		matched, up := false, false
		var states []string
		for _, p := range all {
			if !want.matches(p, list.exact) {
				continue
			}
			matched = true
			switch {
			case p.state != "ACTIVE":
				states = append(states, fmt.Sprintf("%s port %s is %s", p.device, p.number, p.state))
			case !p.verbs:
				states = append(states, fmt.Sprintf("%s has no node below %s", p.device, filepath.Join(or(h.Dev, "/dev"), "infiniband")))
			default:
				up = true
			}
		}
		switch {
		case !matched:
			errs = append(errs, fmt.Errorf("RDMA: NCCL_IB_HCA names %s, this node has %s", want, devicesOf(all)))
		case !up:
			errs = append(errs, fmt.Errorf("RDMA: NCCL_IB_HCA names %s: %s", want, strings.Join(states, ", ")))
		}
	}
	if len(list.names) == 0 || list.except {
		for _, p := range all {
			skip := slices.ContainsFunc(list.names, func(n hca) bool { return n.matches(p, list.exact) })
			if p.state != "ACTIVE" && !skip {
				warnings = append(warnings, fmt.Sprintf("RDMA: %s port %s is %s: NCCL goes on without it", p.device, p.number, p.state))
			}
		}
	}
	if len(errs) > 0 {
		err = oneLine(errs)
	}
	return warnings, err
}

// simulated: GPUs are reserved where no driver of GPUs is loaded. Their NICs
// are those of a profile too.
func (h Host) simulated() bool {
	_, err := os.Stat(filepath.Join(or(h.Sys, "/sys"), "module", "nvidia"))
	return errors.Is(err, fs.ErrNotExist)
}

func devicesOf(all []port) string {
	var names []string
	for _, p := range all {
		if !slices.Contains(names, p.device) {
			names = append(names, p.device)
		}
	}
	if len(names) == 0 {
		return "no RDMA device"
	}
	return strings.Join(names, ", ")
}

// hca is one entry of NCCL_IB_HCA, with a port where it names one.
type hca struct{ name, port string }

func (n hca) String() string {
	if n.port != "" {
		return n.name + ":" + n.port
	}
	return n.name
}

func (n hca) matches(p port, exact bool) bool {
	name := p.device == n.name || !exact && strings.HasPrefix(p.device, n.name)
	return name && (n.port == "" || n.port == p.number)
}

type hcas struct {
	names         []hca
	exact, except bool
}

// parseHCAs reads NCCL_IB_HCA as NCCL does: a comma list of prefixes of
// device names, each with a port after a colon or not; "=" before the list
// asks for whole names, "^" for all but these, "^=" for both.
func parseHCAs(value string) (hcas, error) {
	var list hcas
	rest := value
	if after, ok := strings.CutPrefix(rest, "^"); ok {
		list.except, rest = true, after
	}
	if after, ok := strings.CutPrefix(rest, "="); ok {
		list.exact, rest = true, after
	}
	for _, entry := range strings.Split(rest, ",") {
		if entry == "" {
			continue
		}
		name, number, _ := strings.Cut(entry, ":")
		if !plainDevice.MatchString(name) || number != "" && !portNumber.MatchString(number) || len(list.names) == 256 {
			return list, fmt.Errorf("NCCL_IB_HCA: entry %q; allowed are up to 256 names such as mlx5_0 or mlx5_0:1", entry[:min(len(entry), 80)])
		}
		list.names = append(list.names, hca{name, number})
	}
	return list, nil
}
