// SPDX-License-Identifier: MPL-2.0

package plugin

import (
	"os"
	"time"
)

// orphanPeriod is how often a plugin looks whether its autoscaler is there.
const orphanPeriod = 200 * time.Millisecond

// EndWithParent ends this process soon after the autoscaler that started it:
// one that is killed leaves its plugins running, and a target that goes on
// tending would act beside its successor's. What is being done is done first.
func EndWithParent(served any) {
	for parent := os.Getppid(); os.Getppid() == parent; {
		time.Sleep(orphanPeriod)
	}
	if t, ok := served.(*Target); ok {
		_ = t.lookout.Close() // its successor has the same address for metrics
		t.halt()
	}
	os.Exit(1)
}

// halt waits until nothing is being done, and lets nothing more be done.
func (t *Target) halt() { t.acting.Lock() }
