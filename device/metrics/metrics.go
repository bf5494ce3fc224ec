// SPDX-License-Identifier: MPL-2.0

// Package metrics shows what is known of a machine's GPUs to Prometheus. The
// names follow Prometheus's conventions: base units, and totals for counters.
package metrics

import (
	"strconv"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/nomad-gpu/nomad-gpu/device/gpu"
	"github.com/nomad-gpu/nomad-gpu/device/health"
)

// Owner is an allocation that has a GPU, or a slice of it.
type Owner struct {
	Namespace, Job, Group, Task, Alloc string
}

// Snapshot is what is known at one time, all by UUID but the machine.
type Snapshot struct {
	Machine  *gpu.Machine
	Samples  map[string]gpu.Sample
	Verdicts map[string]health.Verdict
	Xids     map[string]map[uint64]uint64
	// Owners are those who have each GPU; nil where nobody can be asked.
	Owners map[string][]Owner
}

// Collector makes metrics of a snapshot, taken anew with each scrape.
type Collector struct{ take func() (Snapshot, error) }

// New makes a collector.
func New(take func() (Snapshot, error)) *Collector { return &Collector{take: take} }

// labels are on every metric of a GPU; the last three are empty where nobody or
// more than one has it.
var labels = []string{"uuid", "gpu", "model", "namespace", "job", "allocation"}

func describe(name, help string, more ...string) *prometheus.Desc {
	return prometheus.NewDesc("gpu_"+name, help, append(append([]string{}, labels...), more...), nil)
}

var (
	up          = prometheus.NewDesc("gpu_up", "1 if the GPUs could be read.", nil, nil)
	info        = describe("info", "Always 1; what the GPU is.", "architecture", "driver", "cuda", "bus_id", "mig_profile", "parent")
	allocation  = describe("allocation_info", "Always 1, for each allocation that has the GPU or a slice of it.", "group", "task")
	state       = describe("health", "1 for the state that the GPU is in.", "state")
	verdict     = describe("verdict", "Always 1; the health rule that decides, if the GPU is not healthy.", "rule", "state")
	xids        = describe("xids_total", "Xids since the plugin was started.", "xid")
	utilization = describe("utilization_ratio", "Part of the last sampling period in which a kernel ran.")
	memoryBusy  = describe("memory_utilization_ratio", "Part of the last sampling period in which memory was read or written.")
	memoryUsed  = describe("memory_used_bytes", "Memory in use.")
	memoryTotal = describe("memory_total_bytes", "Memory of the GPU.")
	powerUse    = describe("power_watts", "Power that the GPU and its memory draw.")
	powerLimit  = describe("power_limit_watts", "Power limit.")
	energy      = describe("energy_joules_total", "Energy since the driver was loaded.")
	temperature = describe("temperature_celsius", "Temperature.", "sensor")
	clock       = describe("clock_hertz", "Clock now.", "clock")
	lowered     = describe("clocks_lowered", "Always 1, for each reason for which the clocks are lower than they could be.", "reason")
	pcie        = describe("pcie_bytes_per_second", "Throughput over PCIe.", "direction")
	nvlink      = describe("nvlink_bytes_total", "Payload over all NVLinks since the driver was loaded.", "direction")
	links       = describe("nvlinks", "NVLinks that are up.")
	ecc         = describe("ecc_errors_total", "Memory errors that ECC corrected and did not, since the driver was loaded.", "place")
	processes   = describe("processes", "Processes that compute on the GPU.")
)

// Describe implements prometheus.Collector.
func (c *Collector) Describe(out chan<- *prometheus.Desc) {
	for _, d := range []*prometheus.Desc{up, info, allocation, state, verdict, xids, utilization, memoryBusy, memoryUsed, memoryTotal,
		powerUse, powerLimit, energy, temperature, clock, lowered, pcie, nvlink, links, ecc, processes} {
		out <- d
	}
}

// Collect implements prometheus.Collector. Values that are not known are left out.
func (c *Collector) Collect(out chan<- prometheus.Metric) {
	s, err := c.take()
	if err != nil || s.Machine == nil {
		out <- prometheus.MustNewConstMetric(up, prometheus.GaugeValue, 0)
		return
	}
	out <- prometheus.MustNewConstMetric(up, prometheus.GaugeValue, 1)
	for i := range s.Machine.GPUs {
		if s.Machine.GPUs[i].UUID != "" {
			one := device{out: out, s: &s, g: &s.Machine.GPUs[i]}
			one.identify()
			one.judge()
			one.measure(s.Samples[one.g.UUID])
		}
	}
}

