// SPDX-License-Identifier: MPL-2.0

package preflight

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"net/netip"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/shoenig/test/must"
	"golang.org/x/sys/unix"

	"github.com/nomad-gpu/nomad-gpu/driver/gang"
)

// memory is a Baselines in memory.
type memory struct {
	mu   sync.Mutex
	kept map[string]Baseline
	err  error
}

func (m *memory) Baseline(_ context.Context, from, to string) (Baseline, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.kept[from+">"+to], m.err
}

func (m *memory) Keep(_ context.Context, from, to string, b Baseline) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.kept[from+">"+to] = b
	return m.err
}

// bench is a gang on loopback addresses of its own.
type bench struct {
	t       *testing.T
	members []gang.Member
	checks  []Check
	mu      sync.Mutex
	warned  []string
}

func newBench(t *testing.T, n int) *bench {
	b := &bench{t: t}
	prefix := [2]byte{byte(10 + rand.IntN(200)), byte(rand.IntN(250))}
	for i := range n {
		m := gang.Member{Alloc: fmt.Sprintf("alloc-%d", i), Node: fmt.Sprintf("n%d", i), Slots: 1, Version: "1.0.0",
			Address: netip.AddrFrom4([4]byte{127, prefix[0], prefix[1], byte(10 + i)}), Ports: [2]int{21001, 21000}}
		b.members = append(b.members, m)
		c := Check{Steps: Steps{Reach: true, Versions: true, Ratio: 0.5, Timeout: time.Minute}, flowTime: 30 * time.Millisecond,
			Versions: Versions{"NVIDIA-driver": "550.54.15"}}
		c.Warn = func(text string) {
			b.mu.Lock()
			defer b.mu.Unlock()
			b.warned = append(b.warned, fmt.Sprintf("%d: %s", i, text))
		}
		b.checks = append(b.checks, c)
	}
	return b
}

func (b *bench) assignment(rank int) gang.Assignment {
	return gang.Assignment{Key: gang.Key{Job: "j", Group: "g"}, Generation: 1, Rank: rank, Members: b.members}
}

// heard is all warnings so far, one a line.
func (b *bench) heard() string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return strings.Join(b.warned, "\n")
}

// run runs the ranks given, all where none is, and returns their errors by rank.
func (b *bench) run(ctx context.Context, ranks ...int) map[int]error {
	if len(ranks) == 0 {
		for rank := range b.members {
			ranks = append(ranks, rank)
		}
	}
	var all sync.WaitGroup
	var mu sync.Mutex
	errs := map[int]error{}
	for _, rank := range ranks {
		all.Go(func() {
			err := b.checks[rank].Run(ctx, b.assignment(rank), nil)
			mu.Lock()
			errs[rank] = err
			mu.Unlock()
		})
	}
	all.Wait()
	return errs
}

func (b *bench) allWell(errs map[int]error) {
	b.t.Helper()
	for rank, err := range errs {
		must.NoError(b.t, err, must.Sprintf("rank %d", rank))
	}
}

// free: every port can be taken again at once, also by a process that does
// not know how to take one over on which old connections wait for their end.
func (b *bench) free() {
	b.t.Helper()
	for _, m := range b.members {
		bare := net.ListenConfig{Control: func(_, _ string, c syscall.RawConn) error {
			return c.Control(func(fd uintptr) { unix.SetsockoptInt(int(fd), unix.SOL_SOCKET, unix.SO_REUSEADDR, 0) })
		}}
		l, err := bare.Listen(b.t.Context(), "tcp", netip.AddrPortFrom(m.Address, uint16(m.Ports[1])).String())
		must.NoError(b.t, err)
		l.Close()
	}
}

func TestAHealthyGangPassesAndLeavesItsPortsFree(t *testing.T) {
	for _, n := range []int{1, 2, 3, 8, 70} {
		t.Run(fmt.Sprintf("%d members", n), func(t *testing.T) {
			b := newBench(t, n)
			b.allWell(b.run(t.Context()))
			b.free()
			must.Eq(t, "", b.heard())
		})
	}
}

