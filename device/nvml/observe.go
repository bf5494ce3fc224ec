// SPDX-License-Identifier: MPL-2.0

package nvml

import (
	"encoding/binary"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"github.com/NVIDIA/go-nvml/pkg/nvml"

	"github.com/nomad-gpu/nomad-gpu/device/health"
)

// maxEvents bounds the events taken at once: a storm of Xids must not keep a
// reading from ending.
const maxEvents = 1000

// life is what is followed of a GPU to see when it starts afresh: a reset is
// announced by nothing, but it makes a GPU that failed answer again, and takes
// its error counters back to zero.
type life struct {
	starts      int
	faulty      bool
	uncorrected uint64
}

// Observe reads what health is judged by, of the GPUs of the last reading, by
// UUID. Time, faults and links are the caller's to fill in. A MIG instance is
// judged by the GPU it is part of.
func (r *Reader) Observe() map[string]health.Observation {
	r.mu.Lock()
	defer r.mu.Unlock()
	observations := make(map[string]health.Observation, len(r.devices))
	if r.lib == nil {
		return observations
	}
	for uuid, h := range r.devices {
		q := &query{lib: r.lib, device: h.whole, index: h.index}
		o := q.observe()
		if o.Uncorrected != nil {
			l := r.life(uuid)
			if *o.Uncorrected < l.uncorrected {
				l.starts++
			}
			l.uncorrected = *o.Uncorrected
		}
		observations[uuid] = o
	}
	for uuid, xids := range r.xids() {
		o := observations[uuid]
		o.Xids = xids
		observations[uuid] = o
	}
	for uuid, o := range observations {
		o.Epoch = fmt.Sprintf("%s/%d/%d", r.boot(), r.opened, r.life(uuid).starts)
		observations[uuid] = o
	}
	return observations
}

func (r *Reader) life(uuid string) *life {
	l, ok := r.lives[uuid]
	if !ok {
		l = &life{}
		r.lives[uuid] = l
	}
	return l
}

// follow notes which GPUs fail, and that one starts afresh which no longer does.
func (r *Reader) follow(uuid string, faulty bool) {
	l := r.life(uuid)
	if l.faulty && !faulty {
		l.starts++
	}
	l.faulty = faulty
}

// boot is the kernel's identity of this start of the machine.
func (r *Reader) boot() string {
	text, err := os.ReadFile(filepath.Join(r.proc, "sys/kernel/random/boot_id"))
	if err != nil {
		return ""
	}
	return strings.TrimSpace(string(text))
}

// observe reads one GPU.
func (q *query) observe() health.Observation {
	d := q.device
	var o health.Observation
	type rows struct {
		replaced        int
		pending, failed bool
	}
	if r, ok := ask(q, func() (rows, nvml.Return) {
		_, uncorrected, pending, failed, ret := d.GetRemappedRows()
		return rows{uncorrected, pending, failed}, ret
	}, "nvmlDeviceGetRemappedRows"); ok {
		replaced := uint64(max(r.replaced, 0))
		o.Remapped, o.RemapPending, o.RemapFailed = &replaced, r.pending, r.failed
	}
	if pending, ok := ask(q, d.GetRetiredPagesPendingStatus, "nvmlDeviceGetRetiredPagesPendingStatus"); ok {
		o.RetirementPending = pending == nvml.FEATURE_ENABLED
	}
	o.Corrected = q.totalErrors(nvml.MEMORY_ERROR_TYPE_CORRECTED)
	o.Uncorrected = q.totalErrors(nvml.MEMORY_ERROR_TYPE_UNCORRECTED)
	// The older name exists in every driver so far.
	if reasons, ok := ask(q, d.GetCurrentClocksThrottleReasons, "nvmlDeviceGetCurrentClocksThrottleReasons"); ok {
		o.ThermalSlowdown = reasons&(nvml.ClocksThrottleReasonHwThermalSlowdown|nvml.ClocksEventReasonSwThermalSlowdown) != 0
		o.PowerBrake = reasons&nvml.ClocksThrottleReasonHwPowerBrakeSlowdown != 0
	}
	if celsius, ok := ask(q, func() (uint32, nvml.Return) { return d.GetTemperature(nvml.TEMPERATURE_GPU) }, "nvmlDeviceGetTemperature"); ok {
		o.TemperatureC = number(celsius)
	}
	o.NVLinkRecoveries = q.linkRecoveries()
	o.Recovery = q.recovery()
	return o
}

