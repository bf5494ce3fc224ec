// SPDX-License-Identifier: MPL-2.0

package conformance

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/hashicorp/nomad/nomad/structs"
	"github.com/hashicorp/nomad/plugins/drivers"
	"github.com/hashicorp/nomad/plugins/drivers/testutils"
	"github.com/shoenig/test/must"

	"github.com/nomad-gpu/nomad-gpu/driver/consul/consultest"
	"github.com/nomad-gpu/nomad-gpu/driver/runtime/docker/dockertest"
)

// boxed is script in a container.
func boxed(text string) string {
	return strings.Replace(script(text), "config {\n", fmt.Sprintf("config {\n image = %q\n volumes = [%q, %q]\n", dockertest.Image, dockertest.Volumes[0], dockertest.Volumes[1]), 1)
}

func TestATaskInAContainerIsWhatNomadExpects(t *testing.T) {
	if why := dockertest.NeedsRoot(); why != "" {
		t.Skip(why)
	}
	must.Eq(t, "", dockertest.Missing())
	dir, err := os.MkdirTemp("", "dk") // short: a socket is below it
	must.NoError(t, err)
	t.Cleanup(func() { os.RemoveAll(dir) })
	engine, err := dockertest.Start(t.Context(), dir)
	must.NoError(t, err)
	t.Cleanup(engine.Stop)
	settings := fmt.Sprintf("container {\n endpoint = %q\n volumes = true\n}\n", engine.Endpoint)
	consul := consultest.Start(t)
	b := newBench(t, consul, settings)

	shared := t.TempDir()
	must.NoError(t, os.WriteFile(filepath.Join(shared, "data"), []byte("shared data\n"), 0o644))
	cfg := b.task(boxed(`trap 'echo bye; exit 4' TERM; trap 'echo saved' USR1; echo ready in $NOMAD_TASK_DIR; while :; do sleep 0.1; done`))
	cfg.DNS = &drivers.DNSConfig{Servers: []string{"192.0.2.1"}, Searches: []string{"gpu.example"}, Options: []string{"ndots:3"}}
	cfg.Mounts = []*drivers.MountConfig{{HostPath: shared, TaskPath: "/data", Readonly: true, PropagationMode: structs.VolumeMountPropagationPrivate}}
	cfg.User = "nobody"
	handle, _, err := b.StartTask(cfg)
	must.NoError(t, err)
	b.tasks = append(b.tasks, cfg.ID)
	must.NoError(t, b.WaitUntilStarted(cfg.ID, time.Minute))
	b.log(cfg, "ready")

	sh := func(b *bench, line string) string {
		t.Helper()
		r, err := b.ExecTask(cfg.ID, []string{"/bin/sh", "-c", line}, time.Minute)
		must.NoError(t, err)
		must.Eq(t, 0, r.ExitResult.ExitCode, must.Sprint(string(r.Stdout), string(r.Stderr)))
		return string(r.Stdout)
	}
	must.Eq(t, "nameserver 192.0.2.1\nsearch gpu.example\noptions ndots:3\n", sh(b, "cat /etc/resolv.conf"))
	must.Eq(t, "shared data\n", sh(b, "cat /data/data; ! touch /data/x"))
	must.Eq(t, "65534\n", sh(b, "id -u"))
	must.Eq(t, "here\n", sh(b, "echo here > /alloc/data/f; cat "+cfg.TaskDir().SharedAllocDir+"/data/f"))
	_, err = b.ExecTask(cfg.ID, []string{"sleep", "1000"}, 100*time.Millisecond)
	must.ErrorContains(t, err, context.DeadlineExceeded.Error())
	testutils.TestExecTaskStreamingBasicResponses(t, b.DriverHarness, cfg.ID)

	stats, err := b.TaskStats(t.Context(), cfg.ID, 100*time.Millisecond)
	must.NoError(t, err)
	must.Positive(t, (<-stats).ResourceUsage.MemoryStats.RSS)
	must.NoError(t, b.SignalTask(cfg.ID, "SIGUSR1"))
	b.log(cfg, "saved")

	// Another life of the driver.
	b.end()
	second := newBench(t, consul, settings)
	must.NoError(t, second.RecoverTask(handle))
	second.tasks = append(second.tasks, cfg.ID)
	must.Eq(t, "still here\n", sh(second, "echo still here"))
	must.NoError(t, second.StopTask(cfg.ID, 20*time.Second, "SIGTERM"))
	must.Eq(t, 4, second.exit(cfg).ExitCode)
	second.log(cfg, "bye")
	must.NoError(t, second.DestroyTask(cfg.ID, false))

	// Ends of their own.
	for _, c := range []struct {
		script string
		want   drivers.ExitResult
	}{
		{"exit 0", drivers.ExitResult{}},
		{"exit 3", drivers.ExitResult{ExitCode: 3}},
		{"kill -KILL $$", drivers.ExitResult{ExitCode: 1, Signal: int(syscall.SIGKILL)}},
	} {
		cfg := second.task(boxed(c.script))
		_, _, err := second.StartTask(cfg)
		must.NoError(t, err)
		second.tasks = append(second.tasks, cfg.ID)
		r := second.exit(cfg)
		must.Eq(t, []any{c.want.ExitCode, c.want.Signal}, []any{r.ExitCode, r.Signal}, must.Sprint(c.script))
	}
	names, err := engine.Names(t.Context())
	must.NoError(t, err)
	must.SliceEmpty(t, names)
}
