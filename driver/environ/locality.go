// SPDX-License-Identifier: MPL-2.0

package environ

import (
	"errors"
	"fmt"
	"strconv"
	"strings"

	"k8s.io/utils/cpuset"
)

// What a device plugin's reservation says of the places near the GPUs.
const (
	// envCPUs lists the CPUs near the reserved GPUs, such as "0-15,64-79".
	envCPUs = "GPU_CPU_SET"
	// envCPUParts lists them for each GPU in visible order, with semicolons between.
	envCPUParts = "GPU_CPU_SETS"
	// envNodes lists the NUMA nodes of the GPUs.
	envNodes = "GPU_NUMA_NODES"
)

// Locality is where on a node the processes run, as lists such as "0-3,8".
// Each may be empty: no matter where.
type Locality struct {
	CPUs        string
	MemoryNodes string
	// Ranks are the parts of a node's processes; nil where all have the CPUs in common.
	Ranks []string
}

// maxCPUs is more than a Linux kernel can be built for; maxParts than a node has GPUs.
const (
	maxCPUs  = 8192
	maxParts = 1024
)

// Near places processes near the reserved GPUs, on the cores that Nomad
// reserved (a list; empty: all). Where there are no such cores the error says
// so, and the processes are not bound to any.
func Near(device map[string]string, reserved string, processes int) (Locality, error) {
	near, err := parseList(envCPUs, device[envCPUs])
	if err != nil {
		return Locality{}, err
	}
	nodes, err := parseList(envNodes, device[envNodes])
	if err != nil {
		return Locality{}, err
	}
	l := Locality{MemoryNodes: nodes.String()}
	if near.IsEmpty() {
		return l, nil
	}
	cores, err := parseList("reserved cores", reserved)
	if err != nil {
		return Locality{}, err
	}
	if !cores.IsEmpty() {
		if near.Intersection(cores).IsEmpty() {
			return Locality{}, fmt.Errorf("none of the cores that Nomad reserved, %s, is near the GPUs: %s", cores, near)
		}
		near = near.Intersection(cores)
	}
	l.CPUs = near.String()
	if processes > 1 {
		if l.Ranks, err = parts(device[envCPUParts], near, processes); err != nil {
			return Locality{}, err
		}
	}
	return l, nil
}

// parts are the CPUs of each process: those that the device plugin gives for
// its GPU, where it does for each, else equal parts.
func parts(text string, all cpuset.CPUSet, n int) ([]string, error) {
	if text == "" {
		return split(all, n), nil
	}
	given := strings.SplitN(text, ";", maxParts+1)
	if len(given) != n {
		return split(all, n), nil // it is not one process a GPU
	}
	lists := make([]string, n)
	for i, one := range given {
		set, err := parseList(envCPUParts, one)
		if err != nil {
			return nil, err
		}
		if lists[i] = set.Intersection(all).String(); lists[i] == "" {
			lists[i] = all.String()
		}
	}
	return lists, nil
}

// split deals CPUs out in equal parts. The threads of one core have numbers at
// the same place in different runs of numbers (such as 0-15 and 64-79), so
// each run is cut alike: a core's threads come to the same process. nil where
// there are fewer CPUs than processes.
func split(all cpuset.CPUSet, n int) []string {
	var runs [][]int
	for _, cpu := range all.List() {
		if last := len(runs) - 1; last >= 0 && runs[last][len(runs[last])-1] == cpu-1 {
			runs[last] = append(runs[last], cpu)
		} else {
			runs = append(runs, []int{cpu})
		}
	}
	for _, run := range runs {
		if len(run)%n != 0 {
			runs = [][]int{all.List()} // cut as one
			break
		}
	}
	if all.Size() < n {
		return nil
	}
	lists := make([]string, n)
	for i := range lists {
		var cpus []int
		for _, run := range runs {
			cpus = append(cpus, run[i*len(run)/n:(i+1)*len(run)/n]...)
		}
		lists[i] = cpuset.New(cpus...).String()
	}
	return lists
}

// parseList reads a list of CPUs or nodes as in the kernel's cpuset files
// (cpuset(7), "List format"). Its size is checked before it is unfolded.
func parseList(name, text string) (cpuset.CPUSet, error) {
	text = strings.TrimSpace(text)
	wrong := fmt.Errorf("%s: %.64q; allowed is a list such as 0-3,8 of numbers below %d", name, text, maxCPUs)
	if len(text) > 8*maxCPUs {
		return cpuset.New(), wrong
	}
	for _, number := range strings.FieldsFunc(text, func(r rune) bool { return r == ',' || r == '-' }) {
		if n, err := strconv.Atoi(number); err != nil || n < 0 || n >= maxCPUs {
			return cpuset.New(), wrong
		}
	}
	set, err := cpuset.Parse(text)
	if err != nil {
		return cpuset.New(), errors.Join(wrong, err)
	}
	return set, nil
}
