// SPDX-License-Identifier: MPL-2.0

package preflight

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"net/netip"
	"os"
	"os/exec"
	"runtime"
	"syscall"
	"testing"
	"time"

	"github.com/shoenig/test/must"
	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netns"

	"github.com/nomad-gpu/nomad-gpu/driver/gang"
)

// seatVariable makes the test's program one member in the namespace it is started in.
const seatVariable = "PREFLIGHT_TEST_SEAT"

func TestMain(m *testing.M) {
	if text := os.Getenv(seatVariable); text != "" {
		var a gang.Assignment
		if err := json.Unmarshal([]byte(text), &a); err != nil {
			panic(err)
		}
		c := Check{Steps: Steps{Reach: true, Versions: true, Timeout: 5 * time.Second}, Warn: func(string) {}}
		if err := c.Run(context.Background(), a, nil); err != nil {
			fmt.Print(err)
			os.Exit(1)
		}
		fmt.Print("well")
		return
	}
	os.Exit(m.Run())
}

// hosts are network namespaces on a bridge that is in one too: nothing has a
// name on the machine, so all of it goes with the test.
type hosts struct {
	t       *testing.T
	own     netns.NsHandle
	spaces  []netns.NsHandle
	hub     *netlink.Handle
	handles []*netlink.Handle
}

func newHosts(t *testing.T, n int) *hosts {
	if os.Geteuid() != 0 {
		t.Skip("needs root: hosts in network namespaces")
	}
	runtime.LockOSThread() // for good: the thread ends with the test
	h := &hosts{t: t}
	var err error
	h.own, err = netns.Get()
	must.NoError(t, err)
	space := func() (netns.NsHandle, *netlink.Handle) {
		s, err := netns.New()
		must.NoError(t, err)
		must.NoError(t, netns.Set(h.own))
		handle, err := netlink.NewHandleAt(s)
		must.NoError(t, err)
		t.Cleanup(func() { handle.Close(); s.Close() })
		return s, handle
	}
	_, hub := space()
	h.hub = hub
	bridge := &netlink.Bridge{LinkAttrs: netlink.LinkAttrs{Name: "switch"}}
	must.NoError(t, hub.LinkAdd(bridge))
	must.NoError(t, hub.LinkSetUp(bridge))
	for i := range n {
		s, handle := space()
		name := fmt.Sprintf("port%d", i)
		must.NoError(t, hub.LinkAdd(&netlink.Veth{LinkAttrs: netlink.LinkAttrs{Name: name, MasterIndex: bridge.Index}, PeerName: "eth0", PeerNamespace: netlink.NsFd(s)}))
		port, err := hub.LinkByName(name)
		must.NoError(t, err)
		must.NoError(t, hub.LinkSetUp(port))
		eth, err := handle.LinkByName("eth0")
		must.NoError(t, err)
		address, err := netlink.ParseAddr(fmt.Sprintf("10.9.0.%d/24", 10+i))
		must.NoError(t, err)
		must.NoError(t, handle.AddrAdd(eth, address))
		must.NoError(t, handle.LinkSetUp(eth))
		h.spaces, h.handles = append(h.spaces, s), append(h.handles, handle)
	}
	return h
}

// start runs a rank in its host, as a process, since a namespace belongs to a thread.
func (h *hosts) start(rank int, a gang.Assignment) (wait func() string) {
	a.Rank = rank
	text, err := json.Marshal(a)
	must.NoError(h.t, err)
	var out bytes.Buffer
	cmd := exec.Command("/proc/self/exe")
	cmd.Env = []string{seatVariable + "=" + string(text)}
	cmd.Stdout, cmd.Stderr = &out, &out
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	must.NoError(h.t, netns.Set(h.spaces[rank]))
	err = cmd.Start()
	must.NoError(h.t, netns.Set(h.own))
	must.NoError(h.t, err)
	return func() string {
		_ = cmd.Wait() // what it printed tells
		return out.String()
	}
}

func (h *hosts) run(a gang.Assignment) []string {
	var waits []func() string
	for rank := range a.Members {
		waits = append(waits, h.start(rank, a))
	}
	var said []string
	for _, wait := range waits {
		said = append(said, wait())
	}
	return said
}

func TestBetweenHostsWithNetworksOfTheirOwn(t *testing.T) {
	h := newHosts(t, 3)
	a := gang.Assignment{Generation: 2, Key: gang.Key{Job: "j"}}
	for i := range 3 {
		a.Members = append(a.Members, gang.Member{Alloc: fmt.Sprint("alloc-", i), Node: fmt.Sprint("n", i), Slots: 1,
			Address: netip.AddrFrom4([4]byte{10, 9, 0, byte(10 + i)}), Ports: [2]int{20001, 20002}})
	}
	must.Eq(t, []string{"well", "well", "well"}, h.run(a))

	// The cable of the last host is out.
	port, err := h.hub.LinkByName("port2")
	must.NoError(t, err)
	must.NoError(t, h.hub.LinkSetDown(port))
	said := h.run(a)
	for rank := range 2 {
		must.StrHasPrefix(t, "preflight: rank 2 on n2 (10.9.0.12) is not reached: no ", said[rank])
		must.StrContains(t, said[rank], "10.9.0.12:20001")
		must.StrContains(t, said[rank], "interface")
	}
	must.StrHasPrefix(t, "preflight: rank 2 on n2 (10.9.0.12) reaches none of the 2 members it called, so look at this node first; rank 0 on n0", said[2])

	// The first host's address is not the one it says: its interface is the wrong one.
	must.NoError(t, h.hub.LinkSetUp(port))
	a.Members[0].Address = netip.AddrFrom4([4]byte{10, 9, 0, 77})
	said = h.run(a)
	must.StrContains(t, said[0], "no interface of this node has the address of 10.9.0.77:20001")
	must.StrContains(t, said[1], "rank 0 on n0 (10.9.0.77) is not reached: no ")
	must.StrNotContains(t, said[1], "rank 2")
}