func TestAMemberAloneCallsNobodyAndTakesNoPort(t *testing.T) {
	b := newBench(t, 1)
	b.members[0].Address = netip.MustParseAddr("192.0.2.1") // on no interface
	b.allWell(b.run(t.Context()))
}

func TestIPv6AndGenerationsOfTheOtherPortPass(t *testing.T) {
	b := newBench(t, 2)
	l, err := net.Listen("tcp", "[::1]:0")
	must.NoError(t, err)
	port := l.Addr().(*net.TCPAddr).Port
	l.Close()
	b.members[1].Address, b.members[1].Ports[1] = netip.IPv6Loopback(), port
	b.members[0].Address, b.members[0].Ports[1] = netip.IPv6Loopback(), port-1
	b.allWell(b.run(t.Context()))
	b.free()
}

func TestAMemberThatBeginsLateIsWaitedFor(t *testing.T) {
	b := newBench(t, 3)
	b.checks[0].Timeout, b.checks[1].Timeout = 40*time.Second, 40*time.Second
	first := make(chan map[int]error)
	go func() { first <- b.run(t.Context(), 0, 1) }()
	// Rank 0 listens and has had an answer from rank 1 by now: it waits for rank 2 alone.
	for {
		c, err := net.Dial("tcp", fmt.Sprintf("%s:21000", b.members[0].Address))
		if err == nil {
			c.Close()
			break
		}
	}
	b.allWell(b.run(t.Context(), 2))
	b.allWell(<-first)
	b.free()
}

func TestAPeerThatIsNotThereIsNamedWithWhatToLookAt(t *testing.T) {
	b := newBench(t, 4)
	for i := range b.checks {
		b.checks[i].Timeout = 2 * time.Second
	}
	errs := b.run(t.Context(), 0, 1, 2)
	who := "rank 3 on n3 (" + b.members[3].Address.String() + ")"
	for rank := range 3 {
		must.ErrorContains(t, errs[rank], "preflight: "+who+" is not reached: nothing listens at "+b.members[3].Address.String()+":21000: a firewall")
		must.StrNotContains(t, errs[rank].Error(), "n1 (")
		must.StrContains(t, b.heard(), fmt.Sprintf("%d: 1s of 2s: no call yet from %s", rank, who))
	}
	b.free()
}

func TestManyMissingPeersAreSummedUp(t *testing.T) {
	b := newBench(t, 9)
	b.checks[0].Timeout = time.Second
	err := b.run(t.Context(), 0)[0]
	must.ErrorContains(t, err, "rank 0 on n0 ("+b.members[0].Address.String()+") reaches none of the 8 members it called, so look at this node first; rank 1 on n1")
	must.ErrorContains(t, err, "and 5 more (ranks 4-8)")
}

func TestOneDirectionThatFailsIsToldFromBoth(t *testing.T) {
	b := newBench(t, 2)
	x := newExchange(b.assignment(0), planFor(0, 2, true), nil, 0)
	who := "rank 1 on n1 (" + b.members[1].Address.String() + ")"
	must.ErrorContains(t, x.unreached(nil), who+" answers, but its own calls do not come here to "+b.members[0].Address.String()+":21000")
	must.ErrorContains(t, x.unreached(map[int]error{1: context.DeadlineExceeded}), who+" is not reached: no answer from")
	x.came(expected{hello, 1}, nil)
	must.ErrorContains(t, x.unreached(map[int]error{1: context.DeadlineExceeded}), who+" calls, but cannot be called: no answer from")
	must.NoError(t, x.unreached(nil))
}

