// SPDX-License-Identifier: MPL-2.0

package nvml

import (
	"cmp"
	"errors"
	"fmt"
	"sync"

	"github.com/NVIDIA/go-nvml/pkg/nvml"

	"github.com/nomad-gpu/nomad-gpu/device/gpu"
)

// maxGPUs bounds what is believed of a device count.
const maxGPUs = 128

// Reader reads this machine. It loads the library when first asked, and again
// whenever that failed or the driver went away, so that a driver that comes
// late, or comes back, is found. It may be used from several goroutines.
type Reader struct {
	path string
	pci  pciTree
	proc string

	mu     sync.Mutex
	lib    *library
	worked bool // a reading has succeeded in this process
	// devices are the handles of the last reading, by UUID.
	devices map[string]handle
	// remembered are the GPUs of earlier readings by index, to name one that
	// no longer answers.
	remembered map[int]gpu.GPU
	// opened counts how often the library was initialised.
	opened int
	lives  map[string]*life // by UUID
	// events delivers Xids for the devices that listening names.
	events    nvml.EventSet
	listening map[nvml.Device]string
}

type handle struct {
	device nvml.Device
	index  int
}

// NewReader makes a reader for the library at a path, or for the one that the
// loader finds if the path is empty.
func NewReader(path string) *Reader {
	return &Reader{
		path: path, pci: pciTree{root: "/sys"}, proc: "/proc",
		remembered: make(map[int]gpu.GPU), lives: make(map[string]*life),
	}
}

// Machine reads everything. It fails only if no GPU can be asked at all: one
// that does not answer is reported with its fault if it has been seen before,
// and in a warning in any case. An error that is [ErrStale] lasts until the
// process ends.
func (r *Reader) Machine() (*gpu.Machine, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.lib == nil {
		lib, err := open(r.path)
		if err != nil {
			var ret *returnError
			if r.worked && errors.As(err, &ret) && ret.code == nvml.ERROR_LIB_RM_VERSION_MISMATCH {
				return nil, fmt.Errorf("%w: %w", ErrStale, err)
			}
			return nil, err
		}
		r.lib = lib
		r.opened++
	}
	m, err := r.read()
	if err != nil {
		r.close()
		return nil, err
	}
	r.worked = true
	return m, nil
}

// close lets the library go, so that the next reading initialises it anew. What
// it answers does not matter: a driver that is gone fails here too.
func (r *Reader) close() {
	_ = r.lib.Shutdown()
	r.lib, r.devices, r.events, r.listening = nil, nil, nil, nil
}

func (r *Reader) read() (*gpu.Machine, error) {
	count, ret := r.lib.DeviceGetCount()
	if ret != nvml.SUCCESS {
		return nil, fmt.Errorf("counting GPUs: %w", failure(ret))
	}
	if count < 0 || count > maxGPUs {
		return nil, fmt.Errorf("NVML counts %d GPUs; at most %d are believed", count, maxGPUs)
	}
	m := &gpu.Machine{}
	r.versions(m)
	r.devices = make(map[string]handle, count)
	var queries []*query
	for index := range count {
		device, ret := r.lib.DeviceGetHandleByIndex(index)
		if ret != nvml.SUCCESS {
			m.Warn("GPU %d cannot be asked: %v", index, failure(ret))
			if known, ok := r.remembered[index]; ok {
				known.Fault = failure(ret).Error()
				m.GPUs = append(m.GPUs, known)
				queries = append(queries, nil)
			}
			continue
		}
		q := &query{lib: r.lib, device: device, index: index}
		g := q.describe()
		if known, ok := r.remembered[index]; ok && (g.UUID == "" || g.UUID == known.UUID && g.Fault != "") {
			// Attributes must not vanish because a GPU fails in the middle.
			known.Fault = cmp.Or(q.fault, "it does not tell its UUID")
			g = known
		}
		m.Warnings = append(m.Warnings, q.warnings...)
		if g.UUID == "" {
			m.Warn("GPU %d does not tell its UUID and cannot be offered: %s", index, q.fault)
			continue
		}
		if _, twice := r.devices[g.UUID]; twice {
			m.Warn("GPU %d has the UUID of another, %s; it is left out", index, g.UUID)
			continue
		}
		if g.Fault != "" {
			m.Warn("GPU %d (%s): %s", index, g.UUID, g.Fault)
		}
		r.devices[g.UUID] = handle{device, index}
		m.GPUs = append(m.GPUs, g)
		queries = append(queries, q)
	}
	r.pci.place(m)
	r.paths(m, queries)
	if err := allBroken(m, count); err != nil {
		return nil, err
	}
	for _, g := range m.GPUs {
		r.follow(g.UUID, g.Fault != "")
		if g.Fault == "" {
			r.remembered[g.Index] = g
		}
	}
	return m, nil
}

// allBroken is an error if there are GPUs and none works: then it is the driver
// that is gone, and the library has to be initialised anew.
func allBroken(m *gpu.Machine, count int) error {
	if count == 0 {
		return nil
	}
	reason := "none tells its UUID"
	for _, g := range m.GPUs {
		if g.Fault == "" {
			return nil
		}
		reason = g.Fault
	}
	return fmt.Errorf("none of %d GPUs works: %s", count, reason)
}

func (r *Reader) versions(m *gpu.Machine) {
	if r.lib.can("nvmlSystemGetDriverVersion") {
		if version, ret := r.lib.SystemGetDriverVersion(); ret == nvml.SUCCESS {
			m.DriverVersion = printable(version)
		}
	}
	cuda, ret := 0, nvml.ERROR_FUNCTION_NOT_FOUND
	switch {
	case r.lib.can("nvmlSystemGetCudaDriverVersion_v2"):
		cuda, ret = r.lib.SystemGetCudaDriverVersion_v2()
	case r.lib.can("nvmlSystemGetCudaDriverVersion"):
		cuda, ret = r.lib.SystemGetCudaDriverVersion()
	}
	if ret == nvml.SUCCESS && cuda > 0 {
		m.CUDAVersion = fmt.Sprintf("%d.%d", cuda/1000, cuda%1000/10)
	}
}

// Samples reads the momentary values of the GPUs of the last reading, by UUID.
// There are none while the library is not loaded; it never fails.
func (r *Reader) Samples() (map[string]gpu.Sample, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	samples := make(map[string]gpu.Sample, len(r.devices))
	if r.lib == nil {
		return samples, nil
	}
	for uuid, h := range r.devices {
		q := &query{lib: r.lib, device: h.device, index: h.index}
		samples[uuid] = q.sample()
	}
	return samples, nil
}