// device is one GPU of a snapshot.
type device struct {
	out    chan<- prometheus.Metric
	s      *Snapshot
	g      *gpu.GPU
	labels []string
}

func (d *device) send(desc *prometheus.Desc, kind prometheus.ValueType, value float64, more ...string) {
	d.out <- prometheus.MustNewConstMetric(desc, kind, value, append(append([]string{}, d.labels...), more...)...)
}

func (d *device) gauge(desc *prometheus.Desc, value float64, more ...string) {
	d.send(desc, prometheus.GaugeValue, value, more...)
}

func (d *device) identify() {
	owners := d.s.Owners[d.g.UUID]
	own := []string{d.g.UUID, strconv.Itoa(d.g.Index), d.g.Model}
	d.labels = append(own[:3:3], "", "", "")
	if len(owners) == 1 {
		d.labels = append(own[:3:3], owners[0].Namespace, owners[0].Job, owners[0].Alloc)
	}
	m := d.s.Machine
	d.gauge(info, 1, d.g.Architecture, m.DriverVersion, m.CUDAVersion, d.g.BusID, d.g.MIGProfile, d.g.Parent)
	seen := map[Owner]bool{}
	for _, o := range owners {
		if seen[o] {
			continue // several slices
		}
		seen[o] = true
		labels := append(own[:3:3], o.Namespace, o.Job, o.Alloc, o.Group, o.Task)
		d.out <- prometheus.MustNewConstMetric(allocation, prometheus.GaugeValue, 1, labels...)
	}
}

func (d *device) judge() {
	v, judged := d.s.Verdicts[d.g.UUID]
	if judged {
		for _, s := range []health.State{health.Healthy, health.Degraded, health.Unhealthy} {
			value := 0.0
			if v.State == s {
				value = 1
			}
			d.gauge(state, value, s.String())
		}
		if v.State != health.Healthy {
			d.gauge(verdict, 1, v.Code, v.State.String())
		}
	}
	for number, count := range d.s.Xids[d.g.UUID] {
		d.send(xids, prometheus.CounterValue, float64(count), strconv.FormatUint(number, 10))
	}
	d.gauge(links, float64(d.g.NVLinks))
	if d.g.PowerLimitW > 0 {
		d.gauge(powerLimit, float64(d.g.PowerLimitW))
	}
}

const mib = 1 << 20

func (d *device) measure(s gpu.Sample) {
	known(d, utilization, s.UtilizationPercent, 0.01)
	known(d, memoryBusy, s.MemoryUtilizationPercent, 0.01)
	known(d, memoryUsed, s.MemoryUsedMiB, mib)
	known(d, memoryTotal, s.MemoryTotalMiB, mib)
	known(d, powerUse, s.PowerW, 1)
	known(d, temperature, s.TemperatureC, 1, "gpu")
	known(d, temperature, s.MemoryTemperatureC, 1, "memory")
	known(d, clock, s.SMClockMHz, 1e6, "sm")
	known(d, clock, s.MemoryClockMHz, 1e6, "memory")
	known(d, pcie, s.PCIeSentMBps, 1e6, "sent")
	known(d, pcie, s.PCIeReceivedMBps, 1e6, "received")
	known(d, processes, s.Processes, 1)
	for _, reason := range s.ClockReasons {
		d.gauge(lowered, 1, reason)
	}
	total := func(desc *prometheus.Desc, value *uint64, unit float64, more ...string) {
		if value != nil {
			d.send(desc, prometheus.CounterValue, float64(*value)*unit, more...)
		}
	}
	total(energy, s.EnergyJ, 1)
	total(nvlink, s.NVLinkSentMiB, mib, "sent")
	total(nvlink, s.NVLinkReceivedMiB, mib, "received")
	total(ecc, s.ECCL1, 1, "l1")
	total(ecc, s.ECCL2, 1, "l2")
	total(ecc, s.ECCMemory, 1, "memory")
}

func known[T uint | uint64](d *device, desc *prometheus.Desc, value *T, unit float64, more ...string) {
	if value != nil {
		d.gauge(desc, float64(*value)*unit, more...)
	}
}