func TestStrangersNeitherPassNorDisturb(t *testing.T) {
	b := newBench(t, 2)
	result := make(chan map[int]error)
	go func() { result <- b.run(t.Context(), 0) }()
	address := fmt.Sprintf("%s:21000", b.members[0].Address)
	dial := func() net.Conn {
		for {
			if c, err := net.Dial("tcp", address); err == nil {
				return c
			}
		}
	}
	silent := dial() // says nothing and stays
	defer silent.Close()
	web := dial()
	fmt.Fprint(web, "GET / HTTP/1.1\r\nHost: somewhere.example.org\r\nAccept: */*\r\n\r\n")
	_, err := readFrame(web)
	must.Error(t, err)
	for want, change := range map[string]func(*gang.Assignment){
		"it is at generation 1":                            func(a *gang.Assignment) { a.Generation = 3 },
		"it is in another gang, or was told other members": func(a *gang.Assignment) { a.Key.Job = "other" },
		"it has another rank":                              func(a *gang.Assignment) { a.Rank = 0 },
		"it has another rank ":                             nil, // addressed to another
	} {
		a := b.assignment(1)
		to := 0
		if change == nil {
			to = 1
		} else {
			change(&a)
		}
		other := newExchange(a, planFor(1, 2, true), nil, 0)
		ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
		f := other.frame(hello, to, Versions{})
		err := other.try(ctx, 0, f, func(_ net.Conn, answer func(kind) (frame, error)) error {
			_, err := answer(welcome)
			return err
		})
		cancel()
		must.ErrorContains(t, err, strings.TrimSpace(want))
	}
	b.allWell(b.run(t.Context(), 1))
	b.allWell(<-result)
	b.free()
}

func TestAnotherProgramAtThePeersPortIsTold(t *testing.T) {
	b := newBench(t, 2)
	l, err := net.Listen("tcp", fmt.Sprintf("%s:21000", b.members[1].Address))
	must.NoError(t, err)
	defer l.Close()
	go func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			fmt.Fprint(c, "SSH-2.0-OpenSSH_9.6\r\n")
			c.Close()
		}
	}()
	for i := range b.checks {
		b.checks[i].Timeout = time.Second
	}
	errs := b.run(t.Context())
	must.ErrorContains(t, errs[0], "something other than the member's preflight answers at "+l.Addr().String())
	must.ErrorContains(t, errs[1], "port "+l.Addr().String()+" is reserved for this task, but another process holds it")
}

func TestAnAddressThatNoInterfaceHasIsTold(t *testing.T) {
	b := newBench(t, 2)
	b.members[0].Address = netip.MustParseAddr("192.0.2.1")
	err := b.run(t.Context(), 0)[0]
	must.ErrorContains(t, err, "no interface of this node has the address of 192.0.2.1:21000: see network.interface")
}

func TestAnAbandonedPreflightEndsAtOnceWithTheContextsError(t *testing.T) {
	b := newBench(t, 2)
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error)
	go func() { done <- b.checks[0].Run(ctx, b.assignment(0), nil) }()
	for {
		c, err := net.Dial("tcp", fmt.Sprintf("%s:21000", b.members[0].Address))
		if err == nil {
			defer c.Close()
			break
		}
	}
	cancel()
	must.ErrorIs(t, <-done, context.Canceled)
	b.free()
}

func TestDifferentVersionsStopTheGangAndDifferentReleasesDoNot(t *testing.T) {
	b := newBench(t, 3)
	b.checks[2].Versions = Versions{"NVIDIA-driver": "535.183.01"}
	b.members[1].Version = "1.1.0"
	for _, err := range b.run(t.Context()) {
		must.ErrorContains(t, err, "versions of NVIDIA-driver differ: 550.54.15 on ranks 0-1, 535.183.01 on rank 2 on n2")
	}
	must.Eq(t, 3, strings.Count(b.heard(), "releases of"))
	must.StrContains(t, b.heard(), "releases of nomad-driver-nccl differ: 1.0.0 on ranks 0, 2, 1.1.0 on rank 1 on n1")
	for i := range b.checks {
		b.checks[i].Steps.Versions = false
	}
	b.allWell(b.run(t.Context()))
}

func TestVersionsAloneAreComparedAlongTheRing(t *testing.T) {
	b := newBench(t, 4)
	for i := range b.checks {
		b.checks[i].Reach = false
	}
	b.checks[2].Versions = Versions{"NVIDIA-driver": "535.183.01"}
	errs := b.run(t.Context())
	must.NoError(t, errs[0])
	for _, rank := range []int{1, 2, 3} {
		must.ErrorContains(t, errs[rank], "versions of NVIDIA-driver differ")
	}
}

