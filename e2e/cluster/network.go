// SPDX-License-Identifier: MPL-2.0

package cluster

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"os"
	"path/filepath"
	"runtime"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netns"
)

// network gives each host of the cluster an address of its own: as root in a
// network namespace on a bridge, otherwise on the loopback interface.
type network interface {
	// server is the address of Consul and the Nomad server.
	server() string
	// host makes the n-th host, from 0.
	host(n int) (host, error)
}

// host is a place for a Nomad client.
type host struct {
	address string
	// iface is the interface that Nomad takes the address from.
	iface string
	// namespace is the name of its network namespace; empty: the machine's own.
	namespace string
}

// loopback hosts live on 127.a.b.n.
type loopback struct{ prefix string }

func newLoopback(port int) (*loopback, error) {
	for range 50 {
		n := &loopback{prefix: fmt.Sprintf("127.%d.%d.", 10+rand.IntN(200), rand.IntN(250))}
		l, err := net.Listen("tcp", net.JoinHostPort(n.server(), fmt.Sprint(port)))
		if err == nil {
			l.Close()
			return n, nil
		}
	}
	return nil, errors.New("no free address below 127.0.0.0/8")
}

func (n *loopback) server() string { return n.prefix + "1" }

func (n *loopback) host(i int) (host, error) {
	return host{address: fmt.Sprintf("%s%d", n.prefix, 10+i), iface: "lo"}, nil
}

// bridged hosts live in namespaces of their own on a bridge.
type bridged struct {
	dir    string // notes what was made, for the clean-up
	id     string
	prefix string
	bridge netlink.Link
}

func newBridged(dir, id string) (*bridged, error) {
	n := &bridged{dir: dir, id: id}
	for _, d := range []string{"netns", "links"} {
		if err := os.MkdirAll(filepath.Join(dir, d), 0o700); err != nil {
			return nil, err
		}
	}
	var err error
	if n.prefix, err = freePrefix(); err != nil {
		return nil, err
	}
	name := "ng" + id + "b"
	if err := os.WriteFile(filepath.Join(dir, "links", name), nil, 0o600); err != nil {
		return nil, err
	}
	if err := netlink.LinkAdd(&netlink.Bridge{LinkAttrs: netlink.LinkAttrs{Name: name}}); err != nil {
		return nil, fmt.Errorf("add the bridge %s: %w", name, err)
	}
	if n.bridge, err = netlink.LinkByName(name); err != nil {
		return nil, err
	}
	return n, configure(n.bridge, n.prefix+"1/24")
}

// freePrefix is a /24 that overlaps with no address and no route of the machine.
func freePrefix() (string, error) {
	routes, err := netlink.RouteList(nil, netlink.FAMILY_V4)
	if err != nil {
		return "", fmt.Errorf("list the routes: %w", err)
	}
next:
	for range 200 {
		prefix := fmt.Sprintf("10.%d.%d.", 64+rand.IntN(180), rand.IntN(250))
		_, block, _ := net.ParseCIDR(prefix + "0/24")
		for _, r := range routes {
			if r.Dst != nil && !r.Dst.IP.IsUnspecified() && (r.Dst.Contains(block.IP) || block.Contains(r.Dst.IP)) {
				continue next
			}
		}
		return prefix, nil
	}
	return "", errors.New("no free network below 10.0.0.0/8")
}

func configure(l netlink.Link, cidr string) error {
	address, err := netlink.ParseAddr(cidr)
	if err != nil {
		return err
	}
	if err := netlink.AddrAdd(l, address); err != nil {
		return fmt.Errorf("give %s the address %s: %w", l.Attrs().Name, cidr, err)
	}
	return netlink.LinkSetUp(l)
}

func (n *bridged) server() string { return n.prefix + "1" }

func (n *bridged) host(i int) (host, error) {
	h := host{address: fmt.Sprintf("%s%d", n.prefix, 10+i), iface: "eth0", namespace: fmt.Sprintf("ng%sc%d", n.id, i)}
	if err := os.WriteFile(filepath.Join(n.dir, "netns", h.namespace), nil, 0o600); err != nil {
		return h, err
	}
	// A namespace belongs to a thread: this one must not run anything else meanwhile.
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	own, err := netns.Get()
	if err != nil {
		return h, err
	}
	defer own.Close()
	space, err := netns.NewNamed(h.namespace) // enters it
	if err != nil {
		return h, fmt.Errorf("add the namespace %s: %w", h.namespace, err)
	}
	defer space.Close()
	if err := netns.Set(own); err != nil {
		// The thread is lost in the wrong namespace: nothing may run on it any more.
		runtime.LockOSThread()
		return h, err
	}
	outside := fmt.Sprintf("ng%sv%d", n.id, i)
	// Noted beside the namespace, whose end takes it along only some time later.
	if err := os.WriteFile(filepath.Join(n.dir, "links", outside), nil, 0o600); err != nil {
		return h, err
	}
	veth := &netlink.Veth{LinkAttrs: netlink.LinkAttrs{Name: outside, MasterIndex: n.bridge.Attrs().Index}, PeerName: "eth0", PeerNamespace: netlink.NsFd(space)}
	if err := netlink.LinkAdd(veth); err != nil {
		return h, fmt.Errorf("connect %s to the bridge: %w", h.namespace, err)
	}
	if err := netlink.LinkSetUp(veth); err != nil {
		return h, err
	}
	handle, err := netlink.NewHandleAt(space)
	if err != nil {
		return h, err
	}
	defer handle.Close()
	for name, cidr := range map[string]string{"lo": "", "eth0": h.address + "/24"} {
		l, err := handle.LinkByName(name)
		if err != nil {
			return h, err
		}
		if cidr != "" {
			address, err := netlink.ParseAddr(cidr)
			if err != nil {
				return h, err
			}
			if err := handle.AddrAdd(l, address); err != nil {
				return h, err
			}
		}
		if err := handle.LinkSetUp(l); err != nil {
			return h, err
		}
	}
	return h, nil
}

// setLink cuts a host off from the bridge, or connects it again.
func (n *bridged) setLink(h host, up bool) error {
	var i int
	fmt.Sscanf(h.namespace, "ng"+n.id+"c%d", &i)
	l, err := netlink.LinkByName(fmt.Sprintf("ng%sv%d", n.id, i))
	if err != nil {
		return err
	}
	if up {
		return netlink.LinkSetUp(l)
	}
	return netlink.LinkSetDown(l)
}
