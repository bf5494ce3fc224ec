// SPDX-License-Identifier: MPL-2.0

package nvml

import (
	"cmp"
	"errors"
	"fmt"
	"maps"
	"slices"
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
	// remembered are the GPUs that worked since the library was initialised, by
	// UUID, to name one that no longer answers.
	remembered map[string]gpu.GPU
	// opened counts how often the library was initialised.
	opened int
	lives  map[string]*life // by UUID
	// events delivers the Xids of whole GPUs; listening are those, with the
	// UUIDs that each stands for: its own, or its MIG instances'.
	events    nvml.EventSet
	listening map[nvml.Device]map[string]bool
}

// handle is a GPU or MIG instance; for a whole GPU both handles are the same.
type handle struct {
	device nvml.Device
	whole  nvml.Device
	index  int
}

// NewReader makes a reader for the library at a path, or for the one that the
// loader finds if the path is empty.
func NewReader(path string) *Reader {
	return &Reader{
		path: path, pci: pciTree{root: "/sys"}, proc: "/proc",
		remembered: make(map[string]gpu.GPU), lives: make(map[string]*life),
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
		clear(r.remembered)
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
	all, err := r.list(m, count)
	if err != nil {
		return nil, err
	}
	slices.SortStableFunc(all, func(a, b found) int { return cmp.Compare(a.gpu.Index, b.gpu.Index) })
	queries := make([]*query, len(all))
	for i, f := range all {
		m.GPUs = append(m.GPUs, f.gpu)
		if f.gpu.Parent == "" {
			queries[i] = f.query
		}
	}
	r.pci.place(m)
	r.paths(m, queries)
	for _, g := range m.GPUs {
		r.follow(g.UUID, g.Fault != "")
		if g.Fault == "" {
			r.remembered[g.UUID] = g
		}
	}
	return m, nil
}

// found is a GPU of this reading, or one that is remembered; query is nil for
// one that cannot be asked.
type found struct {
	gpu   gpu.GPU
	query *query
}

// list asks every GPU and adds those that are remembered but no longer answer.
// Indexes say nothing there: they shift when a GPU falls off the bus. If there
// are GPUs and none works it is the driver that is gone: an error, after which
// the library has to be initialised anew.
func (r *Reader) list(m *gpu.Machine, count int) ([]found, error) {
	r.devices = make(map[string]handle, count)
	var all []found
	// gone is why a remembered GPU is missing, failing why none works.
	gone, failing := "the driver no longer lists it", "none tells its UUID"
	physical := make(map[string]bool) // UUIDs of whole GPUs that answered
	working := 0
	for index := range count {
		device, ret := r.lib.DeviceGetHandleByIndex(index)
		if ret != nvml.SUCCESS {
			gone = failure(ret).Error()
			failing = gone
			m.Warn("GPU %d cannot be asked: %s", index, gone)
			continue
		}
		q := &query{lib: r.lib, device: device, index: index}
		g := q.describe()
		m.Warnings = append(m.Warnings, q.warnings...)
		switch {
		case g.UUID == "":
			gone = cmp.Or(q.fault, "it does not tell its UUID")
			failing = gone
			m.Warn("GPU %d does not tell its UUID: %s", index, gone)
			continue
		case physical[g.UUID]:
			m.Warn("GPU %d has the UUID of another, %s; it is left out", index, g.UUID)
			continue
		}
		physical[g.UUID] = true
		if g.Fault == "" {
			working++
		} else {
			failing = g.Fault
			m.Warn("GPU %d (%s): %s", index, g.UUID, g.Fault)
			if known, ok := r.remembered[g.UUID]; ok {
				// Attributes must not vanish because a GPU fails in the middle.
				known.Fault = g.Fault
				g = known
			}
		}
		if instances, on := q.instances(g); on {
			for _, instance := range instances {
				r.devices[instance.gpu.UUID] = handle{instance.query.device, device, index}
			}
			all = append(all, instances...)
			continue
		}
		r.devices[g.UUID] = handle{device, device, index}
		all = append(all, found{g, q})
	}
	if count > 0 && working == 0 {
		return nil, fmt.Errorf("none of %d GPUs works: %s", count, failing)
	}
	for _, uuid := range slices.Sorted(maps.Keys(r.remembered)) {
		known := r.remembered[uuid]
		switch _, here := r.devices[uuid]; {
		case here:
		case physical[cmp.Or(known.Parent, uuid)]:
			delete(r.remembered, uuid) // MIG was changed: it is gone for good
		default:
			known.Fault = gone
			all = append(all, found{gpu: known})
		}
	}
	return all, nil
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