func TestTheBandwidthOfEachPairIsMeasuredAndKept(t *testing.T) {
	for _, n := range []int{2, 5} {
		b := newBench(t, n)
		store := &memory{kept: map[string]Baseline{}}
		for i := range b.checks {
			b.checks[i].Bandwidth, b.checks[i].Baselines = true, store
			b.checks[i].Ratio = 0.001 // what loopback carries swings
		}
		b.allWell(b.run(t.Context()))
		b.free()
		b.allWell(b.run(t.Context()))
		must.MapLen(t, n, store.kept)
		for pair, base := range store.kept {
			must.Len(t, 2, base.Gbps, must.Sprint(pair))
			must.NoError(t, base.Validate())
		}
	}
}

func TestAPairFarUnderItsBaselineIsNamedWithItsWorseNode(t *testing.T) {
	b := newBench(t, 4)
	// Rank 2 used to send and receive far more than loopback can carry.
	fast := Baseline{Gbps: []float64{500_000}}
	store := &memory{kept: map[string]Baseline{"n1>n2": fast, "n2>n3": fast}}
	for i := range b.checks {
		b.checks[i].Bandwidth, b.checks[i].Baselines = true, store
	}
	b.checks[2].LeaveOut = true
	errs := b.run(t.Context())
	var out *gang.LeaveOut
	must.False(t, errors.As(errs[1], &out), must.Sprint("it is not told to"))
	must.True(t, errors.As(errs[2], &out))
	must.Eq(t, b.members[2].Alloc, out.Alloc)
	must.NoError(t, errs[0])
	must.NoError(t, errs[3])
	for _, rank := range []int{1, 2} {
		var slow *SlowPair
		must.True(t, errors.As(errs[rank], &slow), must.Sprint(errs[rank]))
		must.Eq(t, 2, slow.Worse)
		must.ErrorContains(t, errs[rank], "usually 5e+05; rank 2 on n2 ("+b.members[2].Address.String()+") is slow with its other neighbour too")
	}
	must.Eq(t, fast, store.kept["n1>n2"], must.Sprint("a slow measurement does not become the usual"))
	must.Len(t, 1, store.kept["n0>n1"].Gbps)
}

func TestWithoutItsBaselineAPairIsMeasuredAllTheSame(t *testing.T) {
	b := newBench(t, 2)
	for i := range b.checks {
		b.checks[i].Bandwidth, b.checks[i].Baselines, b.checks[i].MinGbps = true, &memory{kept: map[string]Baseline{}, err: errors.New("no leader")}, 0.001
	}
	b.allWell(b.run(t.Context()))
	must.StrContains(t, b.heard(), "the pair's baseline is left out: no leader")
	must.StrContains(t, b.heard(), "the pair's baseline is not kept: no leader")
	b.checks[0].MinGbps, b.checks[1].MinGbps = 1e5, 1e5
	must.ErrorContains(t, b.run(t.Context())[0], "min_gbps is 100000")
}

func TestEachFaultOfTheStepsIsNamedWithWhatIsAllowed(t *testing.T) {
	must.NoError(t, Defaults().Validate())
	for want, change := range map[string]func(*Steps){
		"preflight.min_gbps: -1; allowed are 0 (no least) to 1e+06":         func(s *Steps) { s.MinGbps = -1 },
		"preflight.min_gbps: 10, but preflight.bandwidth is false":          func(s *Steps) { s.MinGbps = 10 },
		"preflight.leave_out: true, but preflight.bandwidth is false":       func(s *Steps) { s.LeaveOut = true },
		"preflight.ratio: 1.5; allowed are 0":                               func(s *Steps) { s.Ratio = 1.5 },
		"preflight.shm_mib: -1; allowed are 0 (no least) to 16777216":       func(s *Steps) { s.ShmMiB = -1 },
		"preflight.memlock_mib: 99999999; allowed are 0 (no least) to 1677": func(s *Steps) { s.MemlockMiB = 99999999 },
		"preflight.timeout: 1ms; allowed is at least 1s":                    func(s *Steps) { s.Timeout = time.Millisecond },
	} {
		s := Defaults()
		change(&s)
		must.ErrorContains(t, s.Validate(), want)
	}
}
