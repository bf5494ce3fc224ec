// SPDX-License-Identifier: MPL-2.0

package progress

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os/exec"
	"strconv"
	"strings"
	"time"
)

const (
	smiTime = 10 * time.Second
	maxSMI  = 64 << 10
)

// PowerOf is a meter on the power that GPUs draw together, read with
// nvidia-smi. The devices are UUIDs, of which nvidia-smi knows those of whole
// GPUs only: a MIG instance has no power of its own.
func PowerOf(nvidiaSMI string, devices []string) *Meter {
	return &Meter{What: "the GPUs draw", Unit: "W", Read: func(ctx context.Context, _ time.Time) (float64, bool) {
		ctx, cancel := context.WithTimeout(ctx, smiTime)
		defer cancel()
		var out bounded
		cmd := exec.CommandContext(ctx, nvidiaSMI, "--query-gpu=uuid,power.draw", "--format=csv,noheader,nounits")
		cmd.Stdout = &out
		cmd.WaitDelay = time.Second
		if cmd.Run() != nil || out.full {
			return 0, false
		}
		watts, err := parsePower(out.kept.String(), devices)
		return watts, err == nil
	}}
}

// parsePower sums the devices' power in watts; all of them must be there.
func parsePower(csv string, devices []string) (float64, error) {
	byUUID := map[string]float64{}
	for line := range strings.Lines(csv) {
		uuid, draw, ok := strings.Cut(strings.TrimSpace(line), ",")
		watts, err := strconv.ParseFloat(strings.TrimSpace(draw), 64)
		if ok && err == nil && watts >= 0 && watts < 1e5 { // "[N/A]" is none
			byUUID[strings.TrimSpace(uuid)] = watts
		}
	}
	sum := 0.0
	for _, d := range devices {
		watts, ok := byUUID[d]
		if !ok {
			return 0, fmt.Errorf("%s: no power is told", d)
		}
		sum += watts
	}
	if len(devices) == 0 {
		return 0, errors.New("no GPU is reserved")
	}
	return sum, nil
}

// CPUOf is a meter on the CPU time that the task uses, for tasks without a
// GPU: one with GPUs waits for them with busy CPUs. used is the time since the start.
func CPUOf(used func() (time.Duration, bool)) *Meter {
	var before time.Duration
	var at time.Time
	last, known := 0.0, false
	return &Meter{What: "the processes use", Unit: "CPUs", Read: func(_ context.Context, now time.Time) (float64, bool) {
		total, ok := used()
		if !ok {
			return 0, false
		}
		elapsed := now.Sub(at)
		switch {
		case at.IsZero() || total < before:
			last, known = 0, false
		case elapsed <= 0:
			return last, known
		default:
			last, known = (total-before).Seconds()/elapsed.Seconds(), true
		}
		before, at = total, now
		return last, known
	}}
}

// bounded keeps the first maxSMI bytes. It holds its buffer apart: the
// buffer's own ReadFrom would take more.
type bounded struct {
	kept bytes.Buffer
	full bool
}

func (b *bounded) Write(p []byte) (int, error) {
	room := maxSMI - b.kept.Len()
	b.full = b.full || len(p) > room
	b.kept.Write(p[:min(len(p), room)])
	return len(p), nil
}