func (q *query) totalErrors(kind nvml.MemoryErrorType) *uint64 {
	count, ok := ask(q, func() (uint64, nvml.Return) {
		return q.device.GetTotalEccErrors(kind, nvml.VOLATILE_ECC)
	}, "nvmlDeviceGetTotalEccErrors")
	if !ok {
		return nil
	}
	return &count
}

// recovery asks what the driver thinks the GPU needs. Drivers that do not know
// the field say so in the field's own return value.
func (q *query) recovery() health.Recovery {
	values := []nvml.FieldValue{{FieldId: nvml.FI_DEV_GET_GPU_RECOVERY_ACTION}}
	_, ok := ask(q, func() (struct{}, nvml.Return) { return struct{}{}, q.device.GetFieldValues(values) }, "nvmlDeviceGetFieldValues")
	if !ok || nvml.Return(values[0].NvmlReturn) != nvml.SUCCESS {
		return health.RecoveryUnknown
	}
	switch nvml.DeviceGpuRecoveryAction(binary.NativeEndian.Uint32(values[0].Value[:4])) {
	case nvml.GPU_RECOVERY_ACTION_NONE:
		return health.RecoveryNone
	case nvml.GPU_RECOVERY_ACTION_GPU_RESET, nvml.GPU_RECOVERY_ACTION_BUS_RESET:
		return health.RecoveryReset
	case nvml.GPU_RECOVERY_ACTION_NODE_REBOOT, nvml.GPU_RECOVERY_ACTION_SYSTEM_REBOOT:
		return health.RecoveryReboot
	case nvml.GPU_RECOVERY_ACTION_DRAIN_P2P, nvml.GPU_RECOVERY_ACTION_DRAIN_AND_RESET:
		return health.RecoveryDrain
	}
	return health.RecoveryUnknown
}

// linkRecoveries is how often links were trained again, over all of them.
func (q *query) linkRecoveries() *uint64 {
	values := []nvml.FieldValue{{FieldId: nvml.FI_DEV_NVLINK_RECOVERY_ERROR_COUNT_TOTAL}}
	if _, ok := ask(q, func() (struct{}, nvml.Return) { return struct{}{}, q.device.GetFieldValues(values) }, "nvmlDeviceGetFieldValues"); !ok {
		return nil
	}
	count, ok := fieldNumber(values[0])
	if !ok {
		return nil
	}
	return &count
}

// xids takes the Xids that came since the last call, by UUID.
func (r *Reader) xids() map[string][]uint64 {
	xids := make(map[string][]uint64)
	if !r.lib.can("nvmlEventSetCreate") || !r.lib.can("nvmlDeviceRegisterEvents") || !r.lib.can("nvmlEventSetWait_v2", "nvmlEventSetWait") {
		return xids
	}
	if r.events == nil {
		events, ret := r.lib.EventSetCreate()
		if ret != nvml.SUCCESS {
			return xids
		}
		r.events, r.listening = events, make(map[nvml.Device]map[string]bool)
	}
	for uuid, h := range r.devices {
		if _, already := r.listening[h.whole]; !already {
			// A part that has no such events, or is lost, is asked again next time.
			if h.whole.RegisterEvents(nvml.EventTypeXidCriticalError, r.events) != nvml.SUCCESS {
				continue
			}
			r.listening[h.whole] = make(map[string]bool)
		}
		r.listening[h.whole][uuid] = true
	}
	for range maxEvents {
		event, ret := r.events.Wait(0)
		if ret != nvml.SUCCESS {
			return xids // mostly a time-out: no more
		}
		if event.EventType != nvml.EventTypeXidCriticalError {
			continue
		}
		for uuid := range r.listening[event.Device] {
			xids[uuid] = append(xids[uuid], event.EventData)
		}
	}
	return xids
}
