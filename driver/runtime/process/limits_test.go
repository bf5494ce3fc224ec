// SPDX-License-Identifier: MPL-2.0

package process

import (
	"os"
	"os/user"
	"syscall"
	"testing"

	"github.com/shoenig/test/must"
	"golang.org/x/sys/unix"

	"github.com/nomad-gpu/nomad-gpu/driver/runtime"
)

// poorHost is a limiter that may not raise a hard limit.
func poorHost(now unix.Rlimit) (limiter, *unix.Rlimit) {
	return limiter{
		get: func(_ int, r *unix.Rlimit) error { *r = now; return nil },
		set: func(_ int, r *unix.Rlimit) error {
			if r.Max > now.Max {
				return unix.EPERM
			}
			now = *r
			return nil
		},
	}, &now
}

func TestALimitIsSetOrRefusedByWhoAskedForIt(t *testing.T) {
	const mib = 1 << 20
	for name, c := range map[string]struct {
		now     unix.Rlimit
		limit   runtime.Limit
		want    unix.Rlimit
		warning string
		err     string
	}{
		"raised below the hard one": {unix.Rlimit{Cur: mib, Max: 8 * mib}, runtime.Limit{Name: "stack", Value: 4 * mib}, unix.Rlimit{Cur: 4 * mib, Max: 8 * mib}, "", ""},
		"high enough already":       {unix.Rlimit{Cur: 6 * mib, Max: 8 * mib}, runtime.Limit{Name: "stack", Value: 4 * mib}, unix.Rlimit{Cur: 6 * mib, Max: 8 * mib}, "", ""},
		"lowered as asked":          {unix.Rlimit{Cur: 6 * mib, Max: 8 * mib}, runtime.Limit{Name: "core", Asked: true}, unix.Rlimit{Cur: 0, Max: 8 * mib}, "", ""},
		"refused but not asked for": {unix.Rlimit{Cur: mib, Max: 8 * mib}, runtime.Limit{Name: "memlock", Value: unix.RLIM_INFINITY}, unix.Rlimit{Cur: 8 * mib, Max: 8 * mib},
			"the limit memlock is 8MiB: this host does not allow unlimited", ""},
		"refused and asked for": {unix.Rlimit{Cur: 100, Max: 200}, runtime.Limit{Name: "nofile", Value: 300, Asked: true}, unix.Rlimit{Cur: 100, Max: 200},
			"", "rlimits.nofile: 300; this host allows at most 200"},
		"not one of ours": {unix.Rlimit{}, runtime.Limit{Name: "cpu"}, unix.Rlimit{}, "", `rlimits: "cpu"; allowed are core, memlock, nofile, stack`},
	} {
		t.Run(name, func(t *testing.T) {
			host, now := poorHost(c.now)
			warnings, err := host.apply([]runtime.Limit{c.limit})
			if c.err != "" {
				must.ErrorContains(t, err, c.err)
			} else {
				must.NoError(t, err)
			}
			if c.warning != "" {
				must.Eq(t, []string{c.warning}, warnings)
			} else {
				must.SliceEmpty(t, warnings)
			}
			must.Eq(t, c.want, *now)
		})
	}
}

func TestTheProcessGetsTheLimits(t *testing.T) {
	b := newBench(t)
	defer b.read(".out")()
	spec := shell(b.dir, "ulimit -Sn; ulimit -Ss; ulimit -Sc")
	spec.Limits = []runtime.Limit{{Name: "nofile", Value: 300, Asked: true}, {Name: "stack", Value: 4 << 20, Asked: true}, {Name: "core", Asked: true}}
	p, err := Runtime{}.Create(t.Context(), b.dir, spec)
	must.NoError(t, err)
	must.NoError(t, p.Start(t.Context()))
	must.Eq(t, []string{"300", "4096", "0"}, []string{b.line(), b.line(), b.line()})
	must.True(t, b.exit(p).OK())
}

func TestAnotherUserRunsWithItsGroups(t *testing.T) {
	other, err := user.Lookup("nobody")
	must.NoError(t, err)
	group, err := user.LookupGroupId(other.Gid)
	must.NoError(t, err)
	b := newBench(t)
	defer b.read(".out")()
	spec := shell(b.dir, "id -un; id -gn; id -Gn; cat /etc/shadow 2>/dev/null; echo end")
	spec.User = other.Username
	p, err := Runtime{Marker: "MARK=" + b.dir}.Create(t.Context(), b.dir, spec)
	if os.Geteuid() != 0 {
		must.ErrorContains(t, err, "must run as root")
		return
	}
	must.NoError(t, err)
	must.NoError(t, p.Start(t.Context()))
	must.Eq(t, []string{"nobody", group.Name, group.Name, "end"}, []string{b.line(), b.line(), b.line(), b.line()})
	must.True(t, b.exit(p).OK())
}

func TestAnotherUsersProcessEndsWithItsSupervisor(t *testing.T) {
	b := newBench(t)
	defer b.read(".out")()
	spec := shell(b.dir, "echo ready; exec sleep 1000")
	if os.Geteuid() == 0 {
		spec.User = "nobody"
	}
	p, err := Runtime{}.Create(t.Context(), b.dir, spec) // without a marker, only its death signal ends it
	must.NoError(t, err)
	must.NoError(t, p.Start(t.Context()))
	must.Eq(t, "ready", b.line())
	must.NoError(t, syscall.Kill(p.(*process).supervisor.PID, syscall.SIGKILL))
	b.nobody()
}
