// SPDX-License-Identifier: MPL-2.0

package pool

import (
	"os"
	"path/filepath"
	"strconv"
	"sync"
	"testing"

	"github.com/shoenig/test/must"
)

// Each holder has a mutex of its own, as another process has.
func TestTargetsOfTwoAutoscalersTakeTurns(t *testing.T) {
	const holders, turns = 4, 50
	dir := t.TempDir()
	count := filepath.Join(dir, "count")
	must.NoError(t, os.WriteFile(count, []byte("0"), 0o600))
	add := func(mu *sync.Mutex) error {
		unhold, err := hold(mu, dir, "spot")
		if err != nil {
			return err
		}
		defer unhold()
		text, err := os.ReadFile(count)
		if err != nil {
			return err
		}
		n, err := strconv.Atoi(string(text))
		if err != nil {
			return err
		}
		return os.WriteFile(count, []byte(strconv.Itoa(n+1)), 0o600)
	}
	errs := make(chan error, holders*turns)
	var all sync.WaitGroup
	for range holders {
		all.Go(func() {
			var mu sync.Mutex
			for range turns {
				errs <- add(&mu)
			}
		})
	}
	all.Wait()
	close(errs)
	for err := range errs {
		must.NoError(t, err)
	}
	text, err := os.ReadFile(count)
	must.NoError(t, err)
	must.Eq(t, strconv.Itoa(holders*turns), string(text))
}

func TestAPoolThatCannotBeHeldIsLeftAlone(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "file")
	must.NoError(t, os.WriteFile(dir, nil, 0o600))
	var mu sync.Mutex
	for range 2 { // the mutex was let go
		_, err := hold(&mu, dir, "spot")
		must.ErrorContains(t, err, "not a directory")
	}
}
